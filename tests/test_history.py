"""Runs over time: steps are found and noise is not, and only what may be compared is."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from rich.console import Console
from runs import case, metric, ok, run_of

from bench import cli
from bench.formats import plots, trend
from bench.history import history, run_files, steps
from bench.history import trend as trend_of
from bench.model import Run, UserError, encode_line


def run(
    day: int, seconds: float, fingerprint: str = "cpu-2x-test", variants: Sequence[str] = ("eager",), **policy: Any
) -> Run:
    """A run of January 2026, all of whose cases take so long."""
    cases = [case(variant=variant, n=8) for variant in variants]
    made = run_of(*(ok(one, metric(seconds, noise=0.001, seed=day)) for one in cases), **policy)
    environment = made.header.environment | {"fingerprint": fingerprint, "git": {"commit": f"{day:07d}abc"}}
    header = msgspec.structs.replace(made.header, started=f"2026-01-{day:02d}T03:04:05Z", environment=environment)
    return msgspec.structs.replace(made, header=header)


def levels(*stretches: tuple[int, float], noise: float = 0.01, seed: int = 0) -> list[float]:
    """Values at levels, with normal noise in their logs."""
    random = np.random.default_rng(seed)
    logs = np.concatenate([np.full(count, math.log(level)) for count, level in stretches])
    return list(map(float, np.exp(logs + noise * random.standard_normal(len(logs)))))


def test_a_step_is_found_where_it_is_and_as_large_as_it_is() -> None:
    (step,) = steps(levels((20, 1.0), (20, 1.1)), within=0.03)
    assert step.at == 20
    assert step.change == pytest.approx(1.1, rel=0.01)


def test_a_setting_is_one_line_however_narrow_the_output(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    long = case(f"a_layer_of_a_long_name{100 * '_'}.py:NAME")
    made = run_of(ok(long, 1e-6))
    (tmp_path / "run.jsonl").write_bytes(encode_line(made.header) + encode_line(made.measurements[0]))
    assert cli.command(["history", str(tmp_path)]) == 0
    assert f"\n{long.setting}\n" in capsys.readouterr().out


def test_steps_up_and_down_are_both_found() -> None:
    found = steps(levels((15, 1.0), (15, 1.2), (15, 1.0)), within=0.03)
    assert [step.at for step in found] == [15, 30]
    assert [step.change for step in found] == [pytest.approx(1.2, rel=0.02), pytest.approx(1 / 1.2, rel=0.02)]


def test_two_runs_are_enough_for_a_step_that_is_far_above_the_noise() -> None:
    before = [1.0, 1.01, 0.99, 1.0, 1.01, 1.0, 0.99, 1.01]
    (step,) = steps([*before, 1.2, 1.21], within=0.03)
    assert step.at == 8
    assert step.change == pytest.approx(1.205, rel=0.01)
    assert steps([*before, 1.2], within=0.03) == []


def test_one_odd_run_is_no_step_wherever_it_is() -> None:
    for place in range(12):
        values = levels((12, 1.0))
        values[place] *= 2
        assert steps(values, within=0.03) == []


def test_a_step_too_small_to_matter_is_none() -> None:
    assert steps(levels((20, 1.0), (20, 1.02), noise=0.001), within=0.03) == []


@pytest.mark.parametrize("length", [6, 12, 50])
def test_noise_alone_seldom_gives_a_step(length: int) -> None:
    random = np.random.default_rng(length)
    found = {"quiet": 0, "spiked": 0}
    for _ in range(100):
        logs = 0.03 * random.standard_normal(length)
        spikes = np.where(random.random(length) < 0.05, random.exponential(0.3, length), 0.0)
        found["quiet"] += bool(steps(np.exp(logs).tolist(), 0.03))
        found["spiked"] += bool(steps(np.exp(logs + spikes).tolist(), 0.03))
    assert found["quiet"] <= 2
    assert found["spiked"] <= 4


def test_a_slow_drift_shows_as_a_trend_and_noise_does_not() -> None:
    drifting = [value * 1.005**n for n, value in enumerate(levels((20, 1.0), noise=0.005))]
    assert trend_of(drifting) == pytest.approx(1.005**19, rel=0.02)
    assert trend_of(levels((20, 1.0))) is None
    assert trend_of([1.0, 2.0, 3.0, 4.0, 5.0]) is None  # too few


def test_runs_are_put_in_the_order_of_their_dates_and_other_machines_left_out_by_name() -> None:
    found = history([run(3, 3e-6), run(1, 1e-6), run(2, 9e-6, "another")])
    (series,) = found.series
    assert [point.started[:10] for point in series.points] == ["2026-01-01", "2026-01-03"]
    assert series.centres == pytest.approx([1e-6, 3e-6], rel=0.01)
    assert (found.machine, found.runs) == ("cpu-2x-test", 2)
    assert found.left_out == ("1 of another machine: another",)


def test_a_machine_is_chosen_by_a_part_of_its_fingerprint() -> None:
    assert history([run(1, 1e-6), run(2, 9e-6, "another")], machine="2x").runs == 1
    with pytest.raises(UserError, match=r"no run of a machine with 'gpu' .* \(those found: another; cpu-2x-test\)"):
        history([run(1, 1e-6), run(2, 9e-6, "another")], machine="gpu")


def test_runs_measured_otherwise_are_left_out_and_said_to_be() -> None:
    found = history([run(1, 1e-6, cache="cold"), run(2, 1e-6), run(3, 1e-6)])
    assert found.runs == 2
    assert found.left_out == ("1 measured otherwise (cache)",)


def test_the_table_names_the_date_and_the_commit_of_a_step() -> None:
    found = history([run(day, 1e-6 if day < 7 else 1.2e-6) for day in range(1, 13)])
    console = Console(width=200, file=io.StringIO(), color_system=None)
    console.print(trend.render(found))
    assert isinstance(console.file, io.StringIO)
    text = console.file.getvalue()
    assert "12 runs of cpu-2x-test" in text
    assert "2026-01-07 at 0000007: +20 %" in text
    assert "▁▁▁▁▁▁██████" in text
    assert "shift[n=8]/float32" in text


def test_a_sparkline_of_runs_that_hardly_differ_is_flat() -> None:
    assert trend.sparkline([1.0, 1.01, 1.0]) == "▁▁▁"
    assert trend.sparkline([1.0, 2.0]) == "▁█"


def test_the_command_finds_runs_below_a_folder_and_writes_plots(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for day in range(1, 9):
        one = run(day, 1e-6, variants=("eager", "native"))
        file = tmp_path / "runs" / str(day) / "run.jsonl"
        file.parent.mkdir(parents=True)
        file.write_bytes(encode_line(one.header) + b"".join(map(encode_line, one.measurements)))
    assert cli.command(["history", str(tmp_path / "runs"), "--only", "/eager", "--out", str(tmp_path / "plots")]) == 0
    shown = capsys.readouterr().out
    assert "8 runs of cpu-2x-test" in shown
    assert "native" not in shown
    assert {path.name for path in (tmp_path / "plots").iterdir()} == {
        "history-shift-latency.png",
        "history-shift-latency.svg",
    }


def test_each_step_is_drawn_in_the_panel_of_its_setting(tmp_path: Path) -> None:
    found = history([run(day, 1e-6 if day < 7 else 1.2e-6, variants=("eager", "native")) for day in range(1, 13)])
    ((name, figure),) = trend.pictures(found)
    assert name == "history-shift-latency"
    assert [text.get_text() for text in figure.axes[0].texts] == ["+20 %", "+20 %"]
    assert plots.write_history(found, tmp_path)[0].read_bytes().startswith(b"\x89PNG")


def test_a_folder_without_runs_is_a_mistake(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no run here"):
        run_files(tmp_path)
