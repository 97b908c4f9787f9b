"""The door to the compiler: which one is chosen, and that the successor compiles kernels without a GPU."""

from __future__ import annotations

import ctypes
import importlib.util
import json
import os
import re
import subprocess
import sys

import numpy as np
import pytest

from charcnn.gpu import backend
from charcnn.gpu.launch_block import LaunchBlock

SUCCESSOR = """
import json
from typing import NamedTuple
import charcnn
from numba.cuda import types
from numba import uint32
from charcnn.compiling.layers import linked
from charcnn.compiling.stand_in import Target, compiling_for
from charcnn.gpu.launch import jit
from charcnn.gpu.ptx import examples

class Pair(NamedTuple):
    first: int
    second: int

@jit()
def kernel(x, y):
    pair = Pair(x.flat[1] + 1, min(x[0], x[2]))
    y.flat[0] = pair.first * uint32(3) - pair.second

words = types.uint32[::1]
product = (types.uint64, types.uint64, types.float32[:, ::1])
found = {}
for name in ("sm_80", "sm_90a"):
    target = Target.named(name)
    with compiling_for(target):
        found[name] = linked(kernel, (words, words), target)[1]
        if name == "sm_90a":
            code, ptx, log = linked(examples.make_product(), product, target)
            found["product"], found["log"] = ptx, log
print(json.dumps(found))
"""


@pytest.mark.parametrize(
    ("name", "need"),
    [("nvcc", "need one of numba-cuda, numba-cuda-mlir"), (backend.MLIR, "which is not installed: pip install")],
)
def test_a_compiler_that_is_not_there_is_refused(monkeypatch, name, need):
    monkeypatch.setattr(backend, "NAME", name)
    monkeypatch.setattr(backend, "IS_MLIR", name == backend.MLIR)
    monkeypatch.setattr(backend, "find_spec", lambda package: None)
    with pytest.raises(ValueError, match=f"^CHARCNN_BACKEND={name}.* {need}"):
        backend.check()


@pytest.mark.skipif(not importlib.util.find_spec("numba_cuda_mlir"), reason="needs numba-cuda-mlir")
def test_the_successor_compiles_without_a_gpu():
    given = {**os.environ, backend.VARIABLE: backend.MLIR, "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(
        [sys.executable, "-c", SUCCESSOR], env=given, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert ".target sm_80" in found["sm_80"]
    assert "min.u32" in found["sm_90a"], "uint32 has no sign"
    assert re.search(r"(mul|mad)\.lo\.s32", found["sm_90a"]), "and stays narrow"
    assert found["product"].count("wgmma.mma_async") == 4
    assert "0 bytes spill stores" in found["log"]
    assert "serialized" not in found["log"]


def test_an_array_is_handed_over_as_a_memref(monkeypatch):
    monkeypatch.setattr("charcnn.gpu.launch_block.driver.function", lambda *of: None)
    array = np.zeros((3, 5), np.float32)[:, :4]
    kind = type("Kind", (), {"layout": "A", "__str__": lambda kind: "array"})()
    block = LaunchBlock(None, 0, [kind], [array], 1, 32, memrefs=True)
    block._pack(block._values, 0, 4096)
    words = [ctypes.cast(pointer, ctypes.POINTER(ctypes.c_int64)).contents.value for pointer in block._pointers]
    assert words == [4096, 4096, 0, 3, 4, 5, 1], "allocation, data, offset, extents, strides in elements"
