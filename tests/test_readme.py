"""The README is what a newcomer types: every command, session and file in it must exist."""

from __future__ import annotations

import ast
import dataclasses
import json
import re
from pathlib import Path

import msgspec
import pytest
import torch

from bench import cli
from bench.bounds import bound_for
from bench.model import Policy
from bench.reference import relative_error
from layers import Layer

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
LAYERS = (ROOT / "docs" / "layers.md").read_text(encoding="utf-8")


def sessions() -> set[str]:
    tree = ast.parse((ROOT / "noxfile.py").read_text(encoding="utf-8"))
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef) and node.decorator_list}


def test_every_session_it_names_exists() -> None:
    named = re.findall(r"nox -s ([a-z_]+)", README)
    assert {"bench", "tests"} <= set(named) <= sessions()


def test_every_command_it_names_exists(capsys: pytest.CaptureFixture[str]) -> None:
    named = set(re.findall(r"`layerbench ([a-z-]+)", README))
    assert {"run", "check", "report", "compare", "list", "build", "doctor", "schema"} <= named
    for name in named:
        assert cli.command([name, "--help"]) == 0, name
    capsys.readouterr()


def test_every_file_it_names_exists() -> None:
    linked = re.findall(r"\]\(([^)#:]+)\)", README)
    named = [*linked, *re.findall(r"configs/[a-z0-9]+\.yaml", README)]
    assert named
    assert [name for name in named if not (ROOT / name).exists()] == []


def test_the_page_on_layers_names_every_field_and_every_key_of_the_policy_with_its_default() -> None:
    assert [field.name for field in dataclasses.fields(Layer) if f"| `{field.name}` | " not in LAYERS] == []
    policy = msgspec.json.schema(Policy)["$defs"]["Policy"]["properties"]
    for name, key in policy.items():
        default = json.dumps(key["default"]).strip('"')
        assert f"| `{name}` | {default} | {key['description']} |" in LAYERS


def test_other_shapes_are_tried_by_the_draws_that_the_page_on_layers_shows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shown = re.findall(r"`(draws=\(.*?,\))`", LAYERS)
    assert len(shown) == 1
    text = re.findall(r"```python\n# swish.py\n(.*?)```", README, re.DOTALL)[0]
    text = text.replace("nn.functional.silu(x)", "nn.functional.silu(x) if len(x) == 1000 else x")
    (tmp_path / "without.py").write_text(text, encoding="utf-8")
    (tmp_path / "with.py").write_text(text.replace("LAYER = Layer(", f"LAYER = Layer({shown[0]},"), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    for name, code in (("without", 0), ("with", 1)):
        axes = "axes: {n: 1000, threads: 1, variant: [eager, native], direction: inference}"
        (tmp_path / "suite.yaml").write_text(f"groups: [{{layer: '{name}.py:LAYER', {axes}}}]", encoding="utf-8")
        assert cli.command(["check", "suite.yaml"]) == code
    assert "extra draw 0" in " ".join(capsys.readouterr().out.split())


def test_a_small_wrong_output_beside_a_large_one_is_found_when_scaled_as_the_page_on_layers_says() -> None:
    pair = {"torch": torch, "wanted": (torch.ones(8), torch.full((8,), 1e-3))}
    pair["got"] = (torch.ones(8), torch.full((8,), 1.01e-3))
    plain, scaled = (
        relative_error(*(eval(f"(lambda result: {text})({name})", pair) for name in ("got", "wanted")))
        for text in re.findall(r"torch\.cat\([^`]*\)", LAYERS)
    )
    assert plain < bound_for("float32", tf32=False) < scaled


def test_the_layer_it_shows_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = re.findall(r"```(?:python|yaml)\n# (\S+)\n(.*?)```", README, re.DOTALL)
    assert [name for name, _ in blocks] == ["swish.py", "swish.yaml"]
    for name, text in blocks:
        (tmp_path / name).write_text(text, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    # compile takes long, and its answer does not depend on the README
    threads = torch.get_num_threads()
    for variant in ("eager", "jit_script", "trace", "native"):
        assert cli.command(["check", "swish.yaml", "--only", "n=1000]", "--only", f"/{variant}"]) == 0
    assert torch.get_num_threads() == threads
