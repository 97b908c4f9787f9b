"""Arithmetic of 32 bits in charcnn's kernels, and in no other's: typed with no GPU, counted on one."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from conftest import by_turns
from numba import cuda

from charcnn.gpu import device
from charcnn.gpu.device import uint32
from charcnn.gpu.indices import block_dim_x, block_idx_x, extents, thread_idx_x
from charcnn.gpu.launch import jit

TYPED = """
import os
os.environ["NUMBA_ENABLE_CUDASIM"] = "0"
from numba import cuda
from numba.cuda import types
from charcnn.compiling.stand_in import SIZES, Target, compiling_for
from charcnn.gpu.indices import extents, thread_idx_x
from charcnn.gpu.launch import jit

BIG, SMALL = 1 << 32, 3

def body(x, a, b):
    added, shifted, divided, constant = a + b, a << 2, a // SMALL, 5 - a
    negative, beyond, signed = a + -1, a + BIG, a + x.shape[0]
    below = a < b
    for counter in range(a): x[counter] = 0
    for fixed in range(SMALL): x[fixed] = 0
    for down in range(SMALL, -1, -1): x[down] = 0
    for wide in range(x.shape[0]): x[wide] = 0
    a += b
    x[0] = added + shifted + divided + constant + negative + beyond + signed + below + a

def places(x):
    thread, size = thread_idx_x(), extents(x)
    x[thread] = size[0]

def types_of(kernel, *kinds):
    with compiling_for(Target((9, 0), *SIZES[9, 0], "of no GPU")):
        found = kernel.compile(kinds)._type_annotation.typemap
    return {name: str(kind) for name, kind in found.items() if not name.startswith(("$", "arg."))}

row = types.Array(types.float32, 1, "C")
print(types_of(jit()(body), row, types.uint32, types.uint32))
print(types_of(cuda.jit(body), row, types.uint32, types.uint32))
print(types_of(jit()(places), row))
"""


@by_turns
def test_types_are_of_32_bits_in_our_kernels_alone(tmp_path):
    """A user's kernel of the same body, compiled in the same process behind ours, has Numba's types."""
    pytest.importorskip("cuda.bindings", reason="needs the CUDA wheels (extra cuda)")
    script = tmp_path / "typed.py"  # Numba caches no kernel that has no file
    script.write_text(TYPED)
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    ours, users, places = map(eval, done.stdout.splitlines())
    narrow = ("added", "shifted", "divided", "constant", "counter", "fixed")
    assert {name: ours[name] for name in narrow} == dict.fromkeys(narrow, "uint32")
    wide = ("negative", "beyond", "signed", "down", "wide")
    assert not any(ours[name] == "uint32" for name in wide)
    assert all(users[name] in ("uint64", "int64") for name in (*narrow, *wide))
    assert ours["below"] == users["below"] == "bool"
    assert places["thread"] == "uint32"
    assert places["size"] == "UniTuple(uint32 x 1)"


@jit()
def _count(starts, stops, steps, found):
    i = block_idx_x() * block_dim_x() + thread_idx_x()
    if i < extents(starts)[0]:
        values, total, last = uint32(0), uint32(0), uint32(0)
        for value in range(starts[i], stops[i], steps[i]):
            values += 1
            total = (total + value) & 0xFFFFFFFF
            last = value
        found[i, 0], found[i, 1], found[i, 2] = values, total, last


def test_ranges_count_as_pythons():
    """From border to border of 32 bits: no counter wraps around."""
    top = (1 << 32) - 1
    ranges = [(0, 0, 1), (0, 7, 1), (3, 3, 2), (5, 3, 1), (0, 9, 4), (1, 9, 4), (7, 8, 100), (0, top, top)]
    ranges += [(top - 5, top, 2), (top, top, 1), (top, 0, 3), (1 << 31, (1 << 31) + 3, 1), (0, top, 1 << 31)]
    starts, stops, steps = (np.array(column, np.uint32) for column in zip(*ranges, strict=True))
    found = cuda.to_device(np.zeros((len(ranges), 3), np.uint32))
    _count[2, 8](*map(cuda.to_device, (starts, stops, steps)), found)
    for one, row in zip(ranges, found.copy_to_host(), strict=True):
        counted = range(*one)
        expected = len(counted), sum(counted) & top, counted[-1] if counted else 0
        assert tuple(map(int, row)) == expected, one
    assert device.SIMULATED or _count.signatures
