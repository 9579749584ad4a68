"""The portability table: every cell tried for real, and shown in every format."""

from __future__ import annotations

import io
import re
from pathlib import Path

import msgspec
import pytest
from rich.console import Console
from runs import showcase

import layers
from bench import cli, portability
from bench.formats import html, write_report
from bench.formats import portability as shown
from bench.model import UserError
from bench.portability import QUESTIONS, Cell, Report, Row, Tools
from ext import build, cmake
from layers.variants import VARIANTS


@pytest.fixture(scope="module")
def report() -> Report:
    """The tries that need no compiler, on the smallest layer."""
    libraries = {"custom_op": build.build()}
    rows = [
        row for row in portability.planned({"vecadd": layers.load("vecadd")}, tuple(VARIANTS)) if row[2] != "package"
    ]
    tools = Tools(cmake.make(cmake.RUNNER), "", libraries)
    return portability.survey(rows, tools, jobs=2, progress=lambda line, share: None)


def cells(report: Report, variant: str, form: str = "script") -> dict[str, Cell]:
    return next(row.cells for row in report.rows if (row.variant, row.form) == (variant, form))


def outcomes(report: Report, variant: str, form: str = "script") -> dict[str, str]:
    return {question: str(cell.outcome) for question, cell in cells(report, variant, form).items()}


def test_every_variant_is_tried_once_and_a_scripted_module_also_pickled() -> None:
    rows = portability.planned({"sign_gate": layers.load("sign_gate")}, tuple(VARIANTS))
    assert len(set(rows)) == len(rows)
    forms = {variant: form for _, variant, form in rows}
    assert {"eager", "script", "jit_script", "trace", "compile", "aoti_cpp", "custom_op", "native"} == set(forms)
    assert (forms["eager"], forms["aoti_cpp"], forms["trace"]) == ("pickle", "package", "script")
    assert ("sign_gate", "jit_script", "pickle") in rows


@pytest.mark.parametrize("variant", ["script", "jit_script", "trace", "native"])
def test_torchscript_goes_everywhere(report: Report, variant: str) -> None:
    found = outcomes(report, variant)
    assert found.pop("device") in ("yes", "n/a")
    assert set(found.values()) == {"yes"}


def test_a_cpp_operator_goes_everywhere_with_its_library_and_the_note_says_what_is_missing_without(
    report: Report,
) -> None:
    found = cells(report, "custom_op")
    assert found["python"] == Cell("library", "RuntimeError: Unknown builtin op: layerbench::vecadd.")
    assert found["cpp"].outcome == "library"
    assert "--library PATH" in found["cpp"].reason
    assert found["train"].outcome == found["batch"].outcome == "yes"


def test_a_saved_module_on_a_python_operator_cannot_be_loaded_and_the_message_says_why(report: Report) -> None:
    found = cells(report, "custom_op_py")  # pytorch#143773
    assert found["save"].outcome == "yes"
    assert found["python"].outcome == found["cpp"].outcome == "no"
    assert "Unknown builtin op: layerbench_py::vecadd" in found["python"].reason
    assert found["train"] == Cell("n/a", "does not load in Python")


def test_a_scripted_module_cannot_be_pickled_and_the_message_says_why(report: Report) -> None:
    found = cells(report, "jit_script", "pickle")  # pytorch#18106
    assert found["save"].outcome == "no"
    assert "Tried to serialize object __torch__.layers.vecadd.VecAdd" in found["save"].reason
    assert {found[question] for question in QUESTIONS if question != "save"} == {Cell("n/a", "not saved")}


def test_a_pickled_module_needs_the_python_that_it_was_made_of(report: Report) -> None:
    found = cells(report, "eager", "pickle")
    assert found["save"].outcome == "yes"
    assert found["python"] == Cell("no", "ModuleNotFoundError: No module named 'layers'")
    assert found["cpp"].outcome == "no"


DYING = """
import os
from torch import nn
from layers import Layer

class Dies(nn.Module):
    def __init__(self):
        os.abort()

LAYER = Layer("dies", {"eager": Dies}, inputs=lambda generator: (__import__("torch").ones(3),))
"""


def test_a_try_that_crashes_is_a_no_that_says_so_and_the_rest_goes_on(tmp_path: Path) -> None:
    (tmp_path / "dying.py").write_text(DYING, encoding="utf-8")
    name = f"{tmp_path / 'dying.py'}:LAYER"
    rows = [(name, "eager", "pickle"), ("vecadd", "native", "script")]
    found = portability.survey(rows, Tools(None, "not built"), jobs=1, progress=lambda line, share: None)
    assert found.rows[0].cells["save"] == Cell("no", "crashed (SIGABRT)")
    assert found.rows[1].cells["python"] == Cell("yes")
    assert found.rows[1].cells["cpp"] == Cell("n/a", "not built")


# --- formats ---


@pytest.fixture
def table() -> Report:
    """A made-up table of one row of each kind."""
    nothing = Cell("n/a", "not saved")
    fine = {question: Cell("yes") for question in QUESTIONS}
    half = fine | {"cpp": Cell("library", "needs op_<x>")}
    return Report(
        "2026-01-01T00:00:00+00:00",
        "2.13.0",
        "CPU",
        (
            Row("shift", "script", "script", half),
            Row("shift", "eager", "pickle", dict.fromkeys(QUESTIONS, nothing) | {"save": Cell("no", "why")}),
        ),
    )


def test_the_terminal_shows_every_answer_and_each_reason_once(table: Report) -> None:
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(shown.render(table))
    text = console.export_text()
    assert re.search(r"script +torch.jit.save +yes +yes +library¹ +yes +yes +yes", text)
    assert re.search(r"eager +torch.save +no² +–³ +–³ +–³ +–³ +–³", text)
    assert text.count("needs op_<x>") == text.count("why\n") == text.count("not saved") == 1


def test_markdown_has_a_line_a_variant_and_the_reasons_below(table: Report) -> None:
    text = shown.markdown(table)
    assert "| script | torch.jit.save | yes | yes | library<sup>1</sup> | yes | yes | yes |" in text
    assert "1. needs op\\_\\<x\\>" in text


def test_a_run_with_a_portability_table_beside_it_shows_it_and_one_without_does_not(
    table: Report, tmp_path: Path
) -> None:
    assert 'id="portability"' not in html.render(showcase())
    (tmp_path / portability.FILE).write_bytes(msgspec.json.encode(table))
    write_report(showcase(), tmp_path)
    page = (tmp_path / html.FILE).read_text(encoding="utf-8")
    assert 'id="portability"' in page
    assert '<li id="portability-1">needs op_&lt;x&gt;</li>' in page


def test_a_broken_table_is_an_error_that_names_the_file(tmp_path: Path) -> None:
    (tmp_path / portability.FILE).write_text('{"rows": 3}', encoding="utf-8")
    with pytest.raises(UserError, match=r"portability.json: unreadable"):
        portability.load(tmp_path)


def test_an_unknown_layer_is_a_mistake_of_the_users(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.command(["portability", "shfit"]) == 2
    assert "unknown layer 'shfit'" in capsys.readouterr().err
