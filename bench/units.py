"""Numbers as people read them: about three significant digits and a fitting unit. Inside, all is in base units."""

from __future__ import annotations

import math

_PREFIXES = ("p", "n", "µ", "m", "", "k", "M", "G", "T", "P")
_BYTES = ("B", "KiB", "MiB", "GiB", "TiB")
_COUNTS = {"1": "", "calls": " calls"}


def show(value: float | None, unit: str) -> str:
    """A value in `unit` ("s", "B", "1", "calls" or any SI unit): 1.23e-05 of "s" is "12.3 µs". None is "n/a"."""
    if value is None:
        return "n/a"
    if not math.isfinite(value):
        return str(float(value))
    if unit in _COUNTS:
        return f"{value:,.0f}{_COUNTS[unit]}" if value == round(value) else f"{_digits(value)}{_COUNTS[unit]}"
    if not value:
        return f"0 {unit}"
    if unit == "B":
        power = sum(abs(value) >= 1024**one for one in range(1, len(_BYTES)))
        return f"{_digits(value / 1024**power)} {_BYTES[power]}"
    rounded = abs(float(f"{value:.3g}"))  # first, so that 999.96 µs is 1.00 ms and not 1000 µs
    most = 0 if unit == "s" else 5  # nobody reads kiloseconds
    power = min(max(math.floor(math.log10(rounded) / 3), -4), most)
    return f"{_digits(value / 1000.0**power)} {_PREFIXES[power + 4]}{unit}"


def duration(seconds: float) -> str:
    """A time that people wait: "50 s", "12 minutes", "29 hours", "38 days"."""
    for unit, size in (("days", 86400), ("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:,.0f} {unit}"
    return f"{seconds:.0f} s"


def ratio(value: float) -> str:
    """A speed-up: 2.004 is "2.00×"."""
    return f"{_digits(value)}×"


def spread(half_width: float | None) -> str:
    """A relative half-width: 0.0123 is "± 1.2 %". Unknown is "± n/a", never 0."""
    return "± n/a" if half_width is None else f"± {percent(half_width)}"


def percent(fraction: float) -> str:
    """A fraction with two digits: 0.0123 is "1.2 %", 0.2 is "20 %"."""
    percents = 100 * fraction
    return f"{percents:.0f} %" if abs(percents) >= 9.95 else f"{percents:#.2g} %"


def error(value: float | None) -> str:
    """A relative error: 3.21e-07 is "3.2e-07"; not known is ""."""
    return "" if value is None else f"{value:.2g}"


def cut(text: str, most: int) -> str:
    """A text of at most `most` characters (0: all of it), with an ellipsis where it was longer."""
    return f"{text[: most - 1]}…" if 0 < most < len(text) else text


def _digits(value: float) -> str:
    return f"{value:,.0f}" if 999.5 <= abs(value) < 1e9 else f"{value:#.3g}".rstrip(".")
