"""What a block of the kernel keeps in shared memory, and the records that its warps stage there."""

from __future__ import annotations

from charcnn.gpu import device

VECTOR_BYTES = 16
"""Of a thread's channels in a row of the table: the most that it loads at once."""

WORDS = 4
"""Words that hold them, and characters that one word holds."""

THREADS = device.block_size(512)
"""Of a block."""

WARP = 32

MOST_WINDOWS = 4
"""Of a warp: whose characters a thread holds in registers while it stages them."""

PITCH = 256
"""Bytes of a row of the table where a character is a byte of its row's address."""

BELOW = 64
"""Where the table begins at most, in such rows."""

ALIGNED = None if device.SIMULATED else PITCH
"""Where dynamic shared memory starts, in bytes; the simulator knows no alignment."""

RUN = 64
"""Inputs that gamma and beta of a window stay in registers for: two stages."""


def record_words(kernel_size: int, pool_size: int, layernorm: bool, wide: bool) -> int:
    """Words of a record, in whole vectors: a window's characters, and an input's moments.

    Those are the mean in float32 and, behind the characters, the scale in fp16; `wide` the mean in two numbers and the
    scale, all float32.
    """
    span = pool_size + kernel_size - 1
    words = -(-span // WORDS)
    if layernorm:
        words = words + 3 if wide else scale_byte(span) // WORDS + 2
    return -(-words // WORDS) * WORDS


def scale_byte(span: int) -> int:
    """Where a record of so many characters holds the scale in fp16."""
    return span + span % 2
