"""The history of a machine's runs: a table for a terminal, and pictures of small panels, one for each setting."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from bench.formats.look import GREY, Look, heading, is_wide, looks, picture, scale
from bench.history import History, Series
from bench.rows import facts, named, varying
from bench.units import percent, show

SPARKS = "▁▂▃▄▅▆▇█"
_PANELS = 12  # most of one picture
_WIDTH = 24  # characters of a sparkline


def render(history: History) -> RenderableType:
    """Per setting a line for each variant and metric: first and latest time, its course, its trend and its steps."""
    settings: dict[str, list[Series]] = {}
    for series in history.series:
        settings.setdefault(series.case.setting, []).append(series)
    name = max((len(_name(series)) for series in history.series), default=0)
    shown = [part for title, group in settings.items() for part in (_title(title), _table(group, name))]
    head = Text(f"{history.runs} run{'' if history.runs == 1 else 's'} of {history.machine}", "dim")
    left_out = [Text(f"left out: {text}", "yellow") for text in history.left_out]
    words = "trend: from first to latest run by the median slope, where 95 % sure; steps: from that run on, 99 % sure"
    return Group(head, *left_out, *shown, Text(f"\n{words}", "dim"))


def _title(setting: str) -> Text:
    """On one line however narrow the console is, so that names can be searched for."""
    return Text(f"\n{setting}", "bold", no_wrap=True, overflow="ignore")


def _table(group: Sequence[Series], name: int) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    table.add_column("variant", min_width=name, no_wrap=True)
    for title, width in (("runs", 4), ("first", 8), ("latest", 8), ("trend", 9)):
        table.add_column(title, justify="right", min_width=width, no_wrap=True)
    table.add_column("history", min_width=min(_WIDTH, max(len(series.points) for series in group)), no_wrap=True)
    table.add_column("steps", overflow="fold")
    for series in group:
        centres = series.centres
        table.add_row(
            Text(_name(series)),
            str(len(centres)),
            show(centres[0], "s"),
            show(centres[-1], "s"),
            _change(series.trend) if series.trend else Text("none sure", "dim"),
            sparkline(centres),
            Text("\n").join(_steps(series)),
        )
    return table


def sparkline(values: Sequence[float]) -> str:
    """The latest values as bars of eight heights, from their lowest to their highest, at least 10 % apart."""
    values = values[-_WIDTH:]
    low = min(values)
    span = max(max(values) - low, 0.1 * low)
    return "".join(SPARKS[min(int(8 * (value - low) / span), 7)] for value in values)


def pictures(history: History) -> Iterator[tuple[str, Figure]]:
    """Names and pictures: a panel per setting and metric, a line per variant, its steps marked."""
    variants = looks(dict.fromkeys(series.case.variant for series in history.series))
    panels: dict[tuple[str, str], dict[str, list[Series]]] = {}
    for series in history.series:
        panel = panels.setdefault((series.case.layer, series.metric), {})
        panel.setdefault(series.case.setting, []).append(series)
    for (layer, metric), settings in panels.items():
        titles = list(settings)
        for start in range(0, len(titles), _PANELS):
            chosen = {title: settings[title] for title in titles[start : start + _PANELS]}
            yield f"history-{layer}-{metric}", _picture(f"{layer}: {metric} run by run", chosen, variants, history)


def _picture(
    title: str, settings: Mapping[str, Sequence[Series]], variants: Mapping[str, Look], history: History
) -> Figure:
    columns = 1 if len(settings) == 1 else 2
    used = {series.case.variant for group in settings.values() for series in group}
    key = {name: look for name, look in variants.items() if name in used}
    cases = [facts(group[0].case) for group in settings.values()]
    apart = varying(cases)
    common = ", ".join(text for name, text in cases[0].items() if name not in apart)
    foot = f"{common}; median of each run; line: a step, with its change; {history.machine}"
    heights = [2.0] * math.ceil(len(settings) / columns)
    figure, axes = picture(title, foot, len(settings), columns, heights, key)
    for panel, group in zip(axes, settings.values(), strict=True):
        heading(panel, ", ".join(named(group[0].case, apart)), columns, 8)
        _panel(panel, group, variants)
    return figure


def _panel(axes: Axes, group: Sequence[Series], variants: Mapping[str, Look]) -> None:
    dates = sorted({point.started for series in group for point in series.points})
    places = {date: place for place, date in enumerate(dates)}
    values = [value for series in group for value in series.centres]
    log = is_wide(values)
    scale(axes, "y", "s", (min(values) / 1.3, max(values) * 1.3) if log else (0.0, max(values) * 1.25), log)
    for series in group:
        colour, marker = variants[series.case.variant]
        x = [places[point.started] for point in series.points]
        axes.plot(x, series.centres, color=colour, marker=marker, markersize=3.5, linewidth=1)
        for step in series.steps:
            middle = (x[step.at] + x[step.at - 1]) / 2
            axes.axvline(middle, color=colour, linewidth=1, linestyle=":")
            change, offset = (middle, series.centres[step.at]), (3, 5)
            text = axes.annotate(_percent(step.change), change, offset, textcoords="offset points", fontsize=8)
            text.set_color(colour)
    ends = sorted({0, len(dates) - 1})
    days = [dates[end][:10] for end in ends]
    labels = days if len(set(days)) == len(days) else [dates[end][:16].replace("T", " ") for end in ends]
    axes.set_xticks(ends, labels, color=GREY)
    axes.set_xlim(-0.5, len(dates) - 0.5)


def _name(series: Series) -> str:
    return series.case.variant if series.metric == "latency" else f"{series.case.variant} ({series.metric})"


def _steps(series: Series) -> Iterator[Text]:
    for step in series.steps:
        point = series.points[step.at]
        at = f"{point.started[:10]}{f' at {point.commit}' if point.commit else ''}: "
        yield Text.assemble(at, _change(step.change))


def _change(factor: float) -> Text:
    return Text(_percent(factor), "red" if factor > 1 else "green")


def _percent(factor: float) -> str:
    return f"{'+' if factor > 1 else '-'}{percent(abs(factor - 1))}"
