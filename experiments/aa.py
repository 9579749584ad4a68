"""Ten variants that are the same, and one with 5 % more work: what verdicts does the harness give?

    layerbench run experiments/aa.yaml --out results/experiments/aa
    python -m experiments.aa results/experiments/aa [MORE RUNS ...]

The first must be called `same` or `undecided` (a `faster` or `slower` is false), the last `slower`. The extra work is
real: the same kernels over 5 % more elements, of which the output leaves those out again.
"""

from __future__ import annotations

import sys
from collections import Counter, defaultdict

import torch
from torch import Generator, Tensor, nn

from bench.model import Run, Verdict, load_run
from bench.rows import COMPARED, view
from layers import Inputs, Layer

SAME = tuple(f"a{number}" for number in range(1, 10))
EXTRA = 1.05


class Scale(nn.Module):
    """`2 x` of the first n elements, looking at no more than it must."""

    def __init__(self, n: int) -> None:
        super().__init__()
        self.n = n

    def forward(self, x: Tensor) -> Tensor:
        return x[: self.n] * 2


class ScaleMore(Scale):
    """The same answer out of 5 % more elements."""

    def forward(self, x: Tensor) -> Tensor:
        return (x * 2)[: self.n]


class Product(nn.Module):
    """`x w` of the first n rows of x."""

    def __init__(self, n: int, k: int) -> None:
        super().__init__()
        self.n = n
        self.weight = nn.Parameter(torch.randn(k, k) / k**0.5)

    def forward(self, x: Tensor) -> Tensor:
        return x[: self.n] @ self.weight


class ProductMore(Product):
    """The same answer out of 5 % more rows."""

    def forward(self, x: Tensor) -> Tensor:
        return (x @ self.weight)[: self.n]


class Chain(nn.Module):
    """Some small kernels in a row, for which launching decides."""

    def __init__(self, launches: int) -> None:
        super().__init__()
        self.launches = launches

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(self.launches):
            x = -x
        return x


class ChainMore(Chain):
    """5 % more of them; an even number, so the same answer."""

    def __init__(self, launches: int) -> None:
        super().__init__(2 * round(launches * EXTRA / 2))


def short(generator: Generator, **_: int) -> Inputs:
    """One (1024,)."""
    return (torch.randn(1024, generator=generator),)


def vector(generator: Generator, *, n: int) -> Inputs:
    """One (1.05 n,)."""
    return (torch.randn(round(n * EXTRA), generator=generator),)


def matrix(generator: Generator, *, n: int, k: int) -> Inputs:
    """One (1.05 n, k)."""
    return (torch.randn(round(n * EXTRA), k, generator=generator),)


SCALE = Layer(
    "scale",
    {"eager": Scale, **dict.fromkeys(SAME, Scale), "more": ScaleMore},
    inputs=vector,
    defaults={"n": 1 << 20},
)
PRODUCT = Layer(
    "product",
    {"eager": Product, **dict.fromkeys(SAME, Product), "more": ProductMore},
    inputs=matrix,
    defaults={"n": 1280, "k": 512},
)
CHAIN = Layer(
    "chain",
    {"eager": Chain, **dict.fromkeys(SAME, Chain), "more": ChainMore},
    inputs=short,
    defaults={"launches": 120},
)


def verdicts(run: Run) -> dict[str, Counter[str]]:
    """Verdicts on the same and on the slower variants, by device, metric and direction."""
    found: dict[str, Counter[str]] = defaultdict(Counter)
    for row in view(run).rows:
        for name in COMPARED:
            if comparison := row.comparison(name):
                kind = "planted 5 %" if row.case.variant == "more" else "the same"
                found[f"{row.case.device} {name}, {row.case.direction}, {kind}"][comparison.verdict] += 1
    return found


def main(paths: list[str]) -> None:
    """Print a row per device, metric and kind."""
    total: dict[str, Counter[str]] = defaultdict(Counter)
    for path in paths:
        for what, counted in verdicts(load_run(path)).items():
            total[what] += counted
    for what, counted in sorted(total.items()):
        print(f"{what:<46}", *(f"{verdict} {counted[verdict]:>4}" for verdict in Verdict), sep="  ")  # noqa: T201


if __name__ == "__main__":
    main(sys.argv[1:])
