"""Blocks 3 to 6's convolutions in half precision: one kernel, beside a kernel each by `mma` and by `wgmma`.

`python bench/half_chain.py [--precisions fp16,bf16] [--batches 132,4096]` needs a GPU with tensor cores; `wgmma` takes
part on Hopper's. All give the same: conv6's result and the moments that its LayerNorm needs. Each is checked against
the float64 reference first; then they take turns, as CUDA graphs. Writes results/MACHINE-half-chain.json.
Exit status: 0 measured, 1 a result is wrong, 2 it cannot run here.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import cases
import numpy as np
import raw
from numba import cuda
from turns import Ready, by_turns

from charcnn.config import SMALL
from charcnn.gpu import device, graph
from charcnn.gpu.launch import Call
from charcnn.host import machine
from charcnn.ops import reference
from charcnn.ops.chain import Conv1d, Relu, Stat, plan
from charcnn.ops.common.cast import narrow, widen
from charcnn.ops.common.epilogues import pattern_of
from charcnn.ops.common.precision import HALF_PRECISIONS
from charcnn.ops.conv1d.mma.layer import MmaConv
from charcnn.ops.conv1d.wgmma.layer import WgmmaConv

DRAWN = 16
"""Inputs drawn; the batch is these again and again, as its numbers decide how much power a product takes."""

LAYERS = [layer for size in SMALL.kernel_sizes[2:] for layer in (Conv1d(SMALL.channels, size), Relu())]

Parameters = list[tuple[np.ndarray, np.ndarray]]
"""Weight (C_out, C_in, K) and bias of each convolution."""


def drawn() -> tuple[np.ndarray, Parameters]:
    """Features (DRAWN, L, C), and parameters that keep their size."""
    draw, channels = np.random.default_rng(0), SMALL.channels
    x = draw.standard_normal((DRAWN, SMALL.block_lengths[1], channels), np.float32)
    shapes = [(channels, channels, size) for size in SMALL.kernel_sizes[2:]]
    scales = [np.float32(np.sqrt(2 / (shape[1] * shape[2]))) for shape in shapes]
    return x, [
        (scale * draw.standard_normal(shape, np.float32), draw.standard_normal(channels, np.float32))
        for scale, shape in zip(scales, shapes, strict=True)
    ]


def expected(x: np.ndarray, parameters: Parameters) -> np.ndarray:
    """In float64."""
    for i, (weight, bias) in enumerate(parameters):
        x = reference.conv1d_nlc(x.astype(np.float64), weight.transpose(2, 1, 0).astype(np.float64), bias)
        x = reference.relu(x) if i + 1 < len(parameters) else x
    return x


def one_by_one(of: type[MmaConv | WgmmaConv], parameters: Parameters, precision: str, n: int) -> Any:
    """(x, out, stream): a kernel a convolution, the last with moments."""
    convs = []
    for i, (w, b) in enumerate(parameters):
        weight, last = np.ascontiguousarray(w.transpose(2, 1, 0)), i == len(parameters) - 1
        pattern = pattern_of(weight, "" if last else "relu")
        convs.append(of(pattern, {"weight": weight, "bias": b}, precision=precision, moments=last))
    length, dtype, between = SMALL.block_lengths[1], HALF_PRECISIONS[precision].dtype, []
    for conv in convs[:-1]:
        length -= conv.taps - 1
        between.append(device.empty((n, length, SMALL.channels), dtype))
    partial_moments = device.empty(convs[-1].partial_moments_shape(n, length), np.float32)

    def start(x: Any, out: Any, stream: Any) -> None:
        for conv, y in zip(convs[:-1], between, strict=True):
            x = conv.apply(x, out=y, stream=stream)
        convs[-1].with_moments(x, out=out, stream=stream, partial_moments=partial_moments)

    return start


def ways(precision: str, n: int, parameters: Parameters) -> Iterator[tuple[str, Callable[..., Any]]]:
    """What gives (y, stat), under its name."""
    made = plan([*LAYERS[:-1], Stat()], in_channels=SMALL.channels, length=SMALL.block_lengths[1], precision=precision)
    fused = made.prepare(*zip(*parameters, strict=True))
    yield "one kernel", lambda x, out, stream: fused(x, out=out, stream=stream)
    yield "a kernel each, mma", one_by_one(MmaConv, parameters, precision, n)
    if device.has_tensor_cores(hopper=True):
        yield "a kernel each, wgmma", one_by_one(WgmmaConv, parameters, precision, n)


def measure(precision: str, n: int) -> list[dict[str, Any]]:
    """A row a way.

    Raises:
        SystemExit: a result is wrong.
    """
    of, (x, parameters) = HALF_PRECISIONS[precision], drawn()
    call = Call(None, None, x.shape, x=x)
    held = narrow(call, call.inputs[0], x.shape[1], x.shape[2], of)
    exact = Call(None, None, x.shape, dtypes={"x": of.dtype}, x=held)
    widen(exact, held, exact.out, of)
    want = expected(exact.out.copy_to_host(), parameters)
    features = device.to_device(held.copy_to_host()[np.arange(n) % DRAWN])
    flop, ready = 2 * n * SMALL.channels**2 * sum(3 * length for length in SMALL.conv_lengths[2:]), []
    for name, start in ways(precision, n, parameters):
        out = device.empty((n, *want.shape[1:]), of.dtype), device.to_device(np.full((n, 2), np.nan))
        stream = cuda.stream()
        recorded = graph.Graph(lambda on, start=start, out=out: start(features, out, on), stream)
        recorded.launch()
        stream.synchronize()
        first = device.to_device(out[0].copy_to_host()[:DRAWN])
        wide = Call(None, None, first.shape, dtypes={"x": of.dtype}, x=first)
        widen(wide, first, wide.out, of)
        error = cases.error(wide.out.copy_to_host(), want[: len(first)])
        moments = np.abs(out[1].copy_to_host()[:DRAWN] - reference.stat(want)[:n]).max()
        if not (error <= 2 * of.tolerance and moments <= 4 * of.tolerance * reference.stat(want)[:, 1].max()):
            raise SystemExit(f"{name} in {precision} is wrong: relative error {error:.1e}, of moments {moments:.1e}")
        row = {"way": name, "precision": precision, "batch": n, "error": error}
        ready.append(Ready(f"{name}, {precision}, N = {n}", recorded.launch, flop, row, stream))
    return by_turns(ready)


def main(argv: Sequence[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--precisions", default="fp16,bf16", metavar="NAME,...", help="default: fp16,bf16")
    parser.add_argument("--batches", default="132,4096", metavar="N,...", help="default: 132,4096")
    parser.add_argument("--results-dir", type=Path, default=raw.RESULTS, metavar="DIR", help="default: bench/results")
    options = parser.parse_args(argv)
    if not all(word.isdecimal() and int(word) > 0 for word in options.batches.split(",")):
        parser.error(f"--batches {options.batches}: need whole numbers from 1 on")
    precisions = options.precisions.split(",")
    if unknown := set(precisions) - set(HALF_PRECISIONS):
        parser.error(f"--precisions {options.precisions}: no {', '.join(sorted(unknown))}; need some of fp16, bf16")
    try:
        device.choose(1)
        device.require_tensor_cores("half_chain")
    except device.DeviceError as error:
        print(f"half_chain: {error}", file=sys.stderr)
        return 2
    rows = [row for of in precisions for batch in map(int, options.batches.split(",")) for row in measure(of, batch)]
    here = machine.describe()
    about = {"data": "standard normal, seed 0", "machine": here, "commit": machine.commit()}
    raw.write(options.results_dir / f"{machine.name(here)}-half-chain.json", "half_chain", {"ways": rows, **about})
    return 0


if __name__ == "__main__":
    sys.exit(main())
