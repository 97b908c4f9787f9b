"""Pixels and labels of IDX and .npy files. A size in a header allocates nothing: bytes are taken as they come."""

from __future__ import annotations

import gzip
import math
import os
import re
import struct
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import IO, Any

import numpy as np

from charcnn.files import naming

_PIECE = 1 << 20


def read_idx(path: str, axes: int) -> np.ndarray:
    """uint8 of so many axes from an IDX file (the format of MNIST), in gzip where its name ends in .gz.

    Raises:
        OSError: the file cannot be read.
        ValueError: it is no such file, or not a whole one, or longer than its header says; names the file.
    """
    magic = bytes([0, 0, 8, axes])
    with naming(path), _opened(path) as file:
        head = file.read(4 + 4 * axes)
        if head[:4] != magic or len(head) < 4 + 4 * axes:
            begins = head[:4].hex(" ") or "nothing"
            raise ValueError(f"{path}: begins with {begins}: need {magic.hex(' ')}, IDX of bytes, and {axes} sizes")
        sizes = struct.unpack(f">{axes}I", head[4:])
        return _rest(file, sizes, path).reshape(sizes)


def read_labels_beside(path: str, count: int) -> np.ndarray | None:
    """Labels, int64 (count,), of the images of an IDX file: beside images-idx3, or images.idx3, lies labels-idx1.

    Raises:
        ValueError: there are fewer or more, or the file is no IDX file of labels; names it.
    """
    folder, name = os.path.split(path)
    beside = os.path.join(folder, re.sub(r"images([-.])idx3", r"labels\1idx1", name))
    if beside == path or not os.path.exists(beside):
        return None
    labels = read_idx(beside, 1)
    if len(labels) != count:
        raise ValueError(f"{beside}: has {len(labels)} labels: need {count}, one for each of {path}")
    return labels.astype(np.int64)


def read_npy(path: str) -> np.ndarray:
    """uint8 (N, H, W, 1 or 3) from an .npy file of (H, W), (N, H, W), (H, W, C) or (N, H, W, C).

    Raises:
        OSError: the file cannot be read.
        ValueError: it is no such file, or not a whole one, or longer than its header says; names the file.
    """
    with open(path, "rb") as file, naming(path):
        try:
            if np.lib.format.read_magic(file) != (1, 0):
                raise ValueError("version 2 is for headers beyond 64 KB, which arrays of bytes do not need")
            sizes, fortran, dtype = np.lib.format.read_array_header_1_0(file)
        except OSError:
            raise
        except Exception as error:  # NumPy's parser raises many kinds, by what it is given
            raise ValueError(f"{path}: is not a .npy file: need an array of uint8, as np.save writes it") from error
        if dtype != np.uint8 or len(sizes) not in (2, 3, 4) or (len(sizes) == 4 and sizes[3] not in (1, 3)):
            need = "need uint8 (N, H, W), (N, H, W, C), (H, W) or (H, W, C), C 1 or 3"
            raise ValueError(f"{path}: has {dtype} {sizes}: {need}")
        pixels = _rest(file, sizes, path).reshape(sizes, order="F" if fortran else "C")
    if len(sizes) == 2 or sizes[-1] not in (1, 3):
        pixels = pixels[..., None]
    return pixels if pixels.ndim == 4 else pixels[None]


@contextmanager
def _opened(path: str) -> Iterator[IO[bytes]]:
    opener: Any = gzip.open if path.endswith(".gz") else open
    try:
        with opener(path, "rb") as file:
            yield file
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise ValueError(f"{path}: {error}: need a whole gzip file, or a name without .gz") from error


def _rest(file: IO[bytes], sizes: Sequence[int], path: str) -> np.ndarray:
    """What lies behind the header: uint8, as many as the sizes say."""
    if min(sizes) < 1:
        raise ValueError(f"{path}: is of {' x '.join(map(str, sizes))}: need sizes of at least 1")
    need, held = math.prod(sizes), bytearray()
    while len(held) <= need and (piece := file.read(min(_PIECE, need + 1 - len(held)))):
        held += piece
    if len(held) != need:
        has = f"{len(held):,}" if len(held) < need else "more"
        raise ValueError(f"{path}: has {has} bytes after its header: need {need:,}, as the header says")
    return np.frombuffer(held, np.uint8)
