"""Every intrinsic, the examples, descriptors, tensor maps, and that compiled kernels are found again on disk."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from conftest import by_turns, compiler_installed, quick
from ptx_calls import CONSTANTS, TYPED, intrinsics, names
from small_gpu import one_multiprocessor

from charcnn.gpu import device, ptx, tensor_map
from charcnn.gpu.ptx import examples
from charcnn.ops.common.precision import LARGEST_E4M3

ROOT = Path(__file__).parents[1]
NO_GPU = {**os.environ, "NUMBA_ENABLE_CUDASIM": "0", "PYTHONPATH": str(ROOT)}

compiler = pytest.mark.skipif(
    not compiler_installed(), reason="the CUDA compiler is not installed: pip install -e '.[cuda]'"
)
hopper_or_simulated = pytest.mark.skipif(
    not device.SIMULATED and not device.has_tensor_cores(hopper=True), reason="needs a GPU of compute capability 9.0"
)


@pytest.fixture
def machine(monkeypatch):
    """Hopper in plain Python; nothing where there is a GPU."""
    if device.SIMULATED:
        one_multiprocessor(monkeypatch)
    examples.make_product.cache_clear()  # of a kernel that another machine runs
    yield
    examples.make_product.cache_clear()


@cache
def compiled():
    """Of a kernel that calls every intrinsic, and of the examples: what they cost, and their PTX."""
    done = subprocess.run(
        [sys.executable, Path(__file__).with_name("ptx_calls.py")],
        capture_output=True, text=True, env=NO_GPU, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("name", names())
def test_a_docstring_says_the_instruction_its_section_and_since_when(name):
    text = " ".join(getattr(ptx, name).__doc__.split())
    assert re.search(r'PTX: [a-z]+[^"]*[Ss]ections? "[^"]+"', text)
    assert re.search(r"Since compute capability \d\.\d|Any compute capability", text)
    if name not in CONSTANTS and name not in TYPED:
        instruction = re.search(r"PTX: ([\w.:]+)", text)[1].rstrip(".")
        assert instruction in getattr(ptx, name).text


def test_every_intrinsic_is_a_function_of_its_chapter_called_once():
    chapters = [path for path in (ROOT / "charcnn" / "gpu" / "ptx").glob("*.py") if path.stem != "examples"]
    made = [name for path in chapters for name in re.findall(r"\n(?:@[^\n]*|\))\ndef ([a-z]\w*)\(", path.read_text())]
    assert sorted(made) == names()


def test_the_page_names_every_intrinsic():
    page = (ROOT / "docs" / "ptx.md").read_text()
    assert [name for name in names() if f"`{name}`" not in page] == []


@compiler
def test_every_intrinsic_compiles_to_its_instruction():
    text = re.sub(r"\s+", " ", compiled()["calls"]["ptx"])
    for name, constants, made in intrinsics():
        if name not in TYPED:
            first = re.sub(r"\s+", " ", re.split(r"\$|\{\.reg", made.text)[0])
            assert first in text, (name, constants)
            for opcode in re.findall(r"(?:^|[\n;}] ?)([a-z]+\.[\w.:]+)", made.text):
                assert opcode in text, (name, constants)
    for opcode in ("wgmma.mma_async.sync.aligned.m64n8k32.f32.e4m3.e4m3", "ldmatrix.sync.aligned.m8n8.x4", "selp.b32"):
        assert opcode in text


@compiler
@pytest.mark.parametrize("name", ["highest_bits", "reverse", "copy_box", "product"])
@quick(lambda name: name in ("reverse", "product"))
def test_examples_compile_with_no_spill_and_no_warning(name):
    row = compiled()[name]
    assert not row["warnings"]
    assert not any(row[cost] for cost in ("spill_stores", "spill_loads", "local_instructions"))


def test_example_of_an_instruction():
    x = np.array([0, 1, 2, 3, 0x80000000, 0xFFFFFFFF], np.uint32)
    y = device.empty(x.shape, np.uint32)
    examples.highest_bits[1, 32](device.to_device(x), y)
    np.testing.assert_array_equal(y.copy_to_host(), [0xFFFFFFFF, 0, 1, 1, 31, 31])


@hopper_or_simulated
def test_example_of_an_mbarrier(machine):
    x, y = device.to_device(np.arange(examples.WORDS, dtype=np.uint32)), device.empty(examples.WORDS, np.uint32)
    examples.reverse[1, examples.WORDS](device.address(x), y)
    np.testing.assert_array_equal(y.copy_to_host(), np.arange(examples.WORDS)[::-1])


@hopper_or_simulated
@pytest.mark.parametrize(("row", "column"), [(0, 0), (20, 8), (70, 64)])
def test_example_of_a_tma_copy(machine, row, column):
    x = np.arange(80 * 128, dtype=np.uint16).reshape(80, 128)
    array, y = device.to_device(x), device.empty((examples.ROWS, examples.COLUMNS), np.uint16)
    x_map = examples.encode(array)
    examples.copy_box[1, examples.COLUMNS](device.address(x_map), y, row, column)
    beyond = np.pad(x, ((0, 64), (0, 64)))
    np.testing.assert_array_equal(y.copy_to_host(), beyond[row : row + 64, column : column + 64])


@hopper_or_simulated
def test_example_of_a_wgmma(machine):
    a, b = np.random.default_rng(0).standard_normal((2, examples.ROWS, examples.COLUMNS)).astype(np.float16)
    expected = a.astype(np.float64) @ b.astype(np.float64).T
    np.testing.assert_allclose(examples.run_product(a, b), expected, atol=1e-4)  # of sums of 64 products of about 1


def test_the_largest_e4m3():
    assert ptx.E4M3_MAX == LARGEST_E4M3


@by_turns
@compiler
def test_the_page_compiles_a_kernel_of_ones_own(tmp_path):
    page = (ROOT / "docs" / "ptx.md").read_text()
    code = re.search(r"## Compiled without a GPU\n.*?```python\n(.*?)```", page, re.DOTALL)[1]
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, env=NO_GPU, cwd=tmp_path, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert re.match(r"reverse \d+ registers, \d+ bytes of code\n", done.stdout)
    assert ".target sm_90a" in done.stdout
    assert "mbarrier.try_wait" in done.stdout
    assert (tmp_path / "reverse.cubin").read_bytes().startswith(b"\x7fELF")


@pytest.mark.skipif(not device.SIMULATED, reason="on a GPU only kernels can call them")
def test_outside_of_a_kernel_there_is_no_thread():
    assert ptx.ld_global_v4_f32(np.zeros(4, np.float32), 0) == (0, 0, 0, 0)
    for call in (ptx.tid_x, lambda: ptx.ld_shared_b32(4096), lambda: ptx.mbarrier_wait(4096, 0)):
        with pytest.raises(NotImplementedError, match="only in a kernel that runs"):
            call()


def test_descriptor():
    assert ptx.descriptor(0) == 1 << 16
    assert ptx.descriptor(1024) == 1 << 16 | 64
    assert ptx.descriptor(1024 + 3 * 128) == ptx.descriptor(1024) + 24  # three rows on
    assert ptx.descriptor((1 << 18) - 128) & 0xFFFF == 0x3FF8
    assert ptx.DESCRIPTOR_HIGH[128] >> 30 == 1  # 128-byte swizzle
    assert ptx.DESCRIPTOR_HIGH[128] & 0x3FFF == 64  # 1,024 bytes from 8 rows to the next
    assert ptx.DESCRIPTOR_HIGH[64] == 2 << 30 | 32


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
        ((256, 9), (512,), (16, 8), "rows of 128 or 64 bytes"),
    ],
)
def test_tensor_map_refuses(shape, strides, box, message):
    with pytest.raises(ValueError, match=message):
        tensor_map.check(shape, strides, box, 2)


KEYS = """
from dataclasses import replace
from hashlib import sha256
from numba.core.serialize import dumps
from charcnn.ops.conv1d import double_buffered, tile
from charcnn.ops.conv1d.wgmma.config import WgmmaTile
from charcnn.ops.conv1d.wgmma.kernel import make_kernel
from charcnn.ops.conv1d.mma import kernel
from charcnn.ops.conv1d.mma.config import Stages
from charcnn.ops.conv1d.mma.config import MmaTile
from charcnn.layers import Conv1d, MaxPool1d, Relu
from charcnn.ops.common.epilogues import read
from charcnn.ops.common.precision import TENSOR_PRECISIONS

def ending(of, *layers):
    return replace(read([Conv1d(256, 3), *layers])[1], results=of)

def key(made):
    function = made.py_func
    held = sha256(dumps(tuple(cell.cell_contents for cell in function.__closure__))).hexdigest()
    return function.__qualname__, held

for resident in (2, 3):
    print(key(double_buffered.make_kernel(tile.RegisterTile(64, 128, 16, 8, 8, 2, resident), 4, "relu")))
for name in ("fp16", "fp16x3"):
    of = TENSOR_PRECISIONS[name]
    stages = Stages.of(MmaTile(192, 128, 48, 64, 4, 1), 7)
    print(key(kernel.make_kernel(of, stages, ending(of, Relu(), MaxPool1d(3)), True, True)))
for name, taps, pool in (("fp16", 7, [MaxPool1d(3)]), ("bf16", 7, [MaxPool1d(3)]), ("bf16", 3, []), ("fp8", 3, [])):
    of = TENSOR_PRECISIONS[name]
    print(key(make_kernel(of, WgmmaTile.of(taps, bool(pool), of), ending(of, Relu(), *pool), True, True, True)))
"""


@by_turns
@compiler
def test_a_kernel_has_the_same_key_on_disk_in_every_process_and_no_other_has_it():
    def keys():
        done = subprocess.run(
            [sys.executable, "-c", KEYS], capture_output=True, text=True, env=NO_GPU, timeout=300, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()

    first = keys()
    assert first == keys()
    assert len(set(first)) == len(first) == 8
