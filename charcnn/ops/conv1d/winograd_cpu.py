"""conv1d_nlc on all CPU cores with about half the multiplications, by Winograd's filtering (`winograd_transforms`).

Between the transforms, each point is a convolution of tiles with ceil(K / 4) taps: a product whose left rows overlap,
which the micro-kernel multiplies where they lie. A task takes tiles from features to outputs, and what lies between
stays in cache L2. A sequence is an image of one row. An image's rows are filtered, too, or are further taps.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cache

import numba
import numpy as np
from numba import njit, prange, types

from charcnn.aliases import Function
from charcnn.gpu.arrays import apart
from charcnn.layers import Conv1d, Conv2d
from charcnn.layers.windows import pair
from charcnn.ops.common import threads
from charcnn.ops.common.cpu_conv import PreparedCpuConv
from charcnn.ops.common.cpu_gemm import WRITTEN, copy_line, finish, pack, pack_bias, types_of
from charcnn.ops.common.cpu_tile import PART, CpuTile, add_product, add_product_plain, choose_tile
from charcnn.ops.common.epilogues import Epilogue, Pattern, Product, pattern_of
from charcnn.ops.common.former import former_on_cpu
from charcnn.ops.common.keep import Apply, keeping
from charcnn.ops.common.tasks import share_out
from charcnn.ops.conv1d.winograd_sums import outputs, outputs_and_bias, transform
from charcnn.ops.conv1d.winograd_transforms import SPAN, matrices

TASK_TILES = 120
"""Tiles that a task takes at most: of 64 channels at 36 points, 1.1 MB when transformed."""

AT_ONCE = 2
"""Panels that a task multiplies before it transforms them: features are read half as often; 4 would fill cache L2."""

NESTED_PART = 128
"""As `cpu_gemm.PART`, where both axes are filtered and magnify what sums round: with parts of 512, 512 channels would
miss the tolerance."""

NESTED_POINTS = 6
"""Of an axis where both are filtered, for 3 to 5 taps: 7 points magnify more than the tolerance allows."""


@cache
def _compiled(tile):
    # Only numbers are taken from here, as in `cpu_gemm`.
    ROWS, VECTORS, WIDTH, PANEL, VECTORISED = tile.rows, tile.vectors, tile.width, tile.panel, tile.needs is not None

    i64 = types.int64
    signature = types.void(*types_of(4, 2, 2, 2, 3), types.UniTuple(i64, 5), i64, i64, types.boolean, WRITTEN)

    @njit(signature, cache=True, nogil=True, parallel=True)
    def convolve(x, sizes, corner, points, span, groups, weights, bias, blocks, part, pool, relu, y):
        # A task computes some panels of `lines` x `columns` tiles of `together` inputs.
        inputs, height, width, channels = sizes
        together, lines, columns, split, at_once = blocks
        panels, terms = weights.shape[1], weights.shape[2]
        parts = groups[2]  # of the channels; each has panels of its own
        c_in, c_out, panels_of = channels // parts, y.shape[3] // parts, panels // parts
        down, across = -(-y.shape[1] // span[0]), -(-y.shape[2] * pool // span[1])
        blocks_down, blocks_across = -(-down // lines), -(-across // columns)
        strides = (height * width * channels, width * channels, channels, 1)
        for task in prange(-(-inputs // together) * blocks_down * blocks_across * split):
            share, block = task % split, task // split
            n, h = block // blocks_across // blocks_down * together, block // blocks_across % blocks_down * lines
            w = block % blocks_across * columns
            count, high, wide = min(together, inputs - n), min(lines, down - h), min(columns, across - w)

            # Features at the points, of all tiles that the groups of taps read.
            tall, long = high + groups[0] - 1, wide + groups[1] - 1
            pixels = (long - 1) * span[1] + points[1]
            features = np.empty((points[0] * points[1], count * tall * long, channels), np.float32)
            edge = np.empty(points[0] * pixels * channels, np.float32)
            filtered = np.empty(edge.size if points[0] > 1 else 0, np.float32)
            to_point = features.shape[1] * channels
            for i in range(count * tall):
                line, pixel = (h + i % tall) * span[0] - corner[0], w * span[1] - corner[1]
                image = (n + i // tall) * strides[0]
                if line < 0 or line + points[0] > height or pixel < 0 or pixel + pixels > width:
                    for p in range(points[0]):
                        copy_line(x, image, line + p, pixel, height, width, strides, edge, p * pixels, pixels, channels)
                    source, to_line = edge.ctypes.data, pixels * channels
                else:
                    source, to_line = x.ctypes.data + 4 * (image + line * strides[1] + pixel * channels), strides[1]
                if points[0] > 1:
                    transform(points[0], source, to_line, filtered.ctypes.data, pixels * channels, pixels * channels)
                    source, to_line = filtered.ctypes.data, pixels * channels
                for j in range(long):
                    for p in range(points[0]):
                        at = source + 4 * (p * to_line + j * span[1] * channels)
                        to = features.ctypes.data + 4 * (p * points[1] * to_point + (i * long + j) * channels)
                        transform(points[1], at, channels, to, to_point, channels)

            rows = count * high * wide
            starts = np.empty(-(-rows // ROWS) * ROWS, np.int64)
            for r in range(starts.size):
                line, tile = min(r, rows - 1) // wide, min(r, rows - 1) % wide
                starts[r] = ((line // high * tall + line % high) * long + tile) * channels
            run = groups[1] * c_in
            flat = features.reshape(features.size)
            size = starts.size * PANEL
            products = np.empty((at_once, len(features), starts.size, PANEL), np.float32)
            lined = np.empty(span[0] * points[1] * size if points[0] > 1 else 0, np.float32)
            sums = np.empty((wide * span[1], PANEL), np.float32)
            start, stop = w * span[1] // pool, min((w + wide) * span[1] // pool, y.shape[2])
            end = (share + 1) * panels // split
            for several in range(share * panels // split, end, at_once):
                products[:] = 0
                until = min(several + at_once, end)
                for p in range(len(features)):
                    for panel in range(several, until):
                        for k in range(groups[0]):
                            for j in range(0, run, part):
                                depth, term = min(part, run - j), k * run + j
                                at = p * to_point + k * long * channels + panel // panels_of * c_in + j
                                if VECTORISED:
                                    here = (p * panels + panel) * terms + term
                                    following = here + depth
                                    if following == (p * panels + until) * terms:  # the next point's, or panels'
                                        next_point = (p + 1) * panels + several
                                        following = (next_point if p + 1 < len(features) else until) * terms
                                    add_product(
                                        ROWS, VECTORS, WIDTH,
                                        flat.ctypes.data + 4 * at, starts.ctypes.data, starts.size,
                                        weights.ctypes.data + 4 * here * PANEL, depth,
                                        products.ctypes.data + 4 * ((panel - several) * len(features) + p) * size,
                                        weights.ctypes.data + 4 * following * PANEL,
                                    )  # fmt: skip
                                else:
                                    add_product_plain(
                                        flat, at, starts, weights[p, panel, term : term + depth],
                                        products[panel - several, p],
                                    )  # fmt: skip
                for panel in range(several, until):
                    source = products.ctypes.data + 4 * (panel - several) * len(features) * size
                    if points[0] > 1:
                        line = points[1] * size
                        outputs(span[0], source, line, lined.ctypes.data, line, line)
                        source = lined.ctypes.data
                    left = panel // panels_of * c_out + panel % panels_of * PANEL
                    right = min(left + PANEL, (panel // panels_of + 1) * c_out)
                    bias_at = bias.ctypes.data + 4 * panel * PANEL
                    for i in range(count * high):
                        for q in range(min(span[0], y.shape[1] - (h + i % high) * span[0])):
                            for t in range(wide):
                                at = source + 4 * (q * points[1] * size + (i * wide + t) * PANEL)
                                to = sums.ctypes.data + 4 * t * span[1] * PANEL
                                outputs_and_bias(points[1], span[1], at, size, to, PANEL, PANEL, bias_at)
                            line = (h + i % high) * span[0] + q
                            finish(sums, pool, relu, y[n + i // high, line, start:stop, left:right])

    return convolve


def nested(height: int, width: int) -> bool:
    """Whether both axes are filtered; then a tile reads one group of taps, and channels may have groups."""
    return min(height, width) >= 3 and max(height, width) <= 5


class Filtered:
    """Weights at the points, packed for the micro-kernel, and the convolution with them.

    Where the kernel is `nested`, both axes are filtered. Else rows of the kernel are groups of taps.

    Args:
        weight: float32 (C_out, KH, KW, C_in / channel_groups), any strides; bias (C_out,).
        tile: the micro-kernel's; `choose_tile()` where None.
        channel_groups: more than 1 only of a kernel that is `nested`.
    """

    def __init__(
        self, weight: np.ndarray, bias: np.ndarray, tile: CpuTile | None = None, channel_groups: int = 1
    ) -> None:
        c_out, height, width, c_in = weight.shape
        both = nested(height, width)
        taps = (height, width) if both else (1, min(width, SPAN))
        self._span = (NESTED_POINTS + 1 - height, NESTED_POINTS + 1 - width) if both else (1, SPAN)
        self._groups, self._part = (height // taps[0], -(-width // taps[1])), NESTED_PART if both else PART
        whole = np.zeros((c_out, c_in, height, self._groups[1] * taps[1]))
        whole[..., :width] = weight.transpose(0, 3, 1, 2)
        by_group = whole.reshape(c_out, c_in, self._groups[0], taps[0], self._groups[1], taps[1])
        across = matrices(taps[1], self._span[1])[1]
        at_points = np.einsum("rl,oigkhl->kroghi", across, by_group)
        if both:
            at_points = np.tensordot(matrices(taps[0], self._span[0])[1], at_points, 1)
        self._points = at_points.shape[:2]
        self._tile = tile or choose_tile()
        points, self._channel_groups = math.prod(self._points), channel_groups
        matrix = at_points.astype(np.float32).reshape(points * channel_groups, c_out // channel_groups, -1, c_in)
        packed = pack(matrix, self._tile)
        self._weights = packed.reshape(points, -1, *packed.shape[2:])
        self._bias = np.concatenate([pack_bias(of, self._tile) for of in bias.reshape(channel_groups, -1)])

    def __call__(
        self,
        x: np.ndarray,
        out: np.ndarray,
        *,
        corner: tuple[int, int] = (0, 0),
        pool_size: int = 1,
        relu: bool = False,
    ) -> np.ndarray:
        """The convolution, its maximum over `pool_size` columns, then ReLU; the same bits for any number of threads.

        Args:
            x: float32 (N, H, W, C_in), C-contiguous.
            out: float32 (N, H_out, W_out, C_out), any strides. Windows that go beyond x read zeros.
            corner: rows and columns of padding before x.
        """
        apart("out", out, {"x": x})
        if out.size == 0:
            return out
        n, height, width, c_out = out.shape
        tiles = n, -(-height // self._span[0]), -(-width * pool_size // self._span[1])
        windows = math.lcm(pool_size, self._span[1]) // self._span[1]  # tiles that end where a window does
        panels, rows = self._weights.shape[1], self._tile.rows
        # Each part of the panels transforms the features again: as much as some 8 output channels take to multiply.
        *block, split = share_out(
            tiles, TASK_TILES, math.lcm(windows, rows), rows, panels, 8 / c_out, numba.get_num_threads()
        )
        threads.launch(
            _compiled(self._tile), x.reshape(x.size), x.shape, corner, self._points, self._span,
            (*self._groups, self._channel_groups), self._weights, self._bias,
            (*block, split, min(AT_ONCE, -(-panels // split))), self._part, pool_size, relu, out,
        )  # fmt: skip
        return out


class CpuWinogradConv(PreparedCpuConv):
    """A convolution by Winograd's filtering, its weights transformed and packed once.

    Of a sequence they take 28 ceil(K / 4) C_in C_out bytes for K > 3, C_out in whole panels of the tile. Features are
    float32, C-contiguous; results float32 of any strides.

    Args:
        pattern: `Conv1d` with ReLU and max-pooling, or `Conv2d` with ReLU, of stride and dilation 1; several groups
            only of 3 to 5 rows and columns.
        weights, tile: as of `CpuConv`.

    Raises:
        ValueError: it does not compute the pattern.
    """

    products = Conv1d, Conv2d

    def __init__(self, pattern: Pattern, weights: Mapping[str, np.ndarray], tile: CpuTile | None = None) -> None:
        self._filtered = Filtered(*self._read(pattern, weights), tile, getattr(self.product, "groups", 1))

    @classmethod
    def check(cls, pattern: Pattern) -> tuple[Product, Epilogue]:
        """The product and what follows it; a window that moves by 1, whose groups can be filtered."""
        product, epilogue = super().check(pattern)
        if isinstance(product, Conv2d):
            plain = all(pair("stride", one) == (1, 1) for one in (product.stride, product.dilation))
            if not plain or (product.groups > 1 and not nested(*pair("kernel_size", product.kernel_size))):
                stride, dilation, groups = product.stride, product.dilation, product.groups
                raise ValueError(
                    f"{stride=}, {dilation=}, {groups=}: Winograd's filtering needs 1, of 3 to 5 rows and columns any "
                    "groups; conv2d_nhwc's cpu_gemm takes any"
                )
        return product, epilogue

    @classmethod
    def takes(cls, pattern: Pattern, precision: str = "fp32") -> bool:
        """Whether it computes this in fewer products."""
        return super().takes(pattern, precision) and getattr(pattern[0], "kernel_size", 1) not in (1, (1, 1))

    def _multiply(self, x: np.ndarray, out: np.ndarray) -> None:
        top, _, left, _ = self._window(x).padding
        self._filtered(x, out, corner=(top, left), pool_size=self.epilogue.pool_size, relu=self.epilogue.rectified)


@keeping
def launch(
    weight: np.ndarray, bias: np.ndarray, *, epilogue: str,
) -> Apply:  # fmt: skip
    """Transforms and packs the weights at each call; `CpuWinogradConv` keeps them.

    A feature that is not finite may make NaN of all positions that share a tile with one that reads it. The same bits
    for any number of threads.

    Raises:
        ValueError: or the environment's CHARCNN_CPU_TILE does not.
    """
    return _prepared(weight, bias, epilogue)


@keeping
def launch_pooled(
    weight: np.ndarray, bias: np.ndarray, pool_size: int,
) -> Apply:  # fmt: skip
    """Pooled in the last pass: a pool_size-th is stored.

    Transforms and packs the weights at each call. The same bits for any number of threads.

    Raises:
        ValueError: or the environment's CHARCNN_CPU_TILE does not.
    """
    return _prepared(weight, bias, "relu", pool_size)


def _prepared(weight: np.ndarray, bias: np.ndarray, pointwise: str, pool_size: int = 1) -> Apply:
    conv = CpuWinogradConv(pattern_of(weight, pointwise, pool_size), {"weight": weight, "bias": bias})
    return lambda out, x: conv(x, out)


def __getattr__(name: str) -> Function:
    return former_on_cpu(__name__, name, CpuWinogradConv)
