"""Two convolutions with pooling as one kernel on tensor cores, by strips of rows: what a block makes, holds and reads.

A block has an image, or a tile of rows of it as wide as the image. The first convolution reads blocks of pixels, so
that both move by 1 (`ops.pixels_to_depth`). Weights are no part of shared memory: each warp reads its own as a stream
from the second-level cache, in the order in which it multiplies. `kernel_strips` has the kernel.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any

import numpy as np

from charcnn.aliases import Array, Record
from charcnn.gpu import device
from charcnn.layers.layer import Shape
from charcnn.layers.windows import at_least
from charcnn.ops.chain.kernel_strips import make_strip_kernel
from charcnn.ops.chain.links import Layer2d, Link, linked
from charcnn.ops.chain.octets import OCTET, REACH
from charcnn.ops.chain.plan2d import METHODS
from charcnn.ops.chain.planned import limited, tabulated
from charcnn.ops.chain.strip_sizes import WARPS, MapRows, Product, dense, product_of, words_of
from charcnn.ops.chain.tensor_plan import TensorPlan, half_precision
from charcnn.ops.pixels_to_depth import Blocks, to_depth

PRODUCT, STREAMED, PASS, STRIP = 1.8, 20, 1500, 5000
"""Of a multiprocessor, as forecasts have them: cycles of a product, bytes of weights that come in one, cycles until a
pass over a strip is under way, and of a strip's other phases."""

MADE = 8
"""Rows of the map between the convolutions that are tried as `made`, at most."""

HERTZ, BYTES = 1.7e9, 3e12
"""Of an H100: cycles a second, and bytes of DRAM."""


@dataclass(frozen=True)
class StripPlan(TensorPlan):
    """Convolution, pooling, convolution, pooling as one kernel, whose results are channels last.

    `describe()` tells what it does; `prepare(weights, biases)` gives the function.
    """

    method: str
    first: int
    """Rows of the last map in the first strip."""
    rows: int
    """And in each that follows."""
    made: int
    """Rows of the map between the convolutions that are made at a time."""
    batch: int = 1
    """Images of a call that the forecast is for."""

    @property
    def threads(self) -> int:
        """Of a block."""
        return 32 * WARPS

    @property
    def result(self) -> tuple[Shape, Any]:
        """(H_out, W_out, C), channels last, whole octets of them, those beyond C_out zeros; in the precision."""
        channels, *size = self.out_shape
        return (*size, -(-channels // OCTET) * OCTET), self.precision.dtype

    @cached_property
    def lattice(self) -> Blocks:
        """How the first convolution's blocks of pixels lie on the image."""
        return Blocks.of(self.links[0].window, *self.in_shape[1:])

    @cached_property
    def products(self) -> tuple[Product, Product]:
        """Of both convolutions."""
        first, second = self.links[0], self.links[2]
        channels = self.in_shape[0] * prod(first.window.stride)
        (c_in, *_), (c_out, *_), groups = second.in_shape, second.out_shape, second.groups
        grouped = product_of(second.window.kernel, c_in // groups, c_out // groups, groups)
        if (grouped.octets_in * groups * OCTET, grouped.outputs) != (c_in, c_out):  # with zeros between groups
            grouped = product_of(second.window.kernel, c_in, c_out, 1)
        return product_of(first.window.in_steps, channels, first.out_shape[0], 1), grouped

    @property
    def tile(self) -> int:
        """Rows of the last map that a block makes."""
        return self.rows if self.method == "tiles" else self.out_shape[1]

    @property
    def tiles(self) -> int:
        """Blocks an image."""
        return -(-self.out_shape[1] // self.tile)

    def strips(self, index: int) -> Iterator[tuple[int, int]]:
        """Rows of the last map that a block makes at a time."""
        begin, end = index * self.tile, min((index + 1) * self.tile, self.out_shape[1])
        while begin < end:
            stop = min(begin + (self.first if begin == index * self.tile else self.rows), end)
            yield begin, stop
            begin = stop

    @cached_property
    def counted(self) -> Record:
        """What an image's blocks do, counted strip by strip.

        `pixels` of each strip of both convolutions, and the most `rows` of each map that are there at once.
        """
        (conv1, pool1, conv2, pool2), (_, between, _) = self.links, self.links[1].out_shape
        reach, (top, *_), taps = self.products[0].kernel[0], conv2.window.padding, conv2.window.kernel[0]
        pixels: tuple[list[int], list[int]] = [], []
        rows = [0, 0, 0, 0]
        for index in range(self.tiles):
            had: int | None = None
            kept: int | None = None
            for begin, end in self.strips(index):
                c0, c1 = _rows(pool2, begin, end)
                rows[3] = max(rows[3], c1 - c0)
                c0 = c0 if kept is None else max(c0, kept)
                p0, p1 = max(c0 - top, 0), min(c1 - 1 - top + taps, between)
                if self.method == "whole":
                    p1 = between
                rows[2] = max(rows[2], p1 - p0)
                p0, conv = p0 if had is None else max(p0, had), None
                while p0 < p1:
                    stop = min(p0 + self.made, p1)
                    r0, r1 = _rows(pool1, p0, stop)
                    rows[1] = max(rows[1], r1 - r0)
                    r0 = r0 if conv is None else max(r0, conv)
                    rows[0] = max(rows[0], r1 - r0 + reach - 1)
                    pixels[0].append((r1 - r0) * conv1.out_shape[2])
                    p0, conv = stop, r1
                had = p1 if had is None else max(had, p1)
                pixels[1].append((c1 - c0) * conv2.out_shape[2])
                kept = c1
        return {"pixels": pixels, "rows": tuple(rows)}

    @cached_property
    def maps(self) -> tuple[MapRows, MapRows, MapRows, MapRows]:
        """The image by blocks of pixels, and what both convolutions and the first pooling make."""
        (conv1, pool1, conv2, pool2), rows, (one, two) = self.links, self.counted["rows"], self.products
        _, _, left, right = conv2.window.padding
        octets = lambda shape: -(-shape[0] // OCTET)  # noqa: E731
        return (
            MapRows(one.octets_in, rows[0], self.lattice.counts[1]),
            MapRows(octets(conv1.out_shape), rows[1], conv1.out_shape[2], step=pool1.window.stride[1]),
            MapRows(two.octets_in * two.groups, rows[2], pool1.out_shape[2], left=max(left, right),
                 zeros=1),
            MapRows(octets(conv2.out_shape), rows[3], conv2.out_shape[2], step=pool2.window.stride[1]),
        )  # fmt: skip

    @cached_property
    def places(self) -> tuple[int, int, int, int]:
        """Where each map begins in shared memory, in bytes.

        The image and the first convolution's rows lie where those of the second will be, but for what that keeps.
        """
        image, _, between, conv2 = self.maps
        begin = between.nbytes + (self.keeps(1) * conv2.row_bytes if self.rolls else 0)
        return begin, begin + image.nbytes, 0, between.nbytes

    @property
    def rolls(self) -> bool:
        """Whether more of the map between the convolutions is made when rows of the last one are there already."""
        return self.method == "rolling" and self.first < self.out_shape[1]

    def keeps(self, number: int) -> int:
        """Rows of a convolution's map that the pooling behind it needs again in the next strip."""
        window = self.links[2 * number + 1].window
        return max(0, window.kernel[0] - window.stride[0])

    @property
    def shared_bytes(self) -> int:
        """Shared memory of a block."""
        _, conv1, between, conv2 = self.maps
        return max(self.places[1] + conv1.nbytes, between.nbytes + conv2.nbytes)

    @property
    def computed_flops(self) -> int:
        """Of the outputs that blocks compute: some more than once."""
        computed = zip(self.links[::2], self.counted["pixels"], strict=True)
        return sum(2 * link.depth * link.out_shape[0] * sum(pixels) for link, pixels in computed)

    @property
    def multiplied(self) -> int:
        """Products of 16 x 8 x 16 that tensor cores compute an image."""
        found = 0
        for product, strips in zip(self.products, self.counted["pixels"], strict=True):
            for pixels in strips:
                count, tiles = product.passes(pixels)
                found += count * product.parts * product.steps * WARPS * tiles * product.columns
        return found

    @property
    def dram_bytes(self) -> int:
        """Bytes of maps an image, of which pixels are bytes."""
        return prod(self.in_shape) + self.precision.itemsize * prod(self.out_shape)

    @property
    def weight_bytes(self) -> int:
        """Of weights that an image's blocks read from the second-level cache, where a block reads each once a pass."""
        pairs = zip(self.products, self.counted["pixels"], strict=True)
        return sum(4 * product.words * product.passes(pixels)[0] for product, strips in pairs for pixels in strips)

    @property
    def parameter_bytes(self) -> int:
        """Of packed weights, read from DRAM once a launch."""
        return 4 * sum(product.words for product in self.products)

    @property
    def cycles(self) -> float:
        """Of a multiprocessor an image, as forecasts have them: of products, or of weights where those take longer."""
        found = 0.0
        for product, strips in zip(self.products, self.counted["pixels"], strict=True):
            for pixels in strips:
                count, tiles = product.passes(pixels)
                products = product.parts * product.steps * WARPS * tiles * product.columns * PRODUCT
                found += count * (max(products, 4 * product.words / STREAMED) + PASS) + STRIP
        return found

    @property
    def seconds(self) -> float:
        """The forecast for a call of `batch` images on an H100."""
        waves = -(-self.batch * self.tiles // device.MULTIPROCESSORS)
        moved = self.batch * self.dram_bytes + self.parameter_bytes
        return max(waves * self.cycles / self.tiles / HERTZ, moved / BYTES)

    def describe(self) -> str:
        """Strips, maps, shared memory, recomputation and bytes as a table, before anything is compiled."""
        strips = ", ".join(f"{end - begin}" for begin, end in self.strips(0))
        tiles = (f"{16 * of.passes(max(own))[1]}x{8 * of.columns}"
                 for of, own in zip(self.products, self.counted["pixels"], strict=True))  # fmt: skip
        kernel = {
            "kernel": f"1, {self.method}, products of 16 x 8 x 16 in {self.precision.name}",
            **self.described(),
            "blocks an image": f"{self.tiles} of {self.tile} rows, by strips of {strips}",
            "rows held": ", ".join(f"{of.rows}" for of in self.maps),
            "multiplications": f"{self.computed_flops / self.flops:.2f}x the layers' own; "
            f"{4096 * self.multiplied / self.flops:.2f}x in whole products",
            "threads a block": f"{self.threads}",
            "sums a warp": ", ".join(tiles) + " (pixels x channels)",
            "shared memory": f"{self.shared_bytes:,} of {self.shared_limit:,} bytes a block",
        }
        chain = {
            "work": f"{self.flops:,} FLOP an image, {self.computed_flops:,} computed",
            "maps in DRAM": f"{self.dram_bytes:,} bytes an image",
            "weights from L2": f"{self.weight_bytes:,} bytes an image",
            "forecast": f"{1e6 * self.seconds:,.1f} us for a batch of {self.batch:,}",
        }
        return tabulated((kernel, chain))

    @property
    def outputs(self) -> tuple[int, ...]:
        """Output channels of each convolution as the kernel reads biases, some perhaps of zeros."""
        return tuple(product.outputs for product in self.products)

    def blocks(self, n: int) -> int:
        """Blocks that share n images."""
        return min(n * self.tiles, device.multiprocessors())

    def kernel(self, from_bytes: bool) -> Any:
        """The kernel of images as float32 or as bytes."""
        return make_strip_kernel(self, from_bytes)

    def flat(self, y: Array) -> Any:
        """The results as the kernel writes them: words."""
        return y.reshape(y.size).view(np.uint32)

    def packed(self, weights: Sequence[np.ndarray]) -> np.ndarray:
        """Weights as warps read them: words, those of the first convolution by blocks of pixels."""
        (first, second), (one, two) = weights, self.products
        ahead = max(product.words // (product.parts * product.steps) for product in self.products)  # read past the end
        return np.concatenate([
            words_of(to_depth(first, self.links[0].window), one, self.precision),
            words_of(dense(second, self.links[2].groups // two.groups), two, self.precision),
            np.zeros(ahead, np.uint32),
        ])  # fmt: skip

    def looked_up(self, pixels: np.ndarray) -> np.ndarray:
        """Factor and offset of each channel's table of what bytes stand for."""
        offset = pixels[:, 0].astype(np.float64)
        factor = (pixels[:, 255] - offset) / 255
        if not np.allclose(pixels, offset[:, None] + factor[:, None] * np.arange(256), rtol=1e-5, atol=1e-5):
            raise ValueError("pixels: need what bytes stand for at equal distances")
        return np.concatenate([factor, offset]).astype(np.float32)


def _rows(pool: Link, begin: int, end: int) -> tuple[int, int]:
    """Those that windows of a pooling's rows read."""
    step, taps = pool.window.stride[0], pool.window.kernel[0]
    return begin * step, (end - 1) * step + taps


def make_strip_plan(
    layers: Sequence[Layer2d],
    *,
    in_shape: Sequence[int],
    walk: str | None = None,
    precision: str = "fp16",
    tile: int | None = None,
    batch: int = 1,
    shared_limit: int | None = None,
) -> StripPlan:
    """Plan Conv2d, MaxPool2d, Conv2d, MaxPool2d as one kernel on tensor cores; errors as of `plan2d`.

    Args:
        in_shape: (C_in, H, W) of an image.
        layers: each convolution with Relu behind it, and perhaps LocalResponseNorm.
        walk: "whole": a block an image, and all of the map between the convolutions in shared memory. "rolling": a
            block an image, and of that map the rows that a strip reads. "tiles": a block some rows of the last map.
            None: what has the least forecast.
        precision: of maps, weights and results, fp16 or bf16; sums are float32.
        tile: rows of the last map in a strip; what has the least forecast where None.
        batch: images of a call that the forecast is for.
        shared_limit: bytes of shared memory a block may use; the current GPU's where None.

    Raises:
        ValueError: the layers are no such chain, or a block has too little shared memory; says how much it needs.
    """
    links = linked(layers, in_shape)
    if walk not in (None, *METHODS):
        raise ValueError(f"{walk=}: need one of {', '.join(METHODS)}, or None")
    number_format, limit = half_precision(precision), limited(shared_limit)
    at_least("batch", batch, 1)
    _check(links)
    height = links[3].out_shape[1]
    if tile is not None:
        at_least("tile", tile, 1)
    found = [
        StripPlan(links, number_format, limit, one, first, rows, made, batch)
        for one in ((walk,) if walk else METHODS)
        for rows in (range(1, height + 1) if tile is None else (min(tile, height),))
        for first in {rows, min(rows + (one != "tiles" and tile is None), height)}
        for made in range(1, MADE + 1)
    ]
    least = min(found, key=lambda one: one.shared_bytes)
    if least.shared_bytes > limit:
        raise ValueError(
            f"{'strips' if tile is None else f'{tile=}'} need {least.shared_bytes:,} bytes of shared memory a block by "
            f"{least.method!r} in {precision}, there are {limit:,}: try another way, or a smaller tile"
        )
    return min((one for one in found if one.shared_bytes <= limit), key=lambda one: (one.seconds, one.cycles))


def _check(links: Sequence[Link]) -> None:
    if [link.groups > 0 for link in links] != [True, False, True, False]:
        needed = "Conv2d, Relu, MaxPool2d, Conv2d, Relu, MaxPool2d, and perhaps LocalResponseNorm behind Relu"
        raise ValueError(f"{', '.join(link.named for link in links)}: method 'mma' with a walk needs {needed}")
    for i, link in enumerate(links):
        window = link.window
        wrong = ""
        if window.dilation != (1, 1):
            wrong = "dilation 1"
        elif link.groups and link.epilogue not in ("", "relu"):
            wrong = "Relu, or nothing, behind it"
        elif not link.groups and (any(window.padding) or link.epilogue or link.norm):
            wrong = "a pooling without padding, and nothing behind it"
        elif not link.groups and (2 * window.stride[0] < window.kernel[0] or window.kernel[0] < window.stride[0]):
            wrong = "windows that share at most as many rows as they move by, and leave none out"
        elif i == 0 and link.groups > 1:
            wrong = "a first convolution of one group"
        elif i == 2 and window.stride != (1, 1):
            wrong = "a second convolution that moves by 1"
        elif link.norm and link.norm.size > REACH:
            wrong = f"a normalisation over at most {REACH} channels"
        if wrong:
            raise ValueError(f"{link.named}: method 'mma' with a walk needs {wrong}")
