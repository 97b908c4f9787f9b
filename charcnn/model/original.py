"""Readers of the original C++ program's files: input.bin and answer.bin. Its params.bin is `params.load`'s."""

from __future__ import annotations

import os

import numpy as np

from charcnn.config import SMALL, Config
from charcnn.files import Path


def read_input(path: Path, config: Config = SMALL, chunk: int = 64) -> np.ndarray:
    """The token ids of an input.bin: dense one-hot little-endian float32 (N, alphabet, length), no header.

    Args:
        path: the file.
        config: its alphabet and length are the file's.
        chunk: inputs that are in memory at a time, as float32; 64 of SMALL's take 18 MB.

    Returns:
        uint8 (N, length): the channel of each column's one, or config.alphabet where the column is all zero.

    Raises:
        ValueError: the file is empty or not a whole number of inputs, or a column is neither one-hot nor all zero;
            names the input and the position.
        OSError: the file cannot be read.
    """
    if isinstance(chunk, bool) or not isinstance(chunk, int) or chunk < 1:
        raise ValueError(f"chunk={chunk!r}: need a positive int")
    shape = (config.alphabet, config.length)
    with open(path, "rb") as file:
        n = _count(path, file.fileno(), 4 * shape[0] * shape[1], f"one input, float32 {shape}")
        ids = np.empty((n, config.length), np.uint8)
        buffer = np.empty((min(chunk, n), *shape), "<f4")
        for start in range(0, n, chunk):
            x = buffer[: n - start]
            if file.readinto(x.data.cast("B")) != x.nbytes:
                raise ValueError(f"{path}: shrank while it was read")
            hot = x != 0
            ids[start : start + len(x)] = np.where(hot.any(axis=1), hot.argmax(axis=1), config.alphabet)
            wrong = np.argwhere((hot.sum(axis=1) > 1) | (hot & (x != 1)).any(axis=1))
            if len(wrong):
                bad, position = wrong[0]
                column = x[bad, :, position]
                channels = np.flatnonzero(column)[:4]
                raise ValueError(
                    f"{path}: input {start + bad}, position {position}: neither one-hot nor all zero: "
                    f"channels {channels.tolist()} hold {column[channels].tolist()}"
                )
    return ids


def read_answer(path: Path) -> np.ndarray:
    """The class indices of an answer.bin: one little-endian float32 an input, no header.

    Returns:
        int64 (N,), counted from 0.

    Raises:
        ValueError: the file is empty or not a whole number of values, or a value is not a class index; names it.
        OSError: the file cannot be read.
    """
    with open(path, "rb") as file:
        n = _count(path, file.fileno(), 4, "one float32")
        values = np.fromfile(file, "<f4", n)
    good = (values >= 0) & (values == np.floor(values)) & (values < 2**24)  # beyond, float32 skips integers
    if not good.all():
        index = int(np.argmin(good))
        raise ValueError(f"{path}: answer {index} is {values[index]}: need a class index, 0 or more")
    return values.astype(np.int64)


def _count(path: Path, descriptor: int, size: int, unit: str) -> int:
    """How many units of `size` bytes the file holds: at least one."""
    total = os.fstat(descriptor).st_size
    if total == 0 or total % size:
        raise ValueError(f"{path} has {total} bytes: need a positive multiple of {size} ({unit})")
    return total // size
