"""Who may import whom. The table is the architecture: data flows one way, and results are read without torch."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path

import pytest

from bench import cli

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("bench", "layers", "ext")


def may(ours: str = "", *others: str) -> set[str]:
    """Modules and packages of bench, and others."""
    return {f"bench.{name}" for name in ours.split()} | set(others)


# Module, or pattern for those without a row of their own: what it may import besides the standard library.
# A package's name stands for all in it.
TABLE: dict[str, set[str]] = {
    "bench": may(),
    "bench.clocks": may(),
    "bench.doctor": may(),
    "bench.gating": may(),
    "bench.machine": may(),
    "bench.model": may("", "msgspec"),
    "bench.units": may(),
    "bench.footnotes": may(),
    "bench.ours": may(),
    "bench.places": may("ours units"),
    "bench.suitefile": may("model", "msgspec", "ruamel.yaml"),
    "bench.config": may("model places suitefile", "msgspec", "ruamel.yaml"),
    "bench.machine.nvml": may(),
    "bench.machine.facts": may("machine.nvml"),
    "bench.machine.environment": may("machine.facts machine.nvml"),
    "bench.gating.arms": may("machine.environment model ours", "msgspec"),
    "bench.gating.verdicts": may("", "numpy", "scipy"),
    "bench.machine.monitor": may("machine.facts machine.nvml model"),
    "bench.machine.energy": may("machine.nvml model"),
    "bench.clocks.flush": may("", "torch"),
    "bench.clocks.hold": may("clocks.timer", "torch"),
    "bench.clocks.timer": may(),
    "bench.clocks.host": may("clocks.timer"),
    "bench.clocks.timers": may("clocks.cuda clocks.cupti clocks.flush clocks.host clocks.timer", "torch"),
    "bench.clocks.stopwatch": may("clocks.hold clocks.timer"),
    "bench.clocks.stream": may("clocks.hold clocks.stopwatch clocks.timer", "torch"),
    "bench.clocks.cuda": may("clocks.hold clocks.stopwatch clocks.stream clocks.timer", "torch"),
    "bench.clocks.cupti": may("clocks.hold clocks.timer", "torch"),
    "bench.measure": may("clocks.timer model"),
    "bench.machine.memory": may("clocks.flush machine.facts", "torch"),
    "bench.limits": may("model units"),
    "bench.task": may("machine.memory measure model reference", "layers", "torch"),
    "bench.remote": may("clocks.timer model task", "layers", "torch"),
    "bench.reference": may("", "layers", "torch"),
    "bench.bounds": may("reference", "torch"),
    "bench.trials": may("reference", "layers", "torch"),
    "bench.check": may("bounds model reference task trials", "layers", "torch"),
    "bench.protocol": may("model", "msgspec"),
    "bench.session": may(
        "bounds check clocks.flush clocks.timer clocks.timers limits machine.energy machine.environment machine.memory "
        "machine.monitor measure model protocol reference remote task",
        "layers",
        "torch",
    ),
    "bench.worker": may(
        "bounds gating.arms machine.environment machine.memory model places protocol reference session task",
        "layers",
        "torch",
    ),
    "bench.workers": may("gating.arms ours protocol"),
    "bench.gating.ab": may("gating.arms gating.verdicts model protocol workers", "msgspec"),
    "bench.gating.gaterun": may(
        "footnotes gating.ab gating.arms gating.gate gating.instructions gating.verdicts model protocol",
        "msgspec",
    ),
    "bench.gating.baselines": may(
        "gating.ab gating.arms gating.gate gating.gaterun gating.verdicts model protocol",
        "msgspec",
        "numpy",
        "scipy",
    ),
    "bench.console": may("", "bench", "rich", "typer"),
    "bench.gating.commands": may("", "bench", "msgspec", "rich", "typer"),
    "bench.runner": may("model protocol workers", "msgspec"),
    "bench.portability": may("model workers", "msgspec"),
    "bench.portable": may("ours", "layers", "torch"),
    "bench.stats": may("model", "numpy", "scipy"),
    "bench.gating.orders": may("gating.arms model"),
    "bench.gating.instructions": may("gating.arms gating.orders model workers"),
    "bench.gating.counted": may("gating.orders model session task worker", "layers", "msgspec"),
    "bench.rows": may("footnotes model stats units"),
    "bench.history": may("model rows stats", "numpy", "scipy"),
    "bench.pytest_suite": may(
        "bounds check config machine.facts machine.memory model remote session task",
        "layers",
        "pytest",
        "torch",
    ),
    "bench.table": may("model rows stats", "numpy", "pandas"),
    "bench.progress": may("model protocol stats units", "rich"),
    "bench.gating.gate": may("gating.verdicts model stats", "msgspec"),
    "bench.profile": may("model", "layers", "torch"),
    "bench.doctor.findings": may("units", "msgspec", "scipy"),
    "bench.selftest_layers": may("", "layers", "torch"),
    "bench.doctor.noise": may("doctor.findings model runner stats"),
    "bench.doctor.probes": may(
        "clocks.host clocks.timer clocks.timers doctor.findings "
        "machine.memory measure model selftest_layers task units",
        "layers",
        "torch",
    ),
    "bench.doctor.selftest": may("doctor.findings doctor.noise model workers"),
    "bench.formats": may("formats model portability", "msgspec"),
    "bench.formats.*": may(
        "footnotes formats history model portability rows stats table units",
        "jinja2",
        "matplotlib",
        "msgspec",
        "numpy",
        "pandas",
        "rich",
    ),
    "bench.formats.verdicts": may("formats gating.gate units", "msgspec", "rich"),
    "bench.formats.checkup": may("doctor.findings formats units", "rich"),
    "bench.cli": may("", "bench", "msgspec", "rich", "typer"),
    "bench.__main__": may("cli"),
    "layers": may("", "torch"),
    "layers.*": may("", "layers", "torch"),
    "ext": may(),
    "ext.build": may("", "ext", "filelock"),
    "ext.setup": may("", "ext", "setuptools", "torch"),
    "ext.*": may("", "ext", "torch"),
}
# And what it may import inside functions alone, so that importing it costs nothing and needs nothing.
LAZY: dict[str, set[str]] = {
    "bench.machine.nvml": may("", "pynvml"),
    "bench.machine.facts": may("", "torch"),
    "bench.machine.environment": may("", "ext", "torch"),
    "bench.cli": may("", "ext", "layers", "torch"),
    "bench.console": may("", "layers"),
    "bench.gating.commands": may("", "ext"),
    "bench.clocks.hold": may("", "ext"),
    "bench.gating.instructions": may("gating.counted stats", "ext"),
    "bench.portability": may("", "ext"),
    "layers.*": may("", "ext"),
    "ext.build": may("", "torch"),
}
# All others in bench are imported without torch: results are read, compared and gated on a laptop.
NEED_TORCH = may(
    "bounds check clocks.cuda clocks.cupti clocks.flush clocks.hold clocks.stopwatch clocks.stream clocks.timers "
    "doctor.probes gating.counted machine.memory measure portable profile pytest_suite reference remote "
    "selftest_layers session task trials worker"
)


def module_name(file: Path) -> str:
    return ".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


MODULES = {module_name(file): file for package in PACKAGES for file in sorted((ROOT / package).rglob("*.py"))}


def row(table: dict[str, set[str]], module: str) -> set[str] | None:
    """The module's own row, else that of the longest pattern that fits."""
    fitting = [name for name in table if fnmatchcase(module, name)]
    return table[max(fitting, key=lambda name: (name == module, len(name)))] if fitting else None


def imports(node: ast.AST, package: str, lazy: bool = False) -> Iterator[tuple[str, int, bool]]:
    """Every import below `node`: full dotted name, line, and whether it runs only when a function is called.

    Those under `if TYPE_CHECKING:` never run, and are left out.
    """
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING":
            continue
        if isinstance(child, ast.Import):
            yield from ((alias.name, child.lineno, lazy) for alias in child.names)
        elif isinstance(child, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) + 1 - child.level] if child.level else []
            source = ".".join([*above, *([child.module] if child.module else [])])
            names = [f"{source}.{alias.name}" for alias in child.names]
            yield from ((name if name in MODULES else source, child.lineno, lazy) for name in names)
        else:
            inside = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
            yield from imports(child, package, lazy or inside)


def covered(name: str, allowed: set[str]) -> bool:
    return any(name == entry or name.startswith(f"{entry}.") for entry in allowed)


def breaches(module: str, source: str) -> list[str]:
    """The imports of a module that its row does not allow, as sentences."""
    allowed = row(TABLE, module)
    if allowed is None:
        return [f"{module} is in no row: add it to the table in {Path(__file__).name}"]
    lazily = row(LAZY, module) or set()
    is_package = module in MODULES and MODULES[module].name == "__init__.py"
    package = module if is_package else module.rpartition(".")[0]
    found = []
    for name, line, lazy in imports(ast.parse(source), package):
        top = name.split(".")[0]
        if top in sys.stdlib_module_names or covered(name, allowed) or (lazy and covered(name, lazily)):
            continue
        if name == module.split(".")[0]:  # the package itself, for __version__: it imports nothing
            continue
        where = "inside functions alone" if covered(name, lazily) else "nowhere"
        found.append(f"{module}:{line} imports {name}, which it may {where}")
    return found


# What the processes of a gate take from `layers`, whose old side may be any earlier revision: a new name here breaks
# the gate against all of them (ask for it with getattr, or do without).
ASKED = {
    "layers": {"BUILTIN", "Inputs", "Layer", "Unavailable", "load"},
    "layers.program": {"Program"},
    "layers.variants": {"Made", "SHAPE_BOUND", "STRIDE_BOUND", "draw", "make"},
}
OWN = may("cli console portable pytest_suite selftest_layers doctor.probes")  # run in no arm


def test_what_runs_in_an_arm_asks_its_layers_for_nothing_that_older_ones_lack() -> None:
    for module, file in MODULES.items():
        if not module.startswith("bench.") or module in OWN:
            continue
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "layers":
                new = {alias.name for alias in node.names} - ASKED.get(node.module or "", set())
                assert new == set(), f"{module}:{node.lineno}"


@pytest.mark.parametrize("module", MODULES)
def test_a_module_imports_only_what_its_row_allows(module: str) -> None:
    assert breaches(module, MODULES[module].read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(
    ("module", "source", "breach"),
    [
        (
            "layers.shift",
            "def f():\n    from bench import model",
            "layers.shift:2 imports bench.model, which it may nowhere",
        ),
        ("ext.build", "import layers.shift", "ext.build:1 imports layers.shift, which it may nowhere"),
        ("bench.model", "if True:\n    import torch.nn", "bench.model:2 imports torch.nn, which it may nowhere"),
        (
            "bench.machine.environment",
            "import torch",
            "bench.machine.environment:1 imports torch, which it may inside functions alone",
        ),
        ("bench.stats", "from . import table", "bench.stats:1 imports bench.table, which it may nowhere"),
        (
            "bench.formats.terminal",
            "from ..runner import go",
            "bench.formats.terminal:1 imports bench.runner, which it may nowhere",
        ),
        ("bench.novel", "", "bench.novel is in no row: add it to the table in test_imports.py"),
    ],
)
def test_the_walk_sees_every_kind_of_forbidden_import(module: str, source: str, breach: str) -> None:
    assert breaches(module, source) == [breach]


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("bench.machine.environment", "def f():\n    import torch\n    from ext import build"),
        ("bench.formats.terminal", "import json\nfrom rich.table import Table\nfrom .cells import columns"),
        ("bench.runner", "from bench import __version__"),
        ("bench.gating.gate", "if TYPE_CHECKING:\n    from bench.table import Change"),
    ],
)
def test_the_walk_lets_allowed_imports_pass(module: str, source: str) -> None:
    assert breaches(module, source) == []


def test_results_are_read_and_shown_without_torch_in_the_process() -> None:
    names = [name for name in MODULES if name.startswith("bench") and name not in {*NEED_TORCH, "bench.__main__"}]
    assert {"bench.model", "bench.config", "bench.stats", "bench.machine.environment"} <= set(names)
    code = f"import sys, {', '.join(names)}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT).returncode == 0


@pytest.mark.parametrize("module", MODULES)
def test_no_module_is_longer_than_400_lines(module: str) -> None:
    assert len(MODULES[module].read_text(encoding="utf-8").splitlines()) <= 400


def test_no_file_of_the_repository_names_a_place_on_somebodys_machine() -> None:
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=True,
    )
    files = [ROOT / name for name in listed.stdout.decode().split("\0") if name]
    place = re.compile(rb"(?<![\w.$}-])/(work|root)/|file:" + rb"///")
    texts = {file: file.read_bytes() for file in files if file.is_file()}
    named = [
        f"{file.relative_to(ROOT)}:{number}: {line[:120].decode(errors='replace')}"
        for file, text in texts.items()
        if b"\0" not in text
        for number, line in enumerate(text.splitlines(), start=1)
        if place.search(line)
    ]
    assert Path(__file__) in texts
    assert named == []


AS_INSTALLED = {
    "editable": """
import sys
from importlib.machinery import PathFinder

class Last:  # as that of setuptools: asked when all of sys.path has nothing
    def find_spec(name, path=None, target=None):
        return PathFinder.find_spec(name, [ROOT]) if name in ("bench", "layers", "ext", "layerbench_start") else None

sys.meta_path.append(Last)
""",
    "plain": "import sys; sys.path.append(ROOT)",
}
LAYER = """
import ext.build
import torch
from torch import nn
from helper import FACTOR
from layers import Layer

class Scale(nn.Module):
    def forward(self, x):
        return FACTOR * x

LAYER = Layer(name="scale", versions={"eager": Scale}, inputs=lambda generator: (torch.randn(4, generator=generator),))
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A user's project: a layer that imports the file beside it and what is ours, in a suite by either name."""
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "mine.py").write_text(LAYER, encoding="utf-8")
    (folder / "helper.py").write_text("FACTOR = 2\n", encoding="utf-8")
    axes = {"variant": "eager", "direction": "inference", "threads": 1}
    suite = {"groups": [{"layer": "mine:LAYER", "axes": axes}, {"layer": "mine.py:LAYER", "axes": axes}]}
    (folder / "suite.yaml").write_text(json.dumps(suite), encoding="utf-8")
    return folder


def package(folder: Path, name: str) -> None:
    (folder / name).mkdir()
    (folder / name / "__init__.py").write_text("raise RuntimeError('not ours')\n", encoding="utf-8")
    (folder / name / "attn.py").write_text("A = 1\n", encoding="utf-8")


@pytest.mark.parametrize(
    ("name", "installed", "path"),
    [("layers", "editable", ""), ("bench", "editable", ""), ("ext", "editable", ""), ("bench", "plain", ".")],
)
def test_a_project_may_have_a_folder_with_the_name_of_one_of_ours(
    name: str, installed: str, path: str, project: Path, tmp_path: Path
) -> None:
    package(project, name)
    (tmp_path / "sitecustomize.py").write_text(
        AS_INSTALLED[installed].replace("ROOT", repr(str(ROOT))), encoding="utf-8"
    )
    (tmp_path / "bin").mkdir()
    command = tmp_path / "bin" / "layerbench"
    command.write_text("from layerbench_start import main\nif __name__ == '__main__':\n    main()\n", encoding="utf-8")
    done = subprocess.run(
        [sys.executable, str(command), "check", "suite.yaml"],
        cwd=project,
        env=os.environ | {"PYTHONPATH": os.pathsep.join([*([path] if path else []), str(tmp_path)])},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 cases checked, 0 skipped, 0 not as expected" in done.stdout


@pytest.mark.parametrize(
    ("statement", "name"),
    [
        ("from layers.attn import A", "layers"),
        ("from layers import attn", "layers"),
        ("import bench.attn", "bench"),
    ],
)
def test_an_import_from_a_package_that_ours_hides_is_told_which_and_what_to_do(
    statement: str, name: str, project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (project / "mine.py").write_text(statement + LAYER, encoding="utf-8")
    monkeypatch.setattr(sys, "path", [*sys.path, str(project)])
    monkeypatch.chdir(project)
    assert cli.command(["check", "mine.py:LAYER"]) == 2
    without = capsys.readouterr().err
    assert "hides" not in without  # nothing: the import is simply wrong
    assert "(put the layer's own file right)" in without
    package(project, name)
    assert cli.command(["check", "mine.py:LAYER"]) == 2
    assert (
        f"; layerbench's own package '{name}' hides {project / name} "
        "(rename that one, or import it as part of a package with another name)\n"
    ) in capsys.readouterr().err
