"""The operators ahead of time, by setuptools: `pip install --no-build-isolation ./ext`, then `import torch` and, after
it, `import layerbench_ops`, which finds torch's libraries only once torch has loaded them.

The same sources and flags as on first use (ext/build.py); with CUDA where torch has it and its nvcc is found.
"""

import os
import sys
from pathlib import Path

from setuptools import setup
from torch.utils.cpp_extension import BuildExtension, CppExtension, CUDAExtension

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from ext import build  # noqa: E402

plan = build.plan()
with_cuda = plan.cuda.home is not None
os.environ |= build.environment_of(plan)
flags = [*build.CXX_FLAGS, *(["-DWITH_CUDA"] if with_cuda else [])]
sources = [*build.OPS.sources(with_cuda=with_cuda), HERE / "importable.cpp"]
setup(
    name="layerbench-ops",
    version="0",
    ext_modules=[
        (CUDAExtension if with_cuda else CppExtension)(
            "layerbench_ops",
            [str(file.relative_to(HERE)) for file in sources],
            extra_compile_args={"cxx": flags},
            extra_link_args=list(build.LINK_FLAGS),
        )
    ],
    cmdclass={"build_ext": BuildExtension},
    py_modules=[],
)
