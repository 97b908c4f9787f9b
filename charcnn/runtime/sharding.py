"""Who holds which part of weights, gradients and moments, and where: on all ranks, on one each, in memory or in files.

Layers side by side make a bucket, and each rank has an equal part of each bucket. A part is padded to 16 bytes.
"""

from __future__ import annotations

import math
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from charcnn.files import naming
from charcnn.layers import Shape

FLOAT = np.dtype(np.float32).itemsize

QUAD = 4
"""Values that a part is a multiple of: 16 bytes, as GPUs copy them."""

BUCKET = 1 << 20
"""Bytes of a bucket, at least, of a network that has a few of them."""

FEW = 8
"""Buckets of a smaller network, about."""

LEAST_MEMORY = 3 * FLOAT << 10
"""Bytes of windows: 1,024 weights and their moments."""

STAGES = {"moments": 1, "masters": 1, "gradients": 2, "weights": 3}
"""From which stage of ZeRO on a rank has its part alone."""

BYTES = {
    "fp32": {"weights": 4, "gradients": 4, "masters": 0, "moments": 8},
    "fp16": {"weights": 2, "gradients": 2, "masters": 4, "moments": 8},
}
"""Of a weight, by what products read. Weights in float32 are their own masters."""


@dataclass(frozen=True)
class Sharding:
    """Who holds what.

    Args:
        stage: 0: all ranks hold everything. ZeRO-1, 2, 3: each has its part of moments; also of gradients; also of
            weights.
        behind: whether AdamW runs while the next forward pass begins.
        directory: where weights and moments lie in files, at stage 3; None: in memory.
        memory: bytes of these files that are mapped at once, at most.
        bucket: bytes of a bucket, at least; None: by the network's size.

    Raises:
        ValueError: an argument is out of its range.
    """

    stage: int = 0
    behind: bool = False
    directory: str | None = None
    memory: int = 64 << 20
    bucket: int | None = None

    def __post_init__(self) -> None:
        if self.stage not in range(4):
            raise ValueError(f"stage={self.stage}: need 0 to 3")
        if self.directory is not None and self.stage != 3:
            raise ValueError(f"directory={self.directory!r}: needs stage 3, not {self.stage}")
        if self.memory < LEAST_MEMORY:
            raise ValueError(f"memory={self.memory}: need at least {LEAST_MEMORY:,} bytes")

    def held(self, kind: str, ranks: int) -> int:
        """Into how many parts that kind is divided, of which a rank has one."""
        return ranks if self.stage >= STAGES[kind] else 1


def counted(weights: int, ranks: int = 1, stage: int = 0, precision: str = "fp32") -> dict[str, int]:
    """Bytes of so many weights on each of the ranks, by kind, rounded up.

    Args:
        weights: of the network.
        ranks: that train it.
        stage: of ZeRO, 0 to 3.
        precision: fp32; or fp16, as bf16, for weights and gradients with float32 masters.
    """
    of = Sharding(stage)
    return {kind: -(-each * weights // of.held(kind, ranks)) for kind, each in BYTES[precision].items()}


class Bucket(NamedTuple):
    """Layers side by side."""

    names: tuple[str, ...]
    """Of parameters, in order."""
    begin: int
    """Where it begins in a buffer of all buckets; in one of a rank's parts, that by the number of ranks."""
    part: int
    """Values that a rank has of it."""
    length: int
    """Values of the parameters; the rest is zeros."""

    def of(self, rank: int) -> slice:
        """The place in it of a rank's part."""
        return slice(rank * self.part, (rank + 1) * self.part)


class BucketLayout:
    """The buckets of a network.

    Args:
        shapes: of the parameters, in order.
        ranks: that share them.
        bucket: as of `Sharding`.
    """

    def __init__(self, shapes: Mapping[str, Shape], ranks: int, bucket: int | None = None) -> None:
        sizes = {name: math.prod(shape) for name, shape in shapes.items()}
        self.shapes, self.ranks, self.weights = shapes, ranks, sum(sizes.values())
        enough = min(BUCKET, FLOAT * self.weights // FEW) if bucket is None else bucket
        groups = list[list[str]]()
        for name in shapes:
            layer = name.rpartition(".")[0]
            follows = groups and groups[-1][-1].rpartition(".")[0] == layer
            if not groups or not (follows or FLOAT * sum(sizes[one] for one in groups[-1]) < enough):
                groups.append([])
            groups[-1].append(name)
        self.buckets, self.places = list[Bucket](), dict[str, tuple[int, int]]()
        begin = 0
        for number, names in enumerate(groups):
            at = 0
            for name in names:
                self.places[name] = number, at
                at += sizes[name]
            self.buckets.append(Bucket(tuple(names), begin, -(-at // (ranks * QUAD)) * QUAD, at))
            begin += ranks * self.buckets[-1].part
        self.size = begin
        """Of a buffer of all buckets."""

    def whole(self, bucket: Bucket) -> slice:
        """Its place in a buffer of all buckets."""
        return slice(bucket.begin, bucket.begin + self.ranks * bucket.part)

    def part(self, bucket: Bucket) -> slice:
        """Its place in a buffer of one rank's parts."""
        return slice(begin := bucket.begin // self.ranks, begin + bucket.part)

    def parameter(self, array: np.ndarray, name: str) -> np.ndarray:
        """Of the values of a bucket that parameter."""
        at, shape = self.places[name][1], self.shapes[name]
        return array[at : at + math.prod(shape)].reshape(shape)


class StatesInMemory:
    """Arrays of zeros in memory, as many as there are kinds.

    Args:
        kinds: their names.
        size: values of each.
    """

    files = 0
    """Bytes in files."""
    windows = 0
    """Bytes of them that are mapped at once."""

    def __init__(self, kinds: Sequence[str], size: int) -> None:
        self._arrays = {kind: np.zeros(size, np.float32) for kind in kinds}
        self.most = max(1, size)
        """Values that a window has at most."""
        self.nbytes = sum(array.nbytes for array in self._arrays.values())
        """In memory."""

    def read(self, kind: str, at: slice, out: np.ndarray) -> None:
        """Copy some values."""
        out[:] = self._arrays[kind][at]

    def write(self, kind: str, at: slice, values: np.ndarray) -> None:
        """Replace some values."""
        self._arrays[kind][at] = values

    @contextmanager
    def window(self, at: slice) -> Iterator[list[np.ndarray]]:
        """These values of each kind, which the block may change."""
        yield [array[at] for array in self._arrays.values()]


class StatesInFiles:
    """Arrays of zeros in files, of which little is in memory at once.

    They have no names, so that nothing remains of them when the process ends, whichever way.

    Args:
        kinds, size: as of `StatesInMemory`.
        directory: where the files lie.
        memory: bytes that are mapped at once, at most.

    Raises:
        OSError: there is no such directory, or no room in it.
    """

    nbytes = 0

    def __init__(self, kinds: Sequence[str], size: int, directory: str, memory: int) -> None:
        self._files = {kind: tempfile.TemporaryFile(dir=directory, buffering=0) for kind in kinds}  # noqa: SIM115 - kept
        self.size, self.files = size, len(kinds) * size * FLOAT
        for file in self._files.values():
            with naming(directory):
                os.posix_fallocate(file.fileno(), 0, max(1, size * FLOAT))  # else a full disk would be a SIGBUS
        self.most = max(1, min(size, memory // (len(kinds) * FLOAT)))
        self.windows = self.most * len(kinds) * FLOAT

    def read(self, kind: str, at: slice, out: np.ndarray) -> None:
        """Copy some values."""
        rest, begin = out.data.cast("B"), at.start * FLOAT
        while rest:
            done = os.preadv(self._files[kind].fileno(), [rest], begin)
            rest, begin = rest[done:], begin + done

    def write(self, kind: str, at: slice, values: np.ndarray) -> None:
        """Replace some values."""
        rest, begin = np.ascontiguousarray(values).data.cast("B"), at.start * FLOAT
        while rest:
            done = os.pwrite(self._files[kind].fileno(), rest, begin)
            rest, begin = rest[done:], begin + done

    def ahead(self, at: slice) -> None:
        """Have the system fetch these values of each kind, and do not wait for it."""
        for file in self._files.values():
            begin, size = at.start * FLOAT, (at.stop - at.start) * FLOAT
            os.posix_fadvise(file.fileno(), begin, size, os.POSIX_FADV_WILLNEED)

    @contextmanager
    def window(self, at: slice) -> Iterator[list[np.ndarray]]:
        """These values of each kind, which the block may change; then they go to the files, and leave memory."""
        shape = (at.stop - at.start,)
        maps = [np.memmap(file, np.float32, "r+", at.start * FLOAT, shape) for file in self._files.values()]
        yield list(maps)
        for mapped in maps:
            mapped.flush()
