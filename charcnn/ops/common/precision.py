"""The numbers that tensor cores multiply, and how features lie in memory for them. Sums are float32 throughout."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from charcnn.aliases import DType

LARGEST_E4M3 = 448.0
"""The greatest value of e4m3, in which greater ones become that, too. Infinities do as well: it has none, but NaN."""


LARGEST_U8, LARGEST_S8 = 255, 127
"""What features and weights of int8 end at; -128 is left out, so that weights are symmetric."""


@dataclass(frozen=True)
class NumberFormat:
    """A format of features and weights."""

    name: str
    ptx_type: str
    """Of one number, as PTX calls it."""
    dtype: DType
    """Of arrays that hold it: NumPy's own, or unsigned integers of its size where NumPy has none."""
    tolerance: float
    """Largest ||out - ref|| / ||ref|| of one operator: what goes in and what comes out is rounded. Over finite values:
    infinities and NaN are the reference's, for e4m3 those of inputs that lie in its range."""
    terms: int = 1
    """Numbers that make one value. With 2, high terms of all channels come first, then low ones: value = high + low.
    A high one is finite, or NaN: beyond its range, low is infinite. `mma_layout` has another order of them."""
    promoted: bool = False
    """Whether products are added up in float32 outside of tensor cores, which cut their own sums off."""

    @property
    def itemsize(self) -> int:
        """Bytes of one number."""
        return int(np.dtype(self.dtype).itemsize)

    @property
    def size(self) -> int:
        """Bytes of a value."""
        return self.terms * self.itemsize

    @property
    def scaled(self) -> bool:
        """Whether weights are multiplied by a factor, so that they use the range that there is."""
        return self.terms == 2 or self.ptx_type == "e4m3"

    @property
    def capability(self) -> tuple[int, int]:
        """The lowest compute capability whose tensor cores multiply it; sums of split numbers are known since 8.0."""
        if self.ptx_type == "f16" and self.terms == 1:
            return 7, 5
        return (8, 9) if self.ptx_type == "e4m3" else (8, 0)


TENSOR_PRECISIONS = {
    "fp16": NumberFormat("fp16", "f16", np.float16, 2e-3),  # 11 bits
    "bf16": NumberFormat("bf16", "bf16", np.uint16, 1e-2),  # 8 bits, float32's range
    "tf32": NumberFormat("tf32", "tf32", np.float32, 1e-3),  # 11 bits, float32's range
    "fp16x3": NumberFormat(
        "fp16x3", "f16", np.float16, 2e-6, terms=2, promoted=True
    ),  # 22 bits in two; three products, less low * low
    "fp8": NumberFormat("fp8", "e4m3", np.uint8, 8e-2),  # 4 bits
}
"""By name. fp16x3 stands for float32: its operators keep float32's tolerance."""

INT8 = NumberFormat("int8", "u8", np.uint8, 3e-2)
"""Features on a CPU, in whole numbers from 0 to 255; weights are s8."""

FP32 = NumberFormat("float32", "f32", np.float32, 2e-6)
"""What products may be stored as, but not multiplied."""

HALF_PRECISIONS = {name: TENSOR_PRECISIONS[name] for name in ("fp16", "bf16")}
"""Those of 16 bits that hold a value each."""


SPARSE_PRECISIONS = {name: TENSOR_PRECISIONS[name] for name in ("fp16", "bf16", "fp8")}
"""Those of Hopper's sparse tensor cores that levels use."""


def choose(precision: str, among: dict[str, NumberFormat] = TENSOR_PRECISIONS) -> NumberFormat:
    """The format of this name.

    Raises:
        ValueError: there is none.
    """
    if precision not in among:
        raise ValueError(f"{precision=}: need one of {', '.join(among)}")
    return among[precision]
