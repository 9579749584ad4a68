"""From results to an exit code. Pure; the meanings are those of `layerbench --help`."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import TYPE_CHECKING

from bench.model import Run, Status, Verdict

if TYPE_CHECKING:
    from bench.table import Change


class Exit(enum.IntEnum):
    """Exit codes of the command."""

    OK = 0
    BAD = 1  # a regression, or a case incorrect or failed that should not be
    USAGE = 2  # usage or configuration
    INCONCLUSIVE = 3
    NOT_COMPARABLE = 4
    INTERNAL = 70
    INTERRUPTED = 130


def run_exit(run: Run) -> Exit:
    """Fine when every case has the status that the suite expects; skipped ones pass."""
    return Exit.BAD if run.surprises() else Exit.OK


def comparison_exit(changes: Sequence[Change], *, same_machine: bool) -> Exit:
    """Not comparable beats a regression, a regression beats doubt: what cannot be trusted must not look decided."""
    if not same_machine or not changes or any(_lost(change) for change in changes):
        return Exit.NOT_COMPARABLE
    if any(_worse(change) for change in changes):
        return Exit.BAD
    compared = [change.comparison for change in changes if change.comparison]
    if not compared:
        return Exit.NOT_COMPARABLE
    return Exit.INCONCLUSIVE if any(one.verdict is Verdict.UNDECIDED for one in compared) else Exit.OK


def _lost(change: Change) -> bool:
    """In one run only, or measured in one and skipped in the other: never a pass."""
    if change.new is None or change.old is None:
        return True
    return (change.new.status is Status.SKIPPED) != (change.old.status is Status.SKIPPED)


def _worse(change: Change) -> bool:
    if change.comparison is not None:
        return change.comparison.verdict is Verdict.SLOWER
    assert change.new is not None
    assert change.old is not None
    return change.old.status is Status.OK and change.new.status in (Status.INCORRECT, Status.FAILED)
