"""What the runner and a worker say to each other. One request, one answer, in turn."""

from __future__ import annotations

from typing import Any

import msgspec

from bench.model import Case, Measurement, Policy, Status


class Describe(msgspec.Struct, frozen=True):
    """Ask for the environment. Answered by Described."""


class Described(msgspec.Struct, frozen=True):
    """See environment.describe."""

    environment: dict[str, Any]


class Prepare(msgspec.Struct, frozen=True):
    """Make this case's variant, check it and, unless only the check is wanted, warm it up. Answered by Prepared."""

    case: Case
    policy: Policy
    check_only: bool = False
    trusted: bool = False  # another process that runs the same code has checked it
    metrics: tuple[str, ...] = ()  # take these only; all where empty


class Prepared(msgspec.Struct, frozen=True):
    """Status ok: ready to be sampled. Anything else: the case is over."""

    status: Status
    reason: str = ""
    error: float | None = None
    bound: float | None = None
    warnings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    lacks: str = ""  # what the code under test does not have of the case ("such layer"), where that is why it is not ok

    def measurement(self, case: Case) -> Measurement:
        """The result of a case that ended while it was being prepared."""
        return Measurement(
            case, self.status, self.reason, warnings=self.warnings, notes=self.notes, error=self.error, bound=self.bound
        )


class Sample(msgspec.Struct, frozen=True):
    """Take one turn of slots. Answered by Turn."""

    round: int


class Turn(msgspec.Struct, frozen=True):
    """One turn's values by metric, in the order taken: {"latency": seconds per call, ...}."""

    values: dict[str, tuple[float, ...]]


class Finish(msgspec.Struct, frozen=True):
    """Check the last output and hand over the whole measurement. Answered by Finished."""


class Finished(msgspec.Struct, frozen=True):
    """The case is over."""

    measurement: Measurement


class Prove(msgspec.Struct, frozen=True):
    """Ask which of the arm's files were run. Answered by Proof."""


class Proof(msgspec.Struct, frozen=True):
    """See arms.Arm.ran."""

    files: dict[str, str]


class Look(msgspec.Struct, frozen=True):
    """Ask what a layer is in the code that the process runs. Answered by Looked."""

    layer: str


class Looked(msgspec.Struct, frozen=True):
    """What a suite needs to know of a layer, see config.LayerLike; or, in `absent`, a sentence: that there is none."""

    versions: dict[str, None] = {}
    defaults: dict[str, Any] = {}
    dtypes: tuple[str, ...] = ()
    absent: str = ""


class Failed(msgspec.Struct, frozen=True):
    """The answer to any request during which something was raised."""

    reason: str


Request = Describe | Prepare | Sample | Finish | Prove | Look
Answer = Described | Prepared | Turn | Finished | Proof | Looked | Failed
