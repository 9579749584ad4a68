"""Whole commands on real workers: statuses, exit codes, and that nothing measured is ever lost."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from bench import cli
from bench.model import Run, Status, load_run
from bench.protocol import Describe, Described
from bench.workers import Workers

TESTS = Path(__file__).parent
Write = Callable[..., Path]


@pytest.fixture
def suite(tmp_path: Path) -> Write:
    """Write a suite of faulty layers: names, or (name, axes, expect) for each."""

    def write(*groups: tuple[str, dict[str, Any]] | str, expect: str = "", **policy: Any) -> Path:
        import json  # a subset of YAML

        policy = {"seconds": 0.05, "min_rounds": 1, "slots": 1, "slot": 0.001, "warmup_calls": 2} | policy
        entries = []
        for group in groups:
            name, axes = group if isinstance(group, tuple) else (group, {})
            axes = {"variant": ["eager", "native"], "direction": "inference", "threads": 1} | axes
            entry: dict[str, Any] = {"layer": f"{TESTS / 'faulty_layers.py'}:{name}", "axes": axes}
            if expect:
                entry["expect"] = [{"variant": "native", "status": expect}]
            entries.append(entry)
        path = tmp_path / "suite.yaml"
        path.write_text(json.dumps({"policy": policy, "groups": entries}), encoding="utf-8")
        return path

    return write


def execute(suite: Path) -> tuple[int, Run]:
    folder = suite.parent / "run"
    return cli.command(["run", str(suite), "--out", str(folder)]), load_run(folder)


def statuses(run: Run) -> list[str]:
    return [str(measurement.status) for measurement in run.measurements]


def native(run: Run) -> str:
    return next(one.reason for one in run.measurements if one.case.variant == "native")


def test_a_right_layer_is_timed_in_all_directions(suite: Write) -> None:
    directions = ["inference", "forward", "backward", "forward_backward"]
    code, run = execute(suite(("LINEAR", {"direction": directions})))
    assert code == 0
    assert statuses(run) == ["ok"] * 8
    for measurement in run.measurements:
        latency = measurement.metric("latency")
        assert latency is not None
        assert latency.clock == "host"
        assert all(0 < value < 1 for value in latency.lows)
        assert {metric.name for metric in measurement.metrics} >= {"first_call", "make", "warmup_calls", "page_faults"}
        assert measurement.error is not None
        assert measurement.bound is not None
        assert measurement.stopped in ("target", "time limit")


@pytest.mark.parametrize(
    ("layer", "direction", "status", "words"),
    [
        ("RAISES", "inference", "failed", "): the layer's own trouble"),
        ("NOT_A_TENSOR", "inference", "failed", "returned list, not a tensor"),
        ("DETACHED", "backward", "failed", "no gradient path"),
        ("DETACHED", "forward_backward", "failed", "no gradient path"),
        ("IN_PLACE", "inference", "incorrect", "modifies its input 0"),
        ("NAN_LATER", "inference", "incorrect", "output after timing: relative error NaN"),
        ("TIMES_FOR_PLUS", "forward", "incorrect", "relative error"),
        ("STATIC_OUTPUT", "inference", "incorrect", "overwrites its earlier output"),
    ],
)
def test_a_faulty_layer_gets_its_status_and_no_time(
    suite: Write, layer: str, direction: str, status: str, words: str
) -> None:
    code, run = execute(suite((layer, {"direction": direction})))
    assert code == 1
    assert statuses(run) == ["ok", status]
    assert words in native(run)
    assert run.measurements[1].metrics == ()


def test_only_a_layer_that_keeps_all_its_outputs_is_said_to_leak(suite: Write) -> None:
    directions = {"direction": ["inference", "backward"]}
    _, run = execute(suite(("HOARDS", directions), ("KEEPS_THE_LAST", directions)))
    assert statuses(run) == ["ok"] * 8
    for measurement in run.measurements:
        hoards = measurement.case.layer.endswith("HOARDS") and measurement.case.variant == "native"
        warned = [text for text in measurement.warnings if "memory grows" in text]
        assert warned == (["keeps its outputs: memory grows by 128 B a call"] if hoards else [])


def test_an_expected_status_is_fine_and_a_surprise_success_is_not(suite: Write) -> None:
    assert execute(suite("IN_PLACE", expect="incorrect"))[0] == 0


def test_a_surprise_success_is_an_error(suite: Write, capsys: pytest.CaptureFixture[str]) -> None:
    code, run = execute(suite("DOUBLE", expect="incorrect"))
    assert (code, statuses(run)) == (1, ["ok", "ok"])
    assert "is ok, expected incorrect" in " ".join(capsys.readouterr().err.split())


def test_a_killed_worker_costs_its_case_alone(suite: Write) -> None:
    code, run = execute(suite("DOUBLE", "LINEAR", "DIES", "PRINTS"))
    assert code == 1
    assert statuses(run) == ["ok"] * 5 + ["failed"] + ["ok"] * 2
    assert "was killed (SIGKILL)" in run.measurements[5].reason


def test_a_stuck_worker_is_stopped_and_replaced(suite: Write) -> None:
    code, run = execute(suite("SLEEPS", "DOUBLE", timeout=2.0))
    assert (code, statuses(run)) == (1, ["ok", "failed", "ok", "ok"])
    assert native(run) == "no answer within 2 s, so its worker was stopped"


def test_a_cuda_case_without_a_device_is_skipped_and_fine(suite: Write) -> None:
    if torch.cuda.is_available():
        pytest.skip("has a CUDA device")
    code, run = execute(suite(("DOUBLE", {"device": ["cpu", "cuda"]})))
    assert (code, statuses(run)) == (0, ["ok", "ok", "skipped", "skipped"])
    assert run.measurements[2].reason == "no CUDA device"


def test_more_threads_than_cpus_are_skipped(suite: Write) -> None:
    code, run = execute(suite(("DOUBLE", {"threads": 1000})))
    assert (code, statuses(run)) == (0, ["skipped", "skipped"])
    assert "1000 threads on" in run.measurements[0].reason


def test_names_in_any_script_survive(suite: Write, tmp_path: Path) -> None:
    code, run = execute(suite("СЛОЙ_β"))
    assert (code, statuses(run)) == (0, ["ok", "ok"])
    assert "СЛОЙ_β" in (tmp_path / "run" / "report.html").read_text(encoding="utf-8")


def test_what_a_layer_prints_goes_to_the_log(suite: Write, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    execute(suite("PRINTS"))
    assert "a layer that talks" not in capfd.readouterr().out
    assert "a layer that talks" in (tmp_path / "run" / "workers.log").read_text(encoding="utf-8")


def test_a_run_leaves_the_callers_threads_alone(suite: Write) -> None:
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        execute(suite(("DOUBLE", {"threads": 1})))
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_a_run_cut_in_half_keeps_its_whole_lines_and_resumes(
    suite: Write, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, whole = execute(suite("DOUBLE", "LINEAR"))
    file = tmp_path / "run" / "run.jsonl"
    lines = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(b"".join(lines[:4]) + lines[4][: len(lines[4]) // 2])

    cut = load_run(file)
    assert cut.measurements == whole.measurements[:3]
    assert cut.problems[0].startswith(f"{file}:5: the last line is cut off")
    capsys.readouterr()
    assert cli.command(["report", str(file)]) == 0
    error = " ".join(capsys.readouterr().err.split())
    assert "run.jsonl:5: the last line is cut off" in error
    assert "1 of 4 cases not measured" in error

    assert cli.command(["run", "--resume", str(file.parent)]) == 0
    resumed = load_run(file)
    assert statuses(resumed) == ["ok"] * 4
    assert resumed.problems == ()
    assert resumed.measurements[:2] == whole.measurements[:2]
    # Its partner was measured again with it: a ratio needs shared rounds.
    assert resumed.measurements[2] != whole.measurements[2]


def test_an_interrupt_saves_what_is_measured_and_resume_finishes(suite: Write, tmp_path: Path) -> None:
    path = suite("DOUBLE", "LINEAR", ("SLEEPS", {"variant": ["eager", "native"]}))
    folder = tmp_path / "run"
    process = subprocess.Popen(
        [sys.executable, "-m", "bench", "run", str(path), "--out", str(folder)],
        cwd=TESTS.parent,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=os.environ | {"PYTHONUNBUFFERED": "1", "LC_ALL": "C"},
    )
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and _lines(folder / "run.jsonl") < 5:
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    output = process.communicate(timeout=60)[0].decode()
    assert process.returncode == 130, output
    assert "4 of 6 cases saved" in output
    assert "Traceback" not in output
    assert statuses(load_run(folder)) == ["ok"] * 4


def _lines(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["run"], "no suite"),
        (["run", "missing.yaml"], "missing.yaml"),
        (["report", "missing"], "cannot read it"),
        (["compare", "missing", "missing"], "cannot read it"),
        (["list", "everything"], "cannot list 'everything'"),
        (["run", "--resume", "folder", "configs/shift.yaml"], "--resume: goes on with the suite and folder of its run"),
        (
            ["run", "swish.py"],
            "swish.py: a layer's code is no suite (write a YAML file with a group of `layer: swish.py",
        ),
        (["report", "results/h200"], "the newest run there is results/h200/"),
        (["history", "results/h200", "--only", "nonsense"], "no case has 'nonsense' in its id (ids look like "),
        (["nonsense"], "No such command"),
        (["run", "--nonsense"], "No such option"),
    ],
)
def test_a_mistake_is_a_message_and_exit_code_2(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.command(arguments) == 2
    error = " ".join(capsys.readouterr().err.split())
    assert words in error
    assert "Traceback" not in error


def test_a_folder_that_holds_a_run_is_not_overwritten(suite: Write, capsys: pytest.CaptureFixture[str]) -> None:
    path = suite("DOUBLE")
    execute(path)
    assert execute(path)[0] == 2
    assert "holds a run already" in capsys.readouterr().err


def test_check_alone_finds_what_a_run_would(suite: Write, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.command(["check", str(suite("DOUBLE", "IN_PLACE"))]) == 1
    output = " ".join(capsys.readouterr().out.split())
    assert "modifies its input 0 expected ok" in output
    assert "4 cases checked, 1 not as expected" in output


def test_comparing_a_run_with_itself_finds_nothing(suite: Write, tmp_path: Path) -> None:
    _, run = execute(suite("DOUBLE", min_rounds=8, seconds=1.0))
    assert run.measurements[0].status is Status.OK
    folder = str(tmp_path / "run")
    assert cli.command(["compare", folder, folder, "--within", "0.5"]) == 0


def test_only_part_of_a_suite_can_be_run(suite: Write, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = suite("DOUBLE", ("LINEAR", {"direction": ["inference", "forward"]}))
    folder = tmp_path / "part"
    assert cli.command(["run", str(path), "--only", "LINEAR", "--only", "/forward/", "--out", str(folder)]) == 0
    assert [measurement.case.direction for measurement in load_run(folder).measurements] == ["forward", "forward"]
    assert cli.command(["run", str(path), "--only", "nothing"]) == 2
    assert "no case has 'nothing' in its id" in " ".join(capsys.readouterr().err.split())


def test_workers_that_wait_end_by_themselves_and_tidy_up(tmp_path: Path) -> None:
    with Workers(tmp_path / "workers.log", "default") as workers:
        assert isinstance(workers.ask("a", Describe(), 60), Described)
        process, _ = workers._live["a"]
    assert process.exitcode == 0
