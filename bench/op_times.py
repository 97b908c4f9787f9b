"""Time ece408's two convolutions in every technique and in PyTorch, as the course counts op times.

Features and weights are float32, channels first; packing is inside the clock. On a GPU they lie in its memory, and each
call is a CUDA graph, PyTorch's too. The first and last image are checked against the float64 reference. Techniques take
turns; medians count. --pools times ReLU and max-pooling on a GPU, in the convolution's kernel and in their own, also
for AlexNet's first layer.

A full run writes results/MACHINE-op-times.json, with --pools results/designs/MACHINE-pooling.json. Exit status: 0
measured, 1 a result is wrong, 2 unusable options.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import raw
from turns import Ready, by_turns

from charcnn.catalog import VARIANTS, Variant, tolerance
from charcnn.gpu import device
from charcnn.host import machine
from charcnn.host.arguments import HelpFormatter
from charcnn.layers import Conv2d, Node, place
from charcnn.networks import alexnet, ece408
from charcnn.ops import maxpool2d_naive, reference
from charcnn.ops.common.precision import TENSOR_PRECISIONS

IMAGES, POOLED_IMAGES = (10, 100, 10_000), (100, 1000)
SECONDS, ROUNDS = 0.2, 5
"""Of a turn, where one call is shorter; turns, of which the median counts. One call that takes longer than `LONG`
seconds is timed once."""
LONG = 2.0

LAYERS = {node.layer.label: node for node in place(ece408.layers("64"), (64 * 64,)) if isinstance(node.layer, Conv2d)}

POOLED = {
    **{f"ece408 {name}": node for name, node in LAYERS.items()},
    "alexnet conv1": place(alexnet.layers("2012"), (3 * 227 * 227,))[1],
}
"""Of few input channels, as `direct` takes them. AlexNet of 2012 normalises first, its later form does not."""

TORCH = "PyTorch"

SHOWN = ("fp16x3", "tf32")
"""Precisions of tensor cores."""

Contestant = tuple[str, Callable[..., Any], float]
"""Name, call, and the error that it may have. On a GPU our calls take a stream."""


def contestants(node: Node, x: np.ndarray, weight: np.ndarray, where: str) -> Iterator[Contestant]:
    """Every technique of conv2d in float32, fp16x3, which stands for that, and TF32; PyTorch where it is installed."""
    bias, shape = np.zeros(len(weight), np.float32), (len(x), *node.out_shape)
    for row in VARIANTS:
        if (row.operator, row.device) == ("conv2d", where) and row.precision in (None, *SHOWN) and runs(row):
            arrays: list[Any] = [x, weight, bias]
            out: Any = np.full(shape, np.nan, np.float32)
            if where == "cuda":
                *arrays, out = map(device.to_device, (*arrays, out))
            yield row.label, partial(launched, row.launcher, arrays, out), tolerance(row)
    if find_spec("torch") is not None:
        import torch
        import torch.nn.functional as F

        torch.set_num_threads(machine.describe()["cores"])
        torch.backends.cuda.matmul.allow_tf32 = False
        torch.backends.cudnn.benchmark = True
        xs, ws = (torch.from_numpy(array).to(where) for array in (x, weight))

        def call(tf32: bool) -> Any:
            torch.backends.cudnn.allow_tf32 = tf32
            with torch.inference_mode():
                return F.conv2d(xs, ws)

        yield TORCH, partial(call, False), 1e-5
        if where == "cuda":
            yield f"{TORCH}, tf32", partial(call, True), TENSOR_PRECISIONS["tf32"].tolerance


def runs(row: Variant) -> bool:
    """Whether the GPU has what it needs."""
    return not row.tensor_cores or device.has_tensor_cores(hopper=row.hopper, turing=row.turing)


def moves(node: Node) -> dict[str, Any]:
    """How a convolution's window moves, as operators take it."""
    assert isinstance(node.layer, Conv2d)
    return node.layer.moves


def pooled(node: Node, x: np.ndarray, weight: np.ndarray, size: int, stride: int) -> Iterator[Contestant]:
    """Every technique that has conv2d_relu_maxpool2d, in one kernel and in two."""
    arrays = [device.to_device(array) for array in (x, weight, np.zeros(len(weight), np.float32))]
    channels, *sides = node.out_shape
    sizes = (channels, *sides), (channels, *((side - size) // stride + 1 for side in sides))
    for row in VARIANTS:
        if row.operator != "conv2d_relu_maxpool2d":
            continue
        between, out, other = (
            device.to_device(np.full((len(x), *shape), np.nan, np.float32)) for shape in (*sizes, sizes[1])
        )
        whole = partial(row.launcher, pool_stride=stride, **moves(node))
        yield f"{row.technique}, one kernel", partial(launched, whole, (*arrays, size), out), tolerance(row)
        first = next(r.launcher for r in VARIANTS if (r.operator, r.technique) == ("conv2d_relu", row.technique))
        before = partial(launched, partial(first, **moves(node)), arrays, between)
        pool = partial(launched, partial(maxpool2d_naive, stride=stride), (between, size), other)
        yield f"{row.technique}, two kernels", partial(in_turn, before, pool), tolerance(row)


def in_turn(before: Callable[..., Any], after: Callable[..., Any], stream: Any = None) -> Any:
    """Two calls, on a stream where there is one; the second's result."""
    before(stream=stream)
    return after(stream=stream)


def launched(launcher: Callable[..., Any], arrays: Sequence[Any], out: Any, stream: Any = None) -> Any:
    """One call, on a stream where there is one."""
    return launcher(*arrays, out=out, **({} if stream is None else {"stream": stream}))


def graphs(calls: Sequence[tuple[str, Callable[..., Any]]], layer: str, flops: int) -> list[Ready]:
    """The calls on a GPU, each as a CUDA graph."""
    from conv2d import captured
    from numba import cuda

    from charcnn.gpu.graph import Graph

    found = []
    for name, call in calls:
        stream = None if name.startswith(TORCH) else cuda.stream()
        started = captured(call) if stream is None else Graph(lambda on, call=call: call(stream=on), stream).launch
        found.append(Ready(f"{layer} {name}", started, flops, {}, stream))
    return found


def settled(result: Any) -> np.ndarray:
    """What a call gave, on the host."""
    if hasattr(result, "copy_to_host"):
        return np.asarray(result.copy_to_host())
    return result if isinstance(result, np.ndarray) else np.asarray(result.cpu())


def measure(
    name: str, node: Node, images: int, where: str, pool: tuple[int, int] | None = None
) -> list[dict[str, Any]]:
    """A row a technique; with a pool's size and stride, one more each.

    Raises:
        SystemExit: a result is wrong.
    """
    rng = np.random.default_rng(0)
    x = rng.random((images, *node.in_shape), np.float32)
    weight = rng.standard_normal(node.parameters[f"{node.layer.name}.weight"], np.float32)
    ends, zeros = [0, images - 1], np.zeros(len(weight))
    exact = x[ends].astype(np.float64), weight.astype(np.float64), zeros
    expected = reference.conv2d(*exact, **moves(node))
    found = contestants(node, x, weight, where)
    said: dict[str, Any] = {"layer": name, "images": images}
    if pool is not None:
        expected = reference.maxpool2d(reference.relu(expected), pool[0], stride=pool[1])
        found, said["pool"] = pooled(node, x, weight, *pool), list(pool)
    calls, rows = [], []
    for technique, call, allowed in found:
        result = settled(call())[ends]
        error = float(np.linalg.norm(result - expected) / np.linalg.norm(expected))
        if not error <= allowed:
            raise SystemExit(f"{technique} is wrong: {name}, {images} images: {error:.2g}, allowed {allowed:g}")
        calls.append(call)
        rows.append({**said, "technique": technique, "error": error})
    flops, layer = images * node.flops, f"{name}{' {}/{}'.format(*pool) if pool else ''} {images:>6}"
    if where == "cuda":
        names = [row["technique"] for row in rows]
        timed = by_turns(graphs([*zip(names, calls, strict=True)], layer, flops))
        seconds = [[flops / 1e12 / rate for rate in row["rounds"]] for row in timed]
    else:
        seconds = turns(calls, rng)
    for row, of in zip(rows, seconds, strict=True):
        row |= {"seconds": statistics.median(of), "rounds": of, "flops": flops}
        rate = f"{1e3 * row['seconds']:12.4f} ms {row['flops'] / row['seconds'] / 1e9:9.1f} GFLOP/s"
        print(f"{layer} {row['technique']:18} {rate}", flush=True)
    return rows


def turns(calls: Sequence[Callable[[], Any]], rng: np.random.Generator) -> list[list[float]]:
    """Seconds of each call on a CPU, in rounds of drawn order."""
    times, seconds = [], [[] for _ in calls]
    for one, of in zip(calls, seconds, strict=True):
        first = _seconds(one, 1)
        times.append(0 if first > LONG else max(1, round(SECONDS / first)))
        if first > LONG:
            of.append(first)
    for _ in range(ROUNDS):
        for i in rng.permutation(len(calls)):
            if times[i]:
                seconds[i].append(_seconds(calls[i], times[i]))
    return seconds


def _seconds(call: Callable[[], Any], times: int) -> float:
    start = time.perf_counter()
    for _ in range(times):
        call()
    return (time.perf_counter() - start) / times


def pools(text: str) -> list[tuple[int, int]]:
    """Sizes and strides, as 3/2,2/2.

    Raises:
        ValueError: one is none.
    """
    found = [tuple(int(part) for part in one.split("/")) for one in text.split(",")]
    if any(len(one) != 2 or min(one) < 1 for one in found):
        raise ValueError(f"{text}: need SIZE/STRIDE, of at least 1")
    return [(size, stride) for size, stride in found]


def main(argv: Sequence[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=HelpFormatter)
    counts = f"images per call (default {','.join(map(str, IMAGES))}; with --pools {','.join(map(str, POOLED_IMAGES))})"
    parser.add_argument("--images", metavar="N,...", help=counts)
    parser.add_argument("--device", choices=("cpu", "cuda"), help="default: cuda if there is a GPU")
    parser.add_argument("--pools", type=pools, metavar="SIZE/STRIDE,...", help="time pooling, in one kernel and in two")
    parser.add_argument("--results-dir", type=Path, metavar="DIR", help="default: bench/results, for a full run")
    options = parser.parse_args(argv)
    here = machine.describe()
    where = options.device or ("cuda" if here["gpus"] and not device.SIMULATED else "cpu")
    if where == "cuda" and (device.SIMULATED or not here["gpus"]):
        parser.error("--device cuda: there is no GPU")
    if options.pools and where == "cpu":
        parser.error("--pools: needs a GPU")
    layers, default = (POOLED, POOLED_IMAGES) if options.pools else (LAYERS, IMAGES)
    images = [int(n) for n in options.images.split(",")] if options.images else default
    rows = [
        row for pool in options.pools or [None] for n in images for name, node in layers.items()
        for row in measure(name, node, n, where, pool)
    ]  # fmt: skip
    if where == "cpu":
        here["gpus"], here["driver"] = [], None  # none was used
    folder = options.results_dir or (None if options.images else raw.RESULTS / ("designs" if options.pools else ""))
    if folder is not None:
        result = {"op_times": rows, "device": where, "machine": here, "commit": machine.commit()}
        what = "pooling" if options.pools else "op-times"
        raw.write(folder / f"{machine.name(here)}-{what}.json", "op_times", result)
    return 0


if __name__ == "__main__":
    sys.exit(main())
