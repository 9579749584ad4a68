"""pytest-benchmark both ways, tried on the real one: its tests from a suite of ours, its JSON from a run of ours."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pytest_benchmark.stats import Stats
from runs import case, metric, ok, run_of, showcase

from bench import cli
from bench.formats import pytest_benchmark
from bench.model import Run, encode_line

ROOT = Path(__file__).parent.parent
SUITE = f"""
policy: {{slots: 1, slot: 0.001, warmup_seconds: 0.1, min_rounds: 3}}
groups:
  - layer: {Path(__file__).parent / "faulty_layers.py"}:LINEAR
    axes: {{variant: [eager, native], direction: [inference, backward], threads: 1, n: 8}}
  - layer: {Path(__file__).parent / "faulty_layers.py"}:STRIDE_BLIND
    axes: {{variant: native, direction: forward_backward, threads: 1}}
  - layer: {Path(__file__).parent / "faulty_layers.py"}:DETACHED
    axes: {{variant: native, direction: backward, threads: 1}}
    expect: [{{status: failed}}]
  - layer: {Path(__file__).parent / "faulty_layers.py"}:DOUBLE
    axes: {{variant: script, threads: 1}}
"""


def executed(*command: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    environment = {"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin", "COLUMNS": "300", "HOME": str(cwd)}
    return subprocess.run(
        [sys.executable, "-m", *map(str, command)], cwd=cwd, env=environment, capture_output=True, text=True
    )


def exported(run: Run) -> Any:
    return json.loads(pytest_benchmark.render(run))


def test_a_suite_runs_as_tests_that_check_first_and_set_up_outside(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(SUITE, encoding="utf-8")
    file = tmp_path / "made" / "test_it.py"
    assert cli.command(["pytest-benchmark", str(tmp_path / "mine.yaml"), "--out", str(file)]) == 0
    options = ("--benchmark-json=found.json", "--benchmark-max-time=0.05", "--benchmark-disable-gc")
    result = executed("pytest", "-p", "no:cacheprovider", file, *options, cwd=tmp_path)
    assert result.returncode == 1, result.stdout + result.stderr
    assert "1 failed, 4 passed, 2 skipped, 1 xfailed" in result.stdout, result.stdout
    assert "incorrect: gradient of input 0, the timed inputs, expanded output gradient" in result.stdout
    found = json.loads((tmp_path / "found.json").read_text(encoding="utf-8"))["benchmarks"]
    assert len(found) == 4
    directions = {one["group"].rpartition("/")[2] for one in found}
    assert directions == {"inference", "backward"}
    for one in found:
        assert one["param"] == f"{one['group']}/{one['param'].rpartition('/')[2]}"  # the case's id
        assert one["extra_info"]["error"] < 1e-6
        assert one["stats"]["rounds"] >= 3
        if "backward" in one["group"]:
            assert one["stats"]["iterations"] == 1  # a graph serves once, and making it is not timed


@pytest.mark.parametrize("layer", [f"{Path(__file__).parent / 'faulty_layers.py'}:LINEAR", "sign_gate"])
def test_all_versions_of_a_layer_are_tests_without_a_suite(layer: str, tmp_path: Path) -> None:
    file = tmp_path / "test_it.py"
    assert cli.command(["pytest-benchmark", layer, "--out", str(file)]) == 0
    collected = executed("pytest", "-p", "no:cacheprovider", "--collect-only", "-q", file, cwd=tmp_path).stdout
    assert "/cpu/" in collected, collected
    assert "/cuda/" in collected
    assert "/eager]" in collected


def test_a_test_file_of_somebody_else_is_not_written_over(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mine.yaml").write_text(SUITE, encoding="utf-8")
    file = tmp_path / "test_it.py"
    file.write_text("def test_mine(): ...\n", encoding="utf-8")
    command = ["pytest-benchmark", str(tmp_path / "mine.yaml"), "--out", str(file)]
    assert cli.command(command) == 2
    assert "was not written by this command" in capsys.readouterr().err
    file.unlink()
    assert [cli.command(command), cli.command(command)] == [0, 0]


def test_what_its_own_statistics_say_of_the_values_ours_say() -> None:
    values = metric(1e-3, noise=0.1, rounds=41)
    (one,) = exported(run_of(ok(case(), values)))["benchmarks"]
    theirs = Stats()  # type: ignore[no-untyped-call]
    theirs.data = one["stats"]["data"]
    assert theirs.data == list(values.lows)
    for name in ("min", "max", "mean", "stddev", "rounds", "median", "ops", "total", "stddev_outliers"):
        assert one["stats"][name] == pytest.approx(getattr(theirs, name)), name
    for name in ("q1", "q3"):  # by another of the ways to interpolate
        assert one["stats"][name] == pytest.approx(getattr(theirs, name), rel=0.02)
    assert set(one["stats"]) == {*Stats.fields, "data", "iterations"}


def test_its_compare_command_shows_a_run_of_ours(tmp_path: Path) -> None:
    (tmp_path / "ours.json").write_text(pytest_benchmark.render(showcase()), encoding="utf-8")
    result = executed("pytest_benchmark", "compare", "ours.json", "--group-by=group", "--name=long", cwd=tmp_path)
    assert result.returncode == 0, result.stdout + result.stderr
    for one in exported(showcase())["benchmarks"]:
        assert one["fullname"] in result.stdout


def test_every_measured_metric_is_a_benchmark_and_nothing_else_is() -> None:
    found = exported(showcase())["benchmarks"]
    names = [one["fullname"] for one in found]
    measured = [one for one in showcase().measurements if one.metrics]
    devices = [one for one in measured if one.metric("device")]
    assert len(names) == len(set(names)) == len(measured) + len(devices)
    assert f"{devices[0].case.id} (device)" in names
    # All that github-action-benchmark takes of a file (tool: pytest), in the types that it takes.
    for one in found:
        assert {type(one["stats"][key]) for key in ("ops", "mean", "stddev")} == {float}
        assert type(one["stats"]["rounds"]) is int
        assert one["stats"]["ops"] * one["stats"]["mean"] == pytest.approx(1)


def test_a_value_that_is_not_finite_never_reaches_the_file() -> None:
    one = metric(1e-3, rounds=3)
    broken = type(one)("latency", "s", (*one.samples, (float("nan"),), (float("inf"),)))
    text = pytest_benchmark.render(run_of(ok(case(), broken)))
    assert json.loads(text, parse_constant=pytest.fail)["benchmarks"][0]["stats"]["rounds"] == 3


def test_report_writes_it_when_asked_and_only_that(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = showcase()
    (tmp_path / "run.jsonl").write_bytes(encode_line(run.header) + b"".join(map(encode_line, run.measurements)))
    assert cli.command(["report", str(tmp_path), "--format", "pytest-benchmark"]) == 0
    assert {path.name for path in tmp_path.iterdir()} == {"run.jsonl", "pytest-benchmark.json"}
    assert cli.command(["report", str(tmp_path), "--format", "junit"]) == 2
    assert "no format 'junit' (one of markdown, html, csv, pytest-benchmark)" in capsys.readouterr().err
