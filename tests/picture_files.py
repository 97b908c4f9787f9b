"""Files of pictures for tests, made as they are needed, and what is said of a bad one."""

from __future__ import annotations

import io
import re
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from charcnn import images

RNG = np.random.default_rng(5)
GREY = RNG.integers(0, 256, (3, 4, 5), np.uint8)
COLOUR = RNG.integers(0, 256, (2, 4, 5, 3), np.uint8)
IMAGES, LABELS = "train-images-idx3-ubyte", "train-labels-idx1-ubyte"


def idx(values: np.ndarray) -> bytes:
    return struct.pack(f">4B{values.ndim}I", 0, 0, 8, values.ndim, *values.shape) + values.tobytes()


def npy(values: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.save(file, values)
    return file.getvalue()


def encoded(image: Image.Image, kind: str = "PNG", **options) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def png(width: int, height: int, *, depth: int, colour: int, samples: bytes, **chunks: bytes) -> bytes:
    """A PNG by its own format's rules: of what Pillow reads and does not write."""
    lines = len(samples) // height
    packed = zlib.compress(b"".join(b"\0" + samples[n * lines : (n + 1) * lines] for n in range(height)))
    header = struct.pack(">2I5B", width, height, depth, colour, 0, 0, 0)
    parts = [(b"IHDR", header), *((name.encode(), value) for name, value in chunks.items()), (b"IDAT", packed)]
    file = b"\x89PNG\r\n\x1a\n"
    for name, value in [*parts, (b"IEND", b"")]:
        file += struct.pack(">I", len(value)) + name + value + struct.pack(">I", zlib.crc32(name + value))
    return file


def put(folder: Path, name: str, content: bytes) -> Path:
    path = folder / name
    path.write_bytes(content)
    return path


def refused(path: Path, shape=(1, 4, 5), **options) -> str:
    """The one line that is said of it, less the file's name."""
    with pytest.raises(ValueError, match=re.escape(str(path))) as info:
        images.read(path, shape, **options)
    message = str(info.value)
    assert "\n" not in message
    assert "need" in message
    return message.replace(f"{path}", "FILE")
