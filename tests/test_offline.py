"""Every CUDA kernel compiled for Hopper with no GPU: that it compiles (the simulator checks no types), and how well.

machine_code.json has what each function cost when it was last compiled, and a digest of its source. One that is as it
was is not compiled again, but for a part of them that goes by the commit; with --all, everything is.

    python tests/test_offline.py [--all]        write machine_code.json anew
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from tempfile import NamedTemporaryFile

import pytest
from conftest import part, wheels_installed
from offline_levels import ADAMW, BETWEEN_PRODUCTS, COLLECTIVES, ENCODERS, PERSISTENT, SPARSE

from charcnn.catalog import CHAIN, IMAGE_CHAIN, VARIANTS
from charcnn.ops.common.precision import TENSOR_PRECISIONS
from charcnn.ops.conv1d.mma.steps.layer import MmaStepConv1d
from charcnn.ops.conv1d.toom_cook.layer import PRECISIONS
from charcnn.ops.conv1d.wgmma.steps.layer import WgmmaStepConv1d

offline = pytest.mark.skipif(
    not wheels_installed(), reason="the CUDA compiler is not installed as wheels: pip install -e '.[cuda]'"
)

pytestmark = [pytest.mark.exhaustive, offline]


def repeats(row):
    """Whether its kernels are another's: bf16 is one word in those of fp16, and a linear layer has those of one tap."""
    return row.tensor_cores and (
        row.precision == "bf16" or (row.operator.startswith("linear") and row.precision != "fp16")
    )


CUDA = [row for row in VARIANTS if row.device == "cuda" and not repeats(row)]

RECORD = Path(__file__).with_name("machine_code.json")
"""What kernels are meant to cost at most, by variant and function: the most registers, bytes of machine code, whether
any has an instruction of double precision, and the digest."""

PARTS = 48
"""Of what is as it was, a part in so many is compiled nevertheless."""

LEVEL_17, TOOM_COOK, FOR_ADA = "l17", "toom_cook", "l14 fp8"
BESIDE = (LEVEL_17, TOOM_COOK, FOR_ADA, *ENCODERS, PERSISTENT, COLLECTIVES, ADAMW, BETWEEN_PRODUCTS, SPARSE)
"""What these launch beside the variants (`offline_build`)."""

FEW_PORTABLE, FOR_TURING = "few inputs of l21", "l14 fp16"
"""And these, which machine_code.json has no row for: on Hopper these kernels are l16's, or have other tiles."""

TILES = ("tiles of l12", "tiles of l14", "tiles of l15", "few rows of l15")
"""And what tuning may launch in place of what ships."""

LADDERS = {"mma steps": MmaStepConv1d.steps, "wgmma steps": WgmmaStepConv1d.steps}
"""And the small kernels on the way to the tuned ones."""

FLOAT64 = {  # (variant, kernel): a mean that is large beside the deviation is kept in float64, until it is subtracted
    (ADAMW, "_norm_kernel"),  # one block adds up the parts
    (ADAMW, "_rate_kernel"),
    (ADAMW, "_scalars_kernel"),  # one thread a group
    ("one_hot_conv1d_relu_maxpool1d_backward_nlc_warp_gather", "_join_kernel"),  # parts of sums by character
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
    (TILES[-1], "_merge_kernel"),
    ("conv1d_stat_nlc_double_buffered", "_merge_kernel"),
    ("layernorm_relu_maxpool1d_nlc_coalesced", "_make_kernel"),
    *((f"conv1d_stat_nlc_wgmma_{name}", "_merge_kernel") for name in TENSOR_PRECISIONS if name != "bf16"),
    *((f"conv1d_stat_nlc_mma_{name}", "_merge_kernel") for name in TENSOR_PRECISIONS if name != "bf16"),
    ("layernorm_relu_maxpool1d_nlc_vectorized_fp16", "_make_kernel"),
    ("layernorm_relu_maxpool1d_nlc_vectorized_bf16", "_make_kernel"),
    *(
        (f"conv1d_nlc_small_batch_{name}", kernel)
        for name in TENSOR_PRECISIONS
        if name != "bf16"
        for kernel in ("_block_kernel", "_singles_kernel", "_pairs_kernel")
    ),
    ("one_hot_conv1d_stat_nlc_lags", "_singles_kernel"),
    ("one_hot_conv1d_stat_nlc_lags", "_pairs_kernel"),
    ("one_hot_conv1d_stat_nlc_lags", "_stat_kernel"),
    ("one_hot_conv1d_stat_nlc_lag_sums", "_singles_kernel"),
    ("one_hot_conv1d_stat_nlc_lag_sums", "_pairs_kernel"),
    ("one_hot_conv1d_stat_nlc_lag_sums", "_tables_kernel"),
    ("one_hot_conv1d_stat_nlc_lag_sums", "_stat_kernel"),
    ("one_hot_conv1d_stat_nlc_lag_sums", "_cluster_stat_kernel"),
    ("one_hot_conv1d_layernorm_relu_maxpool1d_nlc_gather", "_gather_pool_kernel"),
    ("one_hot_conv1d_layernorm_relu_maxpool1d_nlc_gather", "_warp_gather_pool_kernel"),
    ("one_hot_conv1d_layernorm_relu_maxpool1d_nlc_warp_gather_fp16", "_warp_gather_pool_kernel"),
    ("one_hot_conv1d_layernorm_relu_maxpool1d_nlc_warp_gather_bf16", "_warp_gather_pool_kernel"),
    *((LEVEL_17, kernel) for kernel in ("_warp_gather_pool_kernel", "_make_kernel", "_merge_kernel")),
    (TOOM_COOK, "make_kernel"),
    (SPARSE, "_merge_kernel"),
    *((FOR_ADA, f"_{kernel}_kernel") for kernel in ("merge", "pairs", "singles", "stat", "tables", "warp_gather_pool")),
    (FOR_ADA, "_make_kernel"),
}


def build(*words, limit=1800):
    done = subprocess.run(
        [sys.executable, Path(__file__).with_name("offline_build.py"), "--jobs", str(os.cpu_count() or 1), *words],
        capture_output=True, text=True, env={**os.environ, "CUDA_VISIBLE_DEVICES": ""}, check=False, timeout=limit,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def compiled(known, *words, **limit):
    """All kernels; those that had to be compiled with their costs."""
    with NamedTemporaryFile("w", suffix=".json") as file:
        digests = {name: {function: row[-1] for function, row in own.items()} for name, own in known.items()}
        json.dump(digests, file)
        file.flush()
        return build("--known", file.name, *words, *(row.name for row in CUDA), *TILES, *BESIDE, *LADDERS, **limit)


@pytest.fixture(scope="module")
def known():
    return json.loads(RECORD.read_text())


@pytest.fixture(scope="module")
def kernels(known, request):
    if request.config.getoption("--all"):
        return compiled({})
    return compiled(known, "--share", f"{part(PARTS)}/{PARTS}")


@pytest.fixture(scope="module")
def costs(kernels):
    """Of those that were compiled."""
    return {name: row["costs"] for name, row in kernels.items() if "costs" in row}


def test_every_variant_compiles_a_kernel(kernels):
    assert {row["variant"] for row in kernels.values()} == {
        *(row.name for row in CUDA), *BESIDE, *TILES,
        *(f"{name}: {step}" for name, steps in LADDERS.items() for step in steps),
    }  # fmt: skip


def test_what_is_new_and_a_part_of_the_rest_are_compiled(kernels, known, costs):
    for name, row in kernels.items():
        assert name in costs or row["digest"] == known[row["variant"]][row["function"]][-1]
    assert len(costs) > len(kernels) / PARTS / 4


def faults(cost):
    """What no kernel may have."""
    keys = ("spill_stores", "spill_loads", "local_bytes", "local_instructions", "warnings")
    return {key: cost[key] for key in keys if cost[key]}


def test_no_kernel_spills_uses_local_memory_or_is_warned_of(costs):
    assert not {name: found for name, cost in costs.items() if (found := faults(cost))}


def test_local_memory_instructions_were_looked_for(costs):
    if None in (counts := [cost["local_instructions"] for cost in costs.values()]):
        pytest.skip("nvdisasm is not installed: pip install nvidia-cuda-nvdisasm")
    assert counts


def test_double_precision_is_where_it_is_meant_to_be(kernels, known):
    # A literal such as 2.0 is float64 in a kernel; on most GPUs that runs at 1/32 or 1/64 of the rate.
    found = recorded(kernels, known)
    assert {(name, function) for name, own in found.items() for function, row in own.items() if row[2]} == FLOAT64


def test_all_of_toom_cook_are_among_them(kernels):
    """Planes, two tiles of each precision, and block 1: fp16 has a wide one, and FP8 rounds its table in two ways."""
    assert sum(row["variant"] == TOOM_COOK for row in kernels.values()) == 4 * len(PRECISIONS) + 2


def test_the_networks_chain_is_among_them(kernels):
    for technique in ("whole", "pairs"):
        built = [name for name, row in kernels.items() if row["variant"] == f"{CHAIN}_{technique}"]
        assert any("c_first=256" in name and "full_in=110" in name for name in built), built


def test_networks_chains_over_images_are_among_them(kernels):
    for technique in ("whole", "tiles", "rolling"):  # two cases, AlexNet's first two layers and fused4's four
        built = [row["function"] for row in kernels.values() if row["variant"] == f"{IMAGE_CHAIN}_{technique}"]
        of_octets, of_strips = (3, 2) if technique == "whole" else (0, 0)  # three networks; both variants of AlexNet
        assert built.count("make_mma_kernel") == of_octets
        assert built.count("make_strip_kernel") == of_strips
        assert len(built) == 4 + of_octets + of_strips, built


def recorded(kernels, known):
    """Rows of machine_code.json: costs of what was compiled, what is known of all else."""
    found = {}
    for row in kernels.values():
        variant, function = row["variant"], row["function"]
        if "costs" not in row:
            found.setdefault(variant, {})[function] = known[variant][function]
            continue
        cost = row["costs"]
        most = found.setdefault(variant, {}).setdefault(function, [0, 0, 0, row["digest"]])
        own = cost["registers"], cost["code_bytes"], int(cost["float64_instructions"] > 0)
        most[:3] = map(max, most[:3], own)
    return found


def test_no_kernel_has_grown(kernels, known):
    """Against machine_code.json: registers as there, and machine code but for what another compiler release does."""
    found = recorded(kernels, known)
    assert {name: set(own) for name, own in found.items()} == {name: set(own) for name, own in known.items()}
    for variant, own in found.items():
        for function, (registers, code, *_) in own.items():
            most = known[variant][function]
            assert 0 < registers <= most[0], f"{variant}, {function}: {registers} registers, {most[0]} before"
            assert code <= 1.02 * most[1], f"{variant}, {function}: {code} bytes of machine code, {most[1]} before"


MMA = "conv1d_relu_maxpool1d_nlc_mma_fp16x3", "mma steps"  # the first takes the most registers
PORTABLE = {
    "7.5": ((FOR_TURING, FEW_PORTABLE), {FOR_TURING, FEW_PORTABLE}),  # 64 KiB of shared memory, and no cp.async
    "8.0": ((*MMA, FEW_PORTABLE), {MMA[0], FEW_PORTABLE, *(f"{MMA[1]}: {step}" for step in LADDERS[MMA[1]])}),
    "8.9": ((FOR_ADA, FEW_PORTABLE), {FOR_ADA, FEW_PORTABLE}),  # 8.9 has an instruction for e4m3, as 9.0a has not
    "12.0": ((FEW_PORTABLE,), {FEW_PORTABLE}),
}


PORTABLE_PARTS = 8
"""Of a capability's kernels, with --turns, a part in so many is compiled, by one commit of each."""

SPILLING = {("8.0", "_stat_kernel")}
"""Of l14, too: 1,024 threads a block, of which 8.0 holds two, leave 32 registers each, and 40 bytes are spilled."""


@pytest.mark.parametrize("capability", PORTABLE)
def test_portable_tensor_cores(capability, request):
    share = []
    if request.config.getoption("--turns"):
        turn, of_them = divmod(part(len(PORTABLE) * PORTABLE_PARTS), PORTABLE_PARTS)
        if turn != list(PORTABLE).index(capability):
            pytest.skip("another commit's turn")
        share = ["--share", f"{of_them}/{PORTABLE_PARTS}"]
    names, variants = PORTABLE[capability]
    kernels = build("--capability", capability, *share, *names)
    assert {row["variant"].partition(", ")[0] for row in kernels.values()} == variants  # of a level by precision
    functions = {row["function"] for row in kernels.values()}
    assert capability != "8.9" or functions > {"make_kernel", "make_pack_kernel", "_merge_kernel"}
    built = {key: row for key, row in kernels.items() if "costs" in row}
    assert len(built) == len(kernels) if not share else len(built) > len(kernels) / PORTABLE_PARTS / 4
    for key, row in built.items():
        assert bool(faults(row["costs"])) == ((capability, row["function"]) in SPILLING), key
        assert 0 < row["costs"]["registers"] <= 255, key


def main():
    """Write the record; what has the same digest still keeps its own."""
    known = json.loads(RECORD.read_text())
    kernels = compiled({} if "--all" in sys.argv else known, limit=None)
    wrong = {name: found for name, row in kernels.items() if "costs" in row and (found := faults(row["costs"]))}
    if wrong:
        sys.exit(f"these must not be: {wrong}")
    lines = [f"{json.dumps(name)}: {json.dumps(own)}" for name, own in sorted(recorded(kernels, known).items())]
    RECORD.write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main()
