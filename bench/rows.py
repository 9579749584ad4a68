"""A run as rows that every format shares: what a row says is worked out here once, a format only lays it out."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache

from bench import footnotes, stats
from bench.model import Case, Measurement, Metric, Planned, Run, Status, Verdict, show_value
from bench.stats import Comparison, Summary
from bench.units import show

MISSING = "missing"  # status of a case that the suite plans and the run has not reached
STARVED = 0.25  # share of its time without a CPU from which on a case decides nothing; quiet runs stay under 0.2
STEPS = 0.08  # by which steps that stream differ between identical processes on a CPU, and so decide nothing
COMPARED = ("latency", "device")  # metrics for which a speed-up is worked out

# Every format of a report asks for the same numbers.
_summarise = lru_cache(maxsize=8192)(stats.summarise)
_compare = lru_cache(maxsize=8192)(stats.compare)


@dataclass(frozen=True)
class Reading:
    """One metric of one case. `comparison` is None for a baseline and where comparing would be dishonest."""

    metric: Metric
    summary: Summary
    comparison: Comparison | None = None


@dataclass(frozen=True)
class Row:
    """What there is to say of one case. `marks` number its warnings among `View.footnotes`, from 1."""

    case: Case
    status: str  # a Status, or MISSING
    expected: Status
    reason: str
    baseline: str  # name of the variant compared with
    label: str  # the variant, and whatever else varies inside its block
    readings: Mapping[str, Reading] = field(default_factory=dict)
    error: float | None = None
    bound: float | None = None
    warnings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    marks: tuple[int, ...] = ()
    stopped: str = ""  # what ended the sampling
    limit: str = ""  # what the time is limited by, and the figures
    pays_after: float | None = None  # calls that win back what building and the first call took beyond the baseline's
    lone: str = ""  # why there is nothing that it could be compared with

    @property
    def ok(self) -> bool:
        """Whether it was measured."""
        return self.status == Status.OK

    @property
    def is_baseline(self) -> bool:
        """Whether the others of its block are compared with it."""
        return self.case.variant == self.baseline

    @property
    def absence(self) -> str:
        """Why there is nothing to show but this, or nothing."""
        if self.status == Status.SKIPPED:
            return f"skipped ({self.reason})"
        return self.reason if self.status == MISSING else ""

    @property
    def surprise(self) -> str:
        """What was expected instead, or nothing. Skipped is never a surprise."""
        return "" if self.status in (Status.SKIPPED, MISSING, self.expected) else f"expected {self.expected}"

    def comparison(self, metric: str) -> Comparison | None:
        """With the baseline, of one metric."""
        reading = self.readings.get(metric)
        return reading.comparison if reading else None


@dataclass(frozen=True)
class BlockView:
    """Rows to show together. The title holds only what differs between the blocks of the layer."""

    title: str
    rows: tuple[Row, ...]

    @property
    def absence(self) -> str:
        """That of every row, where they share one: all that there is to say."""
        found = {row.absence for row in self.rows}
        return found.pop() if len(found) == 1 else ""


@dataclass(frozen=True)
class LayerView:
    """A layer's blocks; `facts` is what is the same in all of them, said once.

    Blocks skipped or not measured as wholes are not in `blocks` but in `absent`, a sentence for each reason.
    """

    layer: str
    facts: str
    blocks: tuple[BlockView, ...]
    absent: tuple[str, ...]
    rows: tuple[Row, ...]  # of all blocks, the absent ones too


@dataclass(frozen=True)
class View:
    """A run laid out: layers, blocks, rows; warnings as numbered footnotes."""

    layers: tuple[LayerView, ...]
    footnotes: tuple[str, ...]

    @property
    def rows(self) -> tuple[Row, ...]:
        """All rows, layer by layer."""
        return tuple(row for layer in self.layers for row in layer.rows)

    @property
    def notes(self) -> dict[str, list[str]]:
        """Each note and the ids of the cases it belongs to."""
        notes, numbers = footnotes.merge(note for row in self.rows for note in row.notes)
        found: dict[str, dict[str, None]] = {note: {} for note in notes}
        for row in self.rows:
            for note in row.notes:
                found[notes[numbers[note] - 1]][row.case.id] = None
        return {note: list(ids) for note, ids in found.items()}


def view(run: Run) -> View:
    """Lay out a run: blocks grouped by layer, titles that name only what varies.

    Has every planned case; one not measured yet has the status MISSING.
    """
    done = {measurement.case.id: measurement for measurement in run.measurements}
    by_layer: dict[str, list[list[Row]]] = {}
    for block in run.header.suite.blocks:
        within = run.header.suite.policy.same_within
        by_layer.setdefault(block.cases[0].case.layer, []).append(_rows(block.cases, block.baseline, done, within))
    warnings = (text for blocks in by_layer.values() for block in blocks for row in block for text in row.warnings)
    notes, numbers = footnotes.merge(warnings)
    return View(tuple(_layer(name, blocks, numbers) for name, blocks in by_layer.items()), notes)


def metrics(rows: Iterable[Row]) -> dict[str, Metric]:
    """One example of each metric, in order of first appearance."""
    found: dict[str, Metric] = {}
    for row in rows:
        for name, reading in row.readings.items():
            if not reading.metric.hidden:
                found.setdefault(name, reading.metric)
    return found


def checked_summary(metric: Metric) -> tuple[Summary | None, str]:
    """Summary of a metric's round lows and a warning, if any: values that are not finite are left out, and said so."""
    finite = tuple(value for value in metric.lows if math.isfinite(value))
    lost = len(metric.lows) - len(finite)
    if not finite:
        return None, f"{metric.name}: no round is finite"
    summary = _summarise(finite)
    if lost:
        return summary, f"{metric.name}: {lost} of {len(metric.lows)} rounds are not finite and left out"
    if summary.modes and metric.name in COMPARED:
        low, high = (show(centre, metric.unit) for centre in summary.modes)
        beside = min(abs(summary.centre / mode - 1) for mode in summary.modes) < 0.02
        whose = "that of most rounds" if beside else "nobody's time"
        return summary, f"{metric.name} has two modes, about {low} and {high}: its median is {whose}"
    if summary.wide and metric.name in COMPARED:
        return summary, f"{metric.name}: a quarter of its turns took {summary.wide:.1f} times their median or more"
    return summary, ""


def incomparable(one: Metric, other: Metric) -> str:
    """Why two readings of a metric must not be divided by one another, or nothing."""
    if one.unit != other.unit:
        return f"{one.name} in {one.unit!r} and in {other.unit!r}: not compared"
    if one.clock != other.clock:
        return f"{one.name} by clock {one.clock!r} and by {other.clock!r}: not compared"
    if not all(0 < value < math.inf for metric in (one, other) for value in metric.lows):
        return f"{one.name} has values that are not positive numbers: not compared"
    return ""


def starved(one: Measurement) -> bool:
    """Whether it had no CPU for so long that how it compares is the scheduler's doing: of identical variants beside
    three busy processes on two CPUs, 16 of 54 were called `faster` or `slower`, some of them 4 times."""
    share = one.metric("cpu_wait_share")
    return share is not None and max(share.lows) > STARVED


def doubts(one: Measurement) -> tuple[str, ...]:
    """Its warnings; that of a wait for a CPU says where it takes the verdict away."""
    tail = ", and no verdict rests on its latency" if starved(one) else ""
    return tuple(text + tail if text.startswith("waited for a CPU") else text for text in one.warnings)


def streaming_step(one: Measurement) -> bool:
    """Whether this is a training step on a CPU that does little but move its output: what it takes and frees lies where
    the heap's history has it, for the process's life. The output is no small one, and moves at over 0.5 GB/s."""
    size, latency = one.metric("output_bytes"), one.metric("latency")
    if one.case.device != "cpu" or not one.case.direction.needs_gradient or size is None or latency is None:
        return False
    return max(size.lows) > 1 << 18 and max(size.lows) > 0.5e9 * min(latency.lows)


def judged(comparison: Comparison, name: str, new: Measurement, old: Measurement) -> Comparison:
    """What follows from the comparison of a metric: `undecided` where the two processes may be what differs."""
    if name == "device":  # a GPU's own time depends neither on a CPU nor on its memory
        return comparison
    low, high = comparison.interval or (0.0, math.inf)
    within = low < 1 + STEPS and high > 1 / (1 + STEPS) and comparison.verdict is not Verdict.SAME
    by_chance = within and any(map(streaming_step, (new, old)))
    return replace(comparison, verdict=Verdict.UNDECIDED) if by_chance or starved(new) or starved(old) else comparison


def _rows(planned: Iterable[Planned], baseline: str, done: Mapping[str, Measurement], within: float) -> list[Row]:
    planned = tuple(planned)
    inside = varying(facts(one.case) for one in planned)
    baselines = {one.case.setting: done.get(one.case.id) for one in planned if one.case.variant == baseline}
    rows = []
    for one in planned:
        label = " ".join([one.case.variant, *named(one.case, inside)])
        lone = "" if one.case.setting in baselines else f"the baseline {baseline} is not in this run"
        row = Row(one.case, MISSING, one.expect, "not measured yet", baseline, label, lone=lone)
        measurement = done.get(one.case.id)
        rows.append(_filled(row, measurement, baselines.get(one.case.setting), within) if measurement else row)
    return rows


def _filled(row: Row, measurement: Measurement, baseline: Measurement | None, within: float) -> Row:
    readings: dict[str, Reading] = {}
    warnings = list(doubts(measurement))
    for metric in measurement.metrics:
        summary, warning = checked_summary(metric)
        comparison, doubt = None, ""
        other = baseline.metric(metric.name) if baseline and metric.name in COMPARED and not row.is_baseline else None
        if other and summary:
            doubt = incomparable(metric, other)
            comparison = None if doubt else _compare(metric, other, within)
            comparison = judged(comparison, metric.name, measurement, baseline) if comparison and baseline else None
        if summary:
            readings[metric.name] = Reading(metric, summary, comparison)
        warnings += filter(None, (warning, doubt))
    return replace(
        row,
        status=str(measurement.status),
        reason=measurement.reason,
        readings=readings,
        error=measurement.error,
        bound=measurement.bound,
        warnings=tuple(warnings),
        notes=measurement.notes,
        stopped=measurement.stopped,
        limit=measurement.limit,
        pays_after=_pays_after(readings, baseline) if baseline and not row.is_baseline else None,
    )


def _pays_after(readings: Mapping[str, Reading], baseline: Measurement) -> float | None:
    latency, theirs = readings.get("latency"), baseline.metric("latency")
    if latency is None or theirs is None:
        return None
    extra = 0.0
    for name in ("make", "first_call"):
        mine, other = readings.get(name), baseline.metric(name)
        extra += (mine.summary.centre if mine else 0.0) - (other.lows[0] if other and other.lows else 0.0)
    return stats.pays_after(extra, latency.comparison, _summarise(theirs.lows).centre)


def _layer(name: str, blocks: list[list[Row]], numbers: Mapping[str, int]) -> LayerView:
    changing = varying(facts(row.case) for block in blocks for row in block)
    first = blocks[0][0].case
    views = []
    for block in blocks:
        inside = varying(facts(row.case) for row in block)
        marked = (replace(row, marks=tuple(dict.fromkeys(numbers[text] for text in row.warnings))) for row in block)
        views.append(BlockView(", ".join(named(block[0].case, changing - inside)), tuple(marked)))
    shared = ", ".join(named(first, set(facts(first)) - changing))
    rows = tuple(row for view in views for row in view.rows)
    return LayerView(name, shared, tuple(view for view in views if not view.absence), tuple(_absent(views)), rows)


def _absent(views: Iterable[BlockView]) -> Iterator[str]:
    titles: dict[str, list[str]] = {}
    for view in views:
        if view.absence:
            titles.setdefault(view.absence, []).append(view.title or "everything")
    yield from (f"{absence}: {'; '.join(which)}" for absence, which in titles.items())


def facts(case: Case) -> dict[str, str]:
    """All of a case but its layer and variant, as shown."""
    return {
        **{f"params.{name}": f"{name}={show_value(value)}" for name, value in case.params},
        "dtype": case.dtype,
        "device": case.device,
        "threads": f"{case.threads} thread{'s' if case.threads != 1 else ''}",
        "direction": str(case.direction),
    }


def named(case: Case, names: set[str]) -> list[str]:
    """Some facts of a case, in the order of its id."""
    return [text for name, text in facts(case).items() if name in names]


def varying(all_facts: Iterable[Mapping[str, str]]) -> set[str]:
    """Names of the facts that are not the same in all."""
    found = list(all_facts)
    return {name for one in found for name in one if len({other.get(name) for other in found}) > 1}
