"""Texts that go to a GPU as they are, and become token ids there.

A text of news has 235 bytes and its ids have 1,014, nearly all of them blank: so a fourth as much is written on the
host and copied to the GPU.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numba import cuda, njit

from charcnn.aliases import Array, Stream
from charcnn.gpu import device
from charcnn.gpu.launch import Call, jit
from charcnn.text import encodings
from charcnn.text.encodings import Encoding
from charcnn.text.strings import PackedStrings

_THREADS = device.block_size(256)


@dataclass(frozen=True, eq=False)
class StringsToEncode(PackedStrings):
    """N texts, and how they are encoded.

    Args:
        buffer, offsets: as of `PackedStrings`.
        encoding: how.
        length: columns that the ids will have.
    """

    encoding: Encoding
    length: int

    def ids(self) -> np.ndarray:
        """Encoded here: uint8 (N, length)."""
        return encodings.encode_buffer(self.buffer, self.offsets, self.encoding, self.length)

    @property
    def packed_size(self) -> int:
        """Bytes that `pack` needs: an offset of 4 bytes each and one more, and what is kept of the texts."""
        return 4 * (len(self) + 1) + int(np.minimum(np.diff(self.offsets), self.length).sum())

    def pack(self, out: np.ndarray) -> None:
        """Write offsets, int32 (N + 1,), and behind them the bytes that are kept of the texts, of each at most length.

        Args:
            out: uint8, `packed_size` of them or more, at an address that is a multiple of 4.
        """
        kept = 4 * (len(self) + 1)
        tail = self.encoding.keep == "tail"
        _pack_kernel(self.buffer, self.offsets, self.length, tail, out[:kept].view(np.int32), out[kept:])


@njit(cache=True, nogil=True)
def _pack_kernel(buffer, offsets, length, tail, starts, kept):
    at = 0
    for n in range(starts.size - 1):
        starts[n] = at
        start, end = offsets[n], offsets[n + 1]
        count = min(end - start, length)
        if tail:
            start = end - count
        for i in range(count):
            kept[at + i] = buffer[start + i]
        at += count
    starts[starts.size - 1] = at


@jit()
def _encode_kernel(starts, kept, table, blank, reverse, ids):
    n = cuda.blockIdx.x  # a block a text: neighbours write neighbouring positions
    start = starts[n]
    count = starts[n + 1] - start
    for t in range(cuda.threadIdx.x, ids.shape[1], cuda.blockDim.x):
        value = blank
        if t < count:
            value = table[kept[start + (count - 1 - t if reverse else t)]]
        ids[n, t] = value


class Encoder:
    """An encoding on the current GPU."""

    def __init__(self, encoding: Encoding) -> None:
        self._blank, self._reverse = np.uint8(encoding.blank), encoding.reverse
        self._table = device.to_device(encodings.byte_table(encoding))

    def __call__(self, packed: Array, out: Array, stream: Stream) -> Array:
        """Token ids of what `StringsToEncode.pack` wrote; nothing is waited for.

        Args:
            packed: uint8 on the GPU, at least as long as what was written.
            out: uint8 (N, L) there.
            stream: to launch on.
        """
        call = Call(out, stream, out.shape, np.uint8, {"packed": np.uint8}, packed=packed)
        behind = 4 * (len(out) + 1)
        starts, kept = call.inputs[0][:behind].view(np.int32), call.inputs[0][behind:]
        call.launch(_encode_kernel, len(out), _THREADS, starts, kept, self._table, self._blank, self._reverse, call.out)
        return call.result()
