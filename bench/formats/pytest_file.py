"""A suite as a test file for pytest-benchmark; what its tests do is bench.pytest_suite's."""

from __future__ import annotations

import os
import re
from pathlib import Path

from bench.formats.files import replace_file
from bench.model import Suite, UserError

_TEXT = '''"""Written by `layerbench pytest-benchmark`; needs pytest-benchmark. Run it with `pytest {name}`."""

from pathlib import Path

from bench.pytest_suite import benchmarks

test_{suite} = benchmarks(Path(__file__).parent / {path!r})
'''


def name(suite: Suite) -> str:
    """What pytest collects by itself: test_<suite>.py."""
    return f"test_{_identifier(suite)}.py"


def write(source: str, suite: Suite, file: Path) -> None:
    """Write tests of the suite in `source` to `file`, over nobody else's. Raises OSError, UserError."""
    if file.exists() and not file.read_text(encoding="utf-8").startswith(_TEXT.partition(";")[0]):
        raise UserError("exists, and was not written by this command", place=str(file), remedy="another --out")
    path = os.path.relpath(source, file.parent)
    replace_file(file, _TEXT.format(name=file.name, suite=_identifier(suite), path=path).encode())


def _identifier(suite: Suite) -> str:
    return re.sub(r"\W", "_", suite.name)
