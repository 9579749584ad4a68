"""Which packages are ours: a project may have folders called `bench`, `ext` or `layers` too.

Whether those come first is up to how layerbench was installed: an editable install finds ours only after all of
`sys.path`, and Python run with `-c` or `-m` looks into the current folder before anything else.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path

ROOT = str(Path(__file__).resolve().parent.parent)
PLACES = dict.fromkeys(("bench", "ext", "layers"), ROOT)  # the folder in which each of our packages lies


class Finder:
    """An import hook that finds our packages at their places, and nothing else."""

    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None = None, target: object = None) -> ModuleSpec | None:
        return PathFinder.find_spec(name, [PLACES[name]]) if name in PLACES else None


def protect() -> None:
    """Make what this process imports by our names be ours, from now on and in what it forks."""
    if Finder not in sys.meta_path:
        sys.meta_path.insert(0, Finder)


def hidden(package: str) -> str:
    """The folder or file that would be imported by the name of this package of ours, were it not ours; else empty."""
    others = (entry for entry in dict.fromkeys(sys.path) if Path(entry).resolve() != Path(PLACES[package]))
    specs = (PathFinder.find_spec(package, [entry]) for entry in others)
    places = (next(iter(spec.submodule_search_locations or ()), spec.origin) for spec in specs if spec)
    return next(filter(None, places), "")
