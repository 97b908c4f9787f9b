"""What the machine can do at most: by measurement, or by the GPU's own data."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

from charcnn import catalog
from charcnn.catalog import measured
from charcnn.gpu import device


class Peaks:
    """FLOP/s and bytes/s of memory, and whence these are known.

    Args:
        flops: a second.
        bytes_: a second.
        source: in words.
        size: bytes of a value.
    """

    def __init__(self, flops: float, bytes_: float, source: str, size: int = 4) -> None:
        self.flops, self.bytes, self.size = flops, bytes_, size
        self.source = f"{flops / 1e9:,.0f} GFLOP/s and {bytes_ / 1e9:,.0f} GB/s, {source}"

    @classmethod
    def of(cls, program: catalog.Program, precision: str | None = None) -> Peaks:
        """Of all CPU cores by a product of matrices and a copy; of the current GPU by its data.

        Raises:
            DeviceError: the program computes on tensor cores, of which that is not known.
        """
        if program.tensor_cores:
            of = program.number_format(precision)
            flops, bytes_ = device.peaks(tensor_cores=True)
            part = 3 if of.terms == 2 else of.itemsize / 2  # three products a pair of values; half the rate on 32 bits
            return cls(flops / part, bytes_, "of the GPU's tensor cores and memory at their highest clocks", of.size)
        if program.device == "cuda" and not device.SIMULATED:
            return cls(*device.peaks(), "of the GPU's cores and memory at their highest clocks")
        a = np.ones((1536, 1536), np.float32)
        large = np.ones(1 << 25, np.float32)
        flops = 2 * 1536**3 / _least(lambda: a @ a)
        copied = 2 * large.nbytes / _least(lambda: large.copy())
        return cls(flops, copied, "as a product of matrices and a copy have it on all CPU cores")

    @classmethod
    def reached(cls, program: catalog.Program, precision: str | None = None) -> Peaks:
        """Of the current GPU what cuBLAS's product of large matrices reached on one like it; else as `of`.

        Raises:
            DeviceError: as of `of`.
        """
        precision = program.precision(precision)
        flops = measured.peak(device.gpu_name(), precision)
        if flops is None:
            return cls.of(program, precision)
        said = "as cuBLAS multiplied large matrices on such a GPU, and of its memory at its highest clock"
        return cls(flops, device.peaks()[1], said, program.number_format(precision).size)


def _least(function: Callable[[], object]) -> float:
    def once() -> float:
        start = time.perf_counter()
        function()
        return time.perf_counter() - start

    return min(once() for _ in range(5))
