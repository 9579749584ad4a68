"""A suite as a test file for pytest-benchmark; what its tests do is bench.pytest_suite's."""

from __future__ import annotations

import os
import re
from pathlib import Path

from bench.formats.files import replace_file
from bench.model import Suite, UserError, layer_path

_TEXT = '''"""Written by `layerbench pytest-benchmark`; needs pytest-benchmark. Run it with `pytest {name}`."""

{imports}from bench.pytest_suite import benchmarks

test_{suite} = benchmarks({source})
'''


def name(suite: Suite) -> str:
    """What pytest collects by itself: test_<suite>.py."""
    return f"test_{_identifier(suite)}.py"


def write(source: str, suite: Suite, file: Path) -> None:
    """Write tests of the suite in `source` to `file`, over nobody else's. Raises OSError, UserError."""
    if file.exists() and not file.read_text(encoding="utf-8").startswith(_TEXT.partition(";")[0]):
        raise UserError("exists, and was not written by this command", place=str(file), remedy="another --out")
    imports, written = "", repr(source)
    if (layer_path(source) or Path(source)).exists():  # else it is a layer that is known by its name
        imports = "from pathlib import Path\n\n"
        written = f"Path(__file__).parent / {os.path.relpath(source, file.parent)!r}"
    text = _TEXT.format(name=file.name, imports=imports, suite=_identifier(suite), source=written)
    replace_file(file, text.encode())


def _identifier(suite: Suite) -> str:
    return re.sub(r"\W", "_", suite.name)
