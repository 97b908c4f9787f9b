"""A kernel by strips of rows: how a map's rows lie in shared memory, how warps share a convolution, and its weights."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import numpy as np

from charcnn.ops.chain.octets import OCTET, PIXEL, rounded
from charcnn.ops.common.precision import NumberFormat

ROWS = 16
"""Of a product: pixels."""

WARPS, ABREAST = 8, 2
"""Of a block: eight, with 255 registers a thread; two beside each other have the channels of a part."""

ABOVE = WARPS // ABREAST
"""And so many have pixels of their own."""

SUMS = 32
"""Products of 16 x 8 that a warp holds the sums of, at most: 128 registers."""

DEPTH = 2
"""Octets of channels of a product."""


@dataclass(frozen=True)
class MapRows:
    """A map in shared memory, some of its rows: of each an octet after the other."""

    octets: int
    rows: int
    width: int
    left: int = 0
    """Columns of zeros before an octet's; those of the next one are those behind it."""
    step: int = 1
    """Columns that are this far apart lie side by side."""
    zeros: int = 0
    """Rows of zeros behind the others, which stand for those beyond the image."""

    @property
    def phase(self) -> int:
        """Pixels of a row that are `step` apart."""
        return -(-self.width // self.step)

    @property
    def plane(self) -> int:
        """Bytes of an octet of a row, an odd number of pixels: so octets of a pixel lie in different banks."""
        return PIXEL * (self.left + self.phase * self.step | 1)

    @property
    def row_bytes(self) -> int:
        """From a row to the next."""
        return self.octets * self.plane

    @property
    def nbytes(self) -> int:
        """Of all rows, and the columns of zeros behind the last octet."""
        return (self.rows + self.zeros) * self.row_bytes + self.left * PIXEL


@dataclass(frozen=True)
class Product:
    """A convolution by steps of 1 as warps multiply it: octets of channels in and out, and their parts."""

    kernel: tuple[int, int]
    parts: int
    """Times that a strip is gone over, for other output channels each."""
    groups: int
    """Of parts: those of a group read the same channels."""
    octets_in: int
    """Of a group, even."""
    columns: int
    """Octets of output channels of a warp in a part, even."""

    @property
    def steps(self) -> int:
        """Products of depth 16 of an output."""
        return prod(self.kernel) * self.octets_in // DEPTH

    @property
    def most(self) -> int:
        """Sixteens of pixels of a warp, at most."""
        return SUMS // self.columns

    @property
    def outputs(self) -> int:
        """Output channels as weights and biases have them, some perhaps of zeros."""
        return self.parts * ABREAST * self.columns * OCTET

    @property
    def words(self) -> int:
        """Of weights, all parts."""
        return self.parts * self.steps * ABREAST * 2 * self.columns * 32

    def passes(self, pixels: int) -> tuple[int, int]:
        """Passes over so many pixels, and sixteens of them of a warp in each."""
        tiles = -(-pixels // ROWS)
        count = -(-tiles // (ABOVE * self.most))
        return count, -(-tiles // (ABOVE * count))


def product_of(kernel: tuple[int, int], channels: int, outputs: int, groups: int) -> Product:
    """Of a group's channels and outputs."""
    octets = -(-outputs // OCTET)
    parts = next(count for count in range(1, octets + 1) if -(-octets // (count * ABREAST)) <= OCTET)
    columns = -(-octets // (parts * ABREAST * 2)) * 2
    return Product(kernel, parts * groups, groups, -(-channels // (DEPTH * OCTET)) * DEPTH, columns)


def words_of(weight: np.ndarray, product: Product, precision: NumberFormat) -> np.ndarray:
    """(outputs, channels, KH, KW) of one group, or its groups one after another, as warps read it: words.

    By part, product of depth 16, warp beside another, octets of outputs by two, and lane; a word is `mma.sync`'s B of
    m16n8k16.
    """
    octets, channels = ABREAST * product.columns, product.octets_in * OCTET
    whole = np.zeros((product.outputs, channels, *product.kernel), np.float32)
    whole[: len(weight), : weight.shape[1]] = weight
    # part, warp, two octets, octet of two, column, pair of octets of depth, octet, word, number, row, tap
    depth = channels // OCTET // DEPTH
    parts = whole.reshape(product.parts, ABREAST, octets // ABREAST // 2, 2, OCTET, depth, DEPTH, 4, 2, *product.kernel)
    lanes = parts.transpose(
        0, 9, 10, 5, 1, 2, 4, 7, 3, 6, 8
    )  # lane is column, word; its four octet of two, and depth's
    return rounded(np.ascontiguousarray(lanes), precision).view(np.uint32).ravel()


def dense(weight: np.ndarray, groups: int) -> np.ndarray:
    """A weight of so many groups as one of a single group, with zeros between them."""
    if groups == 1:
        return weight
    outputs, channels = len(weight) // groups, weight.shape[1]
    whole = np.zeros((len(weight), groups * channels, *weight.shape[2:]), weight.dtype)
    for g in range(groups):
        rows = slice(g * outputs, (g + 1) * outputs)
        whole[rows, g * channels : (g + 1) * channels] = weight[rows]
    return whole
