"""Notes that differ only in their figures, as one note with ranges: "waited for a CPU 33 to 36 % of the time"."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

_PREFIXES = {"p": 1e-12, "n": 1e-9, "u": 1e-6, "µ": 1e-6, "m": 1e-3, "": 1.0, "k": 1e3, "M": 1e6, "G": 1e9}
_UNITS = {f"{prefix}{unit}": (unit, factor) for unit in ("s", "Hz") for prefix, factor in _PREFIXES.items()}
_UNITS |= {unit: ("B", 1024.0**power) for power, unit in enumerate(("B", "KiB", "MiB", "GiB", "TiB"))}
_UNITS |= {"%": ("%", 1.0), "": ("", 1.0)}
_WORDS = "|".join(filter(str.isalpha, _UNITS))
# A number that stands by itself, and its unit: not the 32 of float32, the 12 of file.py:12 or a part of 2.13.0.
_FIGURE = re.compile(rf"(?<![\w.:])(\d+(?:,\d{{3}})*(?:\.\d+)?(?:e[-+]?\d+)?)( ?%| (?:{_WORDS})\b)?(?!\w|\.\d)")


def merge(texts: Iterable[str]) -> tuple[tuple[str, ...], dict[str, int]]:
    """The notes, in order of first appearance, and the number, from 1, of that which holds each text."""
    alike: dict[str, list[str]] = {}
    for text in dict.fromkeys(texts):
        alike.setdefault(_kind(text), []).append(text)
    numbers = {text: number for number, group in enumerate(alike.values(), start=1) for text in group}
    return tuple(map(_as_one, alike.values())), numbers


def _kind(text: str) -> str:
    """What notes of one kind have in common: all but their figures. One of several times is of its case alone: "two
    modes, about 3 to 615 µs and 5 µs to 1 ms" would be true of none."""
    units = [_UNITS[_unit(found)][0] for found in _FIGURE.finditer(text)]
    return text if units.count("s") > 1 else _FIGURE.sub(lambda found: f"\0{_UNITS[_unit(found)][0]}\0", text)


def _as_one(texts: Sequence[str]) -> str:
    columns = zip(*(list(_FIGURE.finditer(text)) for text in texts), strict=True)
    spans = iter([_range(min(found, key=_value), max(found, key=_value)) for found in columns])
    return _FIGURE.sub(lambda _: next(spans), texts[0])


def _range(low: re.Match[str], high: re.Match[str]) -> str:
    if low[0] == high[0]:
        return low[0]
    return f"{low[1] if low[2] == high[2] else low[0]} to {high[0]}"


def _unit(found: re.Match[str]) -> str:
    return (found[2] or "").strip()


def _value(found: re.Match[str]) -> float:
    return float(found[1].replace(",", "")) * _UNITS[_unit(found)][1]
