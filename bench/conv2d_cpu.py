"""Time prepared convolutions on all CPU cores, relative to PyTorch's (oneDNN), at batch 1 and 8.

Shapes are of images and of sequences. All have bias, ReLU and weights in place, and must match the float64 reference
within the operators' tolerance. PyTorch runs in inference mode on as many threads, channels first and channels last.
Each round takes all of a shape in random order, after the previous threads have stopped spinning. A round in which
other processes took a few percent of the cores is repeated.

A full run writes results/MACHINE-conv2d.json. Exit status: 0 measured, 1 a result is wrong or the machine stays busy, 2
PyTorch is missing.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numba
import numpy as np
import raw

from charcnn.catalog import FLOAT32
from charcnn.host import machine
from charcnn.host.arguments import HelpFormatter
from charcnn.ops import reference
from charcnn.ops.common.arrays import pack
from charcnn.ops.common.cpu_conv import CpuConv
from charcnn.ops.common.epilogues import pattern_of
from charcnn.ops.conv1d.winograd_cpu import CpuWinogradConv

ROUNDS, PATIENCE, OTHERS = 9, 7200.0, 0.05
"""Rounds that count; seconds after which a shape is given up; what others may take of the cores."""

PAUSE, WAKING, TIMED = 0.2, 0.008, 0.04
"""Seconds to look whether others pause; of a turn before the clock starts; on it."""

LIBRARY = {"NCHW": "contiguous_format", "NHWC": "channels_last"}
"""Layouts of PyTorch's features and weights."""


class Shape(NamedTuple):
    """A convolution of as many input as output channels."""

    channels: int
    size: tuple[int, int]
    kernel: tuple[int, int]
    padding: int

    @property
    def name(self) -> str:
        """The table's name of it: an image's shape as a square, a sequence by its length."""
        (height, width), (rows, columns) = self.size, self.kernel
        if height == 1:
            return f"K {columns} C{self.channels} L {width}"
        return f"{rows}x{columns} C{self.channels} {height}x{width}"


SHAPES = (
    *(Shape(c, (size, size), (3, 3), 1) for c, size in ((64, 56), (128, 28), (256, 14), (512, 7))),
    Shape(96, (27, 27), (5, 5), 2),
    Shape(64, (56, 56), (7, 7), 3),
    *(Shape(c, (1, length), (1, k), 0) for c in (64, 256, 1024) for k in (3, 7) for length in (336, 112)),
)
"""ResNet-50's 3 x 3 convolutions, AlexNet's second, a large kernel, and sequences."""


def contestants(shape: Shape, batch: int) -> Iterator[tuple[str, Callable[[], Any], Callable[[], np.ndarray]]]:
    """Name, call, and what gives its result, channels-last, of each."""
    import torch
    import torch.nn.functional as F

    rng, (h, w), pad = np.random.default_rng(0), shape.size, shape.padding
    x = np.maximum(rng.standard_normal((batch, h, w, shape.channels), np.float32), 0)
    weight = rng.standard_normal((shape.channels, shape.channels, *shape.kernel), np.float32)
    bias = rng.standard_normal(shape.channels, np.float32)
    expected = reference.conv2d_relu(x.transpose(0, 3, 1, 2).astype(np.float64), weight, bias, padding=pad)
    expected = expected.transpose(0, 2, 3, 1)

    def error(result: np.ndarray) -> float:
        return float(np.linalg.norm(result - expected) / np.linalg.norm(expected))

    packed = pack(weight)
    for made in (CpuConv, CpuWinogradConv):
        layer = made(pattern_of(packed, "relu", padding=pad), {"weight": packed, "bias": bias})
        out = np.full(expected.shape, np.nan, np.float32)
        yield made.__name__, lambda layer=layer, out=out: layer(x, out), lambda out=out: error(out)
    for layout, memory in LIBRARY.items():
        order = {"memory_format": getattr(torch, memory)}
        xs, ws = (
            torch.from_numpy(x).permute(0, 3, 1, 2).contiguous(**order),
            torch.from_numpy(weight).contiguous(**order),
        )
        bs = torch.from_numpy(bias)

        def call(xs: Any = xs, ws: Any = ws, bs: Any = bs) -> Any:
            return torch.relu_(F.conv2d(xs, ws, bs, padding=pad))

        yield f"PyTorch {layout}", call, lambda call=call: error(call().permute(0, 2, 3, 1).numpy())


def measure(shape: Shape, batch: int) -> list[dict[str, Any]]:
    """All at one shape, a row each.

    Raises:
        SystemExit: a result is wrong.
    """
    out = (
        shape.size[0] + 2 * shape.padding - shape.kernel[0] + 1,
        shape.size[1] + 2 * shape.padding - shape.kernel[1] + 1,
    )
    flop = 2 * batch * out[0] * out[1] * shape.channels**2 * shape.kernel[0] * shape.kernel[1]
    rows, calls, seconds = [], [], []
    for made, call, check in contestants(shape, batch):
        call()
        error = check()
        if not error <= FLOAT32:
            raise SystemExit(f"{made} is wrong at {shape.name}, N = {batch}: {error:.2g}, allowed {FLOAT32:g}")
        row = {"shape": shape.name, "channels": shape.channels, "size": shape.size, "kernel": shape.kernel}
        rows.append(row | {"batch": batch, "made": made, "error": error})
        calls.append(call)
    seconds: list[list[float]] = [[] for _ in calls]
    order, start = random.Random(0), time.perf_counter()
    while len(seconds[0]) < ROUNDS:
        if time.perf_counter() - start > PATIENCE:
            raise SystemExit(f"{shape.name}: other processes take the cores")
        began, busy, found = time.perf_counter(), others(), [0.0] * len(calls)
        time.sleep(PAUSE)
        if others() - busy > OTHERS * (os.cpu_count() or 1) * (time.perf_counter() - began):
            continue
        began, busy = time.perf_counter(), others()
        for i in order.sample(range(len(calls)), len(calls)):
            turn(calls[i], WAKING)
            found[i] = turn(calls[i], TIMED)
        if others() - busy <= OTHERS * (os.cpu_count() or 1) * (time.perf_counter() - began):
            for each, one in zip(seconds, found, strict=True):
                each.append(one)
    for row, of in zip(rows, seconds, strict=True):
        median = statistics.median(of)
        row |= {"microseconds": 1e6 * median, "gflop_per_second": flop / median / 1e9}
        row["rounds"] = [1e6 * each for each in of]
        name = f"{shape.name} N = {batch} {row['made']}"
        print(f"{name:44} {1e6 * median:9.1f} us {flop / median / 1e9:7.1f} GFLOP/s", flush=True)
    return rows


def turn(call: Callable[[], Any], seconds: float) -> float:
    """The time of a call, of as many as begin within so many seconds."""
    start, times = time.perf_counter(), 0
    while time.perf_counter() - start < seconds:
        call()
        times += 1
    return (time.perf_counter() - start) / times


def others() -> float:
    """Seconds of the cores that other processes have had since the machine started; 0 where the system does not say."""
    if not (stat := Path("/proc/stat")).exists():
        return 0.0
    user, nice, system, _, _, *interrupts = map(int, stat.read_text().splitlines()[0].split()[1:8])
    return (user + nice + system + sum(interrupts)) / os.sysconf("SC_CLK_TCK") - time.process_time()


def main(argv: Sequence[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=HelpFormatter)
    parser.add_argument("--shapes", metavar="PART,...", help="shapes whose name contains one of these (default: all)")
    parser.add_argument("--batches", default="1,8", metavar="N,...", help="inputs per batch (default 1,8)")
    parser.add_argument("--results-dir", type=Path, metavar="DIR", help="default: bench/results, for a full run")
    options = parser.parse_args(argv)
    parts = options.shapes.split(",") if options.shapes else [""]
    shapes = [shape for shape in SHAPES if any(part in shape.name for part in parts)]
    if not shapes:
        parser.error(f"--shapes {options.shapes}: need a part of one of {', '.join(shape.name for shape in SHAPES)}")
    if find_spec("torch") is None:
        print("conv2d_cpu: PyTorch is not installed", file=sys.stderr)
        return 2
    import torch

    torch.set_num_threads(numba.get_num_threads())
    with torch.inference_mode():
        rows = [row for n in options.batches.split(",") for shape in shapes for row in measure(shape, int(n))]
    folder = options.results_dir or (None if options.shapes else raw.RESULTS)
    if folder is not None:
        here = machine.describe()
        result = {"convolutions": rows, "torch": torch.__version__, "threads": numba.get_num_threads()}
        result |= {"data": "normal, seed 0, features not negative", "machine": here, "commit": machine.commit()}
        raw.write(folder / f"{machine.name(here)}-conv2d.json", "conv2d_cpu", result)
    return 0


if __name__ == "__main__":
    sys.exit(main())
