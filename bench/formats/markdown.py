"""A run as a Markdown page, its tables ready to paste into a README."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.formats.cells import Column, cautions, columns, fact, headline, legend, machine, one_line, remarks
from bench.model import Run
from bench.rows import BlockView, LayerView, Row, view

FILE = "report.md"
# What GitHub would read as markup. An underscore inside a word and a lone bracket are safe, and read better bare.
_SPECIAL = re.compile(r"([\\`*<>|~#$&]|(?<!\w)_|_(?!\w)|\](?=[(\[:]))")


def render(run: Run, plots: Sequence[Path] = ()) -> str:
    """The whole page. Pictures are linked by their folder and name; of one in several formats, the PNG."""
    laid_out = view(run)
    lines = [f"# {escape(run.header.suite.name)}", "", escape(headline(run, laid_out)), "", escape(machine(run)), ""]
    lines += _list("**Mind:** ", cautions(run, laid_out))
    for layer in laid_out.layers:
        lines += _layer(layer)
    lines += _numbered("Warnings", laid_out.footnotes)
    for path in plots:
        if path.suffix == ".png":
            lines += [f"![{path.stem}]({path.parent.name}/{path.name})", ""]
    notes = [f"{note} ({_whose(ids, len(laid_out.rows))})" for note, ids in laid_out.notes.items()]
    lines += ["## Notes", "", *_list("", notes)] if notes else []
    lines += ["## Words", ""]
    lines += [f"- **{escape(word)}**: {escape(meaning)}" for word, meaning in legend(run, laid_out)]
    lines += ["", "## Environment", "", *_facts(run.header.environment, 0), ""]
    return "\n".join(lines)


def _layer(layer: LayerView) -> Iterator[str]:
    yield from (f"## {escape(layer.layer)}", "", escape(layer.facts), "")
    for block in layer.blocks:
        yield from _block(block, columns(block.rows))
    yield from _list("", layer.absent)


def _block(block: BlockView, shown: Sequence[Column]) -> Iterator[str]:
    if block.title:
        yield from (f"### {escape(block.title)}", "")
    yield line(["variant", *(column.title for column in shown)])
    yield line([":---", *("---:" for _ in shown)])
    for row in block.rows:
        cells = [_cell(column, row) for column in shown]
        yield line([escape(row.label) + _marks(row.marks), *cells])
    yield ""
    yield from _list("", [f"{variants} {text}" for variants, text, _ in remarks(block.rows)])


def _cell(column: Column, row: Row) -> str:
    word = column.word(row) if column.word else ""
    emphasis = "" if word in ("", "baseline", "same") else "**"
    return f"{escape(column.cell(row))} {emphasis}{word}{emphasis}".strip()


def line(cells: Sequence[str]) -> str:
    """A table's line."""
    return f"| {' | '.join(cells)} |"


def _marks(numbers: Sequence[int]) -> str:
    return f" <sup>{', '.join(map(str, numbers))}</sup>" if numbers else ""


def _list(prefix: str, texts: Sequence[str]) -> list[str]:
    return [*(f"- {prefix}{escape(text)}" for text in texts), *([""] if texts else [])]


def _numbered(title: str, texts: Sequence[str]) -> list[str]:
    if not texts:
        return []
    return [f"## {title}", "", *(f"{n}. {escape(text)}" for n, text in enumerate(texts, start=1)), ""]


def _whose(ids: Sequence[str], everyone: int) -> str:
    return ids[0] if len(ids) == 1 else f"{len(ids)} of {everyone} cases"


def _facts(value: Mapping[str, Any], depth: int) -> Iterator[str]:
    """Nested facts as a nested list, whatever they are."""
    for name, inner in value.items():
        indent = "  " * depth
        if isinstance(inner, list | tuple) and any(isinstance(one, dict) for one in inner):
            inner = {str(number): one for number, one in enumerate(inner)}
        if inner and isinstance(inner, dict):
            yield f"{indent}- {escape(str(name))}"
            yield from _facts(inner, depth + 1)
        else:
            yield f"{indent}- {escape(str(name))}: {escape(fact(inner, name))}"


def escape(text: str) -> str:
    """One line in which nothing is markup."""
    return _SPECIAL.sub(r"\\\1", one_line(text))
