"""Do ratios depend on the order of a suite's variants, or on what else is in it?  python -m experiments.order [RUNS]

The same variants of two layers in RUNS (3) runs each: as listed, in the opposite order, and each by itself with its
baseline. Everything in one order may favour whoever comes first or last (helion#2065); a case alone may differ from
the same case in a whole suite (tritonbench#107). Shown: speed-ups over eager, and how far apart the ways are.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from bench.model import load_run
from bench.rows import view
from experiments.common import Quiet, record

LAYERS: dict[str, dict[str, Any]] = {
    "unfold_conv2d": {"variant": ["eager", "script", "custom_op", "native"], "size": 64},
    "shift": {"variant": ["eager", "script", "custom_op", "native"], "length": 1 << 18},
}


def run(groups: list[dict[str, Any]]) -> dict[tuple[str, str], float]:
    """Speed-ups over eager, by layer and variant."""
    with tempfile.TemporaryDirectory() as name:
        suite, folder = Path(name) / "suite.yaml", Path(name) / "run"
        suite.write_text(json.dumps({"policy": {"seconds": 2}, "groups": groups}), encoding="utf-8")
        command = [sys.executable, "-m", "bench", "run", str(suite), "--out", str(folder)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)  # noqa: S603
        rows = view(load_run(folder)).rows
    return {(row.case.layer, row.case.variant): one.speedup for row in rows if (one := row.comparison("latency"))}


def groups(*, backwards: bool = False, alone: str = "") -> list[dict[str, Any]]:
    """Of a suite: every layer with its variants, or one variant beside the baseline."""
    found = []
    for layer, axes in LAYERS.items():
        variants = ["eager", alone] if alone else axes["variant"][:: -1 if backwards else 1]
        axes = axes | {"variant": variants, "threads": 1, "direction": "inference"}
        found.append({"layer": layer, "baseline": "eager", "axes": axes})
    return found[:: -1 if backwards else 1]


def main(runs: str = "3") -> None:
    """Every way in turn, so many times."""
    quiet, ratios = Quiet(), dict[tuple[str, str], dict[str, list[float]]]()
    ways = {"as listed": {}, "backwards": {"backwards": True}}
    ways |= {f"{one} alone": {"alone": one} for one in ("script", "custom_op", "native")}
    for _ in range(int(runs)):
        for way, options in ways.items():
            for case, speedup in quiet.take(lambda: run(groups(**options))).items():  # noqa: B023  (called at once)
                name = "alone" if "alone" in way else way
                ratios.setdefault(case, {}).setdefault(name, []).append(speedup)
    rows = []
    for (layer, variant), found in sorted(ratios.items()):
        centres = {way: statistics.median(speedups) for way, speedups in found.items()}
        apart = max(centres.values()) / min(centres.values()) - 1
        rows.append({"layer": layer, "variant": variant, **centres, "apart": f"{100 * apart:.1f} %", "all": found})
    record("order", quiet, rows, hide=["all"])


if __name__ == "__main__":
    main(*sys.argv[1:])
