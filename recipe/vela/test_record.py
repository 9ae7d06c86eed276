"""The recorder without an engine: `python3 -B -m unittest discover -s recipe/vela`. Needs nothing but Python.

Heads are stand-ins that give what they are told; the package is a fixture member, copied where it is to be spoiled.
"""
import contextlib
import hashlib
import io
import json
import os
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

import case_file  # noqa: E402
import package as packages  # noqa: E402
import record  # noqa: E402

ROOT = HERE.parents[1]
MEMBER = ROOT / "tests/fixtures/members/tiny-router"

ENGINE = '''
import os
from pathlib import Path

os.environ["ENGINE_WAS_LOADED"] = "1"

class Head:
    def __init__(self):
        self.hooks = []
    def register_forward_hook(self, hook, with_kwargs):
        self.hooks.append(hook)
    def __call__(self, left, right, output):
        for hook in self.hooks:
            hook(self, (left, right), {}, output)

class Engine:
    set_bias = 0.5
    def __init__(self, package):
        self.package = Path(package)
        self.heads = {"candidate": Head(), "router": Head()}
    def answer(self, text):
        BEFORE
        block = dict(replaced_by_windows=False, ids=[7, 8], starts=[0], ends=[1], words=[])
        tree = dict(row=0, window=None, prefix=[1], blocks=[
            {**block, "question": "s", "kind": "set", "head": None},
            {**block, "question": "p", "kind": "span", "head": "router", "words": [[0, 1]]}])
        self.heads["candidate"]([[0.5, 0.25]], [0.125, 1.0], [0.1])
        self.heads["router"]([[1.0, 2.0]], [[3.0, 4.0]], [[-2.5]])
        return {"trees": [tree], "response": {"model": "fixtures/tiny-router", "answers": {"s": 0.1}}}

def load(package):
    return Engine(package)
'''
REQUESTS = [{"case": "one", "about": "a test", "request": {"state": "Hi.", "questions": {"p": {}, "s": {}}}}]


def anchor(package):
    return "sha256:" + hashlib.sha256((package / packages.MANIFEST).read_bytes()).hexdigest()


class Folders(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)

    def copy(self):
        return Path(shutil.copytree(MEMBER, self.folder / "member"))


class Verification(Folders):
    def refused(self, part, package, given):
        with self.assertRaisesRegex(packages.PackageError, part):
            packages.verify(package, given)

    def test_an_anchored_package_is_accepted_and_no_other(self):
        package = self.copy()
        name, digest = packages.verify(package, anchor(package))
        self.assertEqual((name, f"sha256:{digest}"), ("fixtures/tiny-router", anchor(package)))
        self.refused("expected the pinned manifest of fixtures/tiny-router, or an anchor", package, None)
        self.refused("MODEL_MANIFEST.json: expected sha256:00, found", package, "sha256:00")

    def test_a_released_name_needs_its_own_manifest(self):
        package = self.copy()
        config = json.loads((package / "config.json").read_text())
        config["model_name"] = "vllm-sr/Vela-2.0-4B"
        self.write(package, "config.json", json.dumps(config))
        self.refused("expected the pinned manifest of vllm-sr/Vela-2.0-4B", package, anchor(package))

    def write(self, package, name, text, listed_as=None):
        """Changes a file together with its digest in the manifest."""
        (package / name).write_text(text)
        manifest = json.loads((package / packages.MANIFEST).read_text())
        manifest["files_sha256"][name if listed_as is None else listed_as] = packages.sha256(package / name)
        (package / packages.MANIFEST).write_text(json.dumps(manifest))

    def test_every_changed_file_is_refused(self):
        manifest = json.loads((MEMBER / packages.MANIFEST).read_text())
        for name in manifest["files_sha256"]:
            with self.subTest(name):
                package = self.copy()
                with open(package / name, "ab") as file:
                    file.write(b" ")
                self.refused(f"^{name}: expected SHA-256 [0-9a-f]+, found", package, anchor(package))
                shutil.rmtree(package)

    def test_names_stay_inside_the_package(self):
        for name in ["../outside", "/etc/passwd", "a//b", "a/../b", ".", "a\\b", ""]:
            with self.subTest(name):
                package = self.copy()
                self.write(package, "README", "x", listed_as=name)
                self.refused("expected relative paths inside the package", package, anchor(package))
                shutil.rmtree(package)

    def test_a_link_out_of_the_package_is_refused_and_one_of_a_hub_cache_is_not(self):
        cache = self.folder / "cache"
        (cache / "blobs").mkdir(parents=True)
        package = Path(shutil.copytree(MEMBER, cache / "snapshots" / "revision"))
        tokenizer = package / "tokenizer.json"
        tokenizer.rename(cache / "blobs" / "tokenizer")
        tokenizer.symlink_to("../../blobs/tokenizer")
        packages.verify(package, anchor(package))
        (cache / "blobs" / "tokenizer").rename(self.folder / "tokenizer")
        tokenizer.unlink()
        tokenizer.symlink_to(self.folder / "tokenizer")
        self.refused("^tokenizer.json: expected a regular file inside the package", package, anchor(package))

    def test_what_is_loaded_must_be_listed(self):
        package = self.copy()
        manifest = json.loads((package / packages.MANIFEST).read_text())
        shard = next(name for name in manifest["files_sha256"] if name.startswith("model-0"))
        del manifest["files_sha256"][shard]
        (package / packages.MANIFEST).write_text(json.dumps(manifest))
        self.refused(f"expected a digest for {shard}", package, anchor(package))

    def test_the_pins_are_those_of_the_runtime(self):
        text = "".join(path.read_text() for path in (ROOT / "runtime/src/member").glob("*.rs"))
        for name, digest in packages.PINS.items():
            self.assertIn(f'"{name}"', text)
            self.assertIn(f'("MODEL_MANIFEST.json", "{digest}")', text)


class Fingerprint(Folders):
    def test_every_change_of_the_folder_shows(self):
        package = self.copy()
        (package / "sub").mkdir()
        changes = [
            lambda: (package / "config.json").write_text((package / "config.json").read_text()),
            lambda: (package / "sub" / "new.pyc").write_bytes(b""),
            lambda: (package / "sub" / "new.pyc").unlink(),
            lambda: (package / "sub" / "__pycache__").mkdir(),
            lambda: (package / "link").symlink_to("config.json"),
            lambda: os.utime(package / "calibration.json", (0, 0)),
            lambda: os.chmod(package / "tokenizer.json", 0o600),
            lambda: (package / "config.json").rename(package / "config.json2"),
        ]
        before = packages.fingerprint(package)
        for change in changes:
            self.assertEqual(packages.fingerprint(package), before, "reading changes nothing")
            change()
            after = packages.fingerprint(package)
            self.assertNotEqual(after, before)
            before = after


class Recording(Folders):
    def run_recorder(self, package, before="pass", further=(), requests=REQUESTS):
        (self.folder / "engine.py").write_text(ENGINE.replace("BEFORE", before))
        (self.folder / "requests.json").write_text(json.dumps(requests))
        arguments = ["--package", package, "--requests", self.folder / "requests.json", "--out", self.folder / "out",
                     "--engine", self.folder / "engine.py", "--anchor", anchor(package), *further]
        return subprocess.run([sys.executable, HERE / "record.py", *map(str, arguments)], capture_output=True, text=True)

    def test_one_execution_becomes_a_case(self):
        package = self.copy()
        (package / "bundled.py").write_text("raise SystemExit('ran')")
        finished = self.run_recorder(package)
        self.assertEqual(finished.returncode, 0, finished.stderr)
        self.assertEqual(os.listdir(self.folder / "out"), ["one.json"])
        case = json.loads((self.folder / "out" / "one.json").read_text())
        self.assertEqual(list(case), ["case", "member", "about", "recorded_with", "request", "request_text", "trees",
                                      "logits", "head_inputs", "response", "response_text"])
        self.assertEqual(case["logits"], {"p": [{"row": 0, "window": None, "values": [[-2.5]]}],
                                          "s": [{"row": 0, "window": None, "values": [0.6]}]})
        self.assertEqual(list(case["logits"]), ["p", "s"], "in the order of the questions")
        self.assertEqual(case["head_inputs"]["s"], [
            {"row": 0, "window": None, "options": [[0.5, 0.25]], "query": [0.125, 1.0]}])
        self.assertEqual(case["head_inputs"]["p"], [
            {"row": 0, "window": None, "words": [[1.0, 2.0]], "labels": [[3.0, 4.0]]}])
        self.assertEqual(json.loads(case["response_text"]), case["response"])
        again = self.run_recorder(package)
        self.assertIn("record into a new folder", again.stderr)

    def refused(self, package, before, part):
        finished = self.run_recorder(package, before)
        self.assertEqual(finished.returncode, 1, finished.stdout)
        self.assertIn(part, finished.stderr)
        names = os.listdir(self.folder / "out")
        self.assertTrue(all(name.endswith(".part") for name in names), names)

    def test_the_package_is_only_read_and_nothing_of_it_is_run(self):
        package = self.copy()
        (package / "bundled.py").write_text("ran = True")
        written = package / "written"
        for before in [
            "(self.package / 'written').write_text('x')",
            "open(self.package / 'config.json', 'ab')",
            "(self.package / 'written').mkdir()",
            "(self.package / 'config.json').rename(self.package / 'other')",
            "import os; os.remove(self.package / 'config.json')",
            "import os; os.chdir(self.package); open('written', 'w')",
        ]:
            with self.subTest(before):
                self.refused(package, before, "refused inside the package")
                self.assertFalse(written.exists())
        for before in [
            "import sys; sys.path.insert(0, str(self.package)); import bundled",
            "import runpy; runpy.run_path(str(self.package / 'bundled.py'))",
        ]:
            with self.subTest(before):
                self.refused(package, before, "refused inside the package")

    def test_a_change_below_python_leaves_no_case(self):
        package = self.copy()
        self.refused(package, "import subprocess; subprocess.run(['touch', self.package / 'new'], check=True)",
                     "the package changed while it was read")

    def test_an_altered_package_is_refused_before_the_engine_is_loaded(self):
        package = self.copy()
        with open(package / "calibration.json", "a") as file:
            file.write(" ")
        finished = self.run_recorder(package, "raise RuntimeError")
        self.assertEqual(finished.returncode, 1)
        self.assertTrue(finished.stderr.startswith("calibration.json: expected SHA-256"), finished.stderr)
        self.assertEqual(len(finished.stderr.splitlines()), 1)
        self.assertFalse((self.folder / "out").exists())

    def test_cases_have_names_of_their_own(self):
        package = self.copy()
        for requests in [[], REQUESTS * 2, [{**REQUESTS[0], "case": "../one"}]]:
            self.assertIn("expected cases with names", self.run_recorder(package, requests=requests).stderr)

    def test_nothing_is_written_into_the_package_by_order(self):
        package = self.copy()
        finished = self.run_recorder(package, further=["--out", package / "cases"])
        self.assertIn("expected a folder outside the package", finished.stderr)


class Attribution(unittest.TestCase):
    TREES = [
        {"row": 0, "window": None, "blocks": [
            {"question": "c", "kind": "choice", "head": None, "replaced_by_windows": False, "ends": [1, 2], "words": []},
            {"question": "s", "kind": "span", "head": "broad", "replaced_by_windows": True, "ends": [1], "words": [[0, 1]]}]},
        {"row": 0, "window": [0, 3], "blocks": [
            {"question": "s", "kind": "span", "head": "broad", "replaced_by_windows": False, "ends": [1], "words": [[0, 1]]}]},
        {"row": 0, "window": [3, 5], "blocks": [
            {"question": "s", "kind": "span", "head": "broad", "replaced_by_windows": False, "ends": [1], "words": []}]},
    ]
    CHOICE = {"head": "candidate", "left": [[1.0], [2.0]], "right": [[3.0]], "logits": [0.5, 0.25]}
    SPAN = {"head": "broad", "left": [[1.0]], "right": [[3.0]], "logits": [[0.5]]}

    def test_every_call_is_of_one_block_and_every_block_has_one(self):
        logits, inputs = case_file.attribute(self.TREES, [self.CHOICE, self.SPAN], 0.5)
        self.assertEqual(logits["c"], [{"row": 0, "window": None, "values": [0.5, 0.25]}], "only a set has the bias")
        self.assertEqual([read["values"] for read in logits["s"]], [[[0.5]], []])
        self.assertEqual(inputs["s"][1], {"row": 0, "window": [3, 5], "words": [], "labels": []})
        spoiled = [
            ([self.CHOICE], "expected a call of its head, found none"),
            ([self.CHOICE, self.SPAN, self.SPAN], "found 1 more"),
            ([self.SPAN, self.CHOICE], "expected a call of the candidate head, found one of broad"),
            ([{**self.CHOICE, "left": [[1.0]]}, self.SPAN], "expected sizes"),
            ([{**self.CHOICE, "logits": [0.5]}, self.SPAN], "expected sizes"),
            ([{**self.CHOICE, "right": [[3.0], [4.0]]}, self.SPAN], "expected sizes"),
            ([self.CHOICE, {**self.SPAN, "logits": [[0.5, 0.5]]}], "expected 1 logits for each word"),
            ([{**self.CHOICE, "logits": [0.5, float("nan")]}, self.SPAN], "expected a finite float32"),
        ]
        for calls, part in spoiled:
            with self.subTest(part), self.assertRaisesRegex(case_file.RecordingError, part):
                case_file.attribute(self.TREES, calls, 0.5)

    def test_a_refusal_has_no_calls_and_one_body(self):
        case = {"case": "x", "request_text": "{}"}
        error = {"status": 422, "detail": []}
        made = case_file.assemble(case, {"error": error, "parts": []}, [], 0.0, {"member": "m"})
        self.assertEqual((made["error"], made["parts"]), (error, []))
        for answer, calls in [({"error": error}, [self.SPAN]), ({"error": {"status": 422}}, []),
                              ({"error": {**error, "error": {}}}, [])]:
            with self.assertRaises(case_file.RecordingError):
                case_file.assemble(case, answer, calls, 0.0, {"member": "m"})


class Numbers(unittest.TestCase):
    def test_float32_values_have_their_shortest_decimals(self):
        third, large = 0.3333333432674408, 16777216.0
        self.assertEqual(case_file.shortest([third, -0.10000000149011612, large, 0.0]), [0.33333334, -0.1, large, 0.0])
        self.assertEqual(case_file.shortest(1.401298464324817e-45), 1.4013e-45)
        self.assertEqual(case_file.add_float32(16777216.0, 0.5), 16777216.0)
        for bad in [float("inf"), float("nan")]:
            with self.assertRaises(case_file.RecordingError):
                case_file.shortest(bad)

    def test_what_is_written_reads_back(self):
        value = {"a": [[1.0] * 50, [2]], "é\"": {"b": None, "c": []}, "d": []}
        text = case_file.pretty(value)
        self.assertEqual(json.loads(text), value)
        self.assertGreater(len(text.splitlines()), 5)
        with contextlib.redirect_stdout(io.StringIO()), self.assertRaises(ValueError):
            case_file.pretty([float("nan")])

    def test_a_query_of_one_dimension_is_one_row(self):
        call, = record.plain_call("candidate", ([[1.0], [2.0]],), {"query": [3.0]}, [0.5, 0.5])
        self.assertEqual(call, {"left": [[1.0], [2.0]], "right": [[3.0]], "logits": [0.5, 0.5]})


if __name__ == "__main__":
    unittest.main()
