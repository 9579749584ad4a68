"""Output formats. A new one is a file here with `FILE` and `render(run, plots) -> str`, and its name below."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import msgspec

from bench.formats import csv, html, markdown, portability, pytest_benchmark
from bench.formats.files import replace_file
from bench.model import Run, UserError
from bench.portability import FILE as PORTABILITY
from bench.portability import Report
from bench.portability import load as load_portability

FORMATS: dict[str, Callable[[Run, Sequence[Path]], str]] = {
    "markdown": markdown.render,
    "html": html.render,
    "csv": csv.render,
}
FILES = {"markdown": markdown.FILE, "html": html.FILE, "csv": csv.FILE}
# For other programs: written when asked for.
EXPORTS: dict[str, Callable[[Run, Sequence[Path]], str]] = {"pytest-benchmark": pytest_benchmark.render}
EXPORT_FILES = {"pytest-benchmark": pytest_benchmark.FILE}
ILLUSTRATED = ("markdown", "html")


def write_report(run: Run, folder: Path, names: Sequence[str] = ()) -> list[Path]:
    """Write formats, those of FORMATS where none is named, and their pictures (in `plots/`) into `folder`; what was
    written, the documents first.

    A portability.json there is shown on the HTML page. Each file replaces its older self whole. Raises OSError, and
    UserError for a format that does not exist.
    """
    formats = FORMATS | EXPORTS | {"html": partial(html.render, portability=load_portability(folder))}
    names = names or tuple(FORMATS)
    if unknown := [name for name in names if name not in formats]:
        raise UserError(f"no format {unknown[0]!r}", remedy=f"one of {', '.join(formats)}")
    pictures = []
    if any(name in ILLUSTRATED for name in names):
        from bench.formats import plots  # matplotlib takes longer to import than all else together

        pictures = plots.write(run, folder / "plots")
    documents = {folder / (FILES | EXPORT_FILES)[name]: formats[name] for name in names}
    for path, render in documents.items():
        replace_file(path, render(run, pictures).encode())
    return [*documents, *pictures]


def write_portability(report: Report, folder: Path) -> list[Path]:
    """Write a portability table as JSON, which a run's report then shows, as Markdown and as HTML. Raises OSError."""
    pages = {
        folder / PORTABILITY: msgspec.json.format(msgspec.json.encode(report)),
        folder / "portability.md": portability.markdown(report).encode(),
        folder / "portability.html": html.page("portability_page", portability=portability.tables(report)).encode(),
    }
    for path, content in pages.items():
        replace_file(path, content)
    return list(pages)
