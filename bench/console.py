"""What the parts of the command line share: the two consoles, the exit, a suite as it was asked for."""

from __future__ import annotations

import errno
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer
from rich.console import Console

from bench.model import Suite, UserError

if TYPE_CHECKING:
    from bench.gating.gate import Exit

out = Console(highlight=False)
err = Console(stderr=True, highlight=False, soft_wrap=True)  # a line stays one when piped: names can be searched for

Only = Annotated[
    list[str] | None, typer.Option(help="Only cases whose id contains this text; repeated, those that contain all")
]
SuiteFile = Annotated[str, typer.Argument(help="A YAML suite, for example configs/quickstart.yaml", show_default=False)]


def leave(code: Exit) -> NoReturn:
    """End the command with this exit code."""
    raise typer.Exit(int(code))


def takes_no_more(error: OSError) -> bool:
    """Whether an open file is full or broken. Standard output: the errors of files that were opened have names."""
    return error.filename is None and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)


def default_folder(name: str) -> Path:
    """Where results go that have no `--out`. It keeps itself out of the user's repository, as pytest's cache does."""
    runs = Path("results/runs")
    with suppress(OSError):  # whoever makes the folder itself says what is wrong
        if not runs.exists():
            runs.mkdir(parents=True)
            (runs / ".gitignore").write_text("*\n", encoding="utf-8")
    return runs / f"{datetime.now(UTC):%Y%m%dT%H%M%S}-{name}"


def load_suite(path: str) -> Suite:
    """The suite in a YAML file. Raises UserError."""
    if not path:
        raise UserError("no suite", remedy="layerbench run configs/quickstart.yaml, or --resume FOLDER")
    from bench.workers import start_server

    start_server()  # torch takes seconds to import: the workers' copy beside this one
    import layers
    from bench import config
    from bench.machine.facts import cpus
    from layers.variants import VARIANTS

    return config.load_suite(path, find_layer=layers.load, layers=layers.BUILTIN, variants=tuple(VARIANTS), cpus=cpus())
