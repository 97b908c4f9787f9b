"""Compile the kernels of every CUDA variant for Hopper (sm_90a), without GPU or driver, and print what they cost.

It prints JSON: kernel -> its variant, registers, spilled bytes, local and shared memory, ptxas warnings. It calls each
variant's launcher on small arrays with the launch replaced by a compilation, so the signatures are the launcher's own.
It needs the CUDA wheels (extra `cuda`).
"""

from __future__ import annotations

import argparse
import atexit
import json
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Iterable
from dataclasses import replace
from itertools import pairwise
from math import prod
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

from prepared import of_kind, prepared

from charcnn.host.arguments import HelpFormatter
from charcnn.layers import MaxPool1d, MaxPool2d
from charcnn.ops.conv1d.mma.layer import MmaConv
from charcnn.ops.conv1d.small_batch import SmallBatchConv
from charcnn.ops.conv1d.wgmma.layer import WgmmaConv
from charcnn.ops.conv1d.wgmma.windows import WgmmaWindows

if __name__ == "__main__":  # before numba is imported
    os.environ["NUMBA_ENABLE_CUDASIM"] = "0"
    os.environ["NUMBA_CACHE_DIR"] = tempfile.mkdtemp()  # a cached kernel has no linker log
    atexit.register(shutil.rmtree, os.environ["NUMBA_CACHE_DIR"])
    sys.path[:0] = [str(Path(__file__).parent.parent)]

import direct_mma_cases
import numpy as np
import operator_cases
import source_digest
from alexnet_cases import ALEXNET
from kernel_costs import all_compiled, function, title
from offline_chains import image_chains, mma_chains
from offline_levels import LAUNCHED, STARTING, started
from offline_tiles import TILES, other_tiles
from spaces import Space

from charcnn import catalog
from charcnn.compiling.stand_in import Target, standing_in
from charcnn.ops.common.mma_layout import WIDE
from charcnn.ops.common.precision import HALF_PRECISIONS, TENSOR_PRECISIONS
from charcnn.ops.conv1d.ladder import StepConv1d
from charcnn.ops.conv1d.mma.steps.layer import MmaStepConv1d
from charcnn.ops.conv1d.toom_cook import layer as toom_cook_layer
from charcnn.ops.conv1d.wgmma import few_rows, split_k
from charcnn.ops.conv1d.wgmma.steps.layer import WgmmaStepConv1d
from charcnn.ops.conv2d import direct, direct_plan
from charcnn.ops.layernorm import small_batch
from charcnn.ops.layernorm.relu_maxpool1d_nlc_precisions import encoded_maxima, normalised_maxima
from charcnn.ops.linear.few_outputs import FewOutputsLinear
from charcnn.ops.linear.small_batch import SmallBatchMlp
from charcnn.ops.linear.split_k import SplitKLinear
from charcnn.ops.token_conv1d import lag_sums
from charcnn.ops.token_conv1d.lags import PairTables
from charcnn.ops.token_conv1d.plane_gather.weights import PlaneGatherWeights
from charcnn.ops.token_conv1d.small_batch import conv_block_1
from charcnn.ops.token_conv1d.weights import TokenConvWeights

LEVEL_17 = "l17"
"""Beside the variants: what only that level launches."""

TOOM_COOK = "toom_cook"
"""And an experiment's: conv2, in each precision and with clusters, and its planes."""

LADDERS = {"mma steps": MmaStepConv1d, "wgmma steps": WgmmaStepConv1d}
"""And the small kernels on the way to the tuned ones."""

IMAGE_LAYERS = (
    ((1, 64, 64), (6, 1, 5, 5), {}), ((6, 30, 30), (16, 6, 5, 5), {}), ((1, 28, 28), (5, 1, 5, 5), {"padding": 2}),
    ((6, 28, 28), (16, 6, 4, 4), {"stride": 2}),
)  # fmt: skip
"""Of networks, where many images make other tiles: features, weights, and how the window moves."""


class Launch(NamedTuple):
    """A kernel that a variant launches."""

    variant: str
    kernel: Any
    kinds: tuple[Any, ...]
    """Numba's types of its arguments."""

    @property
    def entry(self) -> tuple[str, str]:
        """Its variant and function: what limits are kept for."""
        return self.variant, function(self.kernel)


class Recorder:
    """Keeps what would be launched, by its variant and title."""

    def __init__(self) -> None:
        self.variant = ""
        self.launches: dict[str, Launch] = {}

    def launch(self, kernel: Any, kinds: tuple[Any, ...]) -> None:
        """Stands in for a launch."""
        key, launch = f"{self.variant}: {title(kernel)}", Launch(self.variant, kernel, kinds)
        while self.launches.setdefault(key, launch)[1:] != launch[1:]:
            key += ", another"  # whose constants are the same: the costs of one would hide the other's


def launched(names: list[str], target: Target) -> dict[str, Launch]:
    """What the named CUDA variants launch (all where none is named), by variant and title; nothing is compiled."""
    recorder = Recorder()
    with (
        standing_in(target, recorder.launch),
        started(recorder, *STARTING),
        mock.patch.object(few_rows, "offered", return_value=()),
        mock.patch.object(split_k, "offered", return_value=None),
    ):
        for row in catalog.VARIANTS:
            if row.device == "cuda" and (not names or row.name in names):
                recorder.variant = row.name
                for sizes in sizes_of(row):
                    case = operator_cases.built(row, operator_cases.CASES[row.operator], sizes)
                    row.launcher(**case.inputs, **case.options)
                if "_backward" not in row.operator:
                    between_features(row)
                if row.operator == "conv1d_nlc" and row.technique == "small_batch" and row.precision != "bf16":
                    level_16(row.precision)  # bf16 is one word in fp16's kernels
        if not names or LEVEL_17 in names:
            recorder.variant = LEVEL_17
            level_17()
        for name in TILES:
            if not names or name in names:
                recorder.variant = name
                other_tiles(name)
        if TOOM_COOK in names:
            recorder.variant = TOOM_COOK
            toom_cook()
        for name, launch in LAUNCHED.items():
            if name in names:
                launch(name, target, recorder)
        for name, layer in LADDERS.items():
            for step in layer.steps if not names or name in names else ():
                recorder.variant = f"{name}: {step}"
                ladder_step(layer, step)
    return recorder.launches


def ladder_step(layer: type[StepConv1d], step: str) -> None:
    """Launch a step's kernel at conv2; conv3's is the same."""
    conv = layer(step, np.zeros((7, 256, 256), np.float32), np.zeros(256, np.float32))
    conv(np.zeros((2, 336, 256), np.float16))


def toom_cook() -> None:
    """Launch the kernels of Toom-Cook's products at conv2."""
    for precision, of in toom_cook_layer.PRECISIONS.items():
        for cluster in (1, 2):
            tile = replace(toom_cook_layer.ToomCookTile.of(of), cluster_m=cluster)
            weight, bias = np.zeros((7, 256, 256), np.float32), np.zeros(256, np.float32)
            conv = of_kind(toom_cook_layer.ToomCookConv, "pool", weight, bias, precision=precision, tile=tile)
            conv.apply(np.zeros((2, 336, of.terms * 256), of.dtype))
        affine = (np.zeros((1008, 256), np.float32),) * 2
        for wide in {False, precision == "fp16"}:
            given = np.zeros((7, 70, 256), np.float32), bias, *affine
            block = PlaneGatherWeights(*given, precision=precision, wide=wide)
            block(np.zeros((2, 1014), np.uint8), np.zeros((2, 2)))


def level_16(precision: str) -> None:
    """The kernels of small batches that are no variant, at the network's sizes."""

    def zeros(*shape: int, dtype: Any = np.float32) -> np.ndarray:
        return np.zeros(shape, dtype)

    of, wide = TENSOR_PRECISIONS[precision], precision in WIDE
    dtype, given = of.dtype, small_batch.between(of)
    x = zeros(1, 104, of.terms * 256, dtype=dtype)
    for taps in (3, 7):
        of_kind(SmallBatchConv, "relu", zeros(taps, 256, 256), zeros(256), precision=precision).apply(x)
    of_kind(SmallBatchConv, "pool", zeros(7, 256, 256), zeros(256), precision=precision).apply(x)
    block_6 = zeros(3, 256, 256), zeros(256)
    conv = of_kind(SmallBatchConv, "stat", *block_6, precision=precision, results=given.name)
    partial_moments = zeros(*conv.partial_moments_shape(1, 104))
    y = conv.with_partial_moments(x, partial_moments)
    affine = small_batch.affine(zeros(102, 256), zeros(102, 256), wide=wide)
    for rows in {False, wide}:
        small_batch.normalised(y, partial_moments, *affine, 3, precision=precision, rows=rows)
    if of.itemsize > 1:
        small_batch.normalised(y, zeros(1, 102, 3), *affine, 3, precision=precision, rows=wide, part=256)
    if precision == "fp16":  # of TF32
        conv = of_kind(SmallBatchConv, "stat", *block_6, precision=precision, results="float32")
        y, affine = conv.with_partial_moments(x, partial_moments), (zeros(102, 256), zeros(102, 256))
        for part, parts in ((None, partial_moments), (128, zeros(1, 204, 3))):
            small_batch.normalised(y, parts, *affine, 3, precision=precision, rows=True, wide=True, part=part)
    weight, bias, norm = zeros(7, 70, 256), zeros(256), (zeros(1008, 256), zeros(1008, 256))
    ids = zeros(1, 1014, dtype=np.uint8)
    for summed_wide in {False, precision == "fp16"}:
        block = TokenConvWeights(weight, bias, *norm, precision=precision, wide=summed_wide)
        conv_block_1(ids, block, PairTables(weight, bias), 3)
    sizes = (8704, 1024, 1024, 4)
    layers = SmallBatchMlp(
        [zeros(*pair) for pair in pairwise(sizes)], [zeros(size) for size in sizes[1:]], precision=precision
    )
    for n in (1, 16, 64):
        layers(zeros(n, of.terms * sizes[0], dtype=dtype), zeros(*layers.k_splits_shape(n)))
    if precision not in HALF_PRECISIONS:
        return
    for pair, epilogue in (((9216, 4096), "gelu"), ((4096, 1000), "")):  # AlexNet's
        options = {"precision": precision, "results": None if epilogue else "float32"}
        split = prepared(SplitKLinear, zeros(*pair), zeros(pair[1]), epilogue, **options)
        for n in (1, 16, 64):
            split(zeros(n, pair[0], dtype=dtype), Space())
    for image, filters, options in ALEXNET.values():
        moves = {name: value for name, value in options.items() if name != "pool"}
        pool = MaxPool2d(*options["pool"]) if "pool" in options else None
        given = zeros(*filters), zeros(filters[3]), "gelu" if pool else "relu", pool
        prepared(SmallBatchConv, *given, precision=precision, **moves).apply(zeros(1, *image, dtype=dtype))


def sizes_of(row: catalog.Variant) -> list[operator_cases.Sizes]:
    """What to compile for, as sizes may be constants of a kernel: the first, and the most work.

    On tensor cores conv1d_nlc in fp16 stands for all in the first; and of `mma` other convolutions have none here, as
    `between_features` launches all that a level needs of them.
    """
    cases = operator_cases.CASES[row.operator]
    fit = [sizes for sizes in (*cases.edges, *cases.large) if operator_cases.takes(row.technique, sizes)]
    first, most = fit[0], max(fit, key=lambda sizes: prod(sizes.values()))
    if not row.tensor_cores or (row.operator == "conv1d_nlc" and row.precision == "fp16"):
        return [first, most]
    return [] if row.ampere and re.match("conv1d_(?!nlc$|backward)", row.operator) else [most]


def between_features(row: catalog.Variant) -> None:
    """What levels launch of a row's kernels beside it, at the network's sizes: from or to features of tensor cores."""
    weight, bias, stat = np.zeros((7, 256, 256), np.float32), np.zeros(256, np.float32), np.zeros((1, 2))
    if row.ampere and row.operator.startswith("conv1d"):
        precision = row.precision or ""
        of, pool = TENSOR_PRECISIONS[precision], MaxPool1d(3) if "pool" in row.operator else None
        options = {"precision": precision, "moments": "stat" in row.operator}
        made = prepared(MmaConv, weight, bias, "relu" if "relu" in row.operator else "", pool, **options)
        (made.with_moments if options["moments"] else made.apply)(np.empty((1, 336, of.terms * 256), of.dtype))
    if row.technique == "wgmma" and row.operator.startswith("linear") and row.precision in HALF_PRECISIONS:
        of, relu = HALF_PRECISIONS[row.precision], "relu" if "relu" in row.operator else ""
        product = prepared(WgmmaConv, weight[0], bias, relu, precision=row.precision)
        product.apply(np.zeros((256, 256), of.dtype))  # of many rows
    if row.ampere and row.operator == "conv2d_relu_nhwc":
        image_tiles(row.precision or "")
    if row.name == "conv2d_relu_nhwc_wgmma_fp16x3":
        exact_bands()
    if row.name in ("conv2d_direct", "conv2d_relu_maxpool2d_direct"):
        with mock.patch.object(direct, "plan", lambda x, *rest: direct_plan.plan((10_000, *x[1:]), *rest)):
            for x, filters, moves in IMAGE_LAYERS:
                pool = (2,) if "maxpool2d" in row.operator else ()
                row.launcher(*(np.zeros(of, np.float32) for of in ((1, *x), filters, filters[:1])), *pool, **moves)
    if (row.operator, row.technique) == ("conv2d", "direct_mma"):
        direct_mma_cases.bands(IMAGE_LAYERS, row.precision or "")
    if row.operator == catalog.IMAGE_CHAIN:
        image_chains(row.technique)
        if row.technique == "whole":
            mma_chains()
    if row.name == "one_hot_conv1d_stat_nlc_lag_sums":  # the cases have inputs that a cluster each takes
        for taps, depth in ((3, 5), (7, 70)):
            given = weight[:taps, :depth].copy(), bias
            row.launcher(np.zeros((lag_sums.CLUSTER_INPUTS + 1, 1014), np.uint8), *given)
    if row.name == "one_hot_conv1d_layernorm_relu_maxpool1d_nlc_gather":
        gamma, ids = np.empty((1008, 256), np.float32), np.empty((1, 1014), np.uint8)
        for precision, octets in (("tf32", False), ("fp16", False), ("fp16x3", False), ("fp16x3", True)):
            given = weight[:, :70].copy(), bias, gamma, gamma
            block = TokenConvWeights(*given, precision=precision, wide=True, octets=octets)
            block.layernorm_relu_maxpool1d(ids, stat, 3)
    if row.operator == "conv2d_relu_nhwc" and row.device == "cuda" and row.precision is None:
        for channels, taps in ((64, 3), (96, 5), (128, 3), (64, 7)):  # every tile, and plans of networks' layers
            square = np.zeros((taps, taps, channels, channels), np.float32)
            row.launcher(np.zeros((1, 8, 8, channels), np.float32), square, square[0, 0, 0], padding=taps // 2)
    if row.name == "layernorm_relu_maxpool1d_nlc_vectorized_fp16":
        x = np.empty((1, 102, 256), np.float32)
        for precision in WIDE:
            encoded_maxima(x, stat, x[0], x[0], 3, precision=precision)
        for precision in ("fp16", *WIDE):
            normalised_maxima(x, stat, x[0], x[0], 3, precision="float32", results=precision)


def image_tiles(precision: str) -> None:
    """Launch every tile of `mma` that images take, and an epilogue that calls a function."""
    of, x = TENSOR_PRECISIONS[precision], (1, 13, 13, 256)
    for c_out in (32, 64, 96, 128):
        given = np.zeros((3, 3, 256, c_out), np.float32), np.zeros(c_out, np.float32)
        gelu, relu = (prepared(MmaConv, *given, name, padding=1, precision=precision) for name in ("gelu", "relu"))
        for conv, tile in [(gelu, relu.tiles[0]), *((relu, tile) for tile in relu.tiles)]:
            conv.tiles = (tile,)
            conv.apply(np.zeros((*x[:3], of.terms * x[3]), of.dtype))


def exact_bands() -> None:
    """Launch every tile of features that are exact in one term, at AlexNet's first convolutions."""
    for c_out, results in ((64, None), (96, None), (96, "float32")):
        weight, bias, x = np.zeros((3, 3, 48, c_out), np.float32), np.zeros(c_out, np.float32), (1, 57, 57, 48)
        conv = prepared(WgmmaConv, weight, bias, "relu", precision="fp16x3", results=results, exact=True)
        for tile in conv.windows.candidates(x):
            with mock.patch.object(WgmmaWindows, "candidates", return_value={tile: 1.0}):
                conv.apply(np.zeros(x, np.float16))


def level_17() -> None:
    """Launch what level 17 has beside the variants: features from float to fp8, and sums that are promoted.

    The last layer, too, as level 16 has it.
    """
    rng = np.random.default_rng(0)
    weight, bias = rng.standard_normal((7, 70, 256), np.float32), np.zeros(256, np.float32)
    affine = rng.standard_normal((2, 1008, 256), np.float32)
    block = TokenConvWeights(weight, bias, *affine, precision="fp8")
    block.layernorm_relu_maxpool1d(np.zeros((2, 1014), np.uint8), np.ones((2, 2)), 3)
    y = np.zeros((2, 102, 256), np.uint8)
    normalised_maxima(y, np.ones((2, 2)), *affine[:, :102].copy(), 3, precision="fp8")
    conv2 = rng.standard_normal((7, 256, 256), np.float32)
    of_kind(WgmmaConv, "pool", conv2, bias, results="fp8").apply(np.zeros((2, 336, 256), np.float16))
    for promoted in (False, True):
        weight = rng.standard_normal((7, 256, 256), np.float32)
        options = {"precision": "fp8", "promoted": promoted}
        of_kind(WgmmaConv, "pool", weight, bias, **options).apply(np.zeros((2, 336, 256), np.uint8))
        of_kind(WgmmaConv, "relu", weight[:3].copy(), bias, **options).apply(np.zeros((2, 110, 256), np.uint8))
        of_kind(WgmmaConv, "stat", weight[:3].copy(), bias, **options).with_moments(np.zeros((2, 110, 256), np.uint8))
    for name in ("bf16", "fp8"):
        features = np.zeros((2, 1, 256), TENSOR_PRECISIONS[name].dtype)
        prepared(FewOutputsLinear, conv2[0, :, :4], bias[:4], precision=name).apply(features)


def digests(launches: Iterable[Launch], target: Target) -> dict[tuple[str, str], str]:
    """Digests by entry: of the source of its kernels, and what compiles them."""
    found: dict[tuple[str, str], list[str]] = {}
    for launch in launches:
        found.setdefault(launch.entry, []).append(source_digest.digest(launch.kernel, launch.kinds))
    return {
        entry: source_digest.short(f"{target} {source_digest.compilers()} {sorted(set(own))}")
        for entry, own in found.items()
    }


def share(text: str) -> tuple[int, int]:
    """A part K of N, as "K/N".

    Raises:
        ValueError: it is none.
    """
    part, count = map(int, text.split("/"))
    if not 0 <= part < count:
        raise ValueError(f"{text}: need K/N, K from 0 below N")
    return part, count


def main() -> None:
    """Print the costs as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=HelpFormatter)
    parser.add_argument("variants", nargs="*", metavar="VARIANT", help="such as conv1d_naive (default: all)")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="processes that compile (default 1)")
    parser.add_argument("--cubins", type=Path, metavar="FOLDER", help="keep the compiled kernels there")
    parser.add_argument("--capability", default="9.0a", metavar="C", help="compute capability (default 9.0a)")
    known = "JSON, variant -> function -> digest: functions with the same digest are not compiled, and get no costs"
    parser.add_argument("--known", type=Path, metavar="FILE", help=known)
    also = "of these, also compile part K of N, or with no --known that alone: each function is in one of 0 to N - 1"
    parser.add_argument("--share", type=share, default=(0, 0), metavar="K/N", help=also)
    arguments = parser.parse_args()
    target = Target.named(arguments.capability)
    launches = launched(arguments.variants, target)
    part, parts = arguments.share
    known = json.loads(arguments.known.read_text()) if arguments.known else None if parts else {}
    entries = digests(launches.values(), target)
    due = {
        entry
        for entry, digest in entries.items()
        if (known is not None and known.get(entry[0], {}).get(entry[1]) != digest)
        or (parts and int(source_digest.short("".join(entry)), 16) % parts == part)
    }
    kernels = list(dict.fromkeys((launch.kernel, launch.kinds) for launch in launches.values() if launch.entry in due))
    built = dict(zip(kernels, all_compiled(kernels, target, arguments.jobs), strict=True))
    found: dict[str, dict[str, Any]] = {}
    for key, launch in launches.items():
        found[key] = {"variant": launch.variant, "function": launch.entry[1], "digest": entries[launch.entry]}
        if launch.entry in due:
            made = built[launch.kernel, launch.kinds]
            found[key]["costs"] = made.costs
            if arguments.cubins:
                arguments.cubins.mkdir(parents=True, exist_ok=True)
                name = re.sub(r"[^a-z0-9_=]+", "_", key)[:100]  # file systems allow some 250
                (arguments.cubins / f"{len(found):03}_{name}.cubin").write_bytes(made.cubin)
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
