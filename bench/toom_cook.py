"""Time conv2 by Toom-Cook's eleven products, from existing planes: each tile, relative to wgmma and cuBLAS.

    python bench/toom_cook.py --precisions fp16,tf32 --batch 4096

It needs a Hopper GPU; without PyTorch, cuBLAS is left out. First some inputs are checked against float64, and all
against the same inputs elsewhere in the batch. Rates count the direct sums' 21 products per window, except for cuBLAS's
eleven products, which count as themselves.

Exit status: 0 measured, 1 a result is wrong, 2 unusable machine.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import cases
import numpy as np
import raw
import steps
from layers import KINDS, MOST_ROWS
from numba import cuda
from turns import Ready, by_turns

from charcnn.gpu import device, graph
from charcnn.gpu.launch import Call
from charcnn.host import machine
from charcnn.host.arguments import HelpFormatter
from charcnn.ops.common.cast import narrow, widen
from charcnn.ops.common.epilogues import Pattern, pattern_of
from charcnn.ops.common.precision import LARGEST_E4M3
from charcnn.ops.conv1d.toom_cook.config import ToomCookTile
from charcnn.ops.conv1d.toom_cook.layer import PRECISIONS, ToomCookConv
from charcnn.ops.conv1d.toom_cook.transforms import DIRECT_PRODUCTS, PRODUCTS
from charcnn.ops.conv1d.wgmma.layer import WgmmaConv

CONV2 = next(layer for layer in steps.MEASURED if layer.name == "conv2")

TILES = {
    "fp16": (
        ToomCookTile(88, 5, 1), ToomCookTile(88, 5, 2), ToomCookTile(88, 5, 2, staggered=False), ToomCookTile(88, 4, 2),
        ToomCookTile(88, 5, 4), ToomCookTile(96, 5, 2), ToomCookTile(80, 5, 2), ToomCookTile(80, 6, 2, staggered=False),
    ),
    "tf32": (ToomCookTile(88, 5, 1), ToomCookTile(88, 5, 2), ToomCookTile(96, 5, 2)),
    "fp16x3": (
        ToomCookTile(64, 3, 1, terms=2), ToomCookTile(64, 3, 2, terms=2), ToomCookTile(88, 2, 2, terms=2),
        ToomCookTile(88, 2, 2, staggered=False, terms=2),
    ),
    "fp8": (
        ToomCookTile(88, 5, 1, staggered=False), ToomCookTile(88, 5, 2, staggered=False), ToomCookTile(88, 3, 2),
        ToomCookTile(96, 5, 2, staggered=False),
    ),
}  # fmt: skip
"""By precision, those that are tried."""

ENOUGH = 900
"""TFLOP/s of the direct sums in fp16: with fewer, nothing would be won once planes are written."""

Start = Callable[..., Any]


def described(tile: ToomCookTile) -> str:
    """A tile in a word."""
    cluster = f", cluster {tile.cluster_m}" if tile.cluster_m > 1 else ""
    return f"{tile.block_n}x{tile.stages}{cluster}{', staggered' if tile.staggered else ''}"


class Conv2:
    """conv2 in a precision: its numbers, its float64 result of some inputs, and what takes turns."""

    def __init__(self, precision: str, batch: int, rectified: bool) -> None:
        self.of, self.batch = PRECISIONS[precision], batch
        length, c_in, kernel_size, c_out = steps.sizes(CONV2)
        draw = np.random.default_rng(0)
        drawn = draw.standard_normal((steps.DRAWN, length, c_in), np.float32)
        drawn = np.maximum(drawn, 0) if rectified else drawn
        scale = np.float32(np.sqrt(kernel_size * c_in))
        self.weight = draw.standard_normal((kernel_size, c_in, c_out), np.float32) / scale
        self.bias = draw.standard_normal(c_out, np.float32)
        self.which = sorted({0, batch // 2, batch - 1})
        self.want = steps.expected(steps.POOLED, drawn[np.array(self.which) % steps.DRAWN], self.weight, self.bias)
        eighth = precision == "fp8"
        self.x_unit = float(np.abs(drawn).max()) / LARGEST_E4M3 if eighth else 1.0
        self.y_unit = float(self.want.max()) / LARGEST_E4M3 if eighth else 1.0
        source = device.to_device(drawn[np.arange(batch) % steps.DRAWN])
        call = Call(None, None, source.shape, x=source)
        self.x = narrow(call, source, length, c_in, self.of, 1 / self.x_unit)
        self.flop = 2 * batch * (length - kernel_size + 1) * kernel_size * c_in * c_out
        self.depth, self.rows, self.c_out = kernel_size * c_in, batch * (length - kernel_size + 1), c_out
        self._planes: Any = None

    def check(self, name: str, y: Any) -> dict[str, Any]:
        """The row of what wrote y.

        Raises:
            SystemExit: y is wrong, or differs for the same input.
        """
        found = y.copy_to_host().view(np.uint8)
        if not np.array_equal(found, found[np.arange(self.batch) % steps.DRAWN]):
            raise SystemExit(f"{name} gives different results for the same input")
        got = np.stack([self._floats(y, i) for i in self.which])
        error, tolerance = cases.error(got, self.want), self.of.tolerance
        if not error <= tolerance:
            raise SystemExit(f"{name} is wrong: relative error {error:.1e}, allowed {tolerance:g}")
        row = {"step": name, "layer": CONV2.name, "operator": steps.POOLED, "batch": self.batch}
        return row | {"precision": self.of.name, "error": error, "tolerance": tolerance}

    def _floats(self, y: Any, i: int) -> np.ndarray:
        own = y[i : i + 1]
        if self.of.ptx_type != "tf32":
            call = Call(None, None, (1, *self.want.shape[1:]), dtypes={"x": self.of.dtype}, x=own)
            widen(call, own, call.out, self.of, self.y_unit)
            own = call.out
        values: np.ndarray = own.copy_to_host()[0].astype(np.float64)
        return values

    def ready(self, technique: str, name: str, start: Start, tile: ToomCookTile | None = None) -> Ready:
        """Checked, from outputs of NaN, and recorded as a graph. `start` takes `out` and `stream` by name."""
        shape = self.batch, self.want.shape[1], self.of.terms * self.c_out
        nothing = np.frombuffer(b"\xff" * self.of.itemsize, self.of.dtype)
        y = device.to_device(np.full(shape, nothing[0], self.of.dtype))
        start(out=y)
        row = self.check(f"{technique} {name} in {self.of.name}", y)
        row |= {} if tile is None else {"tile": described(tile)}
        stream = cuda.stream()
        recorded = graph.Graph(lambda on: start(out=y, stream=on), stream)
        return Ready(f"{self.of.name} {technique} {name}", recorded.launch, self.flop, row, stream)

    def _conv(self, tile: ToomCookTile) -> ToomCookConv:
        units = {"x_unit": self.x_unit, "y_unit": self.y_unit}
        return ToomCookConv(*self._given(), precision=self.of.name, tile=tile, **units)

    def _given(self) -> tuple[Pattern, dict[str, Any]]:
        return pattern_of(self.weight, "relu", steps.POOL_SIZE), {"weight": self.weight, "bias": self.bias}

    def toom_cook(self, tile: ToomCookTile) -> Ready:
        """The kernel alone, from planes."""
        conv = self._conv(tile)
        if self._planes is None:
            self._planes = conv.planes(self.x)
        planes = self._planes

        def start(out: Any, stream: Any = None) -> Any:
            return conv.of_planes(planes, out=out, stream=stream)

        return self.ready("toom_cook", described(tile), start, tile)

    def with_planes(self, tile: ToomCookTile) -> Ready:
        """A kernel that makes the planes, and the other one."""
        conv, planes = self._conv(tile), self._planes

        def start(out: Any, stream: Any = None) -> Any:
            conv.planes(self.x, out=planes, stream=stream)
            return conv.of_planes(planes, out=out, stream=stream)

        return self.ready("toom_cook", f"{described(tile)}, planes first", start)

    def tuned(self) -> Ready:
        """Today's layer."""
        units = {"x_unit": self.x_unit, "y_unit": self.y_unit}
        conv = WgmmaConv(*self._given(), precision=self.of.name, **units)

        def start(out: Any, stream: Any = None) -> Any:
            return conv.apply(self.x, out=out, stream=stream)

        return self.ready("wgmma", "tuned kernel", start)

    def cublas(self, name: str, rows: int, depth: int) -> Ready:
        """A product of random numbers, in the same precision."""
        import torch

        torch.backends.cuda.matmul.allow_tf32 = self.of.name == "tf32"
        kind, rows, columns = getattr(torch, KINDS[self.of.name]), min(rows, MOST_ROWS), self.c_out
        a, b = (torch.randn(*shape, device="cuda").to(kind) for shape in ((rows, depth), (columns, depth)))
        shown = {"step": name, "precision": self.of.name, "shape": [rows, depth, columns], "torch": torch.__version__}
        one, flop = torch.ones((), device="cuda"), 2 * rows * depth * columns

        def scaled() -> None:
            torch._scaled_mm(a, b.T, one, one, out_dtype=torch.bfloat16, use_fast_accum=True)

        def plain() -> None:
            torch.mm(a, b.T)

        return Ready(f"{self.of.name} {name}", scaled if self.of.name == "fp8" else plain, flop, shown)

    def every(self) -> Iterator[Ready]:
        """What takes turns."""
        for tile in TILES[self.of.name]:
            yield self.toom_cook(tile)
        yield self.with_planes(TILES[self.of.name][0])
        yield self.tuned()
        if find_spec("torch") is not None and self.of.name in KINDS:
            yield self.cublas("cuBLAS", self.rows, self.depth)
            yield self.cublas("cuBLAS, eleven products", self.rows // 3, self.depth * PRODUCTS // 7)


def main(argv: Sequence[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=HelpFormatter)
    parser.add_argument("--precisions", default="fp16", metavar="NAME,...", help=f"{','.join(TILES)} (default fp16)")
    parser.add_argument("--batch", type=int, default=4096, metavar="N", help="inputs per batch (default 4096)")
    parser.add_argument("--relu", action="store_true", help="use features that are half zeros")
    parser.add_argument(
        "--results-dir", type=Path, metavar="DIR", help="write MACHINE-toom-cook.json there (default: write nothing)"
    )
    options = parser.parse_args(argv)
    names = options.precisions.split(",")
    if wrong := [name for name in names if name not in TILES]:
        parser.error(f"--precisions {wrong[0]!r}: need some of {', '.join(TILES)}")
    if options.batch < 1:
        parser.error(f"--batch {options.batch}: need 1 or more")
    try:
        device.choose(1)
        device.require_hopper("toom_cook", emulated=False)
    except device.DeviceError as error:
        print(f"toom_cook: {error}", file=sys.stderr)
        return 2
    rows = []
    for name in names:
        found = by_turns(list(Conv2(name, options.batch, options.relu).every()))
        best = max((row for row in found if "tile" in row), key=lambda row: row["tflop_per_second"])
        rate, taken = best["tflop_per_second"], best["tflop_per_second"] * PRODUCTS / DIRECT_PRODUCTS
        enough = f"; enough from {ENOUGH} on" if name == "fp16" else ""
        print(f"{name}: best tile {best['tile']}: {rate:.0f} TFLOP/s of direct sums, {taken:.0f} taken{enough}")
        rows += found
    if options.results_dir is not None:
        here, data = machine.describe(), "ReLU of standard normal" if options.relu else "standard normal"
        result = {"toom_cook": rows, "data": f"{data}, seed 0", "machine": here, "commit": machine.commit()}
        raw.write(options.results_dir / f"{machine.name(here)}-toom-cook.json", "toom_cook", result)
    return 0


if __name__ == "__main__":
    sys.exit(main())
