"""conv2 of the network by Toom-Cook's eleven products, from planes that are there: each tile beside `wgmma` and cuBLAS.

`python bench/toom_cook.py [--batch 4096] [--relu]` needs a Hopper GPU; cuBLAS is left out where PyTorch is missing.
Each is checked against the float64 reference first. Rates count the direct sums' 21 products a window, less cuBLAS's
own of the eleven products, which counts those it takes. With --results-dir writes MACHINE-toom-cook.json there.
Exit status: 0 measured, 1 a result is wrong, 2 it cannot run here.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import raw
import steps
from turns import Ready, by_turns

from charcnn.gpu import device
from charcnn.host import machine
from charcnn.ops.conv1d.toom_cook.config import TileConfig
from charcnn.ops.conv1d.toom_cook.layer import ToomCookWeights
from charcnn.ops.conv1d.toom_cook.transforms import DIRECT_PRODUCTS, PRODUCTS

CONV2 = next(layer for layer in steps.MEASURED if layer.name == "conv2")

TILES = (
    TileConfig(88, 5, 1),
    TileConfig(88, 5, 2),
    TileConfig(88, 5, 2, staggered=False),
    TileConfig(88, 4, 2),
    TileConfig(88, 5, 4),
    TileConfig(96, 5, 2),
    TileConfig(80, 5, 2),
    TileConfig(80, 6, 2, staggered=False),
)

ENOUGH = 900
"""TFLOP/s of the direct sums: with fewer, nothing would be won once planes are written."""


def described(tile: TileConfig) -> str:
    """A tile in a word."""
    cluster = f", cluster {tile.cluster_m}" if tile.cluster_m > 1 else ""
    return f"{tile.block_n}x{tile.stages}{cluster}{', staggered' if tile.staggered else ''}"


class Conv2(steps.Product):
    """conv2, and its planes."""

    def __init__(self, batch: int, rectified: bool) -> None:
        super().__init__(CONV2, batch)
        if rectified:
            self.drawn = np.maximum(self.drawn, np.float16(0))
            self.x = device.to_device(self.drawn[np.arange(batch) % steps.DRAWN])
        self._planes: Any = None

    def repeated(self, name: str, y: Any) -> None:
        """Hold all results against those of the same inputs at the batch's beginning.

        Raises:
            SystemExit: they are not the same bits.
        """
        found = y.copy_to_host().view(np.uint16)
        if not np.array_equal(found, found[np.arange(self.batch) % steps.DRAWN]):
            raise SystemExit(f"{name} gives different results for the same input")

    def toom_cook(self, tile: TileConfig) -> Ready:
        """The kernel alone, from planes."""
        conv = ToomCookWeights(self.weight, self.bias, tile=tile)
        if self._planes is None:
            self._planes = conv.planes(self.x)
        planes, name = self._planes, described(tile)

        def start(x: Any, out: Any = None, stream: Any = None) -> Any:
            return conv.of_planes(planes, out=out, stream=stream)

        self.repeated(name, start(self.x))
        ready = self.kernel("toom_cook", name, steps.POOLED, start)
        ready.row["tile"] = described(tile)
        return ready

    def with_planes(self, tile: TileConfig) -> Ready:
        """A kernel that makes the planes, and the other one."""
        conv, planes = ToomCookWeights(self.weight, self.bias, tile=tile), self._planes

        def start(x: Any, out: Any = None, stream: Any = None) -> Any:
            conv.planes(x, out=planes, stream=stream)
            return conv.of_planes(planes, out=out, stream=stream)

        return self.kernel("toom_cook", f"{described(tile)}, planes first", steps.POOLED, start)

    def eleven_products(self) -> Ready:
        """cuBLAS's product of the size of the eleven: rows of windows, of 11 C_in numbers."""
        import torch

        length, c_in, kernel_size, c_out = steps.sizes(self.layer)
        rows, depth = self.batch * ((length - kernel_size + 1) // 3), PRODUCTS * c_in
        a = torch.randn(rows, depth, dtype=torch.float16, device="cuda")
        b = torch.randn(depth, c_out, dtype=torch.float16, device="cuda")
        y = torch.empty((rows, c_out), dtype=torch.float16, device="cuda")
        row = {"step": "cuBLAS, eleven products", "layer": self.layer.name, "batch": self.batch}
        row |= {"shape": [rows, depth, c_out], "torch": torch.__version__}

        def run() -> None:
            torch.mm(a, b, out=y)

        return Ready("conv2 cuBLAS, eleven products", run, 2 * rows * depth * c_out, row)

    def tuned(self) -> Ready:
        """Today's layer."""
        conv = steps.TECHNIQUES["wgmma"].tuned(self.weight, self.bias, precision="fp16")

        def start(x: Any, out: Any = None, stream: Any = None) -> Any:
            return conv.conv1d_relu_maxpool1d(x, out=out, stream=stream)

        return self.kernel("wgmma", steps.TUNED[steps.POOLED], steps.POOLED, start)

    def every(self, tiles: Sequence[TileConfig]) -> Iterator[Ready]:
        """What takes turns."""
        for tile in tiles:
            yield self.toom_cook(tile)
        yield self.with_planes(tiles[0])
        yield self.tuned()
        if find_spec("torch") is not None:
            yield self.cublas()
            yield self.eleven_products()


def main(argv: Sequence[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=4096, metavar="N")
    parser.add_argument("--relu", action="store_true", help="features that are half zeros, as the network's are")
    parser.add_argument("--results-dir", type=Path, metavar="DIR", help="default: nothing is written")
    options = parser.parse_args(argv)
    if options.batch < 1:
        parser.error(f"--batch {options.batch}: need 1 or more")
    try:
        device.choose(1)
        device.require_hopper("toom_cook")
    except device.DeviceError as error:
        print(f"toom_cook: {error}", file=sys.stderr)
        return 2
    rows = by_turns(list(Conv2(options.batch, options.relu).every(TILES)))
    best = max((row for row in rows if "tile" in row), key=lambda row: row["tflop_per_second"])
    rate, real = best["tflop_per_second"], best["tflop_per_second"] * PRODUCTS / DIRECT_PRODUCTS
    print(f"best tile {best['tile']}: {rate:.0f} TFLOP/s of direct sums, {real:.0f} taken; enough from {ENOUGH} on")
    if options.results_dir is not None:
        here, data = machine.describe(), "ReLU of standard normal" if options.relu else "standard normal"
        result = {"toom_cook": rows, "data": f"{data}, seed 0", "machine": here, "commit": machine.commit()}
        raw.write(options.results_dir / f"{machine.name(here)}-toom-cook.json", "toom_cook", result)
    return 0


if __name__ == "__main__":
    sys.exit(main())
