"""What a person sees while a suite runs: a bar that says what is happening, and a line for every case that ended."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from bench.model import Block, Case, Measurement, Policy, Status
from bench.protocol import Prepared
from bench.stats import summarise
from bench.units import cut, duration, error, show, spread

LONG = 600.0  # s of sampling from which on a run says how long it may take


class Display:
    """A runner.Progress on a console. Without a terminal only the lines are printed. Use with `with`."""

    def __init__(self, console: Console, cases: int) -> None:
        self._bar = Progress(
            BarColumn(20),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.description}"),
            console=console,
            transient=True,
            refresh_per_second=2,  # each refresh takes a core from what is being measured
            disable=not console.is_terminal,
        )
        self._console = console
        self._task = self._bar.add_task("starting workers", total=cases)
        self._shown = ""  # the block whose title was printed last
        self._skipped: list[Measurement] = []  # of one block and reason, to be named in one line

    def __enter__(self) -> Display:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._flush()
        self._bar.stop()

    def preparing(self, case: Case) -> None:
        """Show which variant is being made, checked and warmed up."""
        self._title(case)
        self._describe(f"{case.variant}: check and warm up")

    def sampled(self, block: Block, rounds: int, lows: dict[str, float]) -> None:
        """Show the times so far."""
        times = "  ".join(f"{variant} {show(low, 's')}" for variant, low in lows.items())
        self._describe(f"round {rounds}: {times}")

    def finished(self, measurement: Measurement) -> None:
        """Print the case's line."""
        if self._skipped and measurement.reason != self._skipped[0].reason:
            self._flush()
        if measurement.status is Status.SKIPPED:
            self._skipped.append(measurement)
            self._bar.advance(self._task)
        else:
            self.line(result_line(measurement, self._console.width))

    def line(self, markup: str) -> None:
        """Print a line for a case that ended, above the bar."""
        self._console.print(markup, highlight=False, soft_wrap=True)
        self._bar.advance(self._task)

    def _flush(self) -> None:
        skipped, self._skipped = self._skipped, []
        if skipped:
            names = ", ".join(one.case.variant for one in skipped)
            text = escape(f"  {names}  skipped: {one_line(skipped[0].reason)}")
            self._console.print(f"[dim]{text}[/]", highlight=False, soft_wrap=True)

    def _title(self, case: Case) -> None:
        if case.setting != self._shown:
            self._flush()
            self._shown = case.setting
            self._console.print(f"[bold]{escape(case.setting)}[/]", highlight=False, soft_wrap=True)

    def _describe(self, text: str) -> None:
        self._bar.update(self._task, description=escape(text[:100]))


class TimeBar:
    """What is being done and how much of a known time is gone; without a terminal, lines. Use with `with`."""

    def __init__(self, console: Console) -> None:
        columns = (BarColumn(20), TimeElapsedColumn(), TextColumn("{task.description}"))
        self._bar = Progress(
            *columns, console=console, transient=True, refresh_per_second=2, disable=not console.is_terminal
        )
        self._console = console
        self._task = self._bar.add_task("", total=1.0)
        self._said = ""

    def __enter__(self) -> TimeBar:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def show(self, text: str, share: float, detail: str = "") -> None:
        """Say what is being done, and which share of the time is gone; `detail` gets no line of its own."""
        self._bar.update(self._task, description=escape(f"{text} {detail}"), completed=share)
        if not self._console.is_terminal and text != self._said:
            self._console.print(f"  {escape(text)}", soft_wrap=True)
        self._said = text


def outlook(cases: int, policy: Policy) -> str:
    """How long sampling so many cases takes; nothing where it cannot be long."""
    most = cases * policy.seconds
    if most < LONG:
        return ""
    least = cases * min(policy.seconds, policy.min_rounds * policy.slots * policy.slot)
    return (
        f"{cases:,} cases: sampling takes {duration(least)} at the least and {duration(most)} at the most where none "
        "is skipped, checks and warm-up come on top; --only takes a part of a suite"
    )


def checked_line(case: Case, prepared: Prepared, expected: Status | None) -> str:
    """One checked case as rich markup; `expected` when its status is not the expected one."""
    line = _start(case) + prepared.status
    if prepared.error is not None:
        line += f"  error {error(prepared.error)}"
    if prepared.reason:
        line += f"  {escape(one_line(prepared.reason))}"
    return (f"{line}  [red]expected {expected}[/]" if expected else line) + _doubts(prepared.warnings)


def result_line(measurement: Measurement, width: int = 80) -> str:
    """One case as rich markup: `  eager  1.23 ms ± 1.2 %` or `  trace  incorrect: why`.

    Of its warnings as much as fits `width`: all of them are below the table, once for all cases.
    """
    name = _start(measurement.case)
    if measurement.status is not Status.OK:
        return f"{name}[red]{measurement.status}: {escape(one_line(measurement.reason))}[/]"
    parts = []
    for metric in (measurement.metric("latency"), measurement.metric("device")):
        if metric is not None:
            summary = summarise(metric.lows)
            parts.append(f"{metric.name} {show(summary.centre, 's')} {spread(summary.half_width)}")
    line = name + "   ".join(parts)
    return line + _doubts(_brief(measurement.warnings, width - len(line) - 2))


def _doubts(warnings: Sequence[str]) -> str:
    return f"  [yellow]{escape('; '.join(warnings))}[/]" if warnings else ""


def _brief(warnings: Sequence[str], room: int) -> list[str]:
    """The first, cut, and how many there are; where even that has no room, how many."""
    if not warnings:
        return []
    count = f"{len(warnings)} warning{'s' if len(warnings) > 1 else ''}"
    tail = f" ({count})" if len(warnings) > 1 else ""
    left = room - len(tail)
    return [cut(warnings[0], left) + tail if left >= 20 else count]


def one_line(reason: str, most: int = 300) -> str:
    """A reason's lines as one, cut to `most` characters with an ellipsis."""
    return cut("; ".join(line.strip() for line in reason.splitlines() if line.strip()).replace(":; ", ": "), most)


def _start(case: Case) -> str:
    return f"  {escape(case.variant):<15} "  # custom_op_graph is the longest of ours
