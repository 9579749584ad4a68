"""Output formats. A new one is a file here with `FILE` and `render(run, plots) -> str`, and its name below."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import msgspec

from bench.formats import csv, html, markdown, portability
from bench.formats.files import replace_file
from bench.model import Run
from bench.portability import FILE as PORTABILITY
from bench.portability import Report
from bench.portability import load as load_portability

FORMATS: dict[str, Callable[[Run, Sequence[Path]], str]] = {
    "markdown": markdown.render,
    "html": html.render,
    "csv": csv.render,
}
FILES = {"markdown": markdown.FILE, "html": html.FILE, "csv": csv.FILE}


def write_report(run: Run, folder: Path) -> list[Path]:
    """Write every format and the pictures (in `plots/`) into `folder`; what was written, the documents first.

    A portability.json there is shown on the HTML page. Each file replaces its older self whole. Raises OSError.
    """
    from bench.formats import plots  # matplotlib takes longer to import than all else together

    pictures = plots.write(run, folder / "plots")
    formats = FORMATS | {"html": partial(html.render, portability=load_portability(folder))}
    documents = [folder / file for file in FILES.values()]
    for name, path in zip(FORMATS, documents, strict=True):
        replace_file(path, formats[name](run, pictures).encode())
    return documents + pictures


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
