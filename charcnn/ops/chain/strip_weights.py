"""Weights of a kernel by strips of rows as its warps read them."""

from __future__ import annotations

import numpy as np

from charcnn.ops.chain.octets import OCTET, rounded
from charcnn.ops.chain.strip_sizes import ABREAST, DEPTH, Product
from charcnn.ops.common.precision import NumberFormat


def words_of(weight: np.ndarray, of: Product, precision: NumberFormat) -> np.ndarray:
    """(outputs, channels, KH, KW) of one group, or its groups one after another, as warps read it: words.

    By part, product of depth 16, warp beside another, octets of outputs by two, and lane; a word is `mma.sync`'s B of
    m16n8k16.
    """
    octets, own = ABREAST * of.columns, of.octets_in * OCTET
    whole = np.zeros((of.outputs, own, *of.kernel), np.float32)
    whole[: len(weight), : weight.shape[1]] = weight
    # part, warp, two octets, octet of two, column, pair of octets of depth, octet, word, number, row, tap
    parts = whole.reshape(
        of.parts, ABREAST, octets // ABREAST // 2, 2, OCTET, own // OCTET // DEPTH, DEPTH, 4, 2, *of.kernel
    )
    words = parts.transpose(
        0, 9, 10, 5, 1, 2, 4, 7, 3, 6, 8
    )  # lane is column, word; its four octet of two, and depth's
    return rounded(np.ascontiguousarray(words), precision).view(np.uint32).ravel()


def dense(weight: np.ndarray, groups: int) -> np.ndarray:
    """A weight of so many groups as one of a single group, with zeros between them."""
    if groups == 1:
        return weight
    outputs, own = len(weight) // groups, weight.shape[1]
    whole = np.zeros((len(weight), groups * own, *weight.shape[2:]), weight.dtype)
    for g in range(groups):
        rows = slice(g * outputs, (g + 1) * outputs)
        whole[rows, g * own : (g + 1) * own] = weight[rows]
    return whole
