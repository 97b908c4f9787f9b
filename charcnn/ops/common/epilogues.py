"""What a kernel does with its sums before it stores them: one value, `Epilogue`, from the pattern to the kernel.

Pointwise functions have a row by name; another one is a function here and its row. They are plain functions of one
float32: the CPU's compiler, CUDA's and the simulator take them as they are (`epilogue_functions` on a GPU).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from numba import float32

from charcnn.aliases import Array, Function
from charcnn.layers import Conv1d, Conv2d, Layer, Linear, MaxPool1d, MaxPool2d
from charcnn.layers.layer import SLOPE
from charcnn.layers.windows import Window, pair
from charcnn.ops.common.precision import FP32, NumberFormat


def _identity(value):
    return value


def _relu(value):
    return float32(0) if value < float32(0) else value  # this way round NaN stays NaN


def _tanh(value):
    return math.tanh(value)


def _gelu(value):
    # The complement keeps the digits of what is far below 0, where 1 + erf would cancel.
    return float32(0.5) * value * math.erfc(value * float32(-math.sqrt(0.5)))


def _sigmoid(value):
    # The exponential of what is not above 0 never overflows.
    small = math.exp(-abs(value))
    return (small if value < float32(0) else float32(1)) / (float32(1) + small)


def _leaky_relu(value):
    return float32(SLOPE) * value if value < float32(0) else value


EPILOGUES: dict[str, Callable[[Any], Any]] = {
    "": _identity, "relu": _relu, "tanh": _tanh, "gelu": _gelu, "sigmoid": _sigmoid, "leaky_relu": _leaky_relu,
}  # fmt: skip
"""By the name that an operator's has for it."""


class Second(NamedTuple):
    """A function of a sum, the bias added, and of a second operand's value."""

    function: Function
    by_channel: bool = False
    """Whether the operand is (C_out,); else it has the results' shape."""


def _add(value, other):
    return value + other


def _add_relu(value, other):
    total = value + other
    return float32(0) if total < float32(0) else total


def _scale(value, other):
    return value * other


SECOND = {"add": Second(_add), "add_relu": Second(_add_relu), "scale": Second(_scale, by_channel=True)}
"""By name: a residual, with ReLU of the sum; a scale by channel. For `conv2d.double_buffered.convolved`."""


@dataclass(frozen=True)
class Epilogue:
    """What becomes of a product's sums, the bias added, before they are stored: in this order.

    Args:
        pointwise: the function of each value, a row of EPILOGUES.
        pool: the max-pooling of what that gives; None for none. A sequence is an image of one row.
        moments: whether each row's moments are taken of what is stored, for a LayerNorm that follows.
        results: the format that is stored.
    """

    pointwise: str = ""
    pool: Window | None = None
    moments: bool = False
    results: NumberFormat = FP32

    @property
    def pool_size(self) -> int:
        """Positions of a sequence that a maximum is taken of."""
        return 1 if self.pool is None else self.pool.kernel[1]

    @property
    def rectified(self) -> bool:
        """Whether the function is ReLU, which some kernels have as an instruction's flag."""
        return self.pointwise == "relu"

    @property
    def function(self) -> str:
        """The function where it is another one than ReLU."""
        return "" if self.rectified else self.pointwise

    @property
    def kind(self) -> str:
        """What choices of tiles are kept by: stat, pool, or the function, store where there is none."""
        return "stat" if self.moments else "pool" if self.pool else self.pointwise or "store"


Product = Conv1d | Conv2d | Linear
Pattern = Sequence[Layer]
"""A `Product`; then, where they follow, a pointwise function of EPILOGUES; then max-pooling."""


def read(pattern: Pattern) -> tuple[Product, Epilogue]:
    """The product of a pattern, and what follows it, in float32.

    Raises:
        ValueError: it begins with another layer, or goes on with one that no epilogue is.
    """
    product, *rest = pattern or [Layer()]
    if not isinstance(product, Product):
        raise ValueError(f"pattern={list(pattern)}: need Conv1d, Conv2d or Linear first")
    pointwise = check(rest.pop(0).epilogue) if rest and rest[0].epilogue else ""
    match product, rest:
        case _, []:
            return product, Epilogue(pointwise)
        case Conv1d(), [MaxPool1d(size=size)]:
            return product, Epilogue(pointwise, Window((1, size), (1, size)))
        case Conv2d(), [MaxPool2d(kernel_size=kernel_size, stride=stride, padding=0, dilation=1)]:
            kernel = pair("kernel_size", kernel_size)
            return product, Epilogue(pointwise, Window(kernel, kernel if stride is None else pair("stride", stride)))
    raise ValueError(f"pattern={list(pattern)}: need a pointwise function, then max-pooling, behind {product}")


def product_of(weight: Array, **moves: Any) -> Product:
    """The layer whose weight this is, of (K, C_in, C_out), (KH, KW, C_in / groups, C_out) or (C_in, C_out).

    Args:
        moves: of a `Conv2d`, how its window moves.
    """
    *kernel, _, channels = weight.shape
    if not kernel:
        return Linear(channels)
    return Conv2d(channels, tuple(kernel), **moves) if len(kernel) == 2 else Conv1d(channels, *kernel)


@dataclass(frozen=True)
class Elementwise(Layer):
    """The function of each value that is this row of EPILOGUES, as a layer of a pattern."""

    function: str

    def __post_init__(self) -> None:
        object.__setattr__(self, "epilogue", check(self.function))


def pattern_of(weight: Array, pointwise: str = "", pool_size: int = 1, **moves: Any) -> Pattern:
    """The pattern of a product with this weight.

    Args:
        weight, moves: as of `product_of`.
        pointwise: what follows, a row of EPILOGUES.
        pool_size: of a sequence, positions that a maximum is taken of.
    """
    follows = [Elementwise(pointwise)] if pointwise else []
    return [product_of(weight, **moves), *follows, *([MaxPool1d(pool_size)] if pool_size > 1 else [])]


def check(name: str, unit: float = 1.0) -> str:
    """The name, if there is a row of it, and it is applied to what values are.

    Args:
        unit: what 1 stands for in results.

    Raises:
        ValueError: there is none, or it is not linear, and results are in another unit.
    """
    if name not in EPILOGUES:
        raise ValueError(f"epilogue={name!r}: need one of {', '.join(filter(None, EPILOGUES))}, or an empty one")
    if unit != 1 and name not in ("", "relu"):
        raise ValueError(f"epilogue={name!r}: need results of y_unit=1, not {unit:g}")
    return name
