"""Where processes of layerbench start, by a name that no project has: the current folder may come first on `sys.path`.

Importing it protects our packages; see bench/ours.py.
"""

from __future__ import annotations

import sys
from pathlib import Path

_ROOT = str(Path(__file__).resolve().parent)

sys.path.insert(0, _ROOT)
try:
    from bench import ours
finally:
    sys.path.remove(_ROOT)  # tests, docs and others that lie here are to hide nothing
ours.protect()


def main() -> None:
    """The command `layerbench`."""
    from bench.cli import main as run

    run()


if __name__ == "__main__":
    main()
