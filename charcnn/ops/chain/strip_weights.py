"""Weights of a kernel by strips of rows as its warps read them."""

from __future__ import annotations

import numpy as np

from charcnn.ops.chain.octets import OCTET, rounded
from charcnn.ops.chain.strip_sizes import ABREAST, DEPTH, Product
from charcnn.ops.common.precision import NumberFormat


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
