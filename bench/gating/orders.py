"""What instructions.py and the process that it starts for counting say to each other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from bench.gating.arms import Arm
from bench.model import Case, Policy, Status


@dataclass(frozen=True)
class Order:
    """What a process is to count, in which layout of memory. `helper` is the path of ext.callgrind's library."""

    cases: tuple[Case, ...]
    policy: Policy
    arm: Arm | None
    helper: str
    layout: int


@dataclass(frozen=True)
class Doing:
    """A process turns to this case of its order."""

    number: int
    what: str


@dataclass(frozen=True)
class Over:
    """A case of the order is done with: counted, or not and why."""

    number: int
    status: Status
    reason: str = ""


@dataclass(frozen=True)
class Ran:
    """What the process has loaded: the last that it says."""

    files: Mapping[str, str]


Message = Doing | Over | Ran
