"""Records cases for `synod replay` through a reference engine. See README.md beside this file.

    record.py --package PACKAGE --requests REQUESTS.json --out DIR --engine ENGINE [--anchor sha256:HEX] [CASE ...]

REQUESTS.json is a list of `{"case": NAME, "about": TEXT, "request": {...}}`, with `request_text` instead of `request`
where the exact text of the body matters. ENGINE is a module's name or a path to a .py file.

The package is verified before the engine is imported, is only read, and is shown to be unchanged before any case gets
its name: until then the files end in `.part`.
"""
import argparse
import importlib
import importlib.util
import json
import os
import platform
import sys
from pathlib import Path

sys.dont_write_bytecode = True
os.environ |= {"PYTHONDONTWRITEBYTECODE": "1", "HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}

import case_file  # noqa: E402: bytecode is turned off first
import package as packages  # noqa: E402

LIBRARIES = ("torch", "transformers", "tokenizers", "safetensors", "numpy")


def import_engine(name):
    if not name.endswith(".py"):
        return importlib.import_module(name)
    spec = importlib.util.spec_from_file_location("engine", name)
    engine = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(engine)
    return engine


def as_list(tensor):
    """A tensor as nested lists of float32 values; a scalar dimension is not added or taken away."""
    if hasattr(tensor, "detach"):
        tensor = tensor.detach().float().cpu()
    return tensor.tolist() if hasattr(tensor, "tolist") else tensor


def plain_call(head, args, kwargs, output):
    """A head called once for a block, as `head(options, query)` or `head(words, labels)`: the interface's default."""
    left, right = (as_list(value) for value in (*args, *kwargs.values()))
    if right and not isinstance(right[0], list):
        right = [right]
    return [{"left": left, "right": right, "logits": as_list(output)}]


class Calls:
    """The head calls of one execution, heard by forward hooks."""

    def __init__(self, engine):
        self.made = []
        self.normalise = getattr(engine, "calls", plain_call)
        self.hooks = [module.register_forward_hook(self._hook(head), with_kwargs=True)
                      for head, module in engine.heads.items()]

    def _hook(self, head):
        def hear(_module, args, kwargs, output):
            self.made += [{"head": head, **call} for call in self.normalise(head, args, kwargs, output)]
        return hear

    def take(self):
        made, self.made = self.made, []
        return made


def record(engine, case, recorded_with, calls):
    """One case, from one execution of its request."""
    if "request_text" not in case:
        case = {**case, "request_text": case_file.wire(case["request"])}
    calls.take()
    answer = engine.answer(case["request_text"])
    return case_file.assemble(case, answer, calls.take(), float(getattr(engine, "set_bias", 0.0)), recorded_with)


def circumstances(member, digest, engine):
    """What a reader of the recording may want to know; nothing of the machine but its kind."""
    versions = {library: sys.modules[library].__version__ for library in LIBRARIES if library in sys.modules}
    threads = sys.modules["torch"].get_num_threads() if "torch" in sys.modules else None
    return {"member": member, "manifest_sha256": digest, "engine": Path(engine).stem, "python": platform.python_version(),
            "machine": platform.machine(), "threads": threads, **versions}


def record_all(arguments):
    package, out = arguments.package, arguments.out
    if out.resolve().is_relative_to(package.resolve()):
        raise packages.PackageError(f"--out {out}: expected a folder outside the package")
    # Taken first: what changes while the files are hashed is then seen at the end.
    before = packages.fingerprint(package)
    member, digest = packages.verify(package, arguments.anchor)
    cases = json.loads(arguments.requests.read_text(encoding="utf-8"))
    cases = [case for case in cases if not arguments.case or case["case"] in arguments.case]
    names = [case["case"] for case in cases]
    if not cases or len(set(names)) < len(names) or any(name != Path(name).name for name in names):
        raise case_file.RecordingError(f"{arguments.requests}: expected cases with names of their own, found {names}")
    finals = [out / f"{name}.json" for name in names]
    taken = next((final for final in finals if final.exists()), None)
    if taken:
        raise case_file.RecordingError(f"{taken}: expected no such file, found one; record into a new folder")
    out.mkdir(parents=True, exist_ok=True)
    with packages.Guard(package):
        engine = import_engine(arguments.engine).load(package)
        recorded_with = circumstances(member, digest, arguments.engine)
        calls = Calls(engine)
        for case, final in zip(cases, finals):
            text = case_file.pretty(record(engine, case, recorded_with, calls))
            final.with_suffix(".json.part").write_text(text + "\n", encoding="utf-8")
            print(final.name)
    packages.check_unused_as_code(package)
    if packages.fingerprint(package) != before:
        raise packages.PackageError(f"{package}: the package changed while it was read; the recording stays *.part")
    for final in finals:
        final.with_suffix(".json.part").rename(final)
    print(f"{len(cases)} cases of {member}; the package is as it was, listing {before[:16]}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--package", type=Path, required=True)
    parser.add_argument("--requests", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--engine", required=True)
    parser.add_argument("--anchor")
    parser.add_argument("case", nargs="*", help="record only these")
    try:
        record_all(parser.parse_args())
    except (packages.PackageError, case_file.RecordingError) as error:
        raise SystemExit(str(error)) from error


if __name__ == "__main__":
    main()
