"""What a user's mistake is answered with, as the commands show it: the place, the value and what mends it."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from bench import cli
from bench.model import load_run
from bench.protocol import Describe
from bench.workers import Workers

ROOT = Path(__file__).parent.parent

LAYERS = """
import os, torch
from torch import nn
from layers import Layer


class Double(nn.Module):
    def forward(self, x):
        return x * 2


class Float32(nn.Module):
    def forward(self, x):
        return x @ torch.eye(4)


class Leaves(Double):
    def forward(self, x):
        os._exit(3)


def inputs(generator):
    return (torch.randn(2, 4, generator=generator),)


def layer(**versions):
    return Layer("mine", {"eager": Double} | versions, inputs, dtypes=("float32",))


FINE = layer(native=Double)
LEAVES = layer(eager=Leaves)
FLOAT32 = layer(eager=Float32)
NO_MODULE = layer(native=lambda: Double().forward)
OTHER_KEYS = layer(native=lambda: nn.Linear(4, 4))
"""

Check = Callable[..., tuple[int, str]]


@pytest.fixture
def check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Check:
    """Run a command on a suite of one of LAYERS; its exit code and all that it says, in one line."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(LAYERS, encoding="utf-8")

    def run(layer: str, axes: str = "", *arguments: str) -> tuple[int, str]:
        policy = "policy: {seconds: 0.05, min_rounds: 1, slots: 1, slot: 0.001, warmup_calls: 2}\n"
        group = f"groups: [{{layer: 'mine.py:{layer}', axes: {{direction: inference, threads: 1, {axes}}}}}]\n"
        Path("suite.yaml").write_text(policy + group, encoding="utf-8")
        code = cli.command([*(arguments or ("check",)), "suite.yaml"])
        found = capsys.readouterr()
        return code, " ".join((found.out + found.err).split())

    return run


@pytest.mark.parametrize(
    ("layer", "variant", "code", "words"),
    [
        ("FLOAT32", "eager", 1, "eager failed the float64 reference, which is made from eager, failed: RuntimeError: "),
        ("FLOAT32", "eager", 1, "; give the layer a `reference`"),
        ("NO_MODULE", "native", 1, "TypeError: versions['native'] must give an nn.Module, gave a method"),
        ("OTHER_KEYS", "native", 1, "versions['native'] must have the state_dict keys and shapes of versions['eager']"),
        ("FINE", "custom_op", 3, "custom_op skipped layer mine has no version custom_op"),
        (
            "FINE",
            "fused",
            2,
            "unknown variant 'fused' (has eager, native; layerbench list mine.py:FINE has what else can be made)",
        ),
    ],
)
def test_a_layer_that_does_not_fit_is_told_what_is_asked_of_it(
    check: Check, layer: str, variant: str, code: int, words: str
) -> None:
    found, text = check(layer, f"variant: {variant}")
    assert words in text
    assert found == code


def test_a_known_dtype_that_a_layer_does_not_take_is_no_misspelling(check: Check) -> None:
    assert check("FINE", "dtype: float16") == (
        2,
        "error: suite.yaml:2: axes.dtype: mine.py:FINE does not take float16 (one of float32)",
    )


def test_a_worker_that_leaves_points_to_its_log_and_the_run_names_it(check: Check, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(LAYERS.replace("os._exit(3)", "print('bye', flush=True); os._exit(3)"))
    _, text = check("LEAVES", "", "run", "--out", "out")
    assert load_run("out").measurements[0].reason == "its worker ended with exit code 3; last line of workers.log: bye"
    assert "report: out/report.html (also report.md, results.csv, workers.log)" in text


def test_a_worker_that_leaves_without_a_word_is_said_to(check: Check) -> None:
    assert "its worker ended with exit code 3; it left no word in workers.log" in check("LEAVES")[1]


@pytest.mark.parametrize("command", ["list", "portability"])
def test_what_a_file_raises_when_it_is_loaded_has_its_line(
    check: Check, tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    (tmp_path / "imports.py").write_text(f"import {command}_helps as it\n\nit.out()\n", encoding="utf-8")
    (tmp_path / f"{command}_helps.py").write_text("def out():\n    raise RuntimeError('at import')\n", encoding="utf-8")
    assert cli.command([command, "imports.py:L"]) == 2
    told = f"loading imports.py:L raised RuntimeError (at {command}_helps.py:2): at import"
    assert capsys.readouterr().err == f"error: {told} (put the layer's own file right)\n"


def test_of_a_compilers_long_output_the_errors_are_shown(
    check: Check, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = ["Error building extension 'mine'", *(f"include {i}" for i in range(500)), "mine.cpp:3: error: no such name"]
    (tmp_path / "builds.py").write_text(f"raise RuntimeError({chr(10).join(said)!r})\n", encoding="utf-8")
    assert cli.command(["list", "builds.py:L"]) == 2
    assert capsys.readouterr().err.splitlines() == [
        "error: loading builds.py:L raised RuntimeError (at builds.py:1): Error building extension 'mine'",
        "  mine.cpp:3: error: no such name",
        "  (of 502 lines) (put the layer's own file right)",
    ]


def test_a_layer_can_be_listed_with_its_parameters_and_its_variants(
    check: Check, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.command(["list", "mine.py:FINE"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "mine.py:FINE",
        "  parameters      none",
        "  dtypes          float32",
        "  versions        eager native",
        "  made from them  jit_script trace compile aoti_cpp eager_graph native_graph",
    ]
    assert cli.command(["list", "shift"]) == 0
    assert re.search(r"parameters +rows=1 length=65536 k=3\n", capsys.readouterr().out)


def test_a_worker_whose_asker_has_left_says_nothing(tmp_path: Path) -> None:
    with Workers(tmp_path / "workers.log", "default") as workers:
        process, connection = workers._start("a")
        connection.send(Describe())
        connection.close()
        process.join(60)
        del workers._live["a"]
    assert process.exitcode == 0
    assert (tmp_path / "workers.log").read_text(encoding="utf-8") == ""
