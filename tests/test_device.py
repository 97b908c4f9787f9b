"""What stands between a launcher and the GPU: errors in one line, streams of other libraries."""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest
from conftest import lacking
from numba import cuda

from charcnn import catalog
from charcnn.classify import engine
from charcnn.gpu import device, launch, simulator
from charcnn.levels.runner.options import check, serves


def test_explain():
    assert device.explain(device.DeviceError("no GPU; do this")) == "no GPU; do this"
    assert "--batch" in device.explain(MemoryError())
    assert "--batch" in device.explain(RuntimeError("[2] Call to cuMemAlloc\nresults in CUDA_ERROR_OUT_OF_MEMORY"))
    assert "\n" not in device.explain(RuntimeError("cuMemAlloc\nCUDA_ERROR_OUT_OF_MEMORY"))
    assert device.explain(ValueError("a bug")) is None


def test_explain_an_error_of_the_driver():
    error = type("CudaAPIError", (RuntimeError,), {"__module__": "numba.cuda.cudadrv.driver"})
    assert device.explain(error("[700] an illegal\n  address")) == "CudaAPIError: [700] an illegal address"


class TorchStream:
    cuda_stream = 1234


class CupyStream:
    ptr = 1234


class ProtocolStream:
    def __cuda_stream__(self):
        return (0, 1234)


class ProtocolPropertyStream:
    __cuda_stream__ = (0, 1234)


@pytest.mark.parametrize("stream", [1234, TorchStream(), CupyStream(), ProtocolStream(), ProtocolPropertyStream()])
def test_streams_of_other_libraries(stream, monkeypatch):
    monkeypatch.setattr(cuda, "external_stream", lambda address: ("external", address))
    assert device.as_stream(stream) == ("external", 1234)


def test_the_default_stream():
    assert device.as_stream(None) == 0
    assert device.as_stream(0) == 0


def test_numbas_own_stream(stream):
    if device.SIMULATED:
        assert device.as_stream(stream) is stream
    else:
        assert int(device.as_stream(stream)) == int(stream)


def test_sides():
    array = np.zeros(3, np.float32)
    assert not device.on_device(array)
    assert device.on_device(device.to_device(array))
    assert device.on_device(device.empty((2,), np.float32))


def test_an_axis_added_on_the_host_is_no_obstacle():
    x = np.arange(6, dtype=np.float32).reshape(2, 3)[np.newaxis]
    assert np.array_equal(device.to_device(x).reshape((6,)).copy_to_host(), range(6))


def test_choose():
    count = device.gpu_count()
    assert device.choose() == list(range(count))
    assert device.choose(1) == device.choose([0]) == [0]
    for wrong in (0, count + 1, [], [count], [-1]):
        with pytest.raises(ValueError, match="gpus="):
            device.choose(wrong)


LAUNCH = """
import numpy as np
from charcnn.gpu import device
from charcnn.ops import relu_naive
try:
    relu_naive(np.zeros(3, np.float32))
except device.DeviceError as error:
    print(error)
"""


def test_no_gpu_is_one_line_that_says_what_to_do():
    environment = {**os.environ, "NUMBA_ENABLE_CUDASIM": "0", "CUDA_VISIBLE_DEVICES": ""}  # hides what there is
    done = subprocess.run([sys.executable, "-c", LAUNCH], capture_output=True, text=True, env=environment, check=True)
    assert done.stdout.count("\n") == 1
    assert "NUMBA_ENABLE_CUDASIM=1" in done.stdout
    assert "CPU variant" in done.stdout


def test_importing_the_operators_never_chooses_the_simulator():
    code = "import charcnn.ops; from charcnn.gpu import device; print(device.SIMULATED)"
    environment = {key: value for key, value in os.environ.items() if key != "NUMBA_ENABLE_CUDASIM"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True)
    assert done.stdout == "False\n"


@pytest.mark.parametrize("first", ["charcnn.gpu.device", "charcnn.ops", "charcnn.ops.common.arrays", "charcnn.catalog"])
def test_imports_in_any_order(first):
    subprocess.run([sys.executable, "-c", f"import {first}, charcnn.catalog"], check=True, timeout=300)


def test_more_shared_memory_than_there_is_is_told(monkeypatch):
    pytest.importorskip("cuda.bindings")
    monkeypatch.setattr(device.cuda, "get_current_device", lambda: SimpleNamespace(id=0))
    monkeypatch.setattr(device, "shared_limit", lambda: 101_376)
    message = "a block needs 166,912 bytes of shared memory: this GPU has 101,376"
    with pytest.raises(device.DeviceError, match=message):
        launch._allow(object(), 166_912, False, 1)


def test_kernels_are_looked_up_once_for_scalars_of_a_type(monkeypatch):
    looked_up = []

    class Kernel:
        typeof_pyval = staticmethod(type)

        def compile(self, kinds):
            looked_up.append(kinds)
            return len(looked_up)

    kernel, other = Kernel(), Kernel()
    monkeypatch.setattr(device, "current", lambda: 0)
    assert launch._compile(kernel, (np.uint32(1), np.float32(2)))[1] == 1
    assert launch._compile(kernel, (np.uint32(3), np.float32(4)))[1] == 1
    assert launch._compile(kernel, (np.uint64(1), np.float32(2)))[1] == 2  # another type
    assert launch._compile(other, (np.uint32(1), np.float32(2)))[1] == 3
    monkeypatch.setattr(device, "current", lambda: 1)
    assert launch._compile(kernel, (np.uint32(1), np.float32(2)))[1] == 4  # another GPU
    for count in (5, 6):  # an array's type is not its Python type: Numba is asked each time
        assert launch._compile(kernel, (np.empty(3), np.uint32(1)))[1] == count


def test_name_of_the_gpu(monkeypatch):
    monkeypatch.setattr(device, "SIMULATED", False)
    monkeypatch.setattr(device.cuda, "is_available", lambda: False)
    assert device.gpu_name() == "NVIDIA H200"  # what plans and offline compilation assume
    monkeypatch.setattr(device.cuda, "is_available", lambda: True)
    for name in (b"NVIDIA A100", "NVIDIA A100"):
        monkeypatch.setattr(device.cuda, "get_current_device", lambda name=name: SimpleNamespace(name=name))
        assert device.gpu_name() == "NVIDIA A100"


def test_a_driver_without_a_gpu_is_no_gpu(monkeypatch):
    class Driver:
        def __init__(self, status, count):
            self.status, self.count = status, count

        def cuInit(self, flags):
            return self.status

        def cuDeviceGetCount(self, pointer):
            pointer._obj.value = self.count
            return 0

    for status, count, present in ((0, 1, True), (0, 0, False), (100, 0, False), (803, 0, True)):
        driver = Driver(status, count)
        monkeypatch.setattr(simulator.ctypes, "CDLL", lambda name, driver=driver: driver)
        assert simulator.gpu_present() is present


@pytest.mark.parametrize("name", ["l12", "l13"])
def test_an_older_gpu_has_no_copies_for_levels_that_need_them(name, monkeypatch):
    monkeypatch.setattr(device, "has_capability", lambda least: least < (8, 0))
    monkeypatch.setattr(cuda, "get_current_device", lambda: SimpleNamespace(compute_capability=(7, 5)))
    level = catalog.level(name)
    assert not serves(level, None)
    assert serves(catalog.level("l9"), None)
    said = f"{name} needs compute capability 8.0, this GPU has 7.5; "
    assert engine.obstacle(engine.Choice(level, "fp32")) == said + "l9 and earlier levels run on it"
    options = argparse.Namespace(
        precision=None, offload=None, gpu_direct=False, checkpoint=None, repeat=1, profile=False, gpus=None,
        deadline=None, root_serves=False,
    )  # fmt: skip
    here = [row for row in catalog.LEVELS if not (row.copies or row.tensor_cores)]
    here = [row for row in here if not lacking(row)]
    with pytest.raises(device.DeviceError, match=re.escape(f"{said}this machine runs {catalog.level_ranges(here)}")):
        check(level, options)
