"""What share of cuBLAS's rate the network's products reach on tensor cores: operators alone, features in place.

`python bench/tensor_cores.py [--precisions fp16,bf16] [--batch 4096]` needs a GPU with Hopper's tensor cores; with
PyTorch, cuBLAS's product of 8192 x 8192 matrices takes turns with the operators. Each is checked against the float64
reference first. Writes results/MACHINE-tensor-cores.json after a run of all precisions.
Exit status: 0 measured, 1 an operator is wrong, 2 it cannot run here.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import cases
import numpy as np
from numba import cuda

from charcnn import files
from charcnn.config import POOL_SIZE, SMALL
from charcnn.gpu import device, graph
from charcnn.gpu.launch import Call
from charcnn.host import machine
from charcnn.ops import reference
from charcnn.ops.common import cast
from charcnn.ops.common.precision import FORMATS, NumberFormat
from charcnn.ops.conv1d.wgmma.layer import WgmmaWeights

PROMOTED = " promoted"
"""Behind a precision's name: sums that leave tensor cores every 128 bytes of depth."""

NAMES = (*FORMATS, f"fp8{PROMOTED}")

RESULTS = Path(__file__).resolve().parent / "results"

DRAWN = 32
"""Inputs drawn; the batch is these again and again, as its numbers decide how much power a product takes."""

SQUARE = 8192

ROUNDS = 7

SECONDS = 0.05
"""Of a round of one of them."""


@dataclass(frozen=True)
class Layer:
    """A product of the network."""

    name: str
    method: str
    """Of `WgmmaWeights`."""
    block: int
    """Of the convolution, or for a linear layer 0."""


LAYERS = (
    Layer("conv2", "conv1d_relu_maxpool1d", 2),
    Layer("conv3", "conv1d_relu", 3),
    Layer("conv6", "conv1d_stat", 6),
    Layer("fc1", "conv1d_relu", 0),
)


@dataclass
class Ready:
    """An operator that passed its check."""

    name: str
    call: Callable[[], None]
    flop: int
    row: dict[str, Any]
    stream: Any = None
    """On which it runs, kept as long."""
    times: int = 1


def sizes(layer: Layer) -> tuple[int, int, int, int]:
    """(L, C_in, K, C_out)."""
    if layer.block == 0:
        return 1, SMALL.features, 1, SMALL.units
    length, kernel_size = SMALL.block_lengths[layer.block - 2], SMALL.kernel_sizes[layer.block - 1]
    return length, SMALL.in_channels(layer.block), kernel_size, SMALL.channels


def expected(layer: Layer, x: np.ndarray, weight: np.ndarray, bias: np.ndarray) -> np.ndarray:
    """In float64."""
    x, weight, bias = (array.astype(np.float64) for array in (x, weight, bias))
    if layer.method == "conv1d_relu_maxpool1d":
        return reference.conv1d_relu_maxpool1d_nlc(x, weight, bias, POOL_SIZE)
    if layer.method == "conv1d_stat":
        return reference.conv1d_nlc(x, weight, bias)
    return reference.conv1d_relu_nlc(x, weight, bias)


def ready(layer: Layer, name: str, batch: int) -> Ready:
    """Lay out, run once and check.

    Raises:
        SystemExit: the result is wrong.
    """
    length, c_in, kernel_size, c_out = sizes(layer)
    of = chosen(name)
    draw = np.random.default_rng(0)
    x = draw.standard_normal((DRAWN, length, c_in), np.float32)
    weight = draw.standard_normal((kernel_size, c_in, c_out), np.float32) / np.float32(np.sqrt(kernel_size * c_in))
    bias = draw.standard_normal(c_out, np.float32)
    x_unit = y_unit = 1.0
    if of.name == "fp8":  # of normal numbers, what lies beyond 5 is not worth the range
        x_unit = y_unit = 5 / 448
    plain = layer.method == "conv1d_stat"  # what LayerNorm reads: as wide as 16 bits at least
    results = {"fp8": "fp16", "tf32": "float32", "fp16x3": "float32"}.get(of.name) if plain else None
    y_unit = 1.0 if results else y_unit
    units = {"x_unit": x_unit, "y_unit": y_unit}
    conv = WgmmaWeights(weight, bias, precision=of.name, results=results, promoted=name.endswith(PROMOTED), **units)

    call = Call(None, None, x.shape, x=x)
    drawn = cast.narrow(call, call.inputs[0], length, conv.width, of, 1 / x_unit).copy_to_host()
    features = device.to_device(drawn[np.arange(batch) % DRAWN])
    pooled = (POOL_SIZE,) if layer.method == "conv1d_relu_maxpool1d" else ()
    method = getattr(conv, layer.method)
    out = method(features, *pooled)
    options = {"out": out}
    if plain:
        options["partial_moments"] = device.empty(conv.partial_moments_shape(batch, length), np.float32)
    y = out[0] if isinstance(out, tuple) else out
    checked = sorted({0, batch // 2, batch - 1})
    got = device.to_device(y.copy_to_host()[checked])
    if conv.results.ptx_type not in ("tf32", "f32"):
        shape = (len(checked), got.shape[1], c_out)
        call = Call(None, None, shape, dtypes={"x": conv.results.dtype}, x=got)
        cast.widen(call, got, call.out, conv.results, y_unit)
        got = call.out
    error = cases.error(got.copy_to_host(), expected(layer, x[np.array(checked) % DRAWN], weight, bias))
    if not error <= of.tolerance:
        raise SystemExit(f"{layer.name} in {name} is wrong: relative error {error:.1e}, allowed {of.tolerance:g}")
    positions = length - kernel_size + 1
    flop = 2 * batch * positions * kernel_size * c_in * c_out
    row = {"layer": layer.name, "operator": layer.method, "precision": name, "products": 3 if of.terms == 2 else 1}
    row |= {"batch": batch, "shape": [length, c_in, kernel_size, c_out], "error": error, "tolerance": of.tolerance}

    def start(stream: Any) -> None:
        method(features, *pooled, **options, stream=stream)

    stream = cuda.stream()
    recorded = graph.Graph(start, stream)  # a launch from Python takes longer than the shortest of them
    return Ready(f"{layer.name} {name}", recorded.launch, flop, row, stream)


def chosen(name: str) -> NumberFormat:
    """The format of one of NAMES.

    Raises:
        ValueError: there is none.
    """
    if name not in NAMES:
        raise ValueError(f"precision={name!r}: need one of {', '.join(NAMES)}")
    return FORMATS[name.removesuffix(PROMOTED)]


def square(precision: str) -> Ready | None:
    """cuBLAS's product in this precision through PyTorch, or None where it has none."""
    import torch

    kinds = {"fp16": torch.float16, "bf16": torch.bfloat16, "tf32": torch.float32, "fp8": torch.float8_e4m3fn}
    fast = not precision.endswith(PROMOTED)
    kind = precision.removesuffix(PROMOTED)
    if kind not in kinds:
        return None
    generator = torch.Generator("cuda").manual_seed(0)
    draw = [torch.randn(SQUARE, SQUARE, device="cuda", generator=generator) for _ in range(2)]
    if kind == "fp8":
        a, b = (matrix.to(kinds[kind]) for matrix in draw)
        one = torch.ones((), device="cuda")

        def run() -> None:
            torch._scaled_mm(a, b.T, one, one, out_dtype=torch.bfloat16, use_fast_accum=fast)

    else:
        torch.backends.cuda.matmul.allow_tf32 = True
        a, b = (matrix.to(kinds[kind]) for matrix in draw)
        out = torch.empty_like(a)

        def run() -> None:
            torch.mm(a, b, out=out)

    row = {"layer": "cuBLAS", "precision": precision, "products": 1, "shape": [SQUARE] * 3, "torch": torch.__version__}
    return Ready(f"cuBLAS {precision}", run, 2 * SQUARE**3, row)


def rate(one: Ready, times: int) -> float:
    """TFLOP/s over so many calls."""
    cuda.synchronize()
    start = time.perf_counter()
    for _ in range(times):
        one.call()
    cuda.synchronize()
    return one.flop * times / (time.perf_counter() - start) / 1e12


def measure(name: str, batch: int) -> list[dict[str, Any]]:
    """All layers and cuBLAS by turns."""
    every = [ready(layer, name, batch) for layer in LAYERS]
    if find_spec("torch") is not None and (other := square(name)) is not None:
        every.append(other)
    return by_turns(every)


def by_turns(every: Sequence[Ready]) -> list[dict[str, Any]]:
    """The rate of each, a row each: in rounds, in an order drawn for each."""
    for one in every:
        one.call()
        one.times = max(1, round(SECONDS * rate(one, 3) * 1e12 / one.flop))
    rates: list[list[float]] = [[] for _ in every]
    order = random.Random(0)
    for _ in range(ROUNDS):
        # Drawn anew, as the clock that one finds is what the power of the one before has left.
        for i in order.sample(range(len(every)), len(every)):
            rates[i].append(rate(every[i], every[i].times))
    rows = []
    for one, found in zip(every, rates, strict=True):
        rows.append(one.row | {"tflop_per_second": statistics.median(found), "rounds": found})
        print(f"{one.name:20} {statistics.median(found):7.1f} TFLOP/s  error {one.row.get('error', 0):.1e}", flush=True)
    return rows


def main(argv: Sequence[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--precisions", metavar="NAME,...", help=f"default: all, {','.join(NAMES)}")
    parser.add_argument("--batch", type=int, default=4096, metavar="N")
    parser.add_argument("--results-dir", type=Path, metavar="DIR", help="default: bench/results, for all precisions")
    options = parser.parse_args(argv)
    if options.batch < 1:
        parser.error(f"--batch {options.batch}: need at least 1")
    try:
        names = (options.precisions or ",".join(NAMES)).split(",")
        for name in names:
            chosen(name)
    except ValueError as error:
        parser.error(str(error))
    try:
        device.choose(1)
        device.require_hopper("tensor_cores")
    except device.DeviceError as error:
        print(f"tensor_cores: {error}", file=sys.stderr)
        return 2
    rows = [row for name in names for row in measure(name, options.batch)]
    here = machine.describe()
    folder = options.results_dir or (None if options.precisions else RESULTS)
    if folder is not None:
        result = {"tensor_cores": rows, "data": "standard normal, seed 0", "machine": here, "commit": machine.commit()}
        with files.replacing(folder / f"{machine.name(here)}-tensor-cores.json", "w") as file:
            json.dump(result, file, indent=1)
            file.write("\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
