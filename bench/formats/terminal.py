"""A run, and the comparison of two runs, for a terminal: fits its width, and says the same without colour."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from rich import box
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from bench import footnotes
from bench.formats.cells import (
    TONES,
    Column,
    columns,
    damage,
    headline,
    legend,
    machine,
    names,
    one_line,
    remarks,
    speedup,
    undecided,
)
from bench.formats.verdicts import ENDINGS
from bench.model import Measurement, Run, Status
from bench.rows import MISSING, BlockView, Row, checked_summary, view
from bench.table import Change
from bench.units import ratio, show

STYLES = {"good": "green", "bad": "red", "doubt": "yellow", "dim": "dim"}
_REASON = 240  # characters of a reason shown here; reports have all of it
_WORDS = ("device time", "times", "±", "speed-up", "faster, slower", "same", "undecided", "error")  # explained here
_COMPARED_WORDS = (
    "speed-up: old time / new time [95 %], above 1 is faster; of trimmed means, not the medians beside it; runs share "
    "no rounds, so it is less sure."
)
_GAP = 2  # characters between columns
_VARIANT = "variant"  # the first column


def render(run: Run) -> RenderableType:
    """Tables per layer and block, footnotes, a legend. Columns that do not fit are left out, and named."""
    return _Report(run)


def render_comparison(changes: Sequence[Change], within: float) -> RenderableType:
    """A line per case and metric of two runs, of which changes up to `within` are the same; the doubts about them."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, padding=(0, 1, 0, 0))
    table.add_column("case", overflow="fold", ratio=1)
    for title in ("old", "new", "speed-up", "verdict"):
        table.add_column(title, justify="right", no_wrap=True)
    idle = Counter(change.new.reason for change in changes if change.new and _skipped_in_both(change))
    shown = [change for change in changes if not _skipped_in_both(change)]
    short = names(change.case.id for change in shown)
    notes, numbers = footnotes.merge(text for change in shown for text in change.warnings)
    for change in shown:
        marks = list(dict.fromkeys(numbers[text] for text in change.warnings))
        table.add_row(*_change_cells(change, short[change.case.id], marks))
    doubts = [*_moved_together(shown), *_not_compared(shown, short)]
    doubts += [f"{count} skipped in both: {one_line(reason, _REASON)}" for reason, count in idle.items()]
    found = (one for change in shown for one in (change.old, change.new) if one)
    words = f"{_COMPARED_WORDS}  same: within {100 * within:g} % of 1.  undecided: {undecided(found)}."
    return Group(table, *(Text(text, "yellow") for text in doubts), *_footnotes(notes), Text(words, "dim"))


def _moved_together(changes: Sequence[Change]) -> Iterator[str]:
    for common in dict.fromkeys(change.common for change in changes if change.common):
        these = [change for change in changes if change.common == common]
        where, how = f"{these[0].metric} on {these[0].case.device}", "slower" if common < 1 else "faster"
        yield (
            f"{len(these)} cases have about the same speed-up, {ratio(common)} ({where}): most likely the machine was "
            f"{how} in the new run, not the code, so no verdict rests on it; layerbench gate can tell, for it runs "
            "both sides in turns"
        )


def _not_compared(changes: Sequence[Change], short: Mapping[str, str]) -> Iterator[str]:
    """Why; the table has the names of several with one reason, and what one of them may be says what all may."""
    reasons: dict[str, list[Change]] = {}
    for change in changes:
        if change.why:
            reasons.setdefault(change.why, []).append(change)
    for why, these in reasons.items():
        who = short[these[0].case.id] if len(these) == 1 else f"{len(these)} cases"
        yield f"{who}: {one_line(why, _REASON)}"
        if hinted := next((one for one in these if one.hint), None):
            yield f"  {short[hinted.case.id]}: {one_line(hinted.hint, _REASON)}"


def comparison_summary(changes: Sequence[Change], code: int) -> Text:
    """What the exit code means, and how many verdicts there are of each kind."""
    found = Counter(str(change.comparison.verdict) if change.comparison else "not compared" for change in changes)
    counts = ", ".join(f"{count} {verdict}" for verdict, count in sorted(found.items()))
    return Text(f"{ENDINGS[code]}: {counts or 'no cases'}", "green" if code == 0 else "bold red")


def _skipped_in_both(change: Change) -> bool:
    new, old = change.new, change.old
    return bool(new and old and new.status is old.status is Status.SKIPPED and new.reason == old.reason)


def _change_cells(change: Change, name: str, marks: list[int]) -> list[Text]:
    name = name if change.metric == "latency" else f"{name} ({change.metric})"
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
        for text in damage(self.run, self.view):  # no surprises: a live line and the one below the table tell of each
            yield Text(f"! {one_line(text)}", "yellow")
        left_out: dict[str, None] = {}
        for layer in self.view.layers:
            yield Text.assemble("\n", (layer.layer, "bold"), f"  {layer.facts}")
            for block in layer.blocks:
                wanted = columns(block.rows)
                shown = _fitting(layer.rows, wanted, options.max_width)
                left_out |= dict.fromkeys(_left_out(wanted, shown))
                yield from _block(block, layer.rows, shown)
            yield from (Text(f"\n{text}", "dim") for text in layer.absent)
        yield Text()
        yield from _footnotes(self.view.footnotes)
        if left_out:
            yield Text(f"too narrow for: {', '.join(left_out)}; the report has them", "yellow")
        words = (f"{word}: {meaning}." for word, meaning in legend(self.run, self.view) if word in _WORDS)
        yield Text("  ".join(words), "dim")


def _widths(rows: Sequence[Row], shown: Sequence[Column]) -> list[int]:
    """The same in every block of a layer, so that numbers line up down the page."""
    variants = [cell_len(_VARIANT), *(cell_len(row.label + _marks(row.marks)) for row in rows)]
    cells = [max(cell_len(column.cell(row)) for row in rows) + _word_room(column, rows) for column in shown]
    return [max(variants), *(max(cell_len(column.title), cell) for column, cell in zip(shown, cells, strict=True))]


def _word_room(column: Column, rows: Sequence[Row]) -> int:
    return 1 + max(len(column.word(row)) for row in rows) if column.word else 0


def _fitting(rows: Sequence[Row], wanted: Sequence[Column], room: int) -> list[Column]:
    """The columns that fit. Intervals go before verdicts do, the least important first; the first column stays."""

    def fits(columns: Sequence[Column]) -> bool:
        return sum(_widths(rows, columns)) + _GAP * len(columns) <= room

    last_verdict = max(number for number, column in enumerate(wanted, start=1) if column.word)
    shown: list[Column] = []
    for count in range(last_verdict, 0, -1):
        shown = list(wanted[:count])
        for place in reversed(range(count)):
            if not fits(shown) and (short := shown[place].short):
                shown[place] = replace(shown[place], cell=short)
        if fits(shown):
            break
    for column in wanted[len(shown) :]:
        shown += [column] if fits([*shown, column]) else []
    return shown


def _left_out(wanted: Sequence[Column], shown: Sequence[Column]) -> Iterator[str]:
    cells = {column.title: column.cell for column in shown}
    for column in wanted:
        if column.title not in cells:
            yield column.title
        elif cells[column.title] != column.cell:
            yield f"interval of {column.title}"


def _block(block: BlockView, rows: Sequence[Row], shown: Sequence[Column]) -> Iterator[RenderableType]:
    if block.title:
        yield Text(f"\n{block.title}", "bold")
    yield _table(block, rows, shown)
    yield from (_remark(*one) for one in remarks(block.rows))


def _table(block: BlockView, rows: Sequence[Row], shown: Sequence[Column]) -> Table:
    widths = _widths(rows, shown)
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, _GAP - 1, 0, 0))
    table.add_column(_VARIANT, min_width=widths[0], overflow="fold")
    ends = [width - _word_room(column, rows) for column, width in zip(shown, widths[1:], strict=True)]
    for column, width in zip(shown, widths[1:], strict=True):
        table.add_column(column.title, justify="right", min_width=width, no_wrap=True)
    for row in block.rows:
        cells = [_cell(column, row, width) for column, width in zip(shown, ends, strict=True)]
        table.add_row(Text(row.label + _marks(row.marks)), *cells, style="" if row.ok else "dim")
    return table


def _cell(column: Column, row: Row, end: int) -> Text:
    """The number ends at `end`, so that numbers line up although words differ in length."""
    if column.word is None:
        return Text(column.cell(row))
    word = column.word(row)
    return Text.assemble(column.cell(row).rjust(end), " ", (word, _style(word)), justify="left")


def _remark(variants: str, text: str, status: str) -> Padding:
    return Padding(Text.assemble(f"{variants} ", (one_line(text, _REASON), _style(status))), (0, 0, 0, 2))


def _footnotes(texts: Sequence[str]) -> list[Text]:
    return [Text(f"[{number}] {one_line(text)}", "yellow") for number, text in enumerate(texts, start=1)]


def _marks(numbers: Sequence[int]) -> str:
    return f" [{','.join(map(str, numbers))}]" if numbers else ""


def _style(result: str) -> str:
    return STYLES.get(TONES.get(result, ""), "")
