"""The few lines of C++ that switch callgrind's counting on around one Python call: built and cached as ext/build.py
does it, but with a compiler alone, and found without importing torch."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shutil
from pathlib import Path

from ext import build

SOURCE = Path(__file__).with_name("callgrind.cpp")
HEADERS = Path("utils/benchmark/utils/valgrind_wrapper")  # in torch: valgrind.h, callgrind.h


def library() -> Path:
    """The compiled helper, built first if need be (under a second). Raises BuildError."""
    compiler, headers = os.environ.get("CXX", "c++"), _headers()
    if not shutil.which(compiler):
        raise build.BuildError("no C++ compiler")
    digest = hashlib.sha256(f"{compiler} {headers}".encode() + SOURCE.read_bytes()).hexdigest()[:16]
    folder = build.cache() / f"callgrind-{digest}"
    file = folder / "callgrind.so"
    with build.locked(folder, lambda line: None):
        if not file.is_file():
            part = build.workshop(folder)
            command = [compiler, "-shared", "-fPIC", "-O2", f"-I{headers}", str(SOURCE), "-o", str(part / file.name)]
            build.run_logged(command, part / "build.log", dict(os.environ), lambda line: None)
            part.rename(folder)
    return file


def _headers() -> Path:
    torch = importlib.util.find_spec("torch")
    folder = Path(torch.origin).parent / HEADERS if torch and torch.origin else None
    if folder is None or not (folder / "callgrind.h").is_file():
        raise build.BuildError("this torch has no callgrind.h")
    return folder
