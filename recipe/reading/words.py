"""Records how the reference cuts generated texts into words and units, for `tests/fixtures/words.json`.

    PYTHONPATH=ORACLE python3.11 recipe/reading/words.py [--count 400] [--seed 5] > tests/fixtures/words.json

ORACLE is the folder of the reference's package `oracle`. A case is a text, its words' and its units' [start, end).
"""
import argparse
import json
import random
import unicodedata

from oracle.words import split_units, split_words

PIECES = [
    "http://", "https://", "HTTPS://", "http\u017f://", "www.", "WwW.", "http:/", "ww.", "example.com", "a.b/c?d=e#f",
    "tom@example.com", "tom.b+c%d@mail-1.example.co.uk", "a@b.c", "a@b.cd.e", "a.@.b", "x@.com", "@handle_9", "@",
    "@@", "a.a.a.a", "..", "...", "-", "--", "well-known", "snake_case", "_", "__", "-_", "a-b_c", "state-of-the-art",
    "K\u212a", "\u017f\u0130\u0131", "z@\u017f\u0130\u0131.\u212ak", "caf\u00e9", "cafe\u0301",
    "\u092e\u093f\u0932\u0928",
    "\u0e44\u0e17\u0e22\u0e35\u0e48", "\u0627\u0644\u0639\u0631\u0628\u064a\u0629", "\u05e9\u05dc\u05d5\u05dd",
    "\u6f22\u5b57", "\u3042\u30a2", "\ud55c\uad6d", "\u3000", "\u3002", "\uff21\uff22", "\ufe30", "\u8c48", "\uf8ff",
    "\ufaff", "\ufb00", "\ua4cf", "\ua4d0", "\u025c", "\u0282", "\u029d", "\u13a0", "\u13f0", "\uab70", "\u1c88",
    "\u1d79",
    "\u0250", "\U0001f642", "\U0001f468\u200d\U0001f469", "\U00020000", "\U0001d7d8", "\u00bd", "\u0663", "\u2167",
    "\u200b", "\ufeff", "\u00ad", " ", "  ", "\n", "\t", "\u001c", "\u001f", "\u0085", "\u00a0", "\u2003", "\u2028",
    ".", ",", ";", ":", "!", "?", ")", "]", "}", ">", "(", "[", "{", "<", '"', "'", "\u201c", "\u201d", "\u2019",
    "\u00bb", "\u300c", "\u300d", "\u300e", "\u300f", "/", "\\", "%", "+", "=", "&", "#", "1", "42", "3.14", "Z", "e",
]


def character(rng):
    """Any character, mostly of the first planes."""
    while True:
        c = chr(rng.randrange(rng.choice([0x80, 0x500, 0x3000, 0x10000, 0x110000])))
        if not "\ud800" <= c <= "\udfff":
            return c


def generate(rng):
    return "".join(rng.choice(PIECES) if rng.random() < 0.9 else character(rng) for _ in range(rng.randrange(1, 24)))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--count", type=int, default=400)
    parser.add_argument("--seed", type=int, default=5)
    args = parser.parse_args()
    rng = random.Random(args.seed)
    texts = [generate(rng) for _ in range(args.count)]
    cases = ",\n  ".join(json.dumps([t, split_words(t), split_units(t)], separators=(",", ":")) for t in texts)
    print(f'{{"seed": {args.seed}, "unicode": "{unicodedata.unidata_version}",\n "cases": [\n  {cases}\n ]}}')


if __name__ == "__main__":
    main()
