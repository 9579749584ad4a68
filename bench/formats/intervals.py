"""Pictures of one number per variant with its 95 % interval: the time of a call, and the speed-up over the baseline."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bench.formats.cells import one_line, remark
from bench.formats.look import GREY, HALO, Look, heading, is_wide, picture, scale
from bench.rows import BlockView, LayerView, Row
from bench.units import ratio, show

_PANELS = 8  # most of one picture
_LABEL = 22  # characters of a label beyond which panels do not stand side by side


@dataclass(frozen=True)
class Point:
    """What to draw for one row: seconds or a ratio."""

    centre: float
    interval: tuple[float, float] | None
    text: str


@dataclass(frozen=True)
class Kind:
    """One of the two pictures."""

    name: str
    title: str
    foot: str
    unit: str

    def point(self, row: Row, metric: str) -> Point | None:
        """A row's number, None where it has none."""
        reading = row.readings.get(metric)
        if reading is None or reading.metric.unit != "s":
            return None
        if self.unit == "s":
            summary = reading.summary
            return Point(summary.centre, summary.interval, _doubtful(show(summary.centre, "s"), summary.interval))
        if row.is_baseline:
            return Point(1.0, (1.0, 1.0), "baseline")
        found = reading.comparison
        if found is None:
            return None
        return Point(found.speedup, found.interval, _doubtful(ratio(found.speedup), found.interval))


KINDS = (
    Kind("time", "time of one call, lower is better", "median with 95 % interval", "s"),
    Kind("speedup", "speed-up, higher is better", "baseline time / variant time, with 95 % interval", "×"),
)


def pictures(layer: LayerView, looks: Mapping[str, Look], machine: str) -> Iterator[tuple[str, Figure]]:
    """Names and pictures of a layer; what has no number is named beside what has."""
    for kind in KINDS:
        drawn = [row for row in layer.rows if kind.point(row, "latency")]
        if kind.unit == "×":
            drawn = [row for row in drawn if not row.is_baseline]
        if drawn:
            for start in range(0, len(layer.blocks), _PANELS):
                blocks = layer.blocks[start : start + _PANELS]
                yield f"{kind.name}-{layer.layer}", _picture(kind, layer, blocks, looks, machine)


def _picture(
    kind: Kind, layer: LayerView, blocks: Sequence[BlockView], looks: Mapping[str, Look], machine: str
) -> Figure:
    rows = [row for block in blocks for row in block.rows]
    label = max(len(row.label) for row in rows)
    columns = 1 if len(blocks) == 1 or label > _LABEL else 2
    lines = [blocks[start : start + columns] for start in range(0, len(blocks), columns)]
    heights = [0.6 + (0.48 if _busy(line) else 0.3) * max(len(block.rows) for block in line) for line in lines]
    foot = [layer.facts, kind.foot]
    if _busy(blocks):
        foot.append("hollow diamond: GPU busy time" if kind.unit == "s" else "hollow diamond: of GPU busy time")
    if any(row.warnings for row in rows):
        foot.append("* has warnings, see the report")
    foot.append(machine)
    figure, panels = picture(f"{layer.layer}: {kind.title}", "; ".join(foot), len(blocks), columns, heights)
    log = any(is_wide(_values(kind, block)) for block in blocks)
    for axes, block in zip(panels, blocks, strict=True):
        heading(axes, block.title, columns, label)
        _panel(axes, kind, block, looks, log=log, room=80 // columns)
    return figure


def _busy(blocks: Sequence[BlockView]) -> bool:
    return any("device" in row.readings for block in blocks for row in block.rows)


def _values(kind: Kind, block: BlockView) -> list[float]:
    points = (kind.point(row, metric) for row in block.rows for metric in ("latency", "device"))
    return [value for point in points if point for value in (point.centre, *(point.interval or ()))]


def _panel(axes: Axes, kind: Kind, block: BlockView, looks: Mapping[str, Look], *, log: bool, room: int) -> None:
    values = [value for value in _values(kind, block) if value > 0] or [1.0]
    low, high = min(values), max(values)
    # The text to the right of a point needs about a third of the axis.
    limits = (low / 1.5, high * 1.5 * (high / low * 2) ** 0.35) if log else (0.0, high * 1.35)
    scale(axes, "x", kind.unit, limits, log)
    if not any(kind.point(row, "latency") for row in block.rows):
        axes.set_xticks([])
    if kind.unit == "×":
        axes.axvline(1.0, color=GREY, linewidth=1, zorder=1)
    for place, row in enumerate(block.rows):
        point = kind.point(row, "latency")
        if point is None:
            across = axes.get_yaxis_transform()
            axes.text(0.015, place, _absence(row, room), transform=across, va="center", color=GREY, bbox=HALO)
            continue
        device = None if row.is_baseline and kind.unit == "×" else kind.point(row, "device")
        # The two stand one above the other, or their numbers would overlap.
        up = 0.19 if device else 0.0
        thick = 0.0 if log or kind.unit != "s" else 0.36 if device else 0.62
        _draw(axes, place - up, point, looks[row.case.variant], thick)
        if device:
            _draw_device(axes, place + 0.22, device, looks[row.case.variant][0])
    axes.set_yticks(range(len(block.rows)), [row.label + (" *" if row.warnings else "") for row in block.rows])
    axes.set_ylim(len(block.rows) - 0.5, -0.5)
    axes.tick_params(axis="y", length=0)
    axes.grid(visible=False, axis="y")


def _draw(axes: Axes, place: float, point: Point, look: Look, thick: float) -> None:
    """A bar, or a marker where its thickness is 0."""
    colour, marker = look
    sure = point.interval is not None
    if thick:
        face = colour if sure else "none"
        axes.barh(place, point.centre, height=thick, color=face, edgecolor=colour, alpha=0.85)
    else:
        axes.plot(point.centre, place, marker, markersize=7, color=colour, fillstyle="full" if sure else "none")
    low, high = point.interval or (point.centre, point.centre)
    axes.plot([low, high], [place, place], color="#1d2430" if thick else colour, linewidth=2, solid_capstyle="butt")
    axes.annotate(point.text, (high, place), (7, 0), textcoords="offset points", va="center", fontsize=9, bbox=HALO)


def _draw_device(axes: Axes, place: float, point: Point, colour: str) -> None:
    low, high = point.interval or (point.centre, point.centre)
    axes.plot([low, high], [place, place], color=colour, linewidth=1)
    axes.plot(point.centre, place, "D", markersize=4.5, color=colour, markerfacecolor="white")
    text = axes.annotate(point.text, (high, place), (6, 0), textcoords="offset points", va="center", bbox=HALO)
    text.set(fontsize=8, color=GREY)


def _absence(row: Row, room: int) -> str:
    text = remark(row) if not row.ok else "no speed-up: the baseline has no time to compare with"
    return one_line(text, room)


def _doubtful(text: str, interval: tuple[float, float] | None) -> str:
    return text if interval else f"{text} ± n/a"
