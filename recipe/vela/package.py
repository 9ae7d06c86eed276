"""A member's package as a recorder must see it: verified first, only read, and never run.

Nothing here imports anything but the standard library, so that a package is verified before anything heavy is loaded.
"""
import hashlib
import json
import os
import re
import stat
import sys
from pathlib import Path

MANIFEST = "MODEL_MANIFEST.json"
INDEX = "model.safetensors.index.json"
# SHA-256 of the released members' manifests, which list the digests of all their files (runtime/src/member/registry.rs).
PINS = {
    "vllm-sr/Vela-2.0-0.8B": "a8fb5b188593463209475a7b51ceb97531b58bb1d7445b8b6a2e1a6333fd1ae2",
    "vllm-sr/Vela-2.0-4B": "3e5a26db6dd50cc3939502ec861cdc0e5f6a5de8947815d598d3aea6f4624a0c",
    "vllm-sr/Vela-2.0-9B": "8ccd2ccb2f91f7b4ee99df2e3bf885cb901f2567cfb0a6b6093778ba14dfc05f",
}
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


class PackageError(Exception):
    """The package is not what it should be, or something tried to change or to run it. One line."""


def sha256(path):
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest() if hasattr(hashlib, "file_digest") else _digest(file)


def _digest(file):
    """`hashlib.file_digest`, which Python 3.10 does not have."""
    digest = hashlib.sha256()
    while chunk := file.read(1 << 20):
        digest.update(chunk)
    return digest.hexdigest()


def verify(package, anchor=None):
    """Holds every file that is loaded to the manifest, and the manifest to a pin or to `anchor` (`sha256:HEX`).

    Returns the member's name and the manifest's digest. Files that the manifest lists and nobody loads are held to it
    where they are there.
    """
    package = Path(package)
    found = sha256(_regular(package, MANIFEST))
    if anchor is not None and anchor != f"sha256:{found}":
        raise PackageError(f"{MANIFEST}: expected {anchor}, found sha256:{found}; fetch the package again")
    listed = _json(package, MANIFEST)["files_sha256"]
    for name in listed:
        if re.search(r"(^|/)\.{0,2}(/|$)|\\|\0", name):
            raise PackageError(f"{MANIFEST}: expected relative paths inside the package, found {name!r}")
    needed = {"config.json", "calibration.json", "tokenizer.json", INDEX}
    _hold(package, needed, listed)
    needed = set(_json(package, INDEX)["weight_map"].values())
    if (package / "broad_head.safetensors").exists():
        needed.add("broad_head.safetensors")
    _hold(package, needed | {name for name in listed if (package / name).exists()}, listed)
    name = _json(package, "config.json")["model_name"]
    if PINS.get(name, found if anchor else None) != found:
        raise PackageError(f"{MANIFEST}: expected the pinned manifest of {name}, or an anchor, found sha256:{found}")
    return name, found


def _hold(package, names, listed):
    for name in sorted(names):
        if name not in listed:
            raise PackageError(f"{MANIFEST}: files_sha256: expected a digest for {name}, found none")
        found = sha256(_regular(package, name))
        if found != listed[name]:
            raise PackageError(f"{name}: expected SHA-256 {listed[name]}, found {found}; fetch the file again")


def _regular(package, name):
    """The file of a name: regular, and inside the package or, for a snapshot of a hub cache, among that cache's blobs."""
    package, path = package.resolve(), (package / name).resolve()
    blobs = package.parent.parent / "blobs"
    homes = [package] + ([blobs] if package.parent.name == "snapshots" else [])
    if not path.is_file() or not any(path.is_relative_to(home) for home in homes):
        raise PackageError(f"{name}: expected a regular file inside the package, found none")
    return path


def _json(package, name):
    return json.loads((package / name).read_text(encoding="utf-8"))


def fingerprint(package):
    """A digest of the whole folder's listing: names, kinds, sizes, and the times of the last change of content and of
    anything else, which no ordinary program can set back. Of a link, also of what it leads to."""
    digest = hashlib.sha256()
    for folder, folders, files in os.walk(package, onerror=_unreadable):
        folders.sort()
        for path in [folder, *(os.path.join(folder, name) for name in sorted(files + folders))]:
            for look in (os.lstat, os.stat):
                if look is os.stat and not os.path.exists(path):
                    continue  # A link that leads nowhere is known by itself.
                entry = look(path)
                facts = [entry.st_mode, entry.st_ino, entry.st_mtime_ns, entry.st_ctime_ns]
                # The size of a folder tells nothing that its times do not.
                facts.append(0 if stat.S_ISDIR(entry.st_mode) else entry.st_size)
                digest.update(json.dumps([os.path.relpath(path, package), facts]).encode())
    return digest.hexdigest()


def _unreadable(error):
    raise PackageError(f"{error.filename}: {error.strerror}; the listing must be readable")


def check_unused_as_code(package):
    """Refuses if any module that is loaded came out of the package."""
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if file and Path(file).resolve().is_relative_to(Path(package).resolve()):
            raise PackageError(f"module {name} was loaded from the package: its code must never run")


class Guard:
    """While it is on, Python refuses to open for writing, change, compile or run anything inside `package`.

    It hears what Python itself does (PEP 578), which is where an import writes bytecode and a loader runs bundled code;
    that nothing below Python wrote either is what `fingerprint` is for.
    """

    def __init__(self, package):
        self.package, self.on = str(Path(package).resolve()), False
        sys.addaudithook(self._hear)

    def __enter__(self):
        sys.dont_write_bytecode = True
        os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
        self.on = True
        return self

    def __exit__(self, *_):
        self.on = False

    def _inside(self, value):
        if isinstance(value, bytes):
            value = os.fsdecode(value)
        if not isinstance(value, str) or not value:
            return False
        return os.path.abspath(value).startswith(self.package + os.sep) or \
            os.path.realpath(value).startswith(self.package + os.sep)

    def _hear(self, event, args):
        if not self.on:
            return
        if event == "open":
            path, _, flags = args
            refused = isinstance(flags, int) and flags & WRITING and self._inside(path)
        elif event in ("compile", "import", "ctypes.dlopen"):
            refused = any(self._inside(arg) for arg in args[:2])
        elif event == "exec":
            refused = self._inside(getattr(args[0], "co_filename", None))
        elif event.startswith(("os.", "shutil.", "pathlib.")) and event not in READING:
            refused = any(self._inside(arg) for arg in args)
        else:
            return
        if refused:
            raise PackageError(f"{event}: refused inside the package: it is only read, and nothing of it is run")


READING = {"os.listdir", "os.scandir", "os.walk", "os.fwalk", "os.getxattr", "os.listxattr", "os.add_dll_directory",
           "os.chdir", "pathlib.Path.glob", "pathlib.Path.rglob"}
