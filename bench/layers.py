"""Time each prepared layer of levels l12 to l17, relative to cuDNN, cuBLAS and the measured peak.

    python bench/layers.py --precisions fp16,bf16 --batch 4096

It needs a GPU. With PyTorch, cuDNN's convolution (channels last, no bias, no ReLU) and cuBLAS's product of the same
shape take turns with each layer. So does the peak: cuBLAS's product of 8,192 x 8,192 matrices. Weights are prepared,
and features lie where the previous layer leaves them. All logits of a level are checked against float64 first.

A run of all precisions writes results/MACHINE-layers.json. Exit status: 0 measured, 1 a level is wrong, 2 unusable
machine.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from functools import cache
from importlib.util import find_spec
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import raw
from numba import cuda
from turns import Ready, by_turns

from charcnn import layers as model
from charcnn.catalog import LEVELS, PRECISIONS, Level
from charcnn.config import SMALL
from charcnn.gpu import device, graph
from charcnn.host import machine
from charcnn.host.arguments import HelpFormatter
from charcnn.model import params, validation
from charcnn.model.rounding import Rounding
from charcnn.ops.common.layer import flat
from charcnn.ops.conv1d.layers import SPREAD

LISTED = tuple(row for row in LEVELS if row.device == "cuda" and LEVELS.index(row) >= 12)
"""Levels that list layers."""

DRAWN = 8
"""Inputs drawn; the batch is these again and again, as its numbers decide how much power a product takes."""

SQUARE = 8192

MOST_ROWS = 1 << 19
"""Of cuBLAS's product: its rate no longer depends on them."""

PRODUCTS = {node.layer.name: node for node in SMALL.nodes if isinstance(node.layer, model.Conv1d | model.Linear)}


class Alone:
    """Where a layer writes that runs alone: arrays of its own, the same each time."""

    def __init__(self, layer: Any, shape: tuple[int, ...]) -> None:
        self.stream: Any = None
        self._arrays: list[Any] = []
        self._scratch = {name: device.empty(*array) for name, array in layer.scratch(shape).items()}
        self._next = 0

    def begin(self, stream: Any) -> None:
        """The next call's arrays are the first again."""
        self.stream, self._next = stream, 0

    def device(self, shape: tuple[int, ...], dtype: Any = np.float32) -> Any:
        """The next array."""
        if self._next == len(self._arrays):
            self._arrays.append(device.empty(shape, dtype))
        self._next += 1
        return self._arrays[self._next - 1]

    def scratch(self, layer: Any) -> dict[str, Any]:
        """What the layer asked for."""
        return self._scratch


def ids_and_weights(batch: int, level: Level) -> tuple[np.ndarray, params.Params]:
    """The network's input, and random parameters that the level takes."""
    drawn = np.random.default_rng(0).integers(0, SMALL.alphabet + 1, (DRAWN, SMALL.length), np.uint8)
    return drawn[np.arange(batch) % DRAWN], level.taken(params.init(SMALL, seed=0))


@cache
def expected(rounding: Rounding, level: Level) -> tuple[np.ndarray, np.ndarray]:
    """The logits of the inputs drawn, in float64, and their propagated rounding."""
    ids, weights = ids_and_weights(DRAWN, level)
    return validation.expected(ids, weights, SMALL, rounding)


def layers_of(level: Level, precision: str, batch: int, seen: set[tuple[str, str]]) -> Iterator[Ready]:
    """A level's layers, those that no level before had, once its logits are right.

    Raises:
        SystemExit: they are wrong.
    """
    ids, weights = ids_and_weights(batch, level)
    options = level.build_options(precision)
    run = level.module.build(weights, SMALL, batch=batch, streams=1, gpus=[0], **options)
    prepared = flat(run.sequences[0].layers, batch)
    names = list(PRODUCTS)
    ready, x = [], device.to_device(ids)
    for layer in prepared:
        result = layer.writes(x.shape)[-1]
        multiplies = layer.nbytes > 0
        of = [names.pop(0)] if multiplies else []
        if layer is prepared[-1]:  # which may have all that is left
            of, names = [*of, *names], []
        space, stream, reads = Alone(layer, x.shape), cuda.stream(), x

        def start(on: Any, layer: Any = layer, space: Alone = space, reads: Any = reads) -> Any:
            space.begin(on)
            return layer(reads, space)

        x = start(stream)
        stream.synchronize()
        row = {"made": type(layer).__name__, "level": level.name, "precision": precision, "batch": batch}
        row |= {"layer": " ".join(of) or "between", "products": 3 if precision == "fp16x3" else 1}
        row |= {"bytes": reads.nbytes + layer.nbytes + prod(result.shape) * np.dtype(result.dtype).itemsize}
        # What LayerNorm follows holds its convolution, and another level's is another.
        kind = f"{row['made']} {type(getattr(layer, '_conv', None)).__name__}"
        kind = f"{level.name}'s operator" if row["made"] == "Launched" else kind
        if (kind, row["layer"]) in seen:
            continue
        seen.add((kind, row["layer"]))
        flop = 2 * batch * sum(PRODUCTS[name].flops // 2 for name in of)
        # A launch from Python takes longer than the shortest of them. In float32 operators make arrays of their own.
        call = (lambda start=start, stream=stream: start(stream)) if precision == "fp32" else None
        call = call or graph.Graph(start, stream).launch
        ready.append(Ready(f"{row['layer']} {row['made']} {level.name} {precision}", call, flop, row, stream))
    logits = x.copy_to_host().reshape(batch, SMALL.classes)
    rounding = level.rounding(precision)
    right, sigma = (array[np.arange(batch) % DRAWN] for array in expected(rounding, level))
    error = float(validation.in_sigmas(logits, right, sigma).max())
    if not error <= rounding.bound:
        raise SystemExit(f"{level.name} in {precision} is wrong: {error:.2g} sigma, allowed {rounding.bound:g}")
    for one in ready:
        one.row |= {"sigmas": error, "bound": rounding.bound}
        yield one


KINDS = {"fp32": "float32", "tf32": "float32", "fp16": "float16", "bf16": "bfloat16", "fp8": "float8_e4m3fn"}
"""PyTorch's, of what it multiplies; of fp16x3 it multiplies nothing."""


def peers(precision: str, batch: int) -> Iterator[Ready]:
    """PyTorch's: cuDNN's and cuBLAS's product for each of the network's, and the peak."""
    import torch
    import torch.nn.functional as F

    if precision not in KINDS:
        return
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = precision == "tf32"
    torch.backends.cudnn.benchmark = True  # it tries its algorithms at the first call
    kind, generator = getattr(torch, KINDS[precision]), torch.Generator("cuda").manual_seed(0)
    one = torch.ones((), device="cuda")

    def drawn(*shape: int) -> Any:
        return torch.randn(*shape, device="cuda", generator=generator).to(kind)

    def times(name: str, rows: int, depth: int, columns: int, flop: int, shown: dict[str, Any]) -> Ready:
        a, b = drawn(rows, depth), drawn(columns, depth).T
        if precision == "fp8":

            def call() -> Any:
                return torch._scaled_mm(a, b, one, one, out_dtype=torch.bfloat16, use_fast_accum=True)
        else:
            b, out = b.contiguous(), torch.empty((rows, columns), dtype=kind, device="cuda")

            def call() -> Any:
                return torch.mm(a, b, out=out)

        return Ready(f"{name} cuBLAS {precision}", call, flop, shown)

    for name, node in PRODUCTS.items():
        (weight, _), read = node.parameters.values(), node.in_shape
        shown: dict[str, Any] = {"layer": name, "precision": precision, "products": 1, "torch": torch.__version__}
        columns, depth = weight[0], prod(weight[1:])
        if name == "conv1" or columns % 16:  # of one-hot columns; fewer than tensor cores take
            continue
        rows = min(MOST_ROWS, batch * (node.out_shape[1] if len(node.out_shape) > 1 else 1))
        shown |= {"made": "cuBLAS", "shape": [rows, depth, columns]}
        yield times(name, rows, depth, columns, 2 * rows * depth * columns, shown)
        if len(weight) == 3 and precision != "fp8":
            x = drawn(batch, read[0], 1, read[1]).contiguous(memory_format=torch.channels_last)
            w = drawn(columns, weight[1], 1, weight[2]).contiguous(memory_format=torch.channels_last)
            shown = shown | {"made": "cuDNN", "batch": batch, "shape": [*x.shape]}
            shown |= {"cudnn": torch.backends.cudnn.version()}

            def convolve(x: Any = x, w: Any = w) -> Any:
                return F.conv2d(x, w)

            flop = 2 * batch * node.out_shape[1] * depth * columns
            yield Ready(f"{name} cuDNN {precision}", convolve, flop, shown)
    shown = {"layer": "peak", "made": "cuBLAS", "precision": precision, "products": 1, "shape": [SQUARE] * 3}
    shown |= {"torch": torch.__version__}
    yield times("peak", SQUARE, SQUARE, SQUARE, 2 * SQUARE**3, shown)


def measure(precision: str, batch: int) -> list[dict[str, Any]]:
    """All layers in a precision, and the libraries, by turns."""
    every: list[Ready] = []
    seen: set[tuple[str, str]] = set()
    for level in LISTED:
        if precision in level.precisions:
            every += layers_of(level, precision, batch, seen)
    if find_spec("torch") is not None:
        every += peers(precision, batch)
    return by_turns(every)


def main(argv: Sequence[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=HelpFormatter)
    parser.add_argument("--precisions", metavar="NAME,...", help=f"default: all, {','.join(PRECISIONS)}")
    parser.add_argument("--batch", type=int, default=4096, metavar="N", help="inputs per batch (default 4096)")
    parser.add_argument("--results-dir", type=Path, metavar="DIR", help="default: bench/results, for all precisions")
    options = parser.parse_args(argv)
    few = max(max(limits) for limits in SPREAD.values())
    if options.batch <= few:
        parser.error(f"--batch {options.batch}: need more than {few}, up to which l16 has layers for a few inputs")
    names = (options.precisions or ",".join(PRECISIONS)).split(",")
    if wrong := [name for name in names if name not in PRECISIONS]:
        parser.error(f"--precisions {wrong[0]!r}: need one of {', '.join(PRECISIONS)}")
    try:
        device.choose(1)
        device.require_hopper("layers", emulated=False)
    except device.DeviceError as error:
        print(f"layers: {error}", file=sys.stderr)
        return 2
    rows = [row for name in names for row in measure(name, options.batch)]
    here = machine.describe()
    folder = options.results_dir or (None if options.precisions else raw.RESULTS)
    if folder is not None:
        result = {"layers": rows, "data": "random parameters, seed 0; token ids uniform"}
        result |= {"machine": here, "commit": machine.commit()}
        raw.write(folder / f"{machine.name(here)}-layers.json", "layers", result)
    return 0


if __name__ == "__main__":
    sys.exit(main())
