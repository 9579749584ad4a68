"""The table of where variants can go: terminal, Markdown, and what the HTML templates need."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from bench.formats.cells import one_line
from bench.formats.markdown import escape, line
from bench.portability import FORMS, QUESTIONS, Cell, Report, Row

WORDS = {"yes": "yes", "library": "library", "no": "no", "n/a": "–"}
TONES = {"yes": "good", "library": "doubt", "no": "bad", "n/a": ""}
STYLES = {"yes": "green", "library": "yellow", "no": "red", "n/a": "dim"}
ABOUT = (
    "Every cell was tried, each in a process of its own that has torch and not this project. Python, C++: loads there "
    "and gives the right output; library: once the library of its operators is loaded too (--library in C++), the note "
    "says what happens without. After loading in Python, trains: gradients of inputs and parameters are right; device: "
    "runs on another one; batch: takes inputs of another shape. –: nothing to try."
)


def reasons(report: Report) -> list[str]:
    """Every reason once; a cell's mark is its place here, from 1."""
    return list(dict.fromkeys(cell.reason for row in report.rows for cell in row.cells.values() if cell.reason))


def by_layer(report: Report) -> dict[str, list[Row]]:
    """Rows by the layer they belong to, in order."""
    found: dict[str, list[Row]] = {}
    for row in report.rows:
        found.setdefault(row.layer, []).append(row)
    return found


def headline(report: Report) -> str:
    """Where and when it was tried."""
    return f"torch {report.torch}, {report.devices}; {report.started}"


def render(report: Report) -> RenderableType:
    """A table per layer, then the reasons."""
    numbers = {reason: number for number, reason in enumerate(reasons(report), start=1)}
    parts: list[RenderableType] = [Text(headline(report), "dim")]
    for layer, rows in by_layer(report).items():
        table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
        table.add_column("variant", no_wrap=True)
        table.add_column("saved by", no_wrap=True)
        for title in QUESTIONS.values():
            table.add_column(title)
        for row in rows:
            cells = (
                Text(_words(row.cells[one], numbers, _raised), STYLES[row.cells[one].outcome]) for one in QUESTIONS
            )
            table.add_row(row.variant, FORMS[row.form], *cells)
        parts += [Text(f"\n{layer}", "bold"), table]
    notes = [Text(f"{_raised(str(number))} {one_line(reason)}", "yellow") for reason, number in numbers.items()]
    return Group(*parts, Text(), *notes, Text(ABOUT, "dim"))


def tables(report: Report) -> dict[str, Any]:
    """What the templates show."""
    numbers = {reason: number for number, reason in enumerate(reasons(report), start=1)}
    shown = {"headline": headline(report), "layers": by_layer(report), "titles": list(QUESTIONS.values())}
    return {**shown, "numbers": numbers, "forms": FORMS, "words": WORDS, "tones": TONES, "about": ABOUT}


def markdown(report: Report) -> str:
    """The same as a Markdown page."""
    return "\n".join(_markdown(report))


def _markdown(report: Report) -> Iterator[str]:
    numbers = {reason: number for number, reason in enumerate(reasons(report), start=1)}
    yield from ("# Portability", "", escape(headline(report)), "", ABOUT, "")
    for layer, rows in by_layer(report).items():
        yield from (f"## {escape(layer)}", "")
        yield line(["variant", "saved by", *QUESTIONS.values()])
        yield line([":---"] * (2 + len(QUESTIONS)))
        for row in rows:
            marks = [_words(row.cells[question], numbers, "<sup>{}</sup>".format) for question in QUESTIONS]
            yield line([escape(row.variant), FORMS[row.form], *marks])
        yield ""
    yield from (f"{number}. {escape(reason)}" for reason, number in numbers.items())
    yield ""


def _raised(number: str) -> str:
    return number.translate(str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹"))


def _words(cell: Cell, numbers: dict[str, int], mark: Callable[[str], str]) -> str:
    return WORDS[cell.outcome] + (mark(str(numbers[cell.reason])) if cell.reason else "")
