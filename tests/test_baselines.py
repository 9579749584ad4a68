"""Stored baselines: what is kept, what is compared, and what is refused."""

from __future__ import annotations

import json
import math
from pathlib import Path

import msgspec
import numpy as np
import pytest
from runs import case

from bench import cli
from bench.gating import ab, baselines
from bench.gating.baselines import Baseline, BaselineHeader, Stored
from bench.gating.gate import Report, Result
from bench.model import SCHEMA, Block, Planned, Policy, Status, Suite, UserError

MACHINE = "Example CPU <9000>, 2 of 2 CPUs; no GPU; torch 2.13.0; Python 3.11; Linux x86_64; #0123abcd"
EAGER, NATIVE = case(variant="eager"), case(variant="native")
SUITE = Suite("mine", Policy(), (Block("eager", (Planned(EAGER), Planned(NATIVE))),))
CANARIES = ab.canaries([EAGER])


def lows(centre: float, seed: int, noise: float = 0.02) -> tuple[float, ...]:
    return tuple(map(float, centre * np.exp(noise * np.random.default_rng(seed).standard_normal(8))))


def baseline(
    eager: float = 1.0, native: float = 1.0, canary: float = 1.0, *, seed: int = 0, machine: str = MACHINE
) -> Baseline:
    """Times in milliseconds."""
    code, made = "the working tree (1234567)", "2026-01-02T03:04:05+00:00"
    header = BaselineHeader(SCHEMA, made, "mine", machine, code, SUITE.policy.conditions())
    times = {EAGER.id: eager, NATIVE.id: native, **{one.id: canary for one in CANARIES}}
    return Baseline(
        header,
        [
            Stored(name, lows=lows(1e-3 * centre, seed + n), noise=0.02)
            for n, (name, centre) in enumerate(times.items())
        ],
    )


def results(old: Baseline, new: Baseline) -> dict[str, Result]:
    return {line.case: line.result for line in baselines.compare(old, new, SUITE, 1.0).lines}


def test_the_same_times_are_ok() -> None:
    report = baselines.compare(baseline(), baseline(seed=10), SUITE, 1.0)
    assert [line.result for line in report.lines] == [Result.OK, Result.OK]
    assert (report.exit, report.problems) == (0, ())
    assert report.lines[0].entries[0].ratio == pytest.approx(1, abs=0.03)


@pytest.mark.parametrize(
    ("factor", "result"),
    [(1.25, Result.REGRESSED), (1.08, Result.OK), (0.8, Result.IMPROVED), (1.14, Result.INCONCLUSIVE)],
)
def test_fifteen_percent_is_the_limit_on_a_cpu(factor: float, result: Result) -> None:
    assert results(baseline(), baseline(native=factor, seed=10))[NATIVE.id] is result


def test_five_percent_is_the_limit_on_a_gpu() -> None:
    old, new = (Baseline(baseline().header, []) for _ in range(2))
    on_gpu = case(device="cuda")
    suite = Suite("mine", Policy(), (Block("eager", (Planned(on_gpu),)),))
    for side, factor in ((old, 1.0), (new, 1.08)):
        side.stored = [Stored(on_gpu.id, metric, lows(factor, 3, 0.001)) for metric in ("latency", "device")]
    line = baselines.compare(old, new, suite, 1.0).lines[0]
    assert [(entry.metric, entry.result) for entry in line.entries] == [
        ("latency", Result.OK),
        ("device", Result.REGRESSED),
    ]


def test_values_that_do_not_vary_are_compared_too() -> None:
    old, new = baseline(), baseline()
    old.stored = [msgspec.structs.replace(one, lows=(1.0,) * 8) for one in old.stored]
    new.stored = [msgspec.structs.replace(one, lows=(1.0,) * 8) for one in new.stored]
    assert set(results(old, new).values()) == {Result.OK}


def test_a_canary_that_moved_means_that_nothing_can_be_compared() -> None:
    report = baselines.compare(baseline(), baseline(canary=1.1, seed=10), SUITE, 1.0)
    assert report.exit == 4
    assert "this machine is not as it was" in report.problems[0]


def test_what_the_baseline_does_not_have_is_new_and_what_it_alone_has_is_no_pass() -> None:
    old, new = baseline(), baseline(seed=10)
    renamed = msgspec.structs.replace(old.stored[1], case="an older name")
    report = baselines.compare(Baseline(old.header, [old.stored[0], renamed, *old.stored[2:]]), new, SUITE, 1.0)
    assert report.exit == 4
    assert {line.case: (line.result, line.reason) for line in report.lines if line.result is not Result.OK} == {
        NATIVE.id: (Result.NEW, "the baseline has no such case; nothing to compare with"),
        "an older name": (Result.LOST, "only in the baseline: removed or renamed"),
    }
    fewer = Baseline(old.header, [one for one in old.stored if one.case != NATIVE.id])
    assert baselines.compare(fewer, new, SUITE, 1.0).exit == 0
    assert [line.result for line in baselines.ratios(fewer, new, SUITE, 1.0).lines] == [Result.OK, Result.NEW]
    new.stored[1] = Stored(NATIVE.id, status=Status.INCORRECT, reason="NaN")
    assert baselines.compare(fewer, new, SUITE, 1.0).exit == 1
    assert baselines.ratios(fewer, new, SUITE, 1.0).exit == 1


def test_a_case_that_became_incorrect_is_broken() -> None:
    new = baseline()
    new.stored[1] = Stored(NATIVE.id, status=Status.INCORRECT, reason="NaN")
    assert results(baseline(), new)[NATIVE.id] is Result.BROKEN


def test_another_machine_and_another_suite_are_refused() -> None:
    assert baselines.refusal(baseline(), SUITE, MACHINE) == ""
    assert "another machine: elsewhere" in baselines.refusal(baseline(machine="elsewhere"), SUITE, MACHINE)
    yours = msgspec.structs.replace(SUITE, name="yours")
    assert "suite mine, not yours" in baselines.refusal(baseline(), yours, MACHINE)
    other = msgspec.structs.replace(SUITE, policy=Policy(device_clock="graph", tf32=True))
    assert "other conditions (device_clock, tf32)" in baselines.refusal(baseline(), other, MACHINE)
    report = baselines.refused(baseline(), "mine", "because")
    assert (report.exit, report.problems) == (4, ("because",))


def test_ratios_to_another_machine_only_warn() -> None:
    report = baselines.ratios(baseline(machine="elsewhere"), baseline(3.0, 6.0, seed=10), SUITE, 1.0)
    assert report.exit == 0
    assert [line.result for line in report.lines] == [Result.OK, Result.OK]
    warnings = [note for note in report.notes if note.startswith("warning")]
    assert len(warnings) == 1
    assert "takes 2." in warnings[0]


def test_ratios_do_not_let_what_is_broken_pass() -> None:
    new = baseline()
    new.stored[1] = Stored(NATIVE.id, status=Status.FAILED, reason="oh")
    assert baselines.ratios(baseline(machine="elsewhere"), new, SUITE, 1.0).exit == 1


def test_a_baseline_is_kept_by_machine_and_suite_and_read_as_it_was(tmp_path: Path) -> None:
    path = baselines.path_of(MACHINE, "mine", tmp_path)
    assert path == tmp_path / "example-cpu-9000-2-of-2-cpus-0123abcd" / "mine.jsonl"
    old = baseline()
    old.stored.append(Stored("skipped", status=Status.SKIPPED, reason="no compiler"))
    baselines.save(old, path)
    assert baselines.load(path) == old


@pytest.mark.parametrize("content", [b"", b"{}\n", b'{"type":"case","case":"a"}\n', b"\xff\n"])
def test_a_file_that_is_no_baseline_is_a_message_with_its_line(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "b.jsonl").write_bytes(content)
    with pytest.raises(UserError, match=r"b.jsonl:1: not a baseline"):
        baselines.load(tmp_path / "b.jsonl")


def test_update_keeps_every_case_with_its_noise_and_the_gate_reads_it(tmp_path: Path) -> None:
    policy = {"slot": 0.0005, "slots": 2, "warmup_seconds": 0.02, "warmup_calls": 1}
    group = {"layer": "vecadd", "axes": {"threads": 1, "direction": "inference", "length": 64}}
    suite = tmp_path / "small.yaml"
    suite.write_text(json.dumps({"policy": policy, "groups": [group]}), encoding="utf-8")
    out = str(tmp_path / "out")
    common = ["--suite", str(suite), "--out", out]
    assert cli.command(["baseline", "update", *common, "--to", str(tmp_path / "kept")]) == 0
    (path,) = (tmp_path / "kept").glob("*/small.jsonl")
    kept = baselines.load(path)
    assert len(kept.stored) == 3
    for one in kept.stored:
        assert (one.status, len(one.lows)) == (Status.OK, 8)
        assert one.noise == pytest.approx(np.std(np.log(one.lows), ddof=1))
        assert all(0 < low < 1 for low in one.lows)
    elsewhere = tmp_path / "elsewhere.jsonl"
    baselines.save(Baseline(msgspec.structs.replace(kept.header, fingerprint="elsewhere"), kept.stored), elsewhere)
    assert cli.command(["gate", *common, "--baseline", str(elsewhere)]) == 4
    assert cli.command(["gate", *common, "--baseline", str(elsewhere), "--ratios"]) == 0
    report = msgspec.json.decode((tmp_path / "out" / "gate.json").read_bytes(), type=Report)
    assert [line.result for line in report.lines] == [Result.OK]
    assert math.isfinite(report.seconds)
