"""Results -> pandas frames, one column per metric with its unit; and the comparison of two runs."""

from __future__ import annotations

import difflib
import math
from collections.abc import Set
from dataclasses import dataclass, replace

import pandas as pd

from bench import stats
from bench.model import Case, Header, Measurement, Run, Verdict, show_value
from bench.rows import COMPARED, Row, doubts, incomparable, judged, view
from bench.stats import Comparison


def frame(run: Run) -> pd.DataFrame:
    """One row per planned case in suite order; columns that a spreadsheet can use, units in their names.

    Parameters are `params.<name>`. Each metric has `<name> [<unit>]`, its 95 % interval as `<name> low [<unit>]`
    and `<name> high [<unit>]`, `<name> rounds` and `<name> clock`. Speed-ups are over `baseline`; a baseline's
    own is 1 by definition. Warnings and notes are joined by "; ". A case not measured yet has the status "missing".
    """
    found = {row.case.id: row for row in view(run).rows}
    rows = [found[key] for key in run.header.suite.cases()]
    params = list(dict.fromkeys(name for row in rows for name, _ in row.case.params))
    metrics = list(dict.fromkeys((name, r.metric.unit) for row in rows for name, r in row.readings.items()))
    table = pd.DataFrame.from_records([_record(row, params, metrics) for row in rows])
    for name in params:  # as objects: a parameter that some layers lack must not turn 3 into 3.0
        values = [dict(row.case.params).get(name) for row in rows]
        shown = [show_value(value) if isinstance(value, tuple) else value for value in values]
        table[f"params.{name}"] = pd.Series(shown, dtype=object)
    return table.astype({f"{name} rounds": "Int64" for name, _ in metrics})


def _record(row: Row, params: list[str], metrics: list[tuple[str, str]]) -> dict[str, object]:
    case = row.case
    record: dict[str, object] = {"layer": case.layer, "variant": case.variant}
    record |= {f"params.{name}": None for name in params}
    record |= {"dtype": case.dtype, "device": case.device, "threads": case.threads, "direction": str(case.direction)}
    record |= {"status": row.status, "expected": str(row.expected), "reason": row.reason}
    record |= {"error": row.error, "bound": row.bound}
    for name, unit in metrics:
        record |= _metric_columns(row, name, unit)
    record["baseline"] = row.baseline
    names = {name for name, _ in metrics}
    for name in COMPARED:
        if name == "latency" or name in names:
            record |= _speedup_columns(row, name)
    notes = [*row.notes, *([f"no speed-up: {row.lone}"] if row.ok and row.lone else [])]
    return record | {"warnings": "; ".join(row.warnings), "notes": "; ".join(notes)}


def _metric_columns(row: Row, name: str, unit: str) -> dict[str, object]:
    reading = row.readings.get(name)
    summary = reading.summary if reading and reading.metric.unit == unit else None
    low, high = (summary.interval if summary else None) or (None, None)
    return {
        f"{name} [{unit}]": summary.centre if summary else None,
        f"{name} low [{unit}]": low,
        f"{name} high [{unit}]": high,
        f"{name} rounds": reading.summary.n if reading else None,
        f"{name} clock": reading.metric.clock if reading else "",
    }


def _speedup_columns(row: Row, metric: str) -> dict[str, object]:
    prefix = "" if metric == "latency" else f"{metric} "
    comparison = row.comparison(metric)
    low, high = (comparison.interval if comparison else None) or (None, None)
    itself = row.is_baseline and metric in row.readings
    return {
        f"{prefix}speedup": 1.0 if itself else comparison.speedup if comparison else None,
        f"{prefix}speedup low": low,
        f"{prefix}speedup high": high,
        f"{prefix}verdict": "baseline" if itself else str(comparison.verdict) if comparison else "",
    }


@dataclass(frozen=True)
class Change:
    """One metric of one case in two runs. Without a comparison, `why` says why there is none."""

    case: Case
    metric: str
    new: Measurement | None
    old: Measurement | None
    comparison: Comparison | None  # speedup is old time / new time: above 1 the new run is faster
    why: str = ""
    hint: str = ""  # which case of the other run it may be, where it is in one only
    common: float | None = None  # a speed-up that most cases share, of which this one's says no more: no verdict

    @property
    def warnings(self) -> tuple[str, ...]:
        """Doubts about either number."""
        sides = (("new", self.new), ("old", self.old))
        return tuple(f"{side}: {text}" for side, measurement in sides if measurement for text in doubts(measurement))


def unlike(old: Header, new: Header) -> list[str]:
    """Why the times of two runs answer different questions: another machine, other software, other conditions."""
    machines = [str(one.environment.get("fingerprint")) for one in (old, new)]
    found = [] if machines[0] == machines[1] else ["different machines or software:\n  " + "\n  ".join(machines)]
    before, now = old.suite.policy.conditions(), new.suite.policy.conditions()
    return found + [f"{name} was {before[name]} and is {now[name]}" for name in now if before[name] != now[name]]


def compare_runs(new: Run, old: Run, same_within: float) -> list[Change]:
    """Match two runs case by case, by id; every case of either run is in the answer.

    In the order of the new run, then what only the old one has. Each ok pair gives one Change per
    compared metric that both have (latency, and device time on a GPU). What most cases have in common is no verdict on
    any, see stats.shared: the runs share no rounds, and the machine as a whole may have been slower in one.
    """
    new_cases, old_cases = new.header.suite.cases(), old.header.suite.cases()
    newer = {measurement.case.id: measurement for measurement in new.measurements}
    older = {measurement.case.id: measurement for measurement in old.measurements}
    changes: list[Change] = []
    for key, planned in (new_cases | {key: one for key, one in old_cases.items() if key not in new_cases}).items():
        if key in old_cases and key in new_cases:
            changes += _changes(planned.case, newer.get(key), older.get(key), same_within)
            continue
        side, there, here = ("new", new_cases, old_cases) if key in old_cases else ("old", old_cases, new_cases)
        hint = _closest(key, there.keys() - here.keys())
        one, other = newer.get(key), older.get(key)
        changes.append(Change(planned.case, COMPARED[0], one, other, None, f"not in the {side} run", hint))
    return _beyond_common(changes, same_within)


def _beyond_common(changes: list[Change], same_within: float) -> list[Change]:
    settled: dict[tuple[str, str], dict[int, Comparison]] = {}
    for number, change in enumerate(changes):
        if change.comparison and change.comparison.verdict is not Verdict.UNDECIDED:
            settled.setdefault((change.case.device, change.metric), {})[number] = change.comparison
    for found in settled.values():
        cases = [changes[number].case for number in found]
        logs = [math.log(one.speedup) for one in found.values()]
        names = [case.layer for case in cases], [case.variant for case in cases]
        shift, moved = stats.shared(logs, *names, same_within)
        for (number, one), explained in zip(found.items(), moved, strict=True):
            if explained and one.verdict is not Verdict.SAME:
                undecided = replace(one, verdict=Verdict.UNDECIDED)
                changes[number] = replace(changes[number], comparison=undecided, common=math.exp(shift))
    return changes


def _changes(case: Case, new: Measurement | None, old: Measurement | None, same_within: float) -> list[Change]:
    states = {side: _state(one) for side, one in (("new", new), ("old", old)) if not one or one.reason}
    both = len(states) == 2 and states["new"] == states["old"]
    why = f"both: {states['new']}" if both else "; ".join(f"{side}: {text}" for side, text in states.items())
    if why or new is None or old is None:
        return [Change(case, COMPARED[0], new, old, None, why)]
    changes = []
    for name in COMPARED:
        one, other = new.metric(name), old.metric(name)
        if not (one and one.lows and other and other.lows):
            if one or other:
                side = "new" if one else "old"
                changes.append(Change(case, name, new, old, None, f"{name} time in the {side} run only"))
            continue
        if max(*one.lows, *other.lows) == 0:  # neither launches anything on the GPU
            continue
        doubt = incomparable(one, other)
        comparison = None if doubt else stats.compare_unpaired(one.lows, other.lows, same_within)
        comparison = judged(comparison, name, new, old) if comparison else None
        changes.append(Change(case, name, new, old, comparison, doubt))
    return changes


def _state(measurement: Measurement | None) -> str:
    return "not measured" if measurement is None else f"{measurement.status}: {measurement.reason}"


def _closest(key: str, others: Set[str]) -> str:
    for other in sorted(others):
        if f"/{other}".endswith(f"/{key}") or f"/{key}".endswith(f"/{other}"):
            return f"the same file by another path, from another folder: {other}"
    variant = key.rpartition("/")[2]  # another one is another implementation, whatever it is called
    alike = sorted(other for other in others if other.rpartition("/")[2] == variant)
    near = difflib.get_close_matches(key, alike, n=1, cutoff=0.8)
    return f"renamed? the closest there is {near[0]}" if near else ""
