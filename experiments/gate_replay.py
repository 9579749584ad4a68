"""How often does the gate cry wolf, and what does it catch? Recorded pairs of processes, replayed in many suites.

    python -m experiments.gate_replay record 60   # A/A: the same code in both arms, 24 cases
    python -m experiments.gate_replay plant 24    # A/B: 0, 5 and 10 % more work in three layers
    python -m experiments.gate_replay             # replay what was recorded, and print the tables

Recordings are gate.jsonl files in results/experiments/gate: `aa` on a busy machine, `aa-quiet` on a quiet one before
outputs kept their place, and those of an H200, where gates were run. A replayed suite draws stretches of four
consecutive generations, each at most once, so that drift and what neighbours had in common stay; in each stretch the
arms of an A/A may be swapped, since they are the same code. Power comes from planted work that was really done, and for
more kinds of noise from the A/A pairs with the logarithm of the slow-down added.
"""

from __future__ import annotations

import math
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
from rich.console import Console
from rich.progress import track
from rich.table import Table

from bench.gating import ab, arms, gaterun
from bench.gating.ab import Broke, Pairs, Ran, Shot
from bench.gating.arms import Arm
from bench.gating.verdicts import CPU, GPU, TAU, Outcome, Verdicts, estimate
from bench.model import Case, Direction, Policy

# Workers import this module too, before they enter their arm: so nothing here may import layers, as common.py does.
HERE = Path(__file__).resolve().parent
FOLDER = HERE.parent / "results" / "experiments" / "gate"
SUITES, STRETCH = 300, 4
PLANTED = (0.0, 0.05, 0.1)
ESTIMATORS: dict[str, Callable[[Sequence[float]], float]] = {
    "minimum": min,
    "10 % quantile": lambda slots: float(np.quantile(slots, 0.1)),
    "lower quartile": lambda slots: float(np.quantile(slots, 0.25)),
    "median": lambda slots: float(np.median(slots)),
    "mean": lambda slots: float(np.mean(slots)),
}

Generations = list[dict[str, Shot]]  # of each generation the shots by case


def record(count: int) -> None:
    """Pairs of the same code on the gate's own suite."""
    from bench.console import load_suite
    from ext import build

    suite = load_suite(str(HERE.parent / "configs" / "gate.yaml"))
    new = arms.working_tree(HERE.parent, build.cache())
    cases = [planned.case for planned in suite.cases().values()]
    _record((replace(new, name="A"), new), [*cases, *ab.canaries(cases)], suite.policy, count, FOLDER / "aa.jsonl")


def plant(count: int) -> None:
    """Pairs of which the second does more work, in a repository made for it."""
    from ext import build

    with tempfile.TemporaryDirectory() as name:
        repository = Path(name).resolve()
        _git(repository, "init", "-q")
        text = (HERE / "planted.py").read_text(encoding="utf-8")
        for extra in PLANTED:
            (repository / "planted.py").write_text(text.replace("EXTRA = 0.0", f"EXTRA = {extra}"), encoding="utf-8")
            _git(repository, "add", "-A")
            _git(
                repository,
                "-c",
                "user.name=x",
                "-c",
                "user.email=x@x",
                "commit",
                "-q",
                "--allow-empty",
                "-m",
                f"{extra}",
            )
        for behind, extra in enumerate(reversed(PLANTED)):
            first, second = f"HEAD~{len(PLANTED) - 1}", f"HEAD~{behind}"
            with arms.arms(repository, first, second, build.cache()) as pair:
                path = FOLDER / f"planted-{extra:g}.jsonl"
                _record(pair, _planted_cases(repository), Policy(seed=behind), count, path)


def _planted_cases(repository: Path) -> list[Case]:
    parameters = {"SCALE": (("n", 1 << 18),), "PRODUCT": (("n", 320), ("k", 256)), "STEPS": (("n", 64),)}
    return [
        Case(f"{repository / 'planted.py'}:{name}", "eager", values, "float32", "cpu", 1, Direction.INFERENCE)
        for name, values in parameters.items()
    ]


def _git(repository: Path, *arguments: str) -> None:
    subprocess.run(["git", "-C", str(repository), *arguments], check=True)  # noqa: S603, S607


def _record(pair: tuple[Arm, Arm], cases: Sequence[Case], policy: Policy, count: int, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as name:
        pairs = Pairs(pair, policy, ab.effort_for(cases), Path(name) / "workers.log")
        wrong = [
            f"{one[0].id}: {one[2].reason}" for one in pairs.check(cases) if not isinstance(one, Ran) and one[2].reason
        ]
        if wrong:
            sys.exit("\n".join(wrong))
        with gaterun.Record(Path(name) / path.name) as file:
            for number in track(range(count), description=path.stem):
                for event in pairs.generation(number, cases):
                    if isinstance(event, Broke):
                        sys.exit(f"{event.case}: {event.reason}")
                    if isinstance(event, Shot):
                        file.append(_brief(event))
        shutil.copy(Path(name) / path.name, path)


def _brief(shot: Shot) -> Shot:
    """Five digits, and no folder of this machine."""
    slots = {arm: tuple(float(f"{value:.5g}") for value in values) for arm, values in shot.slots.items()}
    case = shot.case.rpartition("/planted.py:")[2]
    return msgspec.structs.replace(shot, slots=slots, case=case)


def load(path: Path) -> Generations:
    """A recording, generation by generation."""
    found: dict[int, dict[str, Shot]] = {}
    for line in path.read_bytes().splitlines():
        shot = msgspec.json.decode(line, type=Shot)
        found.setdefault(shot.generation, {})[shot.key] = shot
    return [found[number] for number in sorted(found)]


def logs(generations: Generations, low: Callable[[Sequence[float]], float] = min) -> dict[str, np.ndarray]:
    """Log ratios by case, in the order of the generations."""
    names = list(generations[0])
    return {
        name: np.array([math.log(low(one[name].slots["B"]) / low(one[name].slots["A"])) for one in generations])
        for name in names
    }


def order(rng: np.random.Generator, recorded: int, wanted: int, *, swap: bool) -> list[tuple[int, int]]:
    """Generations to replay, each with a sign: stretches in random order, the first from a random place."""
    if recorded < wanted or recorded % STRETCH:
        sys.exit(f"{recorded} generations recorded; {wanted} at least are needed, and a multiple of {STRETCH}")
    shift = int(rng.integers(recorded))
    starts = rng.permutation(recorded // STRETCH)[: -(-wanted // STRETCH)] * STRETCH + shift
    signs = rng.choice([-1, 1], len(starts)) if swap else np.ones(len(starts), dtype=int)
    places = [
        (int(start + step) % recorded, int(sign))
        for start, sign in zip(starts, signs, strict=True)
        for step in range(STRETCH)
    ]
    return places[:wanted]


def play(data: Mapping[str, np.ndarray], places: Sequence[tuple[int, int]], added: Mapping[str, float]) -> Verdicts:
    """One suite through the gate's own looks; `added` is a slow-down in logarithms by case."""
    names = dict.fromkeys(data, TAU["cpu"])
    verdicts = Verdicts(CPU, names, frozenset(name for name in data if name.startswith("bench.selftest_layers")))
    number = 0
    for look, until in enumerate(CPU.looks):
        while number < min(until, len(places)):
            place, sign = places[number]
            going = (*verdicts.open(), *verdicts.canaries)
            verdicts.add({name: sign * float(data[name][place]) + added.get(name, 0.0) for name in going})
            number += 1
        verdicts.look(look)
        if not verdicts.open() or verdicts.broken_canaries() or number >= len(places):
            break
    return verdicts


def false_failures(data: Mapping[str, np.ndarray]) -> list[list[str]]:
    """What came of suites in which nothing changed."""
    rng = np.random.default_rng(0)
    length = len(next(iter(data.values())))
    ends: Counter[str] = Counter()
    cases: Counter[str] = Counter()
    for _ in range(SUITES):
        verdicts = play(data, order(rng, length, CPU.looks[-1], swap=True), {})
        found = [one.outcome for name, one in verdicts.findings.items() if name not in verdicts.canaries]
        ends["fails"] += Outcome.REGRESSED in found
        ends["broken canary"] += bool(verdicts.broken_canaries())
        ends["inconclusive"] += Outcome.INCONCLUSIVE in found and Outcome.REGRESSED not in found
        cases.update(found)
    return [[f"suites: {what}", f"{number} of {SUITES}"] for what, number in ends.items()] + [
        [f"cases: {what}", f"{number / cases.total():.2%}"] for what, number in cases.items()
    ]


def power(data: Mapping[str, np.ndarray], slow: float) -> list[list[str]]:
    """By case: its noise, and what becomes of it when it alone is slower by `slow`."""
    rng = np.random.default_rng(1)
    length = len(next(iter(data.values())))
    rows = []
    for name, values in data.items():
        if name.startswith("bench.selftest_layers"):
            continue
        found: Counter[Outcome] = Counter()
        for _ in range(60):
            verdicts = play(data, order(rng, length, CPU.looks[-1], swap=True), {name: math.log1p(slow)})
            found[verdicts.findings[name].outcome] += 1
        shares = [f"{found[outcome] / found.total():.0%}" for outcome in Outcome]
        rows.append([name, f"{np.std(values, ddof=1):.2%}", f"{slow:.0%}", *shares])
    return rows


def planted_power(path: Path, slow: float) -> Iterable[list[str]]:
    """Work that was really done: what becomes of each layer in a suite of its kind."""
    data = logs(load(path))
    rng = np.random.default_rng(2)
    for name, values in data.items():
        found: Counter[Outcome] = Counter()
        for _ in range(60):
            places = order(rng, len(values), CPU.looks[-1], swap=False)
            found[play({name: values}, places, {}).findings[name].outcome] += 1
        shares = [f"{found[outcome] / found.total():.0%}" for outcome in Outcome]
        yield [
            name,
            f"{np.std(values, ddof=1):.2%}",
            f"{slow:.0%} planted, {math.expm1(np.median(values)):+.1%} seen",
            *shares,
        ]


def seen(path: Path) -> list[list[str]]:
    """What each case and metric of a recording says as it stands."""
    values: dict[str, list[float]] = {}
    for generation in load(path):
        for name, shot in generation.items():
            values.setdefault(name, []).append(shot.log_ratio)
    rows = []
    for name, found in sorted((name, estimate(logs)) for name, logs in values.items() if len(logs) >= GPU.looks[0]):
        low, high = map(math.expm1, found.interval())
        change = f"{math.expm1(found.centre):+.1%}"
        rows.append([name, str(found.n), change, f"{low:+.1%} to {high:+.1%}", f"{found.noise:.1%}"])
    return rows


def estimators(generations: Generations) -> list[list[str]]:
    """The noise of one pair under each estimator, over all cases."""
    rows = []
    for name, low in ESTIMATORS.items():
        deviations = [float(np.std(values, ddof=1)) for values in logs(generations, low).values()]
        rows.append([name, *(f"{np.quantile(deviations, q):.2%}" for q in (0, 0.5, 0.9, 1))])
    return rows


def table(title: str, heads: Sequence[str], rows: Iterable[list[str]]) -> None:
    """Print it."""
    shown = Table(*heads, title=title)
    for row in rows:
        shown.add_row(*row)
    Console(width=180).print(shown)


def replay() -> None:
    """Print what the recordings say."""
    heads = ["case", "noise", "slow-down", *map(str, Outcome)]
    for path in sorted(FOLDER.glob("aa*.jsonl")):
        generations = load(path)
        data = logs(generations)
        table(f"{path.stem}: noise of a pair", ["low of a generation", "least", "median case", "90 %", "most"],
              estimators(generations))  # fmt: skip
        table(
            f"{path.stem}: {len(generations)} generations of the same code", ["outcome", "share"], false_failures(data)
        )
        slow_downs = [row for slow in PLANTED[1:] for row in power(data, slow)]
        table(f"{path.stem}: slow-downs added to recorded noise", heads, slow_downs)
    for slow in PLANTED:
        if (path := FOLDER / f"planted-{slow:g}.jsonl").is_file():
            table("Work planted in a layer", heads, list(planted_power(path, slow)))
    for path in sorted(FOLDER.glob("h200-*.jsonl")):
        table(path.stem, ["case", "generations", "change", "95 %", "noise"], seen(path))


if __name__ == "__main__":
    match sys.argv[1:]:
        case []:
            replay()
        case ["record", count]:
            record(int(count))
        case ["plant", count]:
            plant(int(count))
        case _:
            sys.exit(__doc__)
