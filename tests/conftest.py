"""GPU tests run when asked for, with `-m gpu`, and then nothing skips them quietly."""

from __future__ import annotations

import pytest
from hypothesis import settings

settings.register_profile("thorough")  # what it means is in test_fuzz.py


@pytest.hookimpl(trylast=True)  # pytest's own -m has chosen by then, so `-m "not gpu"` needs no GPU
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    wanted = "gpu" in config.option.markexpr
    on_gpu = [item for item in items if item.get_closest_marker("gpu")]
    if on_gpu and not wanted:
        config.hook.pytest_deselected(items=on_gpu)
        items[:] = [item for item in items if item not in on_gpu]
    if on_gpu and wanted:
        import torch

        if not torch.cuda.is_available():
            kind = "sees no device" if torch.version.cuda else "is built for the CPU only"
            raise pytest.UsageError(f"-m gpu asks for GPU tests, but torch {torch.__version__} {kind}")
