"""A run, and the comparison of two runs, for a terminal: fits its width, and says the same without colour."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich import box
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from bench.formats.cells import TONES, Column, cautions, columns, headline, legend, machine, one_line, remark, speedup
from bench.model import Measurement, Run
from bench.rows import MISSING, BlockView, Row, checked_summary, view
from bench.table import Change
from bench.units import show

STYLES = {"good": "green", "bad": "red", "doubt": "yellow", "dim": "dim"}
_REASON = 240  # characters of a reason shown here; reports have all of it


def render(run: Run) -> RenderableType:
    """Tables per layer and block, footnotes, a legend. Columns that do not fit are left out, and named."""
    return _Report(run)


def render_comparison(changes: Sequence[Change]) -> RenderableType:
    """A line per case and metric of two runs, then the doubts about them."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    table.add_column("case", overflow="fold", ratio=1)
    for title in ("old", "new", "speed-up", "verdict"):
        table.add_column(title, justify="right", no_wrap=True)
    footnotes = list(dict.fromkeys(f"{change.case.id}: {text}" for change in changes for text in change.warnings))
    for change in changes:
        marks = [footnotes.index(f"{change.case.id}: {text}") + 1 for text in change.warnings]
        table.add_row(*_change_cells(change, marks))
    skipped = [Text(f"{change.case.id}: {one_line(change.why, _REASON)}", "yellow") for change in changes if change.why]
    words = Text("speed-up: old time / new time, above 1 is faster; runs share no rounds, so it is less sure", "dim")
    return Group(table, *skipped, *_footnotes(footnotes), words)


def _change_cells(change: Change, marks: list[int]) -> list[Text]:
    name = change.case.id if change.metric == "latency" else f"{change.case.id} ({change.metric})"
    cells = [Text(name + _marks(marks)), *(_centre(one, change.metric) for one in (change.old, change.new))]
    if change.comparison is None:
        return [*cells, Text(""), Text("n/a", "yellow")]
    verdict = str(change.comparison.verdict)
    return [*cells, Text(speedup(change.comparison)), Text(verdict, _style(verdict))]


def _centre(measurement: Measurement | None, name: str) -> Text:
    metric = measurement.metric(name) if measurement else None
    summary = checked_summary(metric)[0] if metric else None
    if metric and summary:
        return Text(show(summary.centre, metric.unit))
    state = str(measurement.status) if measurement else MISSING
    return Text(state, _style(state))


class _Report:
    def __init__(self, run: Run) -> None:
        self.run, self.view = run, view(run)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        yield Text.assemble((self.run.header.suite.name, "bold"), f"  {headline(self.run, self.view)}")
        yield Text(machine(self.run), "dim")
        for text in cautions(self.run, self.view):
            yield Text(f"! {one_line(text)}", "yellow")
        left_out: dict[str, None] = {}
        for layer in self.view.layers:
            wanted = columns(layer.rows)
            widths = _widths(layer.rows, wanted)
            shown = _fitting(widths, options.max_width)
            left_out |= dict.fromkeys(column.title for column in wanted[shown - 1 :])
            yield Text.assemble("\n", (layer.layer, "bold"), f"  {layer.facts}")
            for block in layer.blocks:
                yield from _block(block, wanted[: shown - 1], widths)
            yield from (Text(f"\n{text}", "dim") for text in layer.skipped)
        yield Text()
        yield from _footnotes(self.view.footnotes)
        if left_out:
            yield Text(f"too narrow for: {', '.join(left_out)}; the report has them", "yellow")
        yield Text("  ".join(f"{word}: {meaning}." for word, meaning in legend(self.run, self.view)), "dim")


def _widths(rows: Sequence[Row], shown: Sequence[Column]) -> list[int]:
    """The same in every block of a layer, so that numbers line up down the page."""
    variants = [cell_len(row.label + _marks(row.marks)) for row in rows]
    cells = [[cell_len(column.title), *(cell_len(column.cell(row)) for row in rows)] for column in shown]
    return [max(variants), *(max(lengths) for lengths in cells)]


def _fitting(widths: Sequence[int], room: int) -> int:
    """How many columns fit, at least the variant and its time; three characters lie between columns."""
    shown = len(widths)
    while shown > 2 and sum(widths[:shown]) + 3 * (shown - 1) > room:
        shown -= 1
    return shown


def _block(block: BlockView, shown: Sequence[Column], widths: Sequence[int]) -> Iterator[RenderableType]:
    if block.title:
        yield Text(f"\n{block.title}", "bold")
    yield _table(block, shown, widths)
    yield from (_remark(row) for row in block.rows if remark(row))


def _table(block: BlockView, shown: Sequence[Column], widths: Sequence[int]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1))
    table.add_column("variant", min_width=widths[0], overflow="fold")
    for column, width in zip(shown, widths[1:], strict=False):
        table.add_column(column.title, justify="right", min_width=width, no_wrap=True)
    for row in block.rows:
        tone = _style(row.result)
        cells = [Text(column.cell(row), tone if column.toned else "") for column in shown]
        table.add_row(Text(row.label + _marks(row.marks)), *cells, style="" if row.ok else "dim")
    return table


def _remark(row: Row) -> Padding:
    text = Text.assemble(f"{row.label} ", (one_line(remark(row), _REASON), _style(row.result)))
    return Padding(text, (0, 0, 0, 2))


def _footnotes(texts: Sequence[str]) -> list[Text]:
    return [Text(f"[{number}] {one_line(text)}", "yellow") for number, text in enumerate(texts, start=1)]


def _marks(numbers: Sequence[int]) -> str:
    return "".join(f" [{number}]" for number in numbers)


def _style(result: str) -> str:
    return STYLES.get(TONES.get(result, ""), "")
