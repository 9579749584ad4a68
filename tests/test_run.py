"""Whole commands on real workers: statuses, exit codes, and that nothing measured is ever lost."""

from __future__ import annotations

import inspect
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

import msgspec
import pytest
import torch
import typer
from runs import case

from bench import cli, runner
from bench.console import new_folder
from bench.formats import terminal
from bench.model import Block, Measurement, Planned, Policy, Run, Status, Suite, encode_line, load_run
from bench.progress import checked_line, result_line
from bench.protocol import Describe, Described, Prepared
from bench.worker import describe_error
from bench.workers import Workers
from ext import ops
from layers import shift, variants

TESTS = Path(__file__).parent
Write = Callable[..., Path]


@pytest.fixture
def suite(tmp_path: Path) -> Write:
    """Write a suite of faulty layers: names, or (name, axes, expect) for each."""

    def write(*groups: tuple[str, dict[str, Any]] | str, expect: str = "", **policy: Any) -> Path:
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
    found = capsys.readouterr()
    assert "native ok, but expected incorrect" in " ".join(found.out.split())
    assert found.err == "unexpected: 1 of 2 cases; see below their tables\n"


def test_an_unexpected_failure_is_told_twice_with_its_reason_and_then_only_counted(
    suite: Write, capsys: pytest.CaptureFixture[str]
) -> None:
    execute(suite("RAISES"))
    found = capsys.readouterr()
    told = " ".join(found.out.split())
    assert told.count("the layer's own trouble") == 2  # as it happens, and below the table
    assert "the layer's own trouble (expected ok)" in told
    assert told.count("failed") == told.count("1 failed; started") + 3  # the table itself has the word
    assert found.err == "unexpected: 1 of 2 cases; see below their tables\n"


def test_the_default_folder_keeps_out_of_the_users_repository_and_a_named_one_is_left_alone(
    suite: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = suite("DOUBLE")
    monkeypatch.chdir(tmp_path)
    assert cli.command(["run", str(path), "--out", "mine"]) == 0
    assert not list(tmp_path.rglob(".gitignore"))
    assert cli.command(["run", str(path)]) == 0
    runs = tmp_path / "results" / "runs"
    assert (runs / ".gitignore").read_text(encoding="utf-8") == "*\n"
    assert len(list(runs.glob("*-suite/run.jsonl"))) == 1
    (runs / ".gitignore").unlink()
    new_folder(None, "gate-suite")
    assert not (runs / ".gitignore").exists()  # whoever took it away wants it so


def test_a_killed_worker_costs_its_case_alone(suite: Write) -> None:
    code, run = execute(suite("DOUBLE", "LINEAR", "DIES", "PRINTS"))
    assert code == 1
    assert statuses(run) == ["ok"] * 5 + ["failed"] + ["ok"] * 2
    assert "was killed (SIGKILL)" in run.measurements[5].reason


def test_a_stuck_worker_is_stopped_and_replaced(suite: Write) -> None:
    code, run = execute(suite("SLEEPS", "DOUBLE", timeout=2.0))
    assert (code, statuses(run)) == (1, ["ok", "failed", "ok", "ok"])
    assert native(run) == "no answer within the 2 s of policy.timeout, so its worker was stopped"


LOCKS = """
import time
from pathlib import Path
import torch
from torch import nn
from layers import Layer

class Locks(nn.Module):  # as a build does, for as long as it takes
    def forward(self, x):
        lock = Path(__file__).with_name("lock")
        lock.touch()
        try:
            time.sleep(60)
        finally:
            lock.rename(lock.with_name("released"))

LAYER = Layer("locks", {"eager": Locks}, lambda generator: (torch.randn(4, generator=generator),))
"""


def test_a_worker_that_is_stopped_puts_back_what_it_has_to(tmp_path: Path) -> None:
    (tmp_path / "locks.py").write_text(LOCKS, encoding="utf-8")
    path = tmp_path / "suite.yaml"
    axes = "{threads: 1, device: cpu, direction: inference, variant: eager}"
    path.write_text(f"policy: {{timeout: 3}}\ngroups: [{{layer: 'locks.py:LAYER', axes: {axes}}}]\n", encoding="utf-8")
    code, run = execute(path)
    assert (code, statuses(run)) == (1, ["failed"])
    assert "no answer within" in run.measurements[0].reason
    assert (tmp_path / "released").exists()


def test_to_be_terminated_is_to_be_interrupted(monkeypatch: pytest.MonkeyPatch) -> None:
    before = signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr(cli, "command", lambda arguments: os.kill(os.getpid(), signal.SIGTERM))
    try:
        with pytest.raises(KeyboardInterrupt):
            cli.main()
    finally:
        signal.signal(signal.SIGTERM, before)


def test_a_cuda_case_without_a_device_is_skipped_and_fine(suite: Write) -> None:
    if torch.cuda.is_available():
        pytest.skip("has a CUDA device")
    code, run = execute(suite(("DOUBLE", {"device": ["cpu", "cuda"]})))
    assert (code, statuses(run)) == (0, ["ok", "ok", "skipped", "skipped"])
    assert run.measurements[2].reason == "no CUDA device"


def test_more_threads_than_cpus_are_skipped(suite: Write) -> None:
    code, run = execute(suite(("DOUBLE", {"threads": 1000})))
    assert statuses(run) == ["skipped", "skipped"]
    assert "1000 threads on" in run.measurements[0].reason
    assert code == 3  # nothing was measured, and the suite does not expect that


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


def test_a_layer_that_sets_threads_of_its_own_is_told(suite: Write) -> None:
    _, run = execute(suite(("OWN_THREADS", {"threads": 1})))
    (other,) = [one for one in run.measurements if one.case.variant == "native"]
    assert "the layer set 2 thread(s) while it was timed with 1" in other.warnings


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("fingerprint", "another", "began on another machine or with other software"),
        ("layers", {}, "is not what it was when this run began"),
    ],
)
def test_a_run_does_not_go_on_elsewhere_or_with_other_code(
    suite: Write, tmp_path: Path, capsys: pytest.CaptureFixture[str], key: str, value: Any, words: str
) -> None:
    execute(suite("DOUBLE"))
    file = tmp_path / "run" / "run.jsonl"
    header, *_ = file.read_text(encoding="utf-8").splitlines()
    record = json.loads(header)
    if key == "layers":
        value = dict.fromkeys(record["environment"]["layers"], "0" * 64)
        assert value
    record["environment"][key] = value
    before = json.dumps(record) + "\n"
    file.write_text(before, encoding="utf-8")
    assert cli.command(["run", "--resume", str(file.parent)]) == 2
    assert words in " ".join(capsys.readouterr().err.split())
    assert file.read_text(encoding="utf-8") == before  # nothing is spoilt


def test_an_interrupt_saves_what_is_measured_and_resume_finishes(suite: Write, tmp_path: Path) -> None:
    path = suite("DOUBLE", "LINEAR", ("SLEEPS", {"variant": ["eager", "native"]}))
    folder = tmp_path / "run"
    process = subprocess.Popen(
        [sys.executable, "-m", "bench", "run", str(path), "--out", str(folder)],
        cwd=TESTS.parent,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=os.environ | {"PYTHONUNBUFFERED": "1", "LC_ALL": "C"},
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # shells have it ignored in the background
    )
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and _lines(folder / "run.jsonl") < 5:
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    output = process.communicate(timeout=60)[0].decode()
    assert process.returncode == 130, output
    assert output.splitlines()[-1] == f"interrupted: 4 of 6 cases saved; layerbench run --resume {folder}"
    assert "4 cases: 4 ok" in output
    assert output.count("speed-up  ") == 2  # a table for each block that is measured
    assert "not measured" not in output  # which the last line says
    assert "Traceback" not in output
    assert statuses(load_run(folder)) == ["ok"] * 4


def test_an_interrupt_before_anything_is_saved_is_none_of_a_run_and_the_folder_can_be_used(
    suite: Write, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    path = suite("DOUBLE")
    with monkeypatch.context() as patch:
        patch.setattr(runner, "_header", interrupted)
        assert cli.command(["run", str(path), "--out", str(path.parent / "run")]) == 130
    assert capsys.readouterr().err == "interrupted: nothing is saved\n"
    assert execute(path)[0] == 0


def test_a_second_interrupt_ends_at_once_and_costs_nothing(suite: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    path = suite("DOUBLE")
    file = path.parent / "run" / "run.jsonl"
    assert execute(path)[0] == 0
    saved = file.read_bytes().splitlines(keepends=True)[:-1]
    file.write_bytes(b"".join(saved))
    monkeypatch.setattr(runner, "run", interrupted)
    monkeypatch.setattr(terminal, "render", interrupted)
    assert cli.command(["run", "--resume", str(file.parent)]) == 130
    assert file.read_bytes() == b"".join(saved)


def _lines(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["run"], "no suite"),
        (["run", "missing.yaml"], "missing.yaml"),
        (["report", "missing"], "cannot read it"),
        (["compare", "missing", "missing"], "cannot read it"),
        (["list", "shfit"], "unknown layer 'shfit'; did you mean 'shift'? (layerbench list layers, or path.py:NAME)"),
        (["run", "--resume", "folder", "configs/shift.yaml"], "--resume: goes on with the suite and folder of its run"),
        (
            ["run", "layers/shift.py"],
            "layers/shift.py needs the name of a layer, layers/shift.py:NAME; layers there: LAYER",
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
    assert "4 cases checked, 0 skipped, 1 not as expected" in output


def test_a_check_of_nothing_is_inconclusive_and_says_so(suite: Write, capsys: pytest.CaptureFixture[str]) -> None:
    path = suite(("DOUBLE", {"threads": [1, 1000]}))
    assert cli.command(["check", str(path)]) == 0
    assert "2 cases checked, 2 skipped, 0 not as expected" in capsys.readouterr().out
    assert cli.command(["check", str(path), "--only", "/1000t/"]) == 3
    assert "0 cases checked, 2 skipped, 0 not as expected" in capsys.readouterr().out


def test_comparing_a_run_with_itself_finds_nothing(suite: Write, tmp_path: Path) -> None:
    _, run = execute(suite("DOUBLE", min_rounds=8, seconds=1.0))
    assert run.measurements[0].status is Status.OK
    folder = tmp_path / "run"
    _forget_other_work(folder / "run.jsonl")
    assert cli.command(["compare", str(folder), str(folder), "--within", "0.5"]) == 0


def _forget_other_work(file: Path) -> None:
    """That of other processes while it was measured, beside which there is rightly no verdict."""
    run = load_run(file)
    quiet = [
        msgspec.structs.replace(one, metrics=tuple(each for each in one.metrics if each.name != "cpu_wait_share"))
        for one in run.measurements
    ]
    file.write_bytes(encode_line(run.header) + b"".join(map(encode_line, quiet)))


@pytest.mark.parametrize("within", ["-1", "0", "1", "nan", "inf"])
def test_a_fraction_that_is_none_is_a_mistake(within: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.command(["compare", "missing", "missing", "--within", within]) == 2
    assert re.fullmatch(r"error: --within: is \S+; between 0 and 1 \(0.03 is 3 %\)\n", capsys.readouterr().err)


def commands(parent: Any, names: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    yield names, parent
    for name, child in getattr(parent, "commands", {}).items():
        yield from commands(child, (*names, name))


def test_no_help_loses_words_in_square_brackets(capsys: pytest.CaptureFixture[str]) -> None:
    found = dict(commands(typer.main.get_command(cli.app)))
    assert len(found) > 10
    texts = [text for one in found.values() for text in (one.help, *(getattr(each, "help", "") for each in one.params))]
    assert [text for text in texts if text and "[" in text] == []
    assert cli.command(["compare", "--help"]) == 0
    assert "[default: 0.08]" in capsys.readouterr().out


def writing_to(output: IO[str], arguments: list[str]) -> tuple[int, str]:
    """Exit code and errors of a command that writes there."""
    command = [sys.executable, "-m", "bench", *arguments]
    done = subprocess.run(command, cwd=TESTS.parent, stdout=output, stderr=subprocess.PIPE, text=True)
    return done.returncode, done.stderr


@pytest.mark.parametrize("arguments", [["list"], ["schema"], ["--help"]])
def test_output_that_cannot_be_written_is_an_error_of_one_line(arguments: list[str]) -> None:
    with Path("/dev/full").open("w") as full:
        assert writing_to(full, arguments) == (2, "error: cannot write the output: No space left on device\n")


@pytest.mark.parametrize("arguments", [["list"], ["schema"], ["--help"]])
def test_a_reader_of_the_output_may_leave(arguments: list[str]) -> None:
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write) as pipe:
        assert writing_to(pipe, arguments) == (141, "")  # as if SIGPIPE had ended it


def test_a_layer_finds_the_files_beside_it_and_a_users_layers_package_hides_nothing(tmp_path: Path) -> None:
    (tmp_path / "layers").mkdir()
    (tmp_path / "layers" / "__init__.py").write_text("raise RuntimeError('not ours')\n", encoding="utf-8")
    (tmp_path / "own" / "deep").mkdir(parents=True)
    (tmp_path / "own" / "deep" / "beside.py").write_text("import torch\nDOUBLE = torch.nn.Identity\n", encoding="utf-8")
    (tmp_path / "own" / "deep" / "mine.py").write_text(
        "import torch\nfrom beside import DOUBLE\nfrom layers import Layer\n"
        "MINE = Layer('mine', {'eager': DOUBLE}, lambda generator: (torch.ones(3),))\n",
        encoding="utf-8",
    )
    suite = "groups: [{layer: 'deep/mine.py:MINE', axes: {direction: inference, threads: 1}}]\n"
    (tmp_path / "own" / "suite.yaml").write_text(suite, encoding="utf-8")
    start = "import sys; from bench.cli import main; sys.argv[1:] = ['check', 'own/suite.yaml']; main()"
    done = subprocess.run(
        [sys.executable, "-P", "-c", start],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(TESTS.parent)},
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "1 cases checked, 0 skipped, 0 not as expected" in done.stdout


# How an error is told


def described(code: str, file: str) -> str:
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        exec(compile(code, file, "exec"), {})
    return describe_error(caught.value.with_traceback(caught.tb.tb_next))  # without the frame of this function


def test_the_place_of_an_error_is_behind_its_type_and_all_its_lines_follow() -> None:
    told = described("error = ValueError('nope\\nnor this')\nerror.add_note('try that')\nraise error", "mine.py")
    assert told == "ValueError (at mine.py:3): nope\nnor this\ntry that"
    assert described("raise ValueError", "mine.py") == "ValueError (at mine.py:1)"


def test_a_name_that_was_no_utf8_can_be_saved() -> None:
    told = describe_error(RuntimeError("no file " + b"gr\xfcn.bin".decode(errors="surrogateescape")))
    assert told.encode() == b"RuntimeError: no file gr\\udcfcn.bin"


@pytest.mark.parametrize("file", ["<string>", *(inspect.getfile(one) for one in (torch, json, pytest, variants, ops))])
def test_only_a_layers_file_and_the_users_code_are_named_as_places(file: str) -> None:
    code = f"exec(compile('raise ValueError(1)', {file!r}, 'exec'))"
    assert described(code, "<string>") == "ValueError: 1"
    assert described(code, "mine.py") == "ValueError (at mine.py:1): 1"
    assert described(code, inspect.getfile(shift)) == f"ValueError (at {os.path.relpath(inspect.getfile(shift))}:1): 1"


def test_a_reason_of_many_lines_is_shown_in_one() -> None:
    long = Prepared(Status.FAILED, "ValueError (at mine.py:3): nope\n\n  because:\n" + 1000 * "x")
    shown = checked_line(case(), long, None)
    assert "failed  ValueError (at mine.py:3): nope; because: xxx" in shown
    assert shown.endswith("x…")
    assert len(shown) < 350
    failed = Measurement(case(), Status.FAILED, "one\ntwo")
    assert result_line(failed).endswith("[red]failed: one; two[/]")


def test_only_part_of_a_suite_can_be_run(suite: Write, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = suite("DOUBLE", ("LINEAR", {"direction": ["inference", "forward"]}))
    folder = tmp_path / "part"
    assert cli.command(["run", str(path), "--only", "LINEAR", "--only", "/forward/", "--out", str(folder)]) == 0
    assert [measurement.case.direction for measurement in load_run(folder).measurements] == ["forward", "forward"]
    assert cli.command(["run", str(path), "--only", "nothing"]) == 2
    assert "no case has 'nothing' in its id" in " ".join(capsys.readouterr().err.split())


def test_the_help_says_how_a_parameter_is_told_from_a_longer_one(capsys: pytest.CaptureFixture[str]) -> None:
    cases = case(n=1000, k=3), case(n=1000000, k=3), case(k=3, n=1000)
    found = Suite("sizes", Policy(), tuple(Block("eager", (Planned(one),)) for one in cases))
    assert [len(found.only([text]).blocks) for text in ("n=1000", "n=1000,", "n=1000]")] == [3, 1, 1]
    for name in ("run", "check", "gate"):
        assert cli.command([name, "--help"]) == 0
        shown = " ".join(re.sub("[│╭╮╰╯─]", " ", capsys.readouterr().out).split())
        assert "'n=1000]' ends with the last parameter, 'n=1000,' with another" in shown


def test_workers_that_wait_end_by_themselves_and_tidy_up(tmp_path: Path) -> None:
    with Workers(tmp_path / "workers.log", "default") as workers:
        assert isinstance(workers.ask("a", Describe(), 60), Described)
        process, _ = workers._live["a"]
    assert process.exitcode == 0
