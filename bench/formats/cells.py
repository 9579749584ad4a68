"""Rows as text: the columns, remarks and legend that all formats share. A format decides only how they look."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from bench.model import Direction, Measurement, Run, Status, Verdict
from bench.rows import COMPARED, MISSING, STARVED, STEPS, Row, View, metrics, starved, streaming_step
from bench.stats import LEAST, Comparison
from bench.units import cut, error, ratio, show, spread

NAMES = {"device": "device time", "first_call": "first call"}
ABOUT = {  # columns; what a metric says of itself comes first
    "latency": "host wall time of one call, the device synchronised",
    "device time": "GPU busy time of one call",
    "dispatch": "host time to enqueue one call",
    "throughput": "time per call, back to back",
    "speed-up": "baseline / variant [95 %], above 1 is faster; trimmed mean of paired rounds, not the medians' ratio",
    "error": "largest relative one against the float64 reference",
    "first call": "time of the very first call, with whatever it builds or compiles; in no other number",
    "limited by": "launch-bound: enqueueing a call takes the host longer than running it takes the GPU; device-bound: "
    "the other way round; page-fault-bound: page faults take a fifth of the time or more",
    "pays after": "calls that win back what making and first call took beyond the baseline's; never: it is slower",
    "rounds": "how many, what ended them (target: of the intervals), and how many were far out: took much longer",
}
DIRECTIONS = {
    Direction.INFERENCE: "in eval mode under torch.no_grad(); all other directions in training mode",
    Direction.FORWARD: "the call with gradients wanted, and no backward pass",
    Direction.BACKWARD: "the backward pass alone, from random numbers for the output's gradient",
    Direction.FORWARD_BACKWARD: "the call, output.mean() and its backward pass, whose gradient of the output is one "
    "number expanded: no sum of the other two directions",
}
TONES = {  # what a word is to its reader; formats give each tone a colour
    Verdict.FASTER: "good",
    Verdict.SLOWER: "bad",
    Verdict.UNDECIDED: "doubt",
    Status.INCORRECT: "bad",
    Status.FAILED: "bad",
    Status.SKIPPED: "dim",
    MISSING: "doubt",
}
STATUSES = {
    Status.INCORRECT: "ran and gave wrong results, so it gets no time",
    Status.SKIPPED: "cannot run here; the reason is given",
    Status.FAILED: "raised, crashed or timed out; the message is given",
}
FACT_UNITS = {  # of what machine/facts.py reads, by the last of its names
    **dict.fromkeys(("total", "available", "limit", "memory", "l2_cache"), "B"),
    **dict.fromkeys(("power", "power_limit", "power_limit_default"), "W"),
    **dict.fromkeys((f"{one}{of}" for one in ("clock", "memory_clock") for of in ("", "_max", "_application")), "MHz"),
    "temperature": "°C",
}
TORCHSCRIPT = ("script", "trace")


@dataclass(frozen=True)
class Column:
    """One column: `cell` is its text for a row, `detail` what a reader can ask for on top.

    `word` follows the cell, in its tone: a verdict or a status. `short` is the cell without its interval. One that
    `wraps` is words, and may take several lines.
    """

    title: str
    cell: Callable[[Row], str]
    detail: Callable[[Row], str] = lambda row: ""
    word: Callable[[Row], str] | None = None
    short: Callable[[Row], str] | None = None
    wraps: bool = False


def columns(rows: Sequence[Row]) -> list[Column]:
    """Columns to the right of the variant, most important first; only those that some row fills."""
    known = list(metrics(rows))
    found = [_metric(name) for name in COMPARED if name in known]
    # That of latency always: it says what came of a case.
    found += [_speedup(name) for name in COMPARED if name == "latency" or any(row.comparison(name) for row in rows)]
    if any(row.error is not None for row in rows):
        found.append(Column("error", lambda row: error(row.error), lambda row: f"at most {error(row.bound) or 'n/a'}"))
    if "first_call" in known:
        found.append(_metric("first_call"))
    if any(row.limit for row in rows):
        found.append(Column("limited by", lambda row: row.limit.split(":")[0], lambda row: row.limit))
    if any(row.pays_after is not None for row in rows):
        found.append(Column("pays after", _pays_after))
    if any(row.ok for row in rows):
        found.append(Column("rounds", _rounds, wraps=True))
    told = {name for row in rows for name, reading in row.readings.items() if reading.summary.centre}
    return [*found, *(_metric(name) for name in known if name not in (*COMPARED, "first_call") and name in told)]


def _metric(name: str) -> Column:
    def centre(row: Row) -> str:
        reading = row.readings.get(name)
        return show(reading.summary.centre, reading.metric.unit) if reading else ""

    def cell(row: Row) -> str:
        reading = row.readings.get(name)
        if reading is None:
            return ""
        # What is measured once by nature, such as the first call, has no spread to miss.
        once = name not in COMPARED and reading.summary.n == 1
        return centre(row) if once else f"{centre(row)} {spread(reading.summary.half_width)}"

    def detail(row: Row) -> str:
        reading = row.readings.get(name)
        if reading is None:
            return ""
        unit, summary = reading.metric.unit, reading.summary
        clock = f", clock: {reading.metric.clock}" if reading.metric.clock else ""
        low, high = (show(end, unit) for end in summary.interval or (None, None))
        return f"95 % interval {low} to {high}, {summary.n} round{'s' if summary.n != 1 else ''}{clock}"

    return Column(NAMES.get(name, name), cell, detail, short=centre if name == "device" else None)


def _speedup(name: str) -> Column:
    def cell(row: Row, show: Callable[[Comparison], str] = speedup) -> str:
        comparison = row.comparison(name)
        if comparison is None:
            return "1×" if row.is_baseline and name in row.readings else ""
        return show(comparison)

    def word(row: Row) -> str:
        if not row.ok:
            return row.status if name == "latency" else ""
        comparison = row.comparison(name)
        return "baseline" if row.is_baseline else str(comparison.verdict) if comparison else "n/a"

    def detail(row: Row) -> str:
        comparison = row.comparison(name)
        return f"{comparison.verdict} than {row.baseline}, {comparison.n} paired rounds" if comparison else ""

    title = "speed-up" if name == "latency" else f"{name} speed-up"
    return Column(title, cell, detail, word, lambda row: cell(row, lambda comparison: ratio(comparison.speedup)))


def speedup(comparison: Comparison) -> str:
    """A ratio and its interval: "2.01× [1.98, 2.04]"."""
    if comparison.interval is None:
        return f"{ratio(comparison.speedup)} [n/a]"
    low, high = (ratio(end).rstrip("×") for end in comparison.interval)
    return f"{ratio(comparison.speedup)} [{low}, {high}]"


def _rounds(row: Row) -> str:
    """How many, which of the two ends came first, and how many were far out: "47, time limit, 2 far out"."""
    if "latency" not in row.readings:
        return ""
    summary = row.readings["latency"].summary
    far = f"{summary.outliers} far out" if summary.outliers else ""
    return ", ".join(filter(None, (str(summary.n), row.stopped, far)))


def _pays_after(row: Row) -> str:
    if row.pays_after is None:
        return ""
    if math.isinf(row.pays_after):
        return "never"
    return "at once" if row.pays_after < 1 else show(math.ceil(row.pays_after), "calls")


def remark(row: Row) -> str:
    """Why a row has no number, and whether its status was expected; empty when there is nothing to say."""
    if row.ok:
        return f"ok, but {row.surprise}" if row.surprise else ""
    expected = ", as expected" if row.status == row.expected and row.status != Status.SKIPPED else ""
    surprise = f" ({row.surprise})" if row.surprise else ""
    return f"{row.status}{expected}: {row.reason}{surprise}"


def remarks(rows: Sequence[Row]) -> list[tuple[str, str, str]]:
    """What there is to say of rows, each text once: the variants, the text, their status."""
    found: dict[str, list[Row]] = {}
    for row in rows:
        if text := remark(row):
            found.setdefault(text, []).append(row)
    said = [(", ".join(row.label for row in alike), text, alike[0].status) for text, alike in found.items()]
    return said + [("speed-up", f"n/a: {why}", "") for why in dict.fromkeys(row.lone for row in rows if row.ok) if why]


def headline(run: Run, view: View) -> str:
    """What was run and what came of it, in a line."""
    counts = Counter(row.status for row in view.rows)
    states = ", ".join(f"{counts[state]} {state}" for state in [*Status, MISSING] if counts[state])
    cases = f"{len(view.rows)} case{'s' if len(view.rows) != 1 else ''}"
    return f"{cases}: {states}; started {run.header.started}, layerbench {run.header.version}"


def machine(run: Run) -> str:
    """What the numbers were measured on."""
    return str(run.header.environment.get("fingerprint", "machine not known"))


def damage(run: Run, view: View) -> list[str]:
    """What there is less of than a reader may think: an interrupted run, a damaged file."""
    found = list(run.problems)
    missing = sum(row.status == MISSING for row in view.rows)
    if missing:
        found.append(
            f"{missing} of {len(view.rows)} cases are not measured yet: the run was interrupted or is going on"
        )
    return found


def cautions(run: Run, view: View) -> list[str]:
    """What a reader must know before any number: damage, and surprises."""
    return damage(run, view) + [f"{row.case.id}: {row.status}, {row.surprise}" for row in view.rows if row.surprise]


def legend(run: Run, view: View) -> list[tuple[str, str]]:
    """The words used in this report and what they mean."""
    within = f"{100 * run.header.suite.policy.same_within:g} %"
    rows = view.rows
    about = ABOUT | {NAMES.get(name, name): metric.about for name, metric in metrics(rows).items() if metric.about}
    titles = {column.title: None for layer in view.layers for block in layer.blocks for column in columns(block.rows)}
    found = [(title, about[title]) for title in titles if title in about]
    found += [(str(one), text) for one, text in DIRECTIONS.items() if any(row.case.direction is one for row in rows)]
    found += [
        ("times", "median of the lowest of each turn's slots"),
        ("±", f"half its 95 % interval; n/a below {LEAST} rounds"),
        ("faster, slower", f"the 99.5 % interval is over {within} from 1"),
        ("same", f"the 95 % interval is within {within} of 1"),
        ("undecided", undecided(run.measurements)),
    ]
    found += [(str(status), text) for status, text in STATUSES.items() if any(row.status == status for row in rows)]
    if scripted := sorted({row.case.variant for row in rows if row.case.variant.startswith(TORCHSCRIPT)}):
        words = "made with TorchScript, which PyTorch has deprecated: do not start new work on it"
        found.append((" and ".join(scripted), words))
    return found


def undecided(found: Iterable[Measurement]) -> str:
    """What the word means among these: those of its causes that are there."""
    found = tuple(found)
    causes = ["the 99.5 % interval crosses that limit, or none"]
    if any(map(starved, found)):
        causes.append(f"one of the two had no CPU for over {100 * STARVED:g} % of its time")
    if any(map(streaming_step, found)):
        causes.append(f"within {100 * STEPS:g} %, one of the two is a CPU training step that mostly moves memory")
    return "; or ".join(causes)


def fact(value: object, name: str = "") -> str:
    """A plain fact of the environment or the policy; of one that `FACT_UNITS` names, with its unit."""
    if value is None:
        return "n/a"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple | dict):
        return ", ".join(map(fact, value)) or "none"
    if name in FACT_UNITS and isinstance(value, int | float):
        return show(value, "B") if FACT_UNITS[name] == "B" else f"{value:g} {FACT_UNITS[name]}"
    return str(value)


def one_line(text: str, most: int = 0) -> str:
    """Text with its line breaks closed up, cut to `most` characters (0: all) with an ellipsis."""
    return cut(" ".join(text.split()), most)


# A case's id: layer[parameters]/dtype/device/threads/direction/variant
_ID = re.compile(r"(.+)\[(.*)\]/([^/]+)/([^/]+)/([^/]+)/([^/]+)/([^/]+)")


def names(ids: Iterable[str]) -> dict[str, str]:
    """Case ids as short as they can be told apart within these: what all cases of a layer share is left out."""
    shown = {case: case for case in ids}
    split = {case: found.groups() for case in shown if (found := _ID.fullmatch(case))}
    for layer in dict.fromkeys(parts[0] for parts in split.values()):
        own = {case: parts for case, parts in split.items() if parts[0] == layer}
        tokens = {case: [*parts[1].split(","), *parts[2:5]] for case, parts in own.items()}
        common = set.intersection(*map(set, tokens.values()))
        for case, parts in own.items():
            rest = [token for token in tokens[case] if token not in common]
            shown[case] = " ".join([layer.rpartition("/")[2], *rest, *parts[5:]])
    return shown if len(set(shown.values())) == len(shown) else {case: case for case in shown}
