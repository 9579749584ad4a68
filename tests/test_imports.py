"""Who may import whom. The table is the architecture: data flows one way, and results are read without torch."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("bench", "layers", "ext")

# Module, or pattern for those without a row of their own: what it may import besides the standard library.
# A package's name stands for all in it.
TABLE: dict[str, set[str]] = {
    "bench": set(),
    "bench.model": {"msgspec"},
    "bench.units": set(),
    "bench.suitefile": {"bench.model", "msgspec", "ruamel.yaml"},
    "bench.config": {"bench.model", "bench.suitefile", "msgspec", "ruamel.yaml"},
    "bench.nvml": set(),
    "bench.machine": {"bench.nvml"},
    "bench.environment": {"bench.machine", "bench.nvml"},
    "bench.arms": {"bench.environment", "bench.model", "msgspec"},
    "bench.verdicts": {"numpy", "scipy"},
    "bench.monitor": {"bench.machine", "bench.model", "bench.nvml"},
    "bench.energy": {"bench.model", "bench.nvml"},
    "bench.flush": {"torch"},
    "bench.hold": {"torch"},
    "bench.timers": {"bench.flush", "torch"},
    "bench.timers_cuda": {"bench.hold", "bench.timers", "torch"},
    "bench.timers_cupti": {"bench.hold", "bench.timers", "torch"},
    "bench.measure": {"bench.model", "bench.timers"},
    "bench.memory": {"bench.flush", "bench.machine", "torch"},
    "bench.limits": {"bench.model", "bench.units"},
    "bench.task": {"bench.memory", "bench.model", "layers", "torch"},
    "bench.remote": {"bench.model", "bench.task", "bench.timers", "layers", "torch"},
    "bench.check": {"bench.model", "bench.task", "layers", "torch"},
    "bench.protocol": {"bench.model", "msgspec"},
    "bench.session": {
        *("bench.check", "bench.energy", "bench.environment", "bench.flush", "bench.limits", "bench.measure"),
        *("bench.memory", "bench.model", "bench.monitor", "bench.protocol", "bench.remote", "bench.task"),
        *("bench.timers", "layers", "torch"),
    },
    "bench.worker": {
        *(
            "bench.arms",
            "bench.check",
            "bench.environment",
            "bench.memory",
            "bench.model",
            "bench.protocol",
            "bench.session",
        ),
        *("bench.task", "layers"),
    },
    "bench.workers": {"bench.arms", "bench.protocol"},
    "bench.ab": {"bench.arms", "bench.model", "bench.protocol", "bench.verdicts", "bench.workers", "msgspec"},
    "bench.gaterun": {
        *("bench.ab", "bench.arms", "bench.gate", "bench.instructions", "bench.model", "bench.protocol"),
        *("bench.verdicts", "msgspec"),
    },
    "bench.baselines": {
        *("bench.ab", "bench.arms", "bench.gate", "bench.gaterun", "bench.model", "bench.protocol", "bench.verdicts"),
        *("msgspec", "numpy", "scipy"),
    },
    "bench.console": {"bench", "rich", "typer"},
    "bench.gating": {"bench", "rich", "typer"},
    "bench.runner": {"bench.model", "bench.protocol", "bench.workers", "msgspec"},
    "bench.portability": {"bench.model", "bench.workers", "msgspec"},
    "bench.portable": {"layers", "torch"},
    "bench.stats": {"bench.model", "numpy", "scipy"},
    "bench.instructions": {"bench.arms", "bench.model", "bench.workers"},
    "bench.counted": {
        *("bench.instructions", "bench.model", "bench.session", "bench.task", "bench.worker"),
        *("layers", "msgspec", "torch"),
    },
    "bench.rows": {"bench.model", "bench.stats", "bench.units"},
    "bench.history": {"bench.model", "bench.rows", "bench.stats", "numpy", "scipy"},
    "bench.pytest_suite": {
        *("bench.check", "bench.config", "bench.machine", "bench.memory", "bench.model", "bench.remote"),
        *("bench.session", "bench.task", "layers", "pytest", "torch"),
    },
    "bench.table": {"bench.model", "bench.rows", "bench.stats", "numpy", "pandas"},
    "bench.progress": {"bench.model", "bench.protocol", "bench.stats", "bench.units", "rich"},
    "bench.gate": {"bench.model", "bench.stats", "bench.verdicts", "msgspec"},
    "bench.profile": {"bench.model", "layers", "torch"},
    "bench.findings": {"bench.units", "msgspec", "scipy"},
    "bench.selftest_layers": {"layers", "torch"},
    "bench.noise": {"bench.findings", "bench.model", "bench.runner", "bench.stats"},
    "bench.probes": {
        *("bench.findings", "bench.measure", "bench.memory", "bench.model", "bench.selftest_layers"),
        *("bench.task", "bench.timers", "bench.units", "layers", "torch"),
    },
    "bench.selftest": {"bench.findings", "bench.model", "bench.noise", "bench.workers"},
    "bench.formats": {"bench.formats", "bench.model", "bench.portability", "msgspec"},
    "bench.formats.*": {
        *("bench.formats", "bench.history", "bench.model", "bench.portability", "bench.rows", "bench.stats"),
        *("bench.table", "bench.units"),
        *("jinja2", "matplotlib", "msgspec", "numpy", "pandas", "rich"),
    },
    "bench.formats.verdicts": {"bench.formats", "bench.gate", "bench.units", "msgspec", "rich"},
    "bench.formats.checkup": {"bench.findings", "bench.formats", "bench.units", "rich"},
    "bench.cli": {"bench", "msgspec", "rich", "typer"},
    "bench.__main__": {"bench.cli"},
    "layers": {"torch"},
    "layers.*": {"layers", "torch"},
    "ext": set(),
    "ext.build": {"ext", "filelock"},
    "ext.setup": {"ext", "setuptools", "torch"},
    "ext.*": {"ext", "torch"},
}
# And what it may import inside functions alone, so that importing it costs nothing and needs nothing.
LAZY: dict[str, set[str]] = {
    "bench.nvml": {"pynvml"},
    "bench.machine": {"torch"},
    "bench.environment": {"ext", "torch"},
    "bench.cli": {"ext", "layers", "torch"},
    "bench.console": {"layers"},
    "bench.gating": {"ext"},
    "bench.hold": {"ext"},
    "bench.instructions": {"bench.counted", "bench.stats", "ext"},
    "bench.portability": {"ext"},
    "bench.timers": {"bench.timers_cuda", "bench.timers_cupti"},
    "layers.*": {"ext"},
    "ext.build": {"torch"},
}
# All others in bench are imported without torch: results are read, compared and gated on a laptop.
NEED_TORCH = {
    *("bench.flush", "bench.hold", "bench.memory", "bench.timers", "bench.timers_cuda", "bench.timers_cupti"),
    *(
        "bench.measure",
        "bench.task",
        "bench.remote",
        "bench.check",
        "bench.session",
        "bench.worker",
        "bench.probes",
        "bench.portable",
        "bench.selftest_layers",
        "bench.counted",
        "bench.pytest_suite",
    ),
    "bench.profile",
}


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
        ("bench.environment", "import torch", "bench.environment:1 imports torch, which it may inside functions alone"),
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
        ("bench.environment", "def f():\n    import torch\n    from ext import build"),
        ("bench.formats.terminal", "import json\nfrom rich.table import Table\nfrom .cells import columns"),
        ("bench.runner", "from bench import __version__"),
        ("bench.gate", "if TYPE_CHECKING:\n    from bench.table import Change"),
    ],
)
def test_the_walk_lets_allowed_imports_pass(module: str, source: str) -> None:
    assert breaches(module, source) == []


def test_results_are_read_and_shown_without_torch_in_the_process() -> None:
    names = [name for name in MODULES if name.startswith("bench") and name not in {*NEED_TORCH, "bench.__main__"}]
    assert {"bench.model", "bench.config", "bench.stats", "bench.environment"} <= set(names)
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
