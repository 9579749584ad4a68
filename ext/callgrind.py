"""The few lines of C++ that switch callgrind's counting on around one Python call: built and cached as ext/build.py
does it, but with a compiler alone, and found without importing torch."""

from __future__ import annotations

import hashlib
import importlib.util
import os
from pathlib import Path

from ext import build

SOURCE = Path(__file__).with_name("callgrind.cpp")
HEADERS = Path("utils/benchmark/utils/valgrind_wrapper")  # in torch: valgrind.h, callgrind.h


def library() -> Path:
    """The compiled helper, built first if need be (under a second). Raises BuildError."""
    command = [*build.compiler(), "-shared", "-fPIC", "-O2", f"-I{_headers()}", str(SOURCE)]
    digest = hashlib.sha256(repr(command).encode() + SOURCE.read_bytes()).hexdigest()[:16]
    name = "callgrind.so"

    def make(part: Path, report: build.Progress) -> None:
        build.run_logged([*command, "-o", str(part / name)], part / "build.log", dict(os.environ), report)

    return build.cached(build.cache() / f"callgrind-{digest}" / name, make)


def _headers() -> Path:
    torch = importlib.util.find_spec("torch")
    folder = Path(torch.origin).parent / HEADERS if torch and torch.origin else None
    if folder is None or not (folder / "callgrind.h").is_file():
        raise build.BuildError("this torch has no callgrind.h")
    return folder
