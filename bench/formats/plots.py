"""The pictures of a run as files: times, speed-ups, and scaling over every swept parameter."""

from __future__ import annotations

import io
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

import matplotlib
from matplotlib.figure import Figure
from matplotlib.transforms import Bbox

from bench.formats import intervals, scaling, trend
from bench.formats.cells import machine
from bench.formats.files import replace_file
from bench.formats.look import STYLE, looks
from bench.history import History
from bench.model import Run
from bench.rows import view


def write(run: Run, folder: Path) -> list[Path]:
    """Write every picture of a run; none when no case is ok. Raises OSError."""
    return save(_pictures(run), folder)


def write_history(history: History, folder: Path) -> list[Path]:
    """Write the pictures of a history. Raises OSError."""
    return save(trend.pictures(history), folder)


def save(pictures: Iterable[tuple[str, Figure]], folder: Path) -> list[Path]:
    """Write pictures by their names as PNG (1,600 pixels wide, for sharp screens) and SVG; the same give the same
    files. They are made in our style, so they must come from a generator. Raises OSError."""
    paths = []
    taken: Counter[str] = Counter()
    with matplotlib.rc_context(STYLE):
        for name, figure in pictures:
            stem = re.sub(r"[^\w.-]+", "_", name)
            taken[stem] += 1
            stem += f"-{taken[stem]}" if taken[stem] > 1 else ""
            _lay_out(figure)
            for suffix, options in ((".png", {"dpi": 200}), (".svg", {"metadata": {"Date": None}})):
                buffer = io.BytesIO()
                figure.savefig(buffer, format=suffix[1:], **options)
                paths.append(folder / f"{stem}{suffix}")
                replace_file(paths[-1], buffer.getvalue())
    return paths


def _pictures(run: Run) -> Iterator[tuple[str, Figure]]:
    laid_out = view(run)
    variants = looks(row.case.variant for row in laid_out.rows)
    for layer in laid_out.layers:
        yield from intervals.pictures(layer, variants, machine(run))
        yield from scaling.pictures(layer, variants, machine(run))


def _lay_out(figure: Figure) -> None:
    """Once for both files, and rounded: the last bits of the layout solver's answer differ from run to run."""
    figure.draw_without_rendering()
    figure.set_layout_engine("none")
    for axes in figure.axes:
        axes.set_position(Bbox(axes.get_position().get_points().round(4)))
