"""`nox` sets everything up, builds, measures and shows where the report is. `nox --list` names the rest."""

import sys
from pathlib import Path

import nox
from nox.command import CommandFailed

nox.needs_version = ">=2025.2.9"
nox.options.sessions = ["bench"]
nox.options.default_venv_backend = "venv"  # with pip, which alone sees wheels that lie on a machine's disk
nox.options.reuse_venv = "yes"  # torch is large; pip finds everything in place and returns in seconds
nox.options.error_on_external_run = True

PROJECT = nox.project.load_toml("pyproject.toml")
PINS = ("-c", "constraints.txt")


def group(name: str) -> list[str]:
    """The requirements of one dependency group of pyproject.toml."""
    return list(nox.project.dependency_groups(PROJECT, name))


@nox.session
def bench(session: nox.Session) -> None:
    """Set up, build the native operators, run a suite, name the report: `nox -s bench -- configs/shift.yaml`."""
    session.install("-e", ".", *PINS)
    session.run("layerbench", "build", success_codes=(0, 2))  # without a compiler, what needs none is still measured
    session.run("layerbench", "run", *(session.posargs or ["configs/quickstart.yaml"]))


@nox.session(default=False)
def tests(session: nox.Session) -> None:
    """Run the tests that need no GPU: `nox -s tests -- -k shift`."""
    session.install("-e", ".", *group("tests"), *PINS)
    session.run("layerbench", "build")
    session.run("pytest", *session.posargs)


@nox.session(default=False)
def gate(session: nox.Session) -> None:
    """Fail a change that makes layers execute more instructions: `nox -s gate -- --against main`. Needs valgrind."""
    _gate(session, "--metric", "instructions")


@nox.session(default=False)
def gate_ab(session: nox.Session) -> None:
    """Fail a change that makes layers slower on this machine: `nox -s gate_ab -- --against main`."""
    _gate(session)


def _gate(session: nox.Session, *options: str) -> None:
    session.install("-e", ".", *PINS)
    session.run("layerbench", "build", success_codes=(0, 2))
    chosen = session.posargs or ["--against", "HEAD"]
    if "--suite" not in chosen:
        chosen = ["--suite", "configs/gate.yaml", *chosen]
    try:
        session.run("layerbench", "gate", *options, *chosen)
    except CommandFailed as failure:
        sys.exit(getattr(failure, "return_code", None) or 1)  # nox would make a 1 of 3 and 4 too


@nox.session(default=False)
def pytest_bench(session: nox.Session) -> None:
    """Run a suite as pytest-benchmark tests: `nox -s pytest_bench -- configs/shift.yaml --benchmark-json=FILE`."""
    session.install("-e", ".", *group("tests"), *PINS)
    session.run("layerbench", "build", success_codes=(0, 2))
    suite, *options = session.posargs or ["configs/quickstart.yaml"]
    file = str(Path(session.create_tmp()) / "test_suite.py")
    session.run("layerbench", "pytest-benchmark", suite, "--out", file)
    session.run("pytest", file, "--benchmark-disable-gc", "--benchmark-columns=min,median,iqr,rounds", *options)


@nox.session(default=False)
def lint(session: nox.Session) -> None:
    """Lint, and check the formatting (`ruff format` mends it)."""
    session.install(*group("lint"), *PINS)
    session.run("ruff", "check")
    session.run("ruff", "format", "--check")


@nox.session(default=False)
def types(session: nox.Session) -> None:
    """Check the types with mypy."""
    session.install("-e", ".", *group("types"), *PINS)
    session.run("mypy", *session.posargs)


@nox.session(default=False, venv_params=["--system-site-packages"])
def gpu(session: nox.Session) -> None:
    """Run the GPU tests with the torch that the machine has; `nox -s gpu --no-venv` uses the active Python as it is."""
    # No pins and no editable install: pip adds what is missing and leaves the machine's CUDA torch alone.
    needed = [*PROJECT["project"]["dependencies"], *PROJECT["project"]["optional-dependencies"]["gpu"], *group("tests")]
    session.run("python", "-m", "pip", "install", *needed)  # not session.install, which refuses --no-venv
    session.run("python", "-m", "bench", "build")
    session.run("python", "-m", "pytest", "-m", "gpu", *session.posargs)
