"""Tensor maps: how TMA, Hopper's copies by hardware, finds a box of an array, and where it lays it.

The driver makes them; a kernel gets the address of one in global memory. Source: CUDA Driver API, "Tensor Map Object
Management".
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from charcnn.gpu import device

SWIZZLE = 128
"""Bytes of a row of a box: 16-byte pieces of 8 such rows are swapped among each other, so that no banks collide."""

LARGEST_BOX = 256
"""Elements of a box in each dimension, at most."""


def check(shape: Sequence[int], strides: Sequence[int], box: Sequence[int], itemsize: int) -> None:
    """What the driver asks of a map with 128-byte swizzle: innermost dimension first, strides of the others in bytes.

    Raises:
        ValueError: a size, a stride or the box does not fit.
    """
    if not 2 <= len(shape) <= 5 or len(box) != len(shape) or len(strides) != len(shape) - 1:
        raise ValueError(f"{shape=}, {strides=}, {box=}: need 2 to 5 dimensions, as long a box, one stride fewer")
    if any(not 1 <= size <= 1 << 32 for size in shape):
        raise ValueError(f"{shape=}: need 1 to {1 << 32} elements in each dimension")
    if any(stride % 16 or not 0 < stride < 1 << 40 for stride in strides):
        raise ValueError(f"{strides=}: need multiples of 16 bytes below {1 << 40}")
    if any(not 1 <= size <= LARGEST_BOX for size in box):
        raise ValueError(f"{box=}: need 1 to {LARGEST_BOX} elements in each dimension")
    if box[0] * itemsize != SWIZZLE:
        raise ValueError(f"{box=}: need rows of {SWIZZLE} bytes, {SWIZZLE // itemsize} elements of {itemsize}")


def encode(array: Any, shape: Sequence[int], strides: Sequence[int], box: Sequence[int]) -> Any:
    """A map of a device array of 16-bit numbers, of which outside is zero, with 128-byte swizzle; a device array.

    Args:
        array: begins at a multiple of 16 bytes.
        shape: elements in each dimension, the innermost first; `strides` of all but that one, in bytes.
        box: elements of a copy, in each dimension.

    Raises:
        ValueError: as `check`; or the array's address does not fit.
        DeviceError: the driver refuses.
    """
    from cuda.bindings import driver

    check(shape, strides, box, 2)
    address = device.address(array)
    if address % 16:
        raise ValueError(f"an array begins at address {address:#x}: need a multiple of 16 bytes")
    status, made = driver.cuTensorMapEncodeTiled(
        driver.CUtensorMapDataType.CU_TENSOR_MAP_DATA_TYPE_UINT16,
        len(shape),
        address,
        [driver.cuuint64_t(size) for size in shape],
        [driver.cuuint64_t(stride) for stride in strides],
        [driver.cuuint32_t(size) for size in box],
        [driver.cuuint32_t(1)] * len(shape),
        driver.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE,
        driver.CUtensorMapSwizzle.CU_TENSOR_MAP_SWIZZLE_128B,
        driver.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
        driver.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
    )
    if int(status) != 0:
        raise device.DeviceError(f"the driver made no tensor map of {shape=}, {strides=}, {box=}: {status.name}")
    return device.to_device(np.array([int(word) for word in made.opaque], np.uint64))
