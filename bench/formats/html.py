"""A run as one self-contained HTML page: pictures, styles and all facts inside, light and dark."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jinja2
import msgspec

from bench.formats.cells import TONES, cautions, columns, fact, headline, legend, machine, remarks
from bench.formats.portability import tables
from bench.model import Run
from bench.portability import Report
from bench.rows import view

FILE = "report.html"


def render(run: Run, plots: Sequence[Path] = (), portability: Report | None = None) -> str:
    """The whole page, with a portability table if there is one; of a picture in several formats, the SVG."""
    laid_out = view(run)
    return page(
        "report",
        header=run.header,
        policy=msgspec.to_builtins(run.header.suite.policy),
        view=laid_out,
        columns=columns,
        remarks=remarks,
        fact=fact,
        tone=lambda word: TONES.get(word, ""),
        machine=machine(run),
        headline=headline(run, laid_out),
        cautions=cautions(run, laid_out),
        legend=legend(run, laid_out),
        portability=portability and tables(portability),
        pictures=[(path.stem, _data_uri(path)) for path in plots if path.suffix == ".svg"],
    )


def page(name: str, **content: Any) -> str:
    """What a template makes of its content."""
    loader = jinja2.FileSystemLoader(Path(__file__).parent)
    templates = jinja2.Environment(loader=loader, autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True)
    return templates.get_template(f"{name}.html.jinja").render(**content)


def _data_uri(picture: Path) -> str:
    # An <img> and not inline SVG: the ids inside two pictures would clash in one page.
    return f"data:image/svg+xml;base64,{base64.b64encode(picture.read_bytes()).decode()}"
