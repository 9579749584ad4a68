"""The self-test: its judgements on literal figures, its probes on made-up clocks, and one real short run."""

from __future__ import annotations

import contextlib
import json
import math
import multiprocessing
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console, RenderableType

from bench import cli, selftest_layers
from bench.clocks.timer import Call, ClockUnavailable
from bench.doctor import findings, noise, probes, selftest
from bench.doctor.findings import Finding, Reading, Report, Twins
from bench.formats import checkup
from bench.machine import environment
from bench.model import SCHEMA, Header, Measurement, Metric, Policy, Run, Status

NAN = float("nan")


def twins(
    *ratios: float, half: float = 0.005, false: int = 0, blocks: int = 4, false_blocks: int = 0, name: str = "copy"
) -> Twins:
    halves = tuple(half for _ in ratios)
    return Twins(name, "latency", 1e-4, ratios, halves, 3 * blocks, false, blocks, false_blocks)


@pytest.mark.parametrize(
    ("measured", "truth", "status"),
    [
        (10.9e-6, 10e-6, "pass"),
        (11.1e-6, 10e-6, "fail"),  # 1 µs is the larger bound here
        (8.9e-6, 10e-6, "fail"),
        (2.05e-3, 2e-3, "pass"),
        (2.07e-3, 2e-3, "fail"),  # 3 % is
        (NAN, 2e-3, "fail"),
    ],
)
def test_a_delay_is_recovered_within_the_larger_of_both_bounds(measured: float, truth: float, status: str) -> None:
    finding = findings.recovered("delay", [Reading("one", measured, truth)], relative=0.03, absolute=1e-6)
    assert finding.status == status


def test_one_bad_reading_of_several_fails_and_is_the_one_shown() -> None:
    readings = [Reading("1 call", 10.1e-6, 10e-6), Reading("10 calls", 1e-6, 10e-6), Reading("100 calls", 1e-5, 1e-5)]
    finding = findings.recovered("delay", readings, relative=0.03, absolute=1e-6)
    assert finding == Finding("delay", "fail", "1.00 µs for 10.0 µs", "± 1.00 µs", "the worst of 3 readings: 10 calls")


def test_clocks_that_disagree_in_one_round_fail_with_what_each_said() -> None:
    rounds = [{"events": 5.0e-6, "graph": 5.5e-6}, {"events": 900e-6, "graph": 960e-6}]
    finding = findings.agreement("clocks", rounds, relative=0.05, absolute=0.7e-6)
    assert (finding.status, finding.figure, finding.bound) == ("fail", "60.0 µs apart", "≤ 45.0 µs")
    assert finding.detail == "events 900 µs, graph 960 µs"
    assert findings.agreement("clocks", rounds[:1], relative=0.05, absolute=0.7e-6).status == "pass"


def test_a_single_clock_has_nothing_to_agree_with() -> None:
    finding = findings.agreement("clocks", [{"events": 5e-6}], relative=0.05, absolute=0.7e-6)
    assert (finding.status, finding.detail) == ("skip", "only one clock: events")


@pytest.mark.parametrize(
    ("finding", "status"),
    [
        (findings.overhead(99e-9), "pass"),
        (findings.overhead(-5e-9), "pass"),
        (findings.overhead(101e-9), "fail"),
        (findings.overhead(NAN), "fail"),
        (findings.clock_steps(50e-9, 0), "pass"),
        (findings.clock_steps(50e-9, 1), "fail"),
        (findings.clock_steps(16e-3, 0), "fail"),
        (findings.clock_steps(0.0, 0), "fail"),  # it stood still
        (findings.clock_rates(1.0004), "pass"),
        (findings.clock_rates(0.99), "fail"),
        (findings.cpu_share(0.999, 1e-4), "pass"),
        (findings.cpu_share(0.5, 8e-3), "warn"),
        (findings.warm_faults(0.0), "pass"),
        (findings.warm_faults(1024.0), "fail"),
        (findings.fault_cost(1e-6, 4096), "pass"),
        (findings.fault_cost(None, 4096), "skip"),
    ],
)
def test_a_figure_beyond_its_bound_fails_and_a_busy_machine_only_warns(finding: Finding, status: str) -> None:
    assert finding.status == status


def test_a_page_fault_is_priced_by_what_it_adds_to_an_output() -> None:
    finding = findings.fault_cost(7.8125e-6, 4096)
    assert finding.figure == "7.81 µs"
    assert "1 MiB of fresh pages costs 2.00 ms more" in finding.detail


def test_twins_deviate_about_their_true_ratio_of_one() -> None:
    assert findings.deviation(twins(0.03, 0.03)) == pytest.approx(0.03)  # not 0: a common bias is an error too


def test_the_detectable_change_carries_the_interval_past_the_margin_from_either_side() -> None:
    change = findings.detectable(twins(0.01, 0.0, half=0.005), same_within=0.03)
    assert change == pytest.approx(1.03 * math.exp(0.005 + 0.01) - 1)


def test_a_rare_outlier_moves_the_deviation_and_not_the_detectable_change() -> None:
    rare = twins(*[0.01] * 19, 0.5)
    assert findings.deviation(rare) > 0.1
    assert findings.detectable(rare, 0.03) == pytest.approx(1.03 * math.exp(0.005 + 0.01) - 1)
    common = twins(*[0.01] * 8, 0.5, 0.5)
    assert findings.detectable(common, 0.03) == pytest.approx(1.03 * math.exp(0.005 + 0.5) - 1)


def test_without_intervals_nothing_is_detectable_and_the_row_warns() -> None:
    blind = Twins("copy", "latency", 1e-4, (0.0, 0.0), (None, None), 6, 0, 2, 0)
    assert findings.detectable(blind, 0.03) is None
    assert findings.noise(blind, 0.03).status == "warn"
    text = findings.statement([blind], 0.03)
    assert text == "on this machine a change of 5 % is detectable for no case; copy needs more rounds"


def test_noisy_twins_warn_and_never_fail() -> None:
    assert findings.noise(twins(0.01, -0.02), 0.03).status == "pass"
    assert findings.noise(twins(0.1, -0.2), 0.03).status == "warn"


@pytest.mark.parametrize(
    ("false", "false_blocks", "status"),
    [(0, 0, "pass"), (3, 1, "pass"), (2, 2, "fail"), (9, 3, "fail")],
)
def test_false_verdicts_fail_when_chance_does_not_explain_them(false: int, false_blocks: int, status: str) -> None:
    # 6 blocks of 3 verdicts at 1 in 200: a block with a false one has probability 1.5 %, one in six 8.6 %, two 0.3 %.
    finding = findings.false_verdicts([twins(0.0, blocks=6, false=false, false_blocks=false_blocks)])
    assert (finding.status, finding.bound) == (status, "≤ 1 block")
    assert (f"copy: {false}" if false else "none") in finding.detail


def test_false_verdicts_of_nothing_are_skipped() -> None:
    assert findings.false_verdicts([]).status == "skip"


def test_the_statement_names_what_sees_five_percent_and_what_the_rest_needs() -> None:
    quiet, loud = twins(0.001, name="copy", half=0.005), twins(0.2, name="roll", half=0.01)
    assert findings.statement([quiet], 0.03) == "on this machine a change of 5 % is detectable for every case"
    text = findings.statement([quiet, loud], 0.03)
    assert text == "on this machine a change of 5 % is detectable for copy; roll needs 27 %"


def run_of(speeds: dict[str, float], *, status: Status = Status.OK, faults: float = 0.0) -> Run:
    """An A/A run in which the time of every case of a variant is as given."""
    suite = noise.suite(["cpu"], Policy())
    header = Header(SCHEMA, "0", "2026-01-02T03:04:05Z", suite, {})
    measurements = []
    for planned in suite.cases().values():
        seconds = speeds[planned.case.variant]
        lows = tuple((seconds * (1 + 1e-4 * (number % 3)),) for number in range(12))
        metrics = (Metric("latency", "s", lows, "host"), Metric("page_faults", "1", ((faults,),) * 12))
        ok = status is Status.OK
        measurements.append(Measurement(planned.case, status, "" if ok else "why", metrics if ok else ()))
    return Run(header, tuple(measurements))


def test_an_aa_run_gives_ratios_intervals_and_false_verdicts_per_case() -> None:
    same = dict.fromkeys(noise.TWINS, 1e-3)
    odd = same | {"twin_2": 1.2e-3}
    found, data = noise.judge([run_of(same), run_of(odd, faults=0.0)], 0.03)
    assert [one.name for one in data] == list(noise.LAYERS.values())
    for one in data:
        assert one.ratios == pytest.approx((0, 0, 0, 0, math.log(1 / 1.2), 0), abs=1e-9)
        assert (one.verdicts, one.false, one.blocks, one.false_blocks) == (6, 1, 2, 1)
        assert len(one.half_widths) == 6
    by_name = {one.name: one for one in found}
    assert by_name["false verdicts"].figure == "3 of 18, in 3 of 6 blocks"
    assert by_name["false verdicts"].status == "fail"
    assert by_name["page faults, allocator: warm"].status == "pass"


def test_page_faults_of_the_large_output_fail_the_warm_allocator() -> None:
    found, _ = noise.judge([run_of(dict.fromkeys(noise.TWINS, 1e-3), faults=1024.0)], 0.03)
    assert next(one for one in found if one.name.startswith("page faults")).status == "fail"


@pytest.mark.parametrize(("status", "outcome"), [(Status.SKIPPED, "skip"), (Status.FAILED, "fail")])
def test_a_case_that_was_not_measured_has_a_row_with_its_reason(status: Status, outcome: str) -> None:
    found, data = noise.judge([run_of(dict.fromkeys(noise.TWINS, 1e-3), status=status)], 0.03)
    assert data == []
    assert [(one.status, one.detail) for one in found[:-1]] == [(outcome, f"{status}: why")] * 3


def test_the_suite_and_its_layers_agree_on_names_and_every_version_is_the_same() -> None:
    assert noise.TWINS == selftest_layers.TWINS
    for name in noise.LAYERS:
        versions = getattr(selftest_layers, name).versions
        assert tuple(versions) == noise.TWINS
        assert len(set(versions.values())) == 1
    blocks = noise.suite(["cpu", "cuda"], Policy()).blocks
    assert len({block.setting for block in blocks}) == 6
    assert noise.label(blocks[-1].cases[0].case) == "unfold+matmul at 64x64 on cuda"


def test_a_spin_takes_its_time_by_the_raw_clock_and_accounts_for_it() -> None:
    spin = probes.Spin(50e-6)
    spin()
    spin()
    assert spin.spent >= 100_000
    spin.place(random.Random(0))
    assert spin.spent == 0


def test_the_cycle_rate_is_free_of_what_a_launch_costs() -> None:
    rate = probes.cycles_per_second(lambda cycles: cycles / 1.98e9 + 35e-6)
    assert rate == pytest.approx(1.98e9, rel=1e-6)


def test_shares_and_steps_of_this_process_are_possible_ones() -> None:
    step, backwards = probes._steps()
    assert 0 < step < 0.1
    assert backwards == 0
    share, longest = probes._share(0.02)
    assert 0 < share < 1.5
    assert 0 < longest < 10


class Clock:
    """A device clock that adds `late` to what a spin kernel is asked for."""

    metric, clock, about = "device", "fake", ""

    def __init__(self, late: float, doubts: tuple[str, ...] = ()) -> None:
        self.late, self.doubts = late, doubts

    def window(self, call: Call, calls: int) -> float:
        assert isinstance(call, probes.Kernel)
        return call.cycles / 2e9 + self.late


def no_such_clock(device: torch.device) -> Clock:
    raise ClockUnavailable("cupti-python is not installed")


def gpu_rows(monkeypatch: pytest.MonkeyPatch, **clocks: Callable[[torch.device], Clock]) -> dict[str, Finding]:
    monkeypatch.setattr(probes, "DEVICE_CLOCKS", clocks)
    monkeypatch.setattr(probes, "cycles_per_second", lambda spin: 2e9)
    monkeypatch.setattr(probes, "_empty_pair", lambda: 2.3e-6)
    monkeypatch.setattr(torch.cuda, "_sleep", lambda cycles: None)
    monkeypatch.setattr(torch.cuda, "device", lambda device: contextlib.nullcontext())
    return {row.name: row for row in probes.on_gpu()}


def test_a_clock_that_is_late_fails_the_short_delays_and_the_comparison(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = gpu_rows(monkeypatch, events=lambda _: Clock(0.8e-6), graph=lambda _: Clock(0.0), cupti=no_such_clock)
    delays = [rows[f"GPU delay of {text}"].status for text in ("5.00 µs", "20.0 µs", "100 µs", "1.00 ms")]
    assert delays == ["fail", "fail", "pass", "pass"]
    assert rows["GPU delay of 5.00 µs"].figure == "5.80 µs for 5.00 µs"
    assert rows["GPU clocks, one another"].detail == "events 5.80 µs, graph 5.00 µs"
    assert rows["GPU clocks, one another"].status == "fail"
    assert rows["device clock cupti"] == Finding("device clock cupti", "skip", detail="cupti-python is not installed")
    assert rows["empty event pair"].figure == "2.30 µs"


def test_a_clock_that_doubts_itself_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = gpu_rows(monkeypatch, events=lambda _: Clock(0.0, ("no hold",)))
    assert rows["device clock events"] == Finding("device clock events", "fail", detail="no hold")
    assert rows["GPU clocks, one another"].status == "skip"


def test_without_any_device_clock_only_the_reasons_are_left(monkeypatch: pytest.MonkeyPatch) -> None:
    assert list(gpu_rows(monkeypatch, cupti=no_such_clock)) == ["device clock cupti"]


def receive(*messages: object, seconds: float, close: bool = True) -> tuple[list[Finding], list[str]]:
    ours, theirs = multiprocessing.Pipe()
    told: list[str] = []
    for message in messages:
        theirs.send(message)
    if close:
        theirs.close()
    return list(selftest.received(ours, time.monotonic() + seconds, told.append)), told


FINE = Finding("clock", "pass")


def test_findings_are_taken_until_the_probes_say_that_they_are_done() -> None:
    assert receive("delays", FINE, None, seconds=5) == ([FINE], ["delays"])


def test_probes_that_die_keep_what_they_found_and_fail_with_what_they_were_doing() -> None:
    found, _ = receive("delays", FINE, seconds=5)
    assert found == [FINE, Finding("delays", "fail", detail="its process died")]


def test_probes_that_hang_are_given_up_at_their_deadline() -> None:
    found, _ = receive("delays", seconds=0.05, close=False)
    assert found == [Finding("delays", "fail", detail="not done after 30 s, so it was stopped")]


def drawn(renderable: RenderableType, width: int) -> str:
    console = Console(width=width, no_color=True, legacy_windows=False)
    with console.capture() as capture:
        console.print(renderable)
    return capture.get()


REPORT = Report(
    "0",
    "2026-01-02T03:04:05+00:00",
    61.0,
    {"fingerprint": "a machine"},
    (
        FINE,
        Finding("false verdicts", "fail", "7 of 18", "≤ 1 block", "trust no verdict"),
        Finding("share", "warn", "49 %", "≥ 95 %", "others run"),
        Finding("GPU clocks", "skip", detail="no CUDA device"),
    ),
    (twins(0.001),),
    0.03,
)


@pytest.mark.parametrize("width", [60, 80, 120])
def test_the_table_shows_every_row_with_its_result_and_says_why_not_all_is_well(width: int) -> None:
    text = drawn(checkup.render(REPORT), width)
    assert max(map(len, text.splitlines())) <= width
    for words in ("no CUDA device", "fail false verdicts: trust no verdict", "warn share: others run"):
        assert words in text
    assert "1 pass, 1 warn, 1 fail, 1 skip; took 61.0 s" in " ".join(text.split())
    assert "detectable for every case" in " ".join(text.split())


def test_the_environment_is_a_line_each_and_survives_facts_that_cannot_be_read() -> None:
    lines = dict(checkup.summary(environment.describe()))
    assert lines.keys() >= {"CPU", "CPUs", "load", "threads", "allocator", "compiler", "torch", "CUDA", "native cpu"}
    blind = {name: {"reason": "hidden"} for name in ("cpu", "memory", "gpu", "software")}
    lines = dict(checkup.summary(blind | {"native": {"cpu": "no C++ compiler"}}))
    assert lines["memory"] == "hidden"
    assert lines["GPU"] == "none: hidden"
    assert lines["native cpu"] == "no C++ compiler"


def test_a_gpu_is_one_line_with_its_clock_power_and_temperature() -> None:
    device = {"name": "H200", "memory": 2**37, "clock": 345, "clock_max": 1980, "power_limit": 700.0, "temperature": 31}
    device |= {"throttle_reasons": ["idle"], "mig": False}
    lines = dict(checkup.summary({"gpu": {"devices": [device], "driver": "570.1"}, "software": {"cuda": "13.0"}}))
    assert lines["GPU 0"] == "H200, 128 GiB, 345 of 1980 MHz, limit 700 W, 31 °C, clocks held by idle"
    assert lines["CUDA"] == "13.0 (driver 570.1)"


@pytest.mark.parametrize(("status", "code"), [("pass", 0), ("warn", 0), ("skip", 0), ("fail", 1)])
def test_only_a_failed_row_sets_the_exit_code(
    status: findings.Outcome, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(facts: dict[str, Any], **_: Any) -> Report:
        return Report("0", "", 1.0, facts, (Finding("row", status),))

    monkeypatch.setattr(selftest, "run", run)
    assert cli.command(["doctor"]) == code


def test_without_the_self_test_the_record_holds_the_environment_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "doctor.json"
    assert cli.command(["doctor", "--no-self-test", "--json", str(file)]) == 0
    record = json.loads(file.read_text(encoding="utf-8"))
    assert record["environment"]["fingerprint"].startswith(record["environment"]["cpu"]["model"])
    assert record["findings"] == []
    assert "native cpu" in capsys.readouterr().out


def test_a_record_that_cannot_be_written_is_the_users_to_mend(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.command(["doctor", "--no-self-test", "--json", str(tmp_path)]) == 2
    assert "cannot write" in capsys.readouterr().err


def test_a_short_real_self_test_has_every_row_once() -> None:
    """Structure alone: what it finds is this machine's business, at this moment."""
    shares: list[float] = []
    report = selftest.run(
        {"gpu": {"devices": [], "reason": "none"}}, seconds=3.0, progress=lambda _, s: shares.append(s)
    )
    rows = {finding.name: finding for finding in report.findings}
    assert len(rows) == len(report.findings)
    delays = [f"host delay of {text}" for text in ("10.0 µs", "100 µs", "2.00 ms")]
    wanted = ["host clock", *delays, "harness overhead a call", "CPU time while spinning", "cost of a page fault"]
    wanted += ["host clock against raw clock", *(f"A/A {name}" for name in noise.LAYERS.values()), "false verdicts"]
    assert set(rows) == {*wanted, "page faults, allocator: warm", "GPU clocks and A/A"}
    assert rows["GPU clocks and A/A"].status == "skip"
    assert [one.blocks for one in report.twins] == [2, 2, 2]
    assert all(len(one.ratios) == 6 for one in report.twins)
    assert shares == sorted(shares)
    assert shares[-1] <= 1


@pytest.mark.gpu
def test_on_a_gpu_every_clock_recovers_the_known_delays() -> None:
    rows = list(probes.on_gpu())
    assert {row.name for row in rows} >= {"GPU delay of 5.00 µs", "GPU delay of 1.00 ms", "empty event pair"}
    assert [row for row in rows if row.status == "fail"] == []
