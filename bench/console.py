"""What the parts of the command line share: the two consoles, the exit, a suite as it was asked for."""

from __future__ import annotations

import errno
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer
from rich.console import Console

from bench.model import Suite, UserError

if TYPE_CHECKING:
    from collections.abc import Callable

    from bench.config import LayerLike
    from bench.gating.gate import Exit
    from layers import Layer

out = Console(highlight=False)
err = Console(stderr=True, highlight=False, soft_wrap=True)  # a line stays one when piped: names can be searched for

Only = Annotated[
    list[str] | None,
    typer.Option(
        help="Only cases whose id contains this text; repeated, those that contain all. n=1000 is in n=1000000 too: "
        "'n=1000]' ends with the last parameter, 'n=1000,' with another"
    ),
]
SuiteFile = Annotated[
    str,
    typer.Argument(
        help="A YAML suite, for example configs/quickstart.yaml; or a layer, path.py:NAME, for all its versions",
        show_default=False,
    ),
]


def leave(code: Exit) -> NoReturn:
    """End the command with this exit code."""
    raise typer.Exit(int(code))


def utf8(*streams: Any) -> None:
    """Names may be in any script, also under LC_ALL=C."""
    for stream in streams:
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(encoding="utf-8", errors="replace")


def takes_no_more(error: OSError) -> bool:
    """Whether an open file is full or broken. Standard output: the errors of files that were opened have names."""
    return error.filename is None and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)


def new_folder(given: Path | None, name: str) -> Path:
    """The folder for results, made; without `--out` one that its own repository does not see, as with pytest's cache.

    Raises UserError.
    """
    runs = Path("results/runs")
    folder = given or runs / f"{datetime.now(UTC):%Y%m%dT%H%M%S}-{name}"
    first = given is None and not runs.exists()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if first:
            (runs / ".gitignore").write_text("*\n", encoding="utf-8")
    except OSError as error:
        raise UserError(f"cannot make it: {error.strerror}", place=str(folder), remedy="another --out") from None
    return folder


def find_layer(name: str) -> Layer:
    """A layer named on the command line. Raises UserError, also for what its file raises."""
    import layers
    from bench.places import loading, remedy
    from bench.suitefile import closest

    try:
        return layers.load(name)
    except (Exception, SystemExit) as error:
        if type(error) is LookupError:  # a KeyError or IndexError comes out of the layer's own file
            near = closest(name, layers.BUILTIN)
            raise UserError(f"{error}{near}", remedy="layerbench list layers, or path.py:NAME") from None
        raise UserError(loading(name, error), remedy=remedy(error)) from error


def defaults(layer: Layer) -> str:
    """The parameters of a layer, with the value each has when a suite names none."""
    return " ".join(f"{key}={value}" for key, value in layer.defaults.items())


def load_suite(path: str, look: Callable[[str], LayerLike] | None = None) -> Suite:
    """The suite in a YAML file, or of a layer. Raises UserError.

    `look` finds its layers where their code is not this process's to run; see `find_layer` of config.load_suite.
    """
    if not path:
        raise UserError(
            "no suite", remedy="layerbench run configs/quickstart.yaml, or path.py:LAYER, or --resume FOLDER"
        )
    from bench.workers import start_server

    start_server()  # torch takes seconds to import: the workers' copy beside this one
    import layers
    from bench import config
    from bench.machine.facts import cpus
    from layers.variants import VARIANTS

    return config.load_suite(
        path, find_layer=look or layers.load, layers=layers.BUILTIN, variants=tuple(VARIANTS), cpus=cpus()
    )
