"""Every CUDA kernel compiled for Hopper with no GPU: that it compiles (the simulator checks no types), and how well."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import compiler_installed

from charcnn.catalog import CHAIN, VARIANTS
from charcnn.ops.common.mma_layout import TAKEN
from charcnn.ops.common.precision import FORMATS
from charcnn.ops.conv1d.mma.steps.layer import MmaStepConv1d
from charcnn.ops.conv1d.wgmma.steps.layer import WgmmaStepConv1d

pytestmark = [
    pytest.mark.exhaustive,
    pytest.mark.skipif(
        not compiler_installed(), reason="the CUDA compiler is not installed: pip install 'charcnn[cuda]'"
    ),
]


def repeats(row):
    """Whether its kernels are another's: bf16 is one word in those of fp16, and a linear layer has those of one tap."""
    return row.tensor_cores and (
        row.precision == "bf16" or (row.operator.startswith("linear") and row.precision != "fp16")
    )


CUDA = [row for row in VARIANTS if row.device == "cuda" and not repeats(row)]

LIMITS = Path(__file__).with_name("machine_code.json")
"""What kernels are meant to cost at most; `python tests/test_offline.py` writes what they do."""

LEVEL_17 = "l17"
"""What only that level launches, beside the variants (`offline_build`)."""

TILES = ("tiles of l12", "tiles of l14", "tiles of l15")
"""And what tuning may launch in place of what ships."""

LADDERS = {"mma steps": MmaStepConv1d.steps, "wgmma steps": WgmmaStepConv1d.steps}
"""And the small kernels on the way to the tuned ones."""

SLOW = ("whole", "pairs", "tiles", "rolling", "double_buffered", "winograd")
"""Techniques whose kernels are written out, and take seconds each to compile."""

FLOAT64 = {  # (variant, kernel): a mean that is large beside the deviation is kept in float64, until it is subtracted
    ("conv1d_stat_naive", "_merge_kernel"),
    ("layernorm_relu_naive", "_layernorm_relu_naive_kernel"),
    ("layernorm_relu_maxpool1d_naive", "_kernel"),
    (f"{CHAIN}_whole", "make_kernel"),
    (f"{CHAIN}_pairs", "make_kernel"),
    (f"{CHAIN}_pairs", "merge_kernel"),
    ("conv1d_nlc_winograd", "_weights_kernel"),
    ("conv1d_relu_nlc_winograd", "_weights_kernel"),
    ("conv1d_relu_maxpool1d_nlc_winograd", "_weights_kernel"),
    ("conv1d_stat_nlc_winograd", "_weights_kernel"),
    ("conv2d_nhwc_winograd", "weights_kernel"),
    ("conv2d_relu_nhwc_winograd", "weights_kernel"),
    ("conv1d_stat_nlc_winograd", "_merge_kernel"),
    ("conv1d_stat_nlc_double_buffered", "_merge_kernel"),
    ("layernorm_relu_maxpool1d_nlc_coalesced", "_make_kernel"),
    *((f"conv1d_stat_nlc_wgmma_{name}", "_merge_kernel") for name in FORMATS if name != "bf16"),
    *((f"conv1d_stat_nlc_mma_{name}", "_merge_kernel") for name in TAKEN if name != "bf16"),
    ("layernorm_relu_maxpool1d_nlc_vectorized_fp16", "_make_kernel"),
    ("layernorm_relu_maxpool1d_nlc_vectorized_bf16", "_make_kernel"),
    ("one_hot_conv1d_stat_nlc_lags", "_singles_kernel"),
    ("one_hot_conv1d_stat_nlc_lags", "_pairs_kernel"),
    ("one_hot_conv1d_stat_nlc_lags", "_stat_kernel"),
    ("one_hot_conv1d_stat_nlc_lag_sums", "_singles_kernel"),
    ("one_hot_conv1d_stat_nlc_lag_sums", "_pairs_kernel"),
    ("one_hot_conv1d_stat_nlc_lag_sums", "_tables_kernel"),
    ("one_hot_conv1d_stat_nlc_lag_sums", "_stat_kernel"),
    ("one_hot_conv1d_layernorm_relu_maxpool1d_nlc_gather", "_gather_pool_kernel"),
    ("one_hot_conv1d_layernorm_relu_maxpool1d_nlc_warp_gather_fp16", "_warp_gather_pool_kernel"),
    ("one_hot_conv1d_layernorm_relu_maxpool1d_nlc_warp_gather_bf16", "_warp_gather_pool_kernel"),
    *((LEVEL_17, kernel) for kernel in ("_warp_gather_pool_kernel", "_make_kernel", "_merge_kernel")),
}


def build(arguments):
    return subprocess.run(
        [sys.executable, Path(__file__).with_name("offline_build.py"), *arguments],
        capture_output=True, text=True, env={**os.environ, "CUDA_VISIBLE_DEVICES": ""}, timeout=1200, check=False,
    )  # fmt: skip


@pytest.fixture(scope="module")
def kernels():
    return compiled()


def compiled():
    """All that are compiled, and their costs."""
    # With a convolution the linear layer, which often has the same kernels: compiled once.
    tasks = {name: [name] for name in (*TILES, LEVEL_17, *LADDERS)}
    for row in CUDA:
        task = row.name.replace("linear", "conv1d") if row.technique in SLOW else "the others"
        task = row.label if row.tensor_cores else task  # which share most of theirs
        tasks.setdefault(task, []).append(row.name)
    done = build(["--jobs", str(min(4, os.cpu_count() or 1)), *map(",".join, tasks.values())])
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_every_variant_compiles_a_kernel(kernels):
    assert {cost["variant"] for cost in kernels.values()} == {
        *(row.name for row in CUDA), LEVEL_17, *TILES,
        *(f"{name}: {step}" for name, steps in LADDERS.items() for step in steps),
    }  # fmt: skip


def test_no_kernel_spills_or_uses_local_memory(kernels):
    for name, cost in kernels.items():
        for key in ("spill_stores", "spill_loads", "local_bytes"):
            assert cost[key] == 0, f"{name}: {key} {cost[key]}"


def test_no_local_memory_instructions(kernels):
    counts = {name: cost["local_instructions"] for name, cost in kernels.items()}
    if None in counts.values():
        pytest.skip("nvdisasm is not installed: pip install nvidia-cuda-nvdisasm")
    assert not any(counts.values()), counts


def test_double_precision_is_where_it_is_meant_to_be(kernels):
    # A literal such as 2.0 is float64 in a kernel; on most GPUs that runs at 1/32 or 1/64 of the rate.
    found = {(cost["variant"], cost["function"]) for cost in kernels.values() if cost["float64_instructions"]}
    assert found == FLOAT64


def test_the_networks_chain_is_among_them(kernels):
    for technique in ("whole", "pairs"):
        built = [name for name, cost in kernels.items() if cost["variant"] == f"{CHAIN}_{technique}"]
        assert any("c_first=256" in name and "full_in=110" in name for name in built), built


def test_no_warnings_of_ptxas(kernels):
    for name, cost in kernels.items():
        assert cost["warnings"] == [], name


def sizes(kernels):
    """The most registers of a variant's kernels that one function makes, and bytes of machine code."""
    found = {}
    for cost in kernels.values():
        most = found.setdefault(cost["variant"], {}).setdefault(cost["function"], [0, 0])
        most[:] = max(most[0], cost["registers"]), max(most[1], cost["code_bytes"])
    return found


def test_no_kernel_has_grown(kernels):
    """Against machine_code.json: registers as there, and machine code but for what another compiler release does."""
    known = json.loads(LIMITS.read_text())
    found = sizes(kernels)
    assert {name: set(own) for name, own in found.items()} == {name: set(own) for name, own in known.items()}
    for variant, own in found.items():
        for function, (registers, code) in own.items():
            most = known[variant][function]
            assert 0 < registers <= most[0], f"{variant}, {function}: {registers} registers, {most[0]} before"
            assert code <= 1.02 * most[1], f"{variant}, {function}: {code} bytes of machine code, {most[1]} before"


def test_portable_tensor_cores():
    rows = ["conv1d_relu_maxpool1d_nlc_mma_fp16x3", "mma steps"]  # the first takes the most registers
    done = build(["--capability", "8.0", *rows])
    assert done.returncode == 0, done.stderr
    kernels = json.loads(done.stdout)
    assert {cost["variant"] for cost in kernels.values()} == {
        rows[0], *(f"{rows[1]}: {step}" for step in LADDERS[rows[1]])
    }  # fmt: skip
    for name, cost in kernels.items():
        assert not cost["spill_stores"], name
        assert not cost["local_bytes"], name
        assert 0 < cost["registers"] <= 255, name
        assert cost["warnings"] == [], name


if __name__ == "__main__":
    lines = [f"{json.dumps(name)}: {json.dumps(own)}" for name, own in sorted(sizes(compiled()).items())]
    LIMITS.write_text("{\n" + ",\n".join(lines) + "\n}\n")
