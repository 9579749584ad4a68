"""Pictures of how the time of a call grows with a swept parameter: one line per variant, a panel per all else."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bench.formats.look import GREY, HALO, Look, heading, picture, scale
from bench.model import Value
from bench.rows import COMPARED, LayerView, Row, facts, named, varying
from bench.stats import LEAST
from bench.units import show

_LEAST = 3  # values: with fewer a line shows nothing that the table does not
_PANELS = 6  # most of one picture
_TICKS = 6


@dataclass(frozen=True)
class Sweep:
    """Rows alike in all but the variant and the swept parameter, and the metric to draw of them."""

    metric: str
    rows: tuple[Row, ...]
    fact: str  # key of the swept fact in `facts`

    def lines(self) -> dict[str, list[tuple[float, Row]]]:
        """Points of each variant along the parameter; nothing where no variant has enough for a line."""
        found: dict[str, list[tuple[float, Row]]] = {}
        for row in self.rows:
            x, reading = _number(row, self.fact), row.readings.get(self.metric)
            if x is not None and reading and reading.metric.unit == "s" and reading.summary.centre > 0:
                found.setdefault(row.case.variant, []).append((x, row))
        most = max((len({x for x, _ in points}) for points in found.values()), default=0)
        return {name: sorted(points, key=lambda point: point[0]) for name, points in found.items() if most >= _LEAST}


def pictures(layer: LayerView, looks: Mapping[str, Look], machine: str) -> Iterator[tuple[str, Figure]]:
    """Names and pictures of a layer, for every parameter (and the threads) with three values or more."""
    for fact in sorted({key for row in layer.rows for key in facts(row.case)}):
        sweeps = [sweep for sweep in _sweeps(layer.rows, fact) if sweep.lines()]
        name = fact.removeprefix("params.")
        for start in range(0, len(sweeps), _PANELS):
            shown = sweeps[start : start + _PANELS]
            yield f"scaling-{layer.layer}-{name}", _picture(layer.layer, name, shown, looks, machine)


def _sweeps(rows: Sequence[Row], fact: str) -> list[Sweep]:
    groups: dict[tuple[tuple[str, str], ...], list[Row]] = {}
    for row in rows:
        rest = tuple((key, text) for key, text in facts(row.case).items() if key != fact)
        groups.setdefault(rest, []).append(row)
    return [Sweep(metric, tuple(group), fact) for group in groups.values() for metric in COMPARED]


def _number(row: Row, fact: str) -> float | None:
    """The swept value as a number; of a shape its number of elements."""
    values: dict[str, Value] = {f"params.{name}": value for name, value in row.case.params}
    value = (values | {"threads": row.case.threads}).get(fact)
    if isinstance(value, bool | str) or value is None:
        return None
    return math.prod(value) if isinstance(value, tuple) else value


def _picture(layer: str, name: str, sweeps: Sequence[Sweep], looks: Mapping[str, Look], machine: str) -> Figure:
    rows = [row for sweep in sweeps for row in sweep.rows]
    changing = varying(facts(row.case) for row in rows) - {sweeps[0].fact}
    everywhere = named(rows[0].case, set(facts(rows[0].case)) - changing - {sweeps[0].fact})
    columns = min(len(sweeps), 2)
    heights = [3.1] * math.ceil(len(sweeps) / columns)
    foot = f"{', '.join(everywhere)}; median, the band is its 95 % interval (none below {LEAST} rounds)"
    if any(row.warnings for row in rows):
        foot += "; * has warnings, see the report"
    foot += f"; {machine}"
    key = {variant: looks[variant] for sweep in sweeps for variant in sweep.lines()}
    title = f"{layer}: time of one call over {name}, lower is better"
    figure, panels = picture(title, foot, len(sweeps), columns, heights, key)
    shape = any(isinstance(dict(row.case.params).get(name), tuple) for row in rows)
    for axes, sweep in zip(panels, sweeps, strict=True):
        what = ["GPU busy time"] if sweep.metric == "device" else []
        heading(axes, ", ".join(named(sweep.rows[0].case, changing) + what), columns, 8)
        _panel(axes, sweep, looks)
        axes.set_xlabel(f"{name} (elements)" if shape else name)
        axes.set_ylabel("time of one call")
    return figure


def _panel(axes: Axes, sweep: Sweep, looks: Mapping[str, Look]) -> None:
    lines = sweep.lines()
    for variant, points in lines.items():
        colour, marker = looks[variant]
        summaries = [row.readings[sweep.metric].summary for _, row in points]
        xs = [x for x, _ in points]
        centres = [summary.centre for summary in summaries]
        axes.plot(xs, centres, color=colour, marker=marker, markersize=5, linewidth=1.8)
        for x, row in points:
            mark = " *" * bool(row.warnings)
            axes.annotate(mark, (x, row.readings[sweep.metric].summary.centre), (3, 1), textcoords="offset points")
        bands = [summary.interval or (summary.centre, summary.centre) for summary in summaries]
        lows, highs = zip(*bands, strict=True)
        axes.fill_between(xs, lows, highs, color=colour, alpha=0.2, linewidth=0)
    found = [row.readings[sweep.metric].summary.centre for points in lines.values() for _, row in points]
    scale(axes, "y", "s", (min(found) / 1.5, max(found) * 1.5), log=True)
    _along(axes, sorted({x for points in lines.values() for x, _ in points}))
    absent = _absent(sweep)
    if absent:
        corner = axes.transAxes
        axes.text(0.98, 0.03, absent, transform=corner, ha="right", va="bottom", fontsize=8.5, color=GREY, bbox=HALO)


def _along(axes: Axes, values: Sequence[float]) -> None:
    """Ticks at measured values, thinned; logarithmic when all are above zero."""
    axes.set_xscale("log" if values[0] > 0 else "linear")
    step = math.ceil(len(values) / _TICKS)
    shown = values[::-1][::step]
    axes.set_xticks(shown, [f"{x:g}" if abs(x) < 1e5 else show(x, "").strip() for x in shown])
    axes.minorticks_off()


def _absent(sweep: Sweep) -> str:
    """Which cases of the sweep have no point and why, a line per variant and status."""
    counts: dict[tuple[str, str], int] = {}
    for row in sweep.rows:
        if not row.ok:
            counts[row.case.variant, row.status] = counts.get((row.case.variant, row.status), 0) + 1
    totals = [row.case.variant for row in sweep.rows]
    return "\n".join(
        f"{variant}: {status} at {n} of {totals.count(variant)}" for (variant, status), n in counts.items()
    )
