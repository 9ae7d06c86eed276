"""Compares a member's answer to the golden request with the published one.

    synod ask --decisions --member PACKAGE tests/fixtures/golden-request.json | python3 recipe/vela/golden.py vllm-sr/Vela-2.0-0.8B

Every published number must be there and within 2e-5, every text equal. `--decisions` adds an abstain probability that is
published for `domain` only; what is not published is not compared. Exit code 1 where anything differs.
"""
import json
import sys
from pathlib import Path

GATE = 2e-5
PUBLISHED = Path(__file__).resolve().parents[2] / "tests" / "fixtures" / "golden-answers.json"


def differences(found, expected, at):
    """A line for every published leaf that is missing or differs."""
    if isinstance(expected, dict):
        if not isinstance(found, dict):
            return [f"{at}: expected an object, found {found!r}"]
        return [line for key, value in expected.items() for line in differences(found.get(key), value, f"{at}.{key}")]
    if isinstance(expected, float) and isinstance(found, float):
        return [] if abs(found - expected) <= GATE else [f"{at}: expected {expected}, found {found}"]
    return [] if found == expected else [f"{at}: expected {expected!r}, found {found!r}"]


def main():
    published = json.loads(PUBLISHED.read_text(encoding="utf-8"))
    if len(sys.argv) != 2 or sys.argv[1] not in published:
        raise SystemExit("usage: golden.py " + "|".join(published) + " < RESPONSE.json")
    answers = json.load(sys.stdin).get("answers", {})
    lines = differences(answers, published[sys.argv[1]]["answers"], "answers")
    print("\n".join(lines) or f"equal within {GATE}")
    return 1 if lines else 0


if __name__ == "__main__":
    raise SystemExit(main())
