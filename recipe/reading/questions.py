"""Records how the reference reads generated states and questions, for `tests/fixtures/questions.json`.

    PYTHONPATH=ORACLE python3.11 recipe/reading/questions.py [--count 100] [--seed 9] > tests/fixtures/questions.json

ORACLE is the folder of the reference's package `oracle`. A case names a member of `tests/fixtures/members`, whose
calibration it is read with, and holds a request as text; its outcome is the state's problem, or the parts and, per
question in order, what was understood or the problem.
"""
import argparse
import json
import random
from pathlib import Path

from oracle.canon import loads
from oracle.questions import PRESETS, read_questions
from oracle.state import StateError, read_state

MEMBERS = Path(__file__).resolve().parents[2] / "tests/fixtures/members"
NAMES = ["a", "b", "é🙂", " ", "", "person", "email", "unsupported", "Hallucinated Span", "not_supported",
         "FABRICATED", "toxic", "insult", "true", "false", "\u2003", "it's", "\u212a"]
KEYS = ["request", "Prompt", "user", "source", "context", "tools", "Answer", "response", "mood", "", "it's",
        "\u0007\u200b"]
JUNK = ["null", "true", "0", "1", "-0", "2", "-1", "1.5", "0.25", "1e0", "-0.0", "1" * 400, '""', '" "', '"a"', "[]",
        "{}", '["a"]', '{"b": 1E2, "a": [null, "é"]}', '"\\u001c"', '"router"', '"broad"', '"pii"', '"span"']


class Writer:
    """Writes JSON text piece by piece, so that number forms and repeated keys are as varied as a client's."""

    def __init__(self, rng):
        self.rng, self.keys = rng, ["request"]

    def some(self, *choices):
        return self.rng.choice(choices)

    def often(self, usual, unusual, share=0.93):
        return usual if self.rng.random() < share else unusual

    def junk(self):
        return self.rng.choice(JUNK)

    def object(self, pairs):
        return "{" + ", ".join(f"{json.dumps(key)}: {value}" for key, value in pairs) + "}"

    def names(self, count):
        names = [self.often(self.rng.choice(NAMES[:3] + NAMES[5:]), self.rng.choice(NAMES)) for _ in range(count)]
        return names if self.rng.random() < 0.05 else list(dict.fromkeys(names))

    def description(self):
        return self.often(self.some("null", '"text"', '{"z": 1, "a": 2.50}', '["x"]'), self.junk())

    def state(self):
        if self.rng.random() < 0.1:
            inside = '" {\\"answer\\": \\"A\\", \\"x\\": 1e-5}"'
            return self.often(self.some('"plain é"', '["x", 1e-7]', inside), self.junk(), 0.7)
        self.keys = self.rng.sample(KEYS, self.rng.randrange(1, 6))
        texts = ('"T\\u0301 é"', "[1.0, 2]", "7", '{"k": []}')
        return self.object((key, self.often(self.some(*texts), '" "', 0.98)) for key in self.keys)

    def named(self, alternative, low):
        names = self.names(self.often(self.rng.randrange(low, 5), self.rng.choice([0, 1, 256]), 0.95))
        if self.rng.random() < 0.5:
            return "criteria", self.often(self.object((name, self.description()) for name in names), self.junk())
        entries = []
        for name in names:
            pairs = [("key", self.often(json.dumps(name), self.junk(), 0.98))]
            if self.rng.random() < 0.5:
                pairs.append(("description", self.description()))
            if self.rng.random() < 0.03:
                pairs.append(("label", "1"))
            entries.append(self.often(self.object(pairs), self.junk(), 0.98))
        return alternative, self.often("[" + ", ".join(entries) + "]", self.junk())

    def options(self, kind):
        if kind == "score":
            count = self.rng.randrange(1, 12)
            levels = [self.often(self.some('"low"', '"high"', '{"b": 1.0}'), self.junk(), 0.98) for _ in range(count)]
            return self.some("criteria", "levels"), self.often("[" + ", ".join(levels) + "]", self.junk())
        if kind == "noul":
            names = self.rng.sample(["true", "false"], self.rng.randrange(3))
            given = self.object((name, self.description()) for name in names)
            return self.often("criteria", "choices", 0.8), self.often(given, self.junk())
        return self.named("choices" if kind == "choice" else "labels", 2 if kind == "choice" else 1)

    def over(self):
        names = [json.dumps(self.often(self.rng.choice(self.keys), self.rng.choice(KEYS), 0.8)) for _ in range(4)]
        some = "[" + ", ".join(names[:self.rng.randrange(4)]) + "]"
        return self.often(self.some(names[0], some), self.junk())

    def question(self):
        threshold = ("threshold", self.often(self.some("0", "1", "0.5", "1e-3", "null"), self.junk(), 0.9))
        if self.rng.random() < 0.15:
            pairs = [("preset", self.often(json.dumps(self.rng.choice(list(PRESETS))), self.junk()))]
            extras = [("type", self.some('"span"', '"score"', "null")), ("over", self.over()), threshold,
                      (self.rng.choice(["head", "criteria", "x"]), "null")]
            return self.object(pairs + [extra for extra in extras if self.rng.random() < 0.2])
        kind = self.some("choice", "noul", "score", "set", "span", "span", "span")
        pairs = [("type", self.often(json.dumps(kind), self.junk(), 0.98)),
                 ("instructions", self.often('"What?"', self.junk(), 0.95))]
        if kind != "noul" or self.rng.random() < 0.5:
            pairs.append(self.options(kind))
        if self.rng.random() < 0.4:
            pairs.append(("over", self.over()))
        if kind in ("set", "span") and self.rng.random() < 0.3:
            pairs.append(threshold)
        if kind == "span" and self.rng.random() < 0.3:
            pairs.append(("head", self.often(self.some('"router"', '"broad"', "null"), self.junk())))
        if self.rng.random() < 0.08:
            field = self.some("criteria", "choices", "levels", "labels", "head", "threshold", "preset", "x")
            pairs.append((field, self.junk()))
        if self.rng.random() < 0.05:
            pairs.pop(self.rng.randrange(len(pairs)))
        self.rng.shuffle(pairs)
        return self.often(self.object(pairs), self.junk(), 0.98)

    def request(self):
        ids = self.rng.sample(["q", "q.a", "q.person", "halu", "toxic", "pii", "claims", "", "é", "r", "s", "t"], 7)
        state = self.state()  # first: questions read its keys
        return self.object([("state", state), ("questions", self.object((qid, self.question()) for qid in ids))])


def understood(q):
    field = [q.over_field.name, q.over_field.start, q.over_field.end] if q.over_field else None
    return {"id": q.id, "kind": q.kind, "engine": q.engine, "text": q.text, "key": q.key, "roles": q.roles,
            "field": field, "shown": q.options, "names": q.names, "abstain": q.abstain, "head": q.head,
            "legend": q.legend or [], "threshold": q.threshold if q.kind != "score" else None}


def outcome(request, calibration, has_broad):
    try:
        state = read_state(request["state"])
    except StateError as problem:
        return {"state": {"code": problem.code, "msg": problem.message}}
    questions, problems = read_questions(request["questions"], state, calibration, has_broad)
    found = {q.id: understood(q) for q in questions}
    found |= {qid: {"loc": p.loc, "code": p.code, "msg": p.message} for qid, p in problems}
    parts = [[part.role, part.text, [[f.name, f.start, f.end] for f in part.fields]] for part in state.parts]
    return {"parts": parts, "questions": [found[qid] for qid in request["questions"]]}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--seed", type=int, default=9)
    args = parser.parse_args()
    rng, cases = random.Random(args.seed), []
    for _ in range(args.count):
        member = rng.choice(["tiny-08b", "tiny-router", "tiny-short"])
        calibration = json.loads((MEMBERS / member / "calibration.json").read_text())
        has_broad = (MEMBERS / member / "broad_head.safetensors").exists()
        text = Writer(rng).request()
        cases.append({"member": member, "request": text, **outcome(loads(text), calibration, has_broad)})
    lines = ",\n  ".join(json.dumps(case, ensure_ascii=False, separators=(",", ":")) for case in cases)
    print(f'{{"seed": {args.seed},\n "cases": [\n  {lines}\n ]}}')


if __name__ == "__main__":
    main()
