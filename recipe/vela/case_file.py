"""A recorded case: from what the heads of an engine were called with to the file that `synod replay` reads.

The format is described in README.md. Only the standard library is used: tensors arrive as lists.
"""
import json
import math
import struct


class RecordingError(Exception):
    """What was seen of an execution does not make a case. One line."""


def shortest(value):
    """A float32 as the float that takes the fewest digits, six or more, to read back to it; lists item by item."""
    if isinstance(value, (list, tuple)):
        return [shortest(item) for item in value]
    if not math.isfinite(value):
        raise RecordingError(f"expected a finite float32, found {value!r}")
    single = struct.pack("<f", value)
    (value,) = struct.unpack("<f", single)
    found = (float(f"{value:.{digits}g}") for digits in range(6, 10))
    return next(number for number in found if struct.pack("<f", number) == single)  # Nine digits always do.


def add_float32(a, b):
    """The float32 sum of two float32 numbers."""
    return struct.unpack("<f", struct.pack("<f", a + b))[0]


def assemble(case, answer, calls, set_bias, recorded_with):
    """The content of a case's file, in order.

    `case` has `case`, `about`, `request_text` and perhaps `relies_on`; `answer` is what the engine returned, and `calls`
    are its head calls during that one execution.
    """
    head = {"case": case["case"], "member": recorded_with["member"], "about": case.get("about", "")}
    if case.get("relies_on"):
        head["relies_on"] = case["relies_on"]
    text = case["request_text"]
    head |= {"recorded_with": recorded_with, "request": json.loads(text), "request_text": text}
    account = {key: answer[key] for key in ("parts", "questions", "trees", "answering", "margin") if key in answer}
    if "error" in answer:
        if calls:
            raise RecordingError(f"expected no head call in a request that is refused, found {len(calls)}")
        _check_error(answer["error"])
        return head | {key: account[key] for key in ("parts", "questions") if key in account} \
            | {"error": answer["error"]}
    logits, inputs = attribute(answer["trees"], calls, set_bias)
    order = [question for question in json.loads(text)["questions"] if question in logits]
    before = {key: account.pop(key) for key in ("parts", "questions", "trees") if key in account}
    return head | before | {
        "logits": {question: logits[question] for question in order},
        "head_inputs": {question: inputs[question] for question in order},
    } | account | {"response": answer["response"], "response_text": wire(answer["response"])}


def _check_error(error):
    if not isinstance(error.get("status"), int) or ("detail" in error) == ("error" in error):
        raise RecordingError("error: expected a status and either a detail or an error")


def wire(value):
    """The exact text of a response."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def attribute(trees, calls, set_bias):
    """Logits and head inputs of every question, each call used exactly once, each block read exactly once."""
    logits, inputs, rest = {}, {}, list(calls)
    for tree in trees:
        for block in tree["blocks"]:
            if block["replaced_by_windows"]:
                continue
            at = f"question {block['question']}, row {tree['row']}, window {tree['window']}"
            is_span = block["kind"] == "span"
            place = {"row": tree["row"], "window": tree["window"]}
            if is_span and not block["words"]:
                values, states = [], {"words": [], "labels": []}
            else:
                if not rest:
                    raise RecordingError(f"{at}: expected a call of its head, found none")
                call = rest.pop(0)
                values, states = _read(call, block, is_span, set_bias, at)
            logits.setdefault(block["question"], []).append({**place, "values": values})
            inputs.setdefault(block["question"], []).append({**place, **states})
    if rest:
        raise RecordingError(f"expected every head call to be of a block that is read, found {len(rest)} more")
    return logits, inputs


def _read(call, block, is_span, set_bias, at):
    expected = block["head"] if is_span else "candidate"
    if call["head"] != expected:
        raise RecordingError(f"{at}: expected a call of the {expected} head, found one of {call['head']}")
    left, right, values = call["left"], call["right"], call["logits"]
    rows, columns = (len(block["words"]), len(block["ends"])) if is_span else (len(block["ends"]), 1)
    sizes = (len(left), len(right), len(values))
    if sizes != (rows, columns, rows):
        raise RecordingError(f"{at}: expected sizes {(rows, columns, rows)}, found {sizes}")
    if is_span:
        if any(len(row) != columns for row in values):
            raise RecordingError(f"{at}: expected {columns} logits for each word, found others")
        return shortest(values), {"words": shortest(left), "labels": shortest(right)}
    if block["kind"] == "set":
        values = [add_float32(value, set_bias) for value in values]
    return shortest(values), {"options": shortest(left), "query": shortest(right)[0]}


def pretty(value, indent=0, width=120):
    """JSON in which a list of plain values, and whatever fits a line, takes one."""
    flat = json.dumps(value, ensure_ascii=False, allow_nan=False)
    is_row = isinstance(value, list) and not any(isinstance(item, (list, dict)) for item in value)
    if is_row or not isinstance(value, (list, dict)) or len(flat) + indent <= width:
        return flat
    inner = " " * (indent + 1)
    if isinstance(value, list):
        lines, (first, last) = [inner + pretty(item, indent + 1, width) for item in value], "[]"
    else:
        named = ((json.dumps(key, ensure_ascii=False), item) for key, item in value.items())
        lines, (first, last) = [f"{inner}{key}: {pretty(item, indent + 1, width)}" for key, item in named], "{}"
    return first + "\n" + ",\n".join(lines) + "\n" + " " * indent + last
