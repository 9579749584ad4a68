"""How pictures look: one style, one colour and marker per variant, axes with units, readable 800 pixels wide."""

from __future__ import annotations

import itertools
import math
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.lines import Line2D
from matplotlib.ticker import EngFormatter, Formatter, FuncFormatter, Locator, MaxNLocator, NullLocator

Look = tuple[str, str]  # colour and marker

WIDTH = 8.0  # inches: 800 pixels at 100 dots an inch
LOG_BEYOND = 20  # a larger range gets a logarithmic axis
GREY = "#5d6776"
HALO = {"facecolor": "white", "edgecolor": "none", "pad": 1.0}  # keeps lines from crossing text
STYLE: dict[Any, Any] = {  # newer matplotlib types name every key, older ones none
    "font.family": "DejaVu Sans",  # ships with matplotlib; has Cyrillic and Greek
    "font.size": 9.5,
    "axes.titlesize": 9.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#9aa1ad",
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e6e8ec",
    "xtick.color": "#9aa1ad",
    "ytick.color": "#9aa1ad",
    "xtick.labelcolor": "#1d2430",
    "ytick.labelcolor": "#1d2430",
    "text.parse_math": False,  # a "$" in a name is no formula
    "svg.hashsalt": "layerbench",  # the same run gives the same file
}
# Okabe and Ito's colours, which colour-blind readers tell apart; without their yellow, too pale on white.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
_MARKERS = "osD^vPX"
# Digits of each decade, and every how many decades: the first that fits.
_LOG_TICKS = (((1, 2, 5), 1), ((1, 3), 1), *(((1,), step) for step in range(1, 7)))


def looks(names: Iterable[str]) -> dict[str, Look]:
    """Colour and marker of each variant, the same in every picture of a run."""
    variants = dict.fromkeys(names)
    # The markers shift by one when the colours have gone round, so that no two variants share both.
    return {
        variant: (_COLOURS[n % len(_COLOURS)], _MARKERS[(n + n // len(_COLOURS)) % len(_MARKERS)])
        for n, variant in enumerate(variants)
    }


def picture(
    title: str, foot: str, count: int, columns: int, heights: Sequence[float], key: Mapping[str, Look] | None = None
) -> tuple[Figure, list[Axes]]:
    """An empty picture of `count` panels; `heights` of its rows in inches, `key` the looks that need a legend."""
    key = key or {}
    above, below = textwrap.wrap(title, 80), textwrap.wrap(foot, 118)
    abreast = max(1, int(WIDTH / (0.8 + 0.085 * max(map(len, key), default=0))))
    titles, bottom = 0.12 + 0.2 * len(above), 0.08 + 0.15 * len(below)
    height = titles + 0.22 * math.ceil(len(key) / abreast) + sum(heights) + bottom
    figure = Figure(figsize=(WIDTH, height), layout="constrained")
    engine = figure.get_layout_engine()
    assert isinstance(engine, ConstrainedLayoutEngine)
    # A strip each for title, legend and foot: constrained layout lays a legend over the title.
    engine.set(rect=(0, bottom / height, 1, sum(heights) / height))
    figure.text(0.01, 1 - 0.08 / height, "\n".join(above), va="top", fontsize=12, fontweight="bold")
    figure.text(0.01, 0.05 / height, "\n".join(below), va="bottom", fontsize=8.5, color=GREY)
    if key:
        lines = [Line2D([], [], color=colour, marker=marker, label=name) for name, (colour, marker) in key.items()]
        place = (0.0, 1 - titles / height)
        figure.legend(
            handles=lines, loc="upper left", bbox_to_anchor=place, ncols=abreast, frameon=False, borderaxespad=0.1
        )
    axes = list(figure.subplots(len(heights), columns, squeeze=False, height_ratios=list(heights)).flat)
    for unused in axes[count:]:
        unused.remove()
    return figure, axes[:count]


def heading(axes: Axes, text: str, columns: int, label: int) -> None:
    """A panel's title, wrapped to the width that labels of `label` characters leave."""
    inches = WIDTH / columns - 0.09 * label - 0.1
    axes.set_title("\n".join(textwrap.wrap(text, max(10, int(inches / 0.088)))))


def is_wide(values: Iterable[float]) -> bool:
    """Whether values span a range that only a logarithmic axis shows."""
    found = list(values)
    return bool(found) and min(found) > 0 and max(found) / min(found) > LOG_BEYOND


def scale(axes: Axes, which: Literal["x", "y"], unit: str, limits: tuple[float, float], log: bool) -> None:
    """Scale, limits and few ticks, with their unit ("s", or "×" for a ratio)."""
    axis = axes.xaxis if which == "x" else axes.yaxis
    axes.set(**{f"{which}scale": "log" if log else "linear", f"{which}lim": limits})
    axis.set_major_locator(_LogTicks() if log else MaxNLocator(4, steps=[1, 2, 2.5, 5, 10]))
    axis.set_minor_locator(NullLocator())
    ratios: Formatter = FuncFormatter(lambda value, _: f"{value:g}{unit}")
    axis.set_major_formatter(EngFormatter("s") if unit == "s" else ratios)


class _LogTicks(Locator):
    """Up to four round values, further apart than their labels are long."""

    def __call__(self) -> list[float]:
        """Asked when drawn: only then is the length of the axis known."""
        assert self.axis
        return self.tick_values(*self.axis.get_view_interval())

    def tick_values(self, vmin: float, vmax: float) -> list[float]:
        # matplotlib's tick space counts labels three times as wide as high; "500 µs" is four and needs a gap.
        space = self.axis.get_tick_space() if self.axis else 9
        least = math.log10(vmax / vmin) * 1.6 / max(space, 1)
        ticks: list[float] = []
        for digits, step in _LOG_TICKS:
            powers = range(math.floor(math.log10(vmin)), math.ceil(math.log10(vmax)) + 1)
            ticks = [digit * 10.0**power for power in powers if power % step == 0 for digit in digits]
            ticks = [tick for tick in ticks if vmin <= tick <= vmax]
            if len(ticks) <= 4 and all(math.log10(b / a) >= least for a, b in itertools.pairwise(ticks)):
                return ticks
        return ticks[:1]
