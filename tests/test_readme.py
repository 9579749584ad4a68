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
from bench.model import Policy
from layers import Layer

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


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
    page = (ROOT / "docs" / "layers.md").read_text(encoding="utf-8")
    assert [field.name for field in dataclasses.fields(Layer) if f"| `{field.name}` | " not in page] == []
    policy = msgspec.json.schema(Policy)["$defs"]["Policy"]["properties"]
    for name, key in policy.items():
        default = json.dumps(key["default"]).strip('"')
        assert f"| `{name}` | {default} | {key['description']} |" in page


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
