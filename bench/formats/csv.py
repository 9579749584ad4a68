"""All numbers of a run as one table for other programs: see `bench.table.frame` for the columns."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from bench.model import Run
from bench.table import frame

FILE = "results.csv"


def render(run: Run, plots: Sequence[Path] = ()) -> str:
    """A header line and one line per case; times in seconds, in full precision."""
    return frame(run).to_csv(index=False, lineterminator="\n")
