"""Every CUDA kernel compiled for Hopper with no GPU: that it compiles (the simulator checks no types), and how well."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import compiler_installed

from charcnn.catalog import VARIANTS

pytestmark = pytest.mark.skipif(
    not compiler_installed(), reason="the CUDA compiler is not installed: pip install 'charcnn[cuda]'"
)

CUDA = [row.name for row in VARIANTS if row.device == "cuda"]


@pytest.fixture(scope="module")
def kernels():
    script = Path(__file__).with_name("offline_build.py")
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(
        [sys.executable, script], capture_output=True, text=True, env=environment, timeout=600, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_every_variant_compiles_a_kernel(kernels):
    assert {cost["variant"] for cost in kernels.values()} == set(CUDA)


def test_no_kernel_spills_or_uses_local_memory(kernels):
    for name, cost in kernels.items():
        for key in ("spill_stores", "spill_loads", "local_bytes"):
            assert cost[key] == 0, f"{name}: {key} {cost[key]}"


def test_no_local_memory_instructions(kernels):
    counts = {name: cost["local_instructions"] for name, cost in kernels.items()}
    if None in counts.values():
        pytest.skip("nvdisasm is not installed: pip install nvidia-cuda-nvdisasm")
    assert not any(counts.values()), counts


def test_no_double_precision(kernels):
    # A literal such as 2.0 is float64 in a kernel; on most GPUs that runs at 1/32 or 1/64 of the rate.
    for name, cost in kernels.items():
        assert cost["float64_instructions"] == 0, name


def test_no_warnings_of_ptxas(kernels):
    for name, cost in kernels.items():
        assert cost["warnings"] == [], name


def test_registers(kernels):
    for name, cost in kernels.items():
        assert 0 < cost["registers"] <= 255, f"{name}: {cost['registers']}"
