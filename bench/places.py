"""Where in the user's code something was raised: the file and line that an error's message names."""

from __future__ import annotations

import os
import sys
import sysconfig
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

from bench import ours
from bench.units import cut

HERE = Path(__file__).parent
LONG, LINES = 600, 5  # characters of a message that is shown whole; lines shown of a longer one
RENAME = "rename that one, or import it as part of a package with another name"


def place(error: BaseException) -> str:
    """`file:line` of the last frame in a layer's own file or the user's code; empty where there is none."""
    found, traceback = "", error.__traceback__
    while traceback is not None:
        file = traceback.tb_frame.f_code.co_filename
        if _is_users(file):
            found = f"{os.path.relpath(file)}:{traceback.tb_lineno}"
        traceback = traceback.tb_next
    return found


def loading(name: str, error: BaseException) -> str:
    """What loading a layer's file raised, in a line: `loading mine.py:L raised ValueError (at mine.py:3): nope`."""
    where = f" (at {found})" if (found := place(error)) else ""
    why = f"; {found}" if (found := hidden(error)) else ""
    return f"loading {name} raised {type(error).__name__}{where}: {_brief(str(error))}{why}"


def remedy(error: BaseException) -> str:
    """What to do about that."""
    return RENAME if hidden(error) else "put the layer's own file right"


def hidden(error: BaseException) -> str:
    """Why an import failed that was meant for a package of the user's with the name of one of ours; else empty."""
    package = (error.name or "").partition(".")[0] if isinstance(error, ImportError) else ""
    theirs = ours.hidden(package) if package in ours.PLACES else ""
    return f"layerbench's own package {package!r} hides {theirs}" if theirs else ""


def _brief(text: str) -> str:
    """In a line; of what is long, a compiler's output say, the start and the first lines that tell of errors."""
    whole = " ".join(text.split())
    if len(whole) <= LONG:
        return whole
    lines = dict.fromkeys(line.strip() for line in text.splitlines() if line.strip())
    start, *rest = lines
    telling = [line for line in rest if "error" in line.lower()] or rest
    shown = [cut(line, LONG // 3) for line in (start, *telling[:LINES])]
    return "\n  ".join([*shown, f"(of {len(text.splitlines())} lines)"])


def _is_users(file: str) -> bool:
    """Whether code is in a layer's own file, built in or the user's: not Python's, a library's or the harness's."""
    path, layers = Path(file), _folder("layers")
    if path.parent == layers:
        return path.stem in getattr(sys.modules.get("layers"), "BUILTIN", ())
    return not file.startswith("<") and not any(path.is_relative_to(folder) for folder in _others(layers))


def _others(layers: Path | None) -> Iterator[str]:
    """Folders as frames spell them, whose code is no user's."""
    yield from map(str, filter(None, (HERE, layers and layers.parent / "ext", _folder("torch"))))
    yield from (sysconfig.get_path(kind) for kind in ("stdlib", "platstdlib", "purelib", "platlib"))


def _folder(package: str) -> Path | None:
    """Of a package as this process has it, which need not be imported: an arm's layers are not ours."""
    spec = find_spec(package)
    return Path(spec.origin).parent if spec and spec.origin else None
