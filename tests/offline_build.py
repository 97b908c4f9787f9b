"""Compile the kernels of every CUDA variant for Hopper (sm_90a) with no GPU and no driver, and print what they cost.

Prints JSON: kernel -> its variant, registers, spilled bytes, local and shared memory, ptxas warnings. It calls each
variant's launcher on small arrays with the launch replaced by a compilation, so the signatures are the launcher's own.
Needs the CUDA wheels (extra `cuda`).
"""

from __future__ import annotations

import argparse
import atexit
import inspect
import json
import numbers
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from functools import cache, partial
from itertools import pairwise
from math import prod
from multiprocessing import get_context
from pathlib import Path
from typing import Any
from unittest import mock

if __name__ == "__main__":  # before numba is imported
    os.environ["NUMBA_ENABLE_CUDASIM"] = "0"
    os.environ["NUMBA_CACHE_DIR"] = tempfile.mkdtemp()  # a cached kernel has no linker log
    atexit.register(shutil.rmtree, os.environ["NUMBA_CACHE_DIR"])
    sys.path[:0] = [str(Path(__file__).parent.parent)]

import machine_code
import numpy as np
import operator_cases
from cuda.pathfinder import find_nvidia_binary_utility
from numba.cuda.cudadrv import driver

from charcnn import catalog
from charcnn.compiling.stand_in import Target, standing_in
from charcnn.config import SMALL
from charcnn.ops.common import tile_choice
from charcnn.ops.common.mma_layout import WIDE
from charcnn.ops.common.precision import FORMATS, HALF_PRECISIONS
from charcnn.ops.conv1d.ladder import StepConv1d
from charcnn.ops.conv1d.mma.layer import MmaWeights
from charcnn.ops.conv1d.mma.steps.layer import MmaStepConv1d
from charcnn.ops.conv1d.mma.windows import MmaConv2dWeights
from charcnn.ops.conv1d.small_batch import SmallBatchWeights
from charcnn.ops.conv1d.wgmma.layer import WgmmaWeights
from charcnn.ops.conv1d.wgmma.steps.layer import WgmmaStepConv1d
from charcnn.ops.conv2d import direct, direct_plan
from charcnn.ops.layernorm import small_batch
from charcnn.ops.layernorm.relu_maxpool1d_nlc_formats import encoded_maxima, normalised_maxima
from charcnn.ops.linear.few_outputs import FewOutputsLinear
from charcnn.ops.linear.small_batch import SmallBatchMlp
from charcnn.ops.token_conv1d.weights import TokenConvWeights
from charcnn.tuning import layers, measure

TARGET = Target.named("sm_90a")
"""The GPU to compile for."""

LEVEL_17 = "l17"
"""Beside the variants: what only that level launches."""

TILES = ("tiles of l12", "tiles of l14", "tiles of l15")
"""And what tuning may launch in place of what ships, for conv2: pooling takes more registers than other ends."""

LADDERS = {"mma steps": MmaStepConv1d, "wgmma steps": WgmmaStepConv1d}
"""And the small kernels on the way to the tuned ones."""


IMAGE_LAYERS = (
    ((1, 64, 64), (6, 1, 5, 5), {}), ((6, 30, 30), (16, 6, 5, 5), {}), ((1, 28, 28), (5, 1, 5, 5), {"padding": 2}),
    ((6, 28, 28), (16, 6, 4, 4), {"stride": 2}),
)  # fmt: skip
"""Of networks, where many images make other tiles: features, weights, and how the window moves."""


class Recorder:
    """Compiles what would be launched, and keeps each kernel's costs."""

    def __init__(self, cubins: Path | None = None) -> None:
        self.kernels: dict[str, dict[str, Any]] = {}
        self.cubins = cubins
        self.variant = ""
        self._compiled: dict[str, Any] = {}

    def launch(self, kernel: Any, kinds: tuple[Any, ...]) -> None:
        """Stands in for a launch."""
        library = kernel.compile(kinds)._codelibrary
        cubin = bytes(library.get_cubin(TARGET.compiler).code)
        ptx = library.get_asm_str(TARGET.compiler)
        key = f"{self.variant}: {title(kernel)}"
        if self._compiled.setdefault(key, kernel) is not kernel:
            raise RuntimeError(f"two kernels are called {key}: the costs of one would hide the other's")
        self.kernels[key] = {
            "variant": self.variant,
            "function": function(kernel),
            **costs(library.get_linkerinfo(TARGET.compiler)),
            "code_bytes": machine_code.described(cubin)["bytes"],
            "local_instructions": sass_count(cubin, r"\b(LDL|STL)\b"),
            "float64_instructions": len(re.findall(r"\.f64", ptx)),
        }
        if self.cubins:
            name = re.sub(r"[^a-z0-9_=]+", "_", key)[:100]  # file systems allow some 250
            (self.cubins / f"{len(self.kernels):03}_{name}.cubin").write_bytes(cubin)


def function(kernel: Any) -> str:
    """The name of the kernel's function, or of the factory that made it."""
    return kernel.py_func.__qualname__.split(".")[0]


def title(kernel: Any) -> str:
    """The kernel's function, with the constants that its factory closed over: _conv1d_naive_kernel(kernel_size=7)."""
    values = ", ".join(f"{name}={text}" for name, text in sorted(constants(kernel.py_func).items()))
    return f"{function(kernel)}({values})"


def constants(function: Any) -> dict[str, str]:
    """What a function closed over, as text, and what its device functions did."""
    found: dict[str, str] = {}
    for name, value in inspect.getclosurevars(function).nonlocals.items():
        if hasattr(value, "py_func"):
            found |= constants(value.py_func)
        elif text := shown(value):
            found[name] = text
    return found


def shown(value: Any) -> str | None:
    """A constant as text: a number or a tuple of numbers; None for anything else."""
    if isinstance(value, tuple):
        return f"({' '.join(str(shown(one)) for one in value)})"
    return str(value) if isinstance(value, numbers.Number) else None


@cache  # variants share kernels
def sass_count(cubin: bytes, pattern: str) -> int | None:
    """How many machine instructions match; None where the wheel nvidia-cuda-nvdisasm is not installed."""
    nvdisasm = find_nvidia_binary_utility("nvdisasm")
    if nvdisasm is None:
        return None
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        listing = subprocess.run([nvdisasm, "-c", file.name], capture_output=True, text=True, check=True).stdout
    return len(re.findall(pattern, listing))


def costs(log: str) -> dict[str, Any]:
    """Resources and warnings from the linker's log; bytes that it does not mention are 0."""

    def number(pattern: str, default: int | None = 0) -> int | None:
        match = re.search(pattern, log)
        return int(match.group(1)) if match else default

    return {
        "registers": number(r"[Uu]sed (\d+) registers", None),
        "spill_stores": number(r"(\d+) bytes spill stores", None),
        "spill_loads": number(r"(\d+) bytes spill loads", None),
        "local_bytes": number(r"(\d+) bytes stack frame", None),
        "shared_bytes": number(r"(\d+) bytes smem"),
        # C75xx: wgmma was serialised, or setmaxnreg ignored
        "warnings": [line for line in log.splitlines() if "warn" in line.lower() or "C75" in line],
    }


@contextmanager
def compiling(recorder: Recorder) -> Iterator[None]:
    """What is launched in this context stays on the host, and is compiled."""
    verbose = partial(driver.LinkerOptions, verbose=True)
    with mock.patch.object(driver, "LinkerOptions", verbose), standing_in(TARGET, recorder.launch):
        yield


def build(names: list[str], cubins: Path | None = None) -> dict[str, dict[str, Any]]:
    """Compile what the named CUDA variants launch (all where none is named); each kernel's costs."""
    recorder = Recorder(cubins)
    with compiling(recorder):
        for row in catalog.VARIANTS:
            if row.device == "cuda" and (not names or row.name in names):
                recorder.variant = row.name
                for sizes in sizes_of(row):
                    case = operator_cases.CASES[row.operator].build(sizes)
                    row.launcher(**case.inputs, **case.options)
                between_features(row)
                if row.name == "conv1d_nlc_small_batch_fp16":
                    level_16("fp16")
        if not names or LEVEL_17 in names:
            recorder.variant = LEVEL_17
            level_17()
        for name in TILES:
            if not names or name in names:
                recorder.variant = name
                other_tiles(name)
        for name, layer in LADDERS.items():
            for step in layer.steps if not names or name in names else ():
                recorder.variant = f"{name}: {step}"
                ladder_step(layer, step)
    return recorder.kernels


def ladder_step(layer: type[StepConv1d], step: str) -> None:
    """Launch a step's kernel at conv2; conv3's is the same."""
    conv = layer(step, np.zeros((7, 256, 256), np.float32), np.zeros(256, np.float32))
    conv(np.zeros((2, 336, 256), np.float16))


def level_16(precision: str) -> None:
    """The kernels of small batches that are no variant, at the network's sizes."""

    def zeros(*shape: int, dtype: Any = np.float32) -> np.ndarray:
        return np.zeros(shape, dtype)

    dtype = HALF_PRECISIONS[precision].dtype
    conv = SmallBatchWeights(zeros(3, 256, 256), zeros(256), precision=precision)
    partial_moments = zeros(*conv.partial_moments_shape(1, 104))
    y = conv.conv1d_partial_moments(zeros(1, 104, 256, dtype=dtype), partial_moments)
    small_batch.normalised(
        y, partial_moments, *small_batch.affine(zeros(102, 256), zeros(102, 256)), 3, precision=precision
    )
    partial_moments = zeros(*small_batch.first_moments_shape(1, 1008))
    block = TokenConvWeights(zeros(7, 70, 256), zeros(256), precision=precision)
    small_batch.first(zeros(1, 1014, dtype=np.uint8), block, partial_moments, out=zeros(1, 1008, 256, dtype=dtype))
    sizes = (8704, 1024, 1024, 4)
    layers = SmallBatchMlp(
        [zeros(*pair) for pair in pairwise(sizes)], [zeros(size) for size in sizes[1:]], precision=precision
    )
    for n in (1, 16, 64):
        layers(zeros(n, sizes[0], dtype=dtype), zeros(*layers.k_splits_shape(n)))


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
    return [] if row.ampere and row.operator.startswith("conv1d_") and row.operator != "conv1d_nlc" else [most]


def between_features(row: catalog.Variant) -> None:
    """What levels launch of a row's kernels beside it, at the network's sizes: from or to features of tensor cores."""
    weight, bias, stat = np.zeros((7, 256, 256), np.float32), np.zeros(256, np.float32), np.zeros((1, 2))
    if row.ampere and row.operator.startswith("conv1d"):
        method, precision = row.operator.removesuffix("_nlc"), row.precision or ""
        made, of = MmaWeights(weight, bias, precision=precision), FORMATS[precision]
        getattr(made, method)(np.empty((1, 336, of.terms * 256), of.dtype))
    if row.ampere and row.operator == "conv2d_relu_nhwc":
        image_tiles(row.precision or "")
    if row.name in ("conv2d_direct", "conv2d_relu_maxpool2d_direct"):
        with mock.patch.object(direct, "plan", lambda x, *rest: direct_plan.plan((10_000, *x[1:]), *rest)):
            for x, filters, moves in IMAGE_LAYERS:
                pool = (2,) if "maxpool2d" in row.operator else ()
                row.launcher(*(np.zeros(of, np.float32) for of in ((1, *x), filters, filters[:1])), *pool, **moves)
    if row.name == "one_hot_conv1d_layernorm_relu_maxpool1d_nlc_gather":
        gamma, ids = np.empty((1008, 256), np.float32), np.empty((1, 1014), np.uint8)
        for precision, octets in (("tf32", False), ("fp16x3", False), ("fp16x3", True)):
            given = weight[:, :70].copy(), bias, gamma, gamma
            block = TokenConvWeights(*given, precision=precision, octets=octets)
            block.layernorm_relu_maxpool1d(ids, stat, 3)
    if row.operator == "conv2d_relu_nhwc" and row.device == "cuda" and row.precision is None:
        for channels, taps in ((64, 3), (96, 5), (128, 3), (64, 7)):  # every tile, and plans of networks' layers
            square = np.zeros((taps, taps, channels, channels), np.float32)
            row.launcher(np.zeros((1, 8, 8, channels), np.float32), square, square[0, 0, 0], padding=taps // 2)
    if row.name == "layernorm_relu_maxpool1d_nlc_vectorized_fp16":
        x = np.empty((1, 102, 256), np.float32)
        for precision in WIDE:
            encoded_maxima(x, stat, x[0], x[0], 3, precision=precision)
            normalised_maxima(x, stat, x[0], x[0], 3, precision="float32", results=precision)


def image_tiles(precision: str) -> None:
    """Launch every tile of `mma` that images take, and an epilogue that calls a function."""
    of, x = FORMATS[precision], (1, 13, 13, 256)
    for c_out in (32, 64, 96, 128):
        conv = MmaConv2dWeights(np.zeros((3, 3, 256, c_out), np.float32), np.zeros(c_out, np.float32), padding=1,
                                precision=precision)  # fmt: skip
        tiles = conv._tiles
        for epilogue, tile in [("gelu", tiles[0]), *(("relu", tile) for tile in tiles)]:
            conv._tiles = (tile,)
            conv.conv2d(np.zeros((*x[:3], of.terms * x[3]), of.dtype), epilogue=epilogue)


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
    WgmmaWeights(conv2, bias, results="fp8").conv1d_relu_maxpool1d(np.zeros((2, 336, 256), np.float16))
    for promoted in (False, True):
        weight = rng.standard_normal((7, 256, 256), np.float32)
        WgmmaWeights(weight, bias, precision="fp8", promoted=promoted).conv1d_relu_maxpool1d(
            np.zeros((2, 336, 256), np.uint8)
        )
        conv, x = (
            WgmmaWeights(weight[:3].copy(), bias, precision="fp8", promoted=promoted),
            np.zeros((2, 110, 256), np.uint8),
        )
        conv.conv1d_relu(x)
        conv.conv1d_stat(x)
    for name in ("bf16", "fp8"):
        FewOutputsLinear(conv2[0, :, :4], bias[:4], precision=name).linear(np.zeros((2, 1, 256), FORMATS[name].dtype))


def other_tiles(name: str) -> None:
    """Launch the kernel of one of TILES at conv2 with every tile that there is to choose."""
    for layer in layers.of_level(name.split()[-1], SMALL):
        if layer.name == "conv2":
            work = layers.prepare(layer, 1)
            _, tiles = measure.asked(work)
            for tile in tiles[1:]:
                with tile_choice.trying(lambda *_, tile=tile: tile):
                    work.start(None)


def main() -> None:
    """Print the costs as JSON."""
    global TARGET
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = "such as conv1d_naive, or several that share kernels with commas between; all where none is named"
    parser.add_argument("variants", nargs="*", metavar="VARIANT,...", help=names)
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="processes that take these by turns")
    parser.add_argument("--cubins", type=Path, metavar="FOLDER", help="leave the compiled kernels there")
    parser.add_argument("--capability", default="9.0a", metavar="C", help="to compile for: 9.0a (default), 8.0 ...")
    arguments = parser.parse_args()
    TARGET = Target.named(arguments.capability)
    if arguments.cubins:
        arguments.cubins.mkdir(parents=True, exist_ok=True)
    # Forked, as importing all of it takes seconds; a process that compiles one group finds much of the next compiled.
    with ProcessPoolExecutor(arguments.jobs, get_context("fork")) as pool:
        groups = [group.split(",") for group in arguments.variants] or [[]]
        built = list(pool.map(partial(build, cubins=arguments.cubins), groups))
    print(json.dumps({name: cost for costs in built for name, cost in costs.items()}, indent=2))


if __name__ == "__main__":
    main()
