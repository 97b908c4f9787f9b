"""Descriptors, tensor maps, and that what inline PTX compiles to is found again on disk."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import compiler_installed

from charcnn.gpu import ptx, tensor_map

ROOT = Path(__file__).parents[1]


def test_descriptor():
    assert ptx.descriptor(0) == 1 << 16
    assert ptx.descriptor(1024) == 1 << 16 | 64
    assert ptx.descriptor(1024 + 3 * 128) == ptx.descriptor(1024) + 24  # three rows on
    assert ptx.descriptor((1 << 18) - 128) & 0xFFFF == 0x3FF8
    assert ptx.DESCRIPTOR_HIGH >> 30 == 1  # 128-byte swizzle
    assert ptx.DESCRIPTOR_HIGH & 0x3FFF == 64  # 1,024 bytes from 8 rows to the next


@pytest.mark.parametrize("address", [-128, 16, 127, 1 << 18])
def test_descriptor_refuses(address):
    with pytest.raises(ValueError, match="multiple of 128"):
        ptx.descriptor(address)


def test_tensor_map_accepts():
    tensor_map.check((256, 1000), (512,), (64, 200), 2)
    tensor_map.check((256, 3, 1 << 20), (512, 1536), (64, 1, 72), 2)


@pytest.mark.parametrize(
    ("shape", "strides", "box", "message"),
    [
        ((256,), (), (64,), "2 to 5 dimensions"),
        ((256, 9), (512, 512), (64, 8), "one stride fewer"),
        ((256, 9), (512,), (64, 8, 1), "as long a box"),
        ((256, 0), (512,), (64, 8), "elements in each dimension"),
        ((256, 9), (510,), (64, 8), "multiples of 16 bytes"),
        ((256, 9), (1 << 40,), (64, 8), "multiples of 16 bytes"),
        ((256, 900), (512,), (64, 257), "1 to 256"),
        ((256, 9), (512,), (32, 8), "rows of 128 bytes"),
    ],
)
def test_tensor_map_refuses(shape, strides, box, message):
    with pytest.raises(ValueError, match=message):
        tensor_map.check(shape, strides, box, 2)


KEYS = """
from hashlib import sha256
from numba.core.serialize import dumps
from charcnn.ops.conv1d import double_buffered, tile
from charcnn.ops.conv1d.wgmma.config import TileConfig
from charcnn.ops.conv1d.wgmma.kernel import make_kernel
from charcnn.ops.conv1d.mma import kernel
from charcnn.ops.common.formats import FORMATS

def key(made):
    function = made.py_func
    held = sha256(dumps(tuple(cell.cell_contents for cell in function.__closure__))).hexdigest()
    return function.__qualname__, held

for resident in (2, 3):
    print(key(double_buffered.build(tile.Tile(64, 128, 16, 8, 8, 2, resident), 4, "relu")))
for name in ("fp16", "fp16x3"):
    stages = kernel.Stages.of(kernel.Tile(192, 128, 48, 64, 4, 1), 7)
    print(key(kernel.build(FORMATS[name], stages, "pool", False, True, True)))
for name, taps, epilogue in (("fp16", 7, "pool"), ("bf16", 7, "pool"), ("bf16", 3, "relu"), ("fp8", 3, "relu")):
    config = TileConfig.of(taps, epilogue == "pool", FORMATS[name])
    print(key(make_kernel(FORMATS[name], FORMATS[name], config, epilogue, True, True, True)))
"""


@pytest.mark.skipif(not compiler_installed(), reason="the CUDA compiler is not installed: pip install 'charcnn[cuda]'")
def test_a_kernel_has_the_same_key_on_disk_in_every_process_and_no_other_has_it():
    environment = {**os.environ, "NUMBA_ENABLE_CUDASIM": "0", "PYTHONPATH": str(ROOT)}

    def keys():
        done = subprocess.run(
            [sys.executable, "-c", KEYS], capture_output=True, text=True, env=environment, timeout=120, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()

    first = keys()
    assert first == keys()
    assert len(set(first)) == len(first) == 8
