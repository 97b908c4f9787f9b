"""A convolution or linear layer prepared on all CPU cores: what its techniques share.

A sequence is an image of one row.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np

from charcnn.layers import Conv1d, Conv2d, Linear, windows
from charcnn.layers.windows import Window
from charcnn.ops.common import epilogues
from charcnn.ops.common.cpu_gemm import GELU, RELU, CpuPacked
from charcnn.ops.common.cpu_tile import CpuTile, tile_of_columns
from charcnn.ops.common.epilogues import Epilogue, Pattern, Product

BATCH = 32
"""Rows for which a linear layer's tile is chosen: batches are powers of two as a rule, and tiles of 6 rows compute some
too many."""


@lru_cache
def _window(*arguments: Any) -> Window:
    return windows.window(*arguments)


def window(*arguments: Any) -> Window:
    """`windows.window`, kept: it takes as long as a small convolution."""
    return _window(*(tuple(one) if isinstance(one, list) else one for one in arguments))


class PreparedCpuConv:
    """A product with its epilogue, its weights packed once. A technique says how they lie, and multiplies.

    It is called with features and where to write, and gives the latter: (N, L, C_in) -> (N, L_out, C_out),
    (N, H, W, C_in) -> (N, H_out, W_out, C_out), or of a linear layer (N, C_in) -> (N, C_out). The same bits for any
    number of threads.
    """

    products: ClassVar[tuple[type, ...]] = Conv1d, Conv2d, Linear
    """What a pattern may begin with."""
    precisions: ClassVar[tuple[str, ...]] = ("fp32",)

    functions: ClassVar[tuple[str, ...]] = ()
    """What may follow, beside ReLU."""

    product: Product
    epilogue: Epilogue

    @classmethod
    def takes(cls, pattern: Pattern, precision: str = "fp32") -> bool:
        """Whether it computes this, and is meant for it."""
        try:
            cls.check(pattern)
        except ValueError:
            return False
        return precision in cls.precisions

    @classmethod
    def check(cls, pattern: Pattern) -> tuple[Product, Epilogue]:
        """The product and what follows it.

        Raises:
            ValueError: the technique does not compute that.
        """
        product, epilogue = epilogues.read(pattern)
        pools = epilogue.pool is not None and (epilogue.function or not isinstance(product, Conv1d))
        if not isinstance(product, cls.products) or epilogue.function not in ("", *cls.functions) or pools:
            kinds, others = " or ".join(one.__name__ for one in cls.products), "".join(f", {f}" for f in cls.functions)
            need = f"need {kinds}, ReLU{others} or nothing, and of Conv1d max-pooling or nothing"
            raise ValueError(f"pattern={list(pattern)}: {need} for {cls.__name__}")
        return product, epilogue

    def _read(self, pattern: Pattern, weights: Mapping[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
        """Take what is computed; the weight as (C_out, KH, KW, C_in / groups), and the bias."""
        self.product, self.epilogue = self.check(pattern)
        weight = np.moveaxis(weights["weight"], -1, 0)
        weight = weight.reshape(len(weight), *(1,) * (4 - weight.ndim), *weight.shape[1:])
        self._kernel = weight.shape[1:3]
        return weight, weights["bias"]

    def _window(self, x: np.ndarray) -> Window:
        """How the window moves over x (N, H, W, C_in)."""
        if not isinstance(self.product, Conv2d):
            return Window((self._kernel[0], self._kernel[1]))
        return window(*x.shape[1:3], self._kernel, self.product.stride, self.product.padding, self.product.dilation)

    def _images(self, x: np.ndarray) -> np.ndarray:
        """Sequences, or the rows that a linear layer reads, as images."""
        return x[None, None] if isinstance(self.product, Linear) else x[:, None] if x.ndim == 3 else x

    def __call__(self, x: np.ndarray, out: np.ndarray) -> np.ndarray:
        """Write the result of x; out."""
        self._multiply(self._images(x), self._images(out))
        return out

    def _multiply(self, x: np.ndarray, out: np.ndarray) -> None:
        raise NotImplementedError


class CpuConv(PreparedCpuConv):
    """A GEMM over overlapping rows by the vector micro-kernel: a convolution of any window, or a linear layer.

    Features are float32 in contiguous memory, axes in any order; results float32 of any strides.

    Args:
        pattern: `Conv1d`, `Conv2d` or `Linear`, with ReLU or GELU; behind a `Conv1d` max-pooling.
        weights: float32 "weight" with the axes that `arrays.pack` gives it, of any strides, and "bias".
        tile: the micro-kernel's, from `cpu_tile.choose_tile`; the best for this processor where None.

    Raises:
        ValueError: it does not compute the pattern; or a group has one input channel, which makes no matrix product.
    """

    functions = ("gelu",)

    def __init__(self, pattern: Pattern, weights: Mapping[str, np.ndarray], tile: CpuTile | None = None) -> None:
        weight, bias = self._read(pattern, weights)
        groups = getattr(self.product, "groups", 1)
        if groups > 1 and weight.shape[3] == 1:
            raise ValueError(
                f"groups={groups}: a group has one input channel, which makes no matrix product; conv2d's loops and "
                "naive take any"
            )
        if isinstance(self.product, Linear):
            tile = tile or tile_of_columns(len(bias), BATCH)
        self._packed = CpuPacked(weight, bias, tile, groups)

    def _multiply(self, x: np.ndarray, out: np.ndarray) -> None:
        how, epilogue = self._window(x), self.epilogue
        corner = how.padding[0], how.padding[2]
        self._packed.multiply(
            x, out, stride=how.stride, corner=corner, dilation=how.dilation, pool_size=epilogue.pool_size,
            after=RELU if epilogue.rectified else GELU if epilogue.function else 0,
        )  # fmt: skip
