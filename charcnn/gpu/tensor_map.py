"""Tensor maps: how a Hopper GPU's TMA finds a box of an array, and where it lays it.

The driver makes them; a kernel gets the address of one in global memory. Source: CUDA Driver API, "Tensor Map Object
Management".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numba import cuda

from charcnn.aliases import Array
from charcnn.gpu import device

SWIZZLES = 128, 64
"""Bytes of a row of a box: 16-byte pieces of 8 such rows are swapped among each other, so that no banks collide."""

LARGEST_BOX = 256
"""Elements of a box in each dimension, at most."""


def check(shape: Sequence[int], strides: Sequence[int], box: Sequence[int], itemsize: int) -> None:
    """What the driver asks of a map whose rows are swizzled: innermost dimension first, strides of the others in bytes.

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
    if box[0] * itemsize not in SWIZZLES:
        raise ValueError(f"{box=}: need rows of {SWIZZLES[0]} or {SWIZZLES[1]} bytes, of elements of {itemsize}")


def encode(array: Array, shape: Sequence[int], strides: Sequence[int], box: Sequence[int]) -> Array:
    """A map of a device array of 16-bit numbers, of which outside is zero, swizzled as wide as rows; a device array.

    Args:
        array: begins at a multiple of 16 bytes.
        shape: elements in each dimension, the innermost first; `strides` of all but that one, in bytes.
        box: elements of a copy, in each dimension; a row is of 128 or 64 bytes.

    Raises:
        ValueError: as `check`; or the array's address does not fit.
        DeviceError: the driver refuses.
    """
    check(shape, strides, box, 2)
    if device.SIMULATED:
        return uploaded(_description(device.address(array), shape, strides, box, None))
    from cuda.bindings import driver

    sizes = [driver.cuuint32_t(size) for size in box]
    words = _encoded(
        driver.cuTensorMapEncodeTiled, device.address(array), shape, strides, [sizes], [1] * len(shape), 2 * box[0]
    )
    return uploaded(words)


def uploaded(words: Sequence[int]) -> Array:
    """Words of maps, on the current GPU when it returns: another library's stream need not wait for a copy."""
    maps = device.to_device(np.array(words, np.uint64))
    cuda.default_stream().synchronize()
    return maps


@dataclass(frozen=True)
class Im2col:
    """How TMA walks over images (N, H, W, C) with one tap of a window after another.

    A copy takes so many pixels from its first one on, along W, then H, then N, from `lower` before an image's first
    pixel to `upper` behind its last one, by steps of `stride`; the tap's place in the window is added to each.
    """

    lower: tuple[int, int]
    """(W, H), of the pixels that a window's first tap touches."""
    upper: tuple[int, int]
    stride: tuple[int, int]
    """(W, H)"""
    pixels: int
    """Of a copy."""

    def check(self) -> None:
        """Raise ValueError unless TMA has it."""
        if any(not -128 <= corner <= 127 for corner in (*self.lower, *self.upper)):
            raise ValueError(f"{self.lower=}, {self.upper=}: need -128 to 127 pixels: a smaller window, less padding")
        if any(not 1 <= step <= 8 for step in self.stride):
            raise ValueError(f"{self.stride=}: need 1 to 8 pixels")
        if not 1 <= self.pixels <= LARGEST_BOX:
            raise ValueError(f"{self.pixels=}: need 1 to {LARGEST_BOX}")


def encode_im2col(begin: int, shape: Sequence[int], strides: Sequence[int], walk: Im2col) -> list[int]:
    """The 16 words of a map of images of 16-bit numbers at an address; outside is zero, the swizzle of 128 bytes.

    Args:
        begin: address, a multiple of 16.
        shape: (C, W, H, N), of which a copy takes 64 channels; `strides` of all but the first, in bytes.
        walk: the windows' corners, steps and pixels a copy.

    Raises:
        ValueError: as `check` and `Im2col.check`; or the address does not fit.
        DeviceError: the driver refuses.
    """
    channels = SWIZZLES[0] // 2
    check(shape, strides, (channels, 1, 1, 1), 2)
    walk.check()
    if device.SIMULATED:
        return _description(begin, shape, strides, (channels, 1, 1, 1), walk)
    from cuda.bindings import driver

    corners = [list(walk.lower), list(walk.upper), channels, walk.pixels]
    return _encoded(driver.cuTensorMapEncodeIm2col, begin, shape, strides, corners, [1, *walk.stride, 1])


def _check_address(address: int) -> None:
    if address % 16:
        raise ValueError(f"an array begins at address {address:#x}: need a multiple of 16 bytes")


WORDS = 16
"""Of a tensor map, 64 bits each."""

_MOST = 5
"""Dimensions."""


@dataclass(frozen=True)
class Described:
    """What a tensor map of the simulator says: `encode`'s arguments, and `encode_im2col`'s walk."""

    address: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]
    walk: Im2col | None


def _description(
    address: int, shape: Sequence[int], strides: Sequence[int], box: Sequence[int], walk: Im2col | None
) -> list[int]:
    """The simulator's map: where the driver's is opaque, this one is what it was made of, number by number."""
    _check_address(address)
    sizes = [size - 1 for size in box]  # a byte each
    moves = [] if walk is None else [*walk.lower, *walk.upper, *walk.stride, walk.pixels - 1]
    packed = [sum((byte & 0xFF) << 8 * i for i, byte in enumerate(part)) for part in (sizes, moves)]
    words = [len(shape) | (walk is not None) << 8, address, *packed, *shape, *strides]
    return words + [0] * (WORDS - len(words))


def described(words: Sequence[int]) -> Described:
    """What a map of the simulator was made of.

    Raises:
        ValueError: it is no tensor map.
    """
    dimensions, by_im2col = words[0] & 0xFF, bool(words[0] >> 8)
    if not 2 <= dimensions <= _MOST or words[0] >> 9:
        raise ValueError(f"no tensor map begins with {words[0]:#x}")
    box = tuple((words[2] >> 8 * i & 0xFF) + 1 for i in range(dimensions))
    shape, strides = tuple(words[4 : 4 + dimensions]), tuple(words[4 + dimensions : 3 + 2 * dimensions])
    if not by_im2col:
        return Described(words[1], shape, strides, box, None)
    moves = [words[3] >> 8 * i & 0xFF for i in range(7)]
    left, top, right, bottom = (byte - 256 if byte > 127 else byte for byte in moves[:4])
    walk = Im2col((left, top), (right, bottom), (moves[4], moves[5]), moves[6] + 1)
    return Described(words[1], shape, strides, box, walk)


def _encoded(encoder, address, shape, strides, sizes, steps, swizzle=SWIZZLES[0]):
    from cuda.bindings import driver

    _check_address(address)
    status, tensor_map = encoder(
        driver.CUtensorMapDataType.CU_TENSOR_MAP_DATA_TYPE_UINT16,
        len(shape),
        address,
        [driver.cuuint64_t(size) for size in shape],
        [driver.cuuint64_t(stride) for stride in strides],
        *sizes,
        [driver.cuuint32_t(step) for step in steps],
        driver.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE,
        getattr(driver.CUtensorMapSwizzle, f"CU_TENSOR_MAP_SWIZZLE_{swizzle}B"),
        driver.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
        driver.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
    )
    if int(status) != 0:
        raise device.DeviceError(f"the driver made no tensor map of {shape=}, {strides=}, {sizes=}: {status.name}")
    return [int(word) for word in tensor_map.opaque]
