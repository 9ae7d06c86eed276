#!/usr/bin/env python3
"""Synod beside PyTorch + transformers: the same requests, on the same cores, in one run.

The peer is transformers' `Qwen3_5TextModel` of the member's shape, with random weights: what it computes means as little as
what a synthetic member answers, and takes as long as the real one. It is used in three ways:

  packed      every token of a request in one sequence, once: fewer operations than any correct way needs, its best case
  definition  every block as a sequence of its own, behind its prefix, as the definition of the models says
  positions   a sequence of its own for every position that is read, as engines without a readout of several do. Each block is
              timed once, at its full length, and counted as often as it is read: less than it would really take for
              positions that are not the last, by at most half.

Writes a table in Markdown to stdout, or to --out. Needs what requirements.txt lists, and a built `synod-bench`.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time

SHAPE = {
    "hidden_size": 1024,
    "intermediate_size": 3584,
    "num_hidden_layers": 24,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 256,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 16,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_conv_kernel_dim": 4,
    "full_attention_interval": 4,
    "max_position_embeddings": 262144,
    # The embedding costs the same few rows whatever its size.
    "vocab_size": 2000,
}


def measure_synod(bench, profile, runs, layers):
    """What `synod-bench cpu` measures of its requests."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "requests.json")
        command = [bench, "cpu", "--tokens", "256", "--runs", str(runs), "--profile", profile, "--json", path]
        if layers:
            command += ["--layers", str(layers)]
        subprocess.run(command, check=True, stdout=sys.stderr)
        with open(path, encoding="utf-8") as file:
            return json.load(file)


def build(dtype, layers):
    import torch
    from transformers import Qwen3_5TextConfig, Qwen3_5TextModel

    shape = dict(SHAPE, num_hidden_layers=layers or SHAPE["num_hidden_layers"])
    torch.manual_seed(1)
    model = Qwen3_5TextModel(Qwen3_5TextConfig(**shape)).to(dtype)
    return model.eval()


def seconds(model, tokens, cache):
    """How long a sequence of so many tokens takes, each length once."""
    import torch

    if tokens not in cache:
        ids = (torch.arange(tokens) * 7919 % 1999).unsqueeze(0)
        with torch.inference_mode():
            started = time.perf_counter()
            model(input_ids=ids, use_cache=False)
            cache[tokens] = time.perf_counter() - started
    return cache[tokens]


def measure_peer(model, request, runs):
    """Median seconds of the three ways."""
    trees = request["trees"]
    packed = request["computed_tokens"]
    seconds(model, packed, {})
    best = statistics.median(seconds(model, packed, {}) for _ in range(runs))
    cache = {}
    blocks = [(tree["prefix"] + block["tokens"], block["read"]) for tree in trees for block in tree["blocks"]]
    definition = sum(seconds(model, tokens, cache) for tokens, _ in blocks)
    positions = sum(seconds(model, tokens, cache) * read for tokens, read in blocks)
    return best, definition, positions


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bench", default="target/release/synod-bench", help="the built synod-bench")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--layers", type=int, help="of both, instead of all")
    parser.add_argument("--profiles", nargs="+", default=["fp32", "bf16"], choices=["fp32", "bf16"])
    parser.add_argument("--out", help="file of the table")
    arguments = parser.parse_args()

    import torch
    import transformers

    threads = len(os.sched_getaffinity(0))
    torch.set_num_threads(threads)
    dtypes = {"fp32": torch.float32, "bf16": torch.bfloat16}
    lines = []
    for profile in arguments.profiles:
        ours = measure_synod(arguments.bench, profile, arguments.runs, arguments.layers)
        if not lines:
            lines = [
                f"{ours['machine']}, PyTorch {torch.__version__}, transformers {transformers.__version__}, "
                f"Python {platform.python_version()}, {threads} threads. Seconds, medians of {arguments.runs} runs; in "
                "parentheses how many times as long as Synod:",
                "",
                "| profile | request | tokens | Synod | PyTorch, packed | by the definition | by position |",
                "|---|---|---|---|---|---|---|",
            ]
        model = build(dtypes[profile], arguments.layers)
        for request in ours["requests"]:
            own = request["p50_ms"] / 1e3
            peer = measure_peer(model, request, arguments.runs)
            cells = " | ".join(f"{time:.2f} ({time / own:.2f})" for time in peer)
            lines.append(f"| {profile} | {request['request']} | {request['computed_tokens']} | {own:.2f} | {cells} |")
            print(lines[-1], file=sys.stderr)
    table = "\n".join(lines) + "\n"
    if arguments.out:
        with open(arguments.out, "w", encoding="utf-8") as file:
            file.write(table)
    else:
        print(table, end="")


if __name__ == "__main__":
    main()
