"""Weights and moments of a training in one .safetensors file, which is whole or not there.

Weights have their own names, moments `first.` or `second.` before these. All lie in the order of layers, without
padding, so that any number of ranks goes on from it.
"""

from __future__ import annotations

import json
import math
import os
import struct
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import IO, NamedTuple

import numpy as np

from charcnn import files
from charcnn.aliases import Record
from charcnn.layers import Shape
from charcnn.ops.adamw_options import check_scale

KEY = "charcnn training"

MARK = rb'.{8}\{"__metadata__": \{"' + KEY.encode()
"""How such a file begins."""

SCALE = "loss scale"
"""What has the loss scale among metadata, as JSON, where there is one."""

LARGEST_HEADER = 1 << 20


class Read(NamedTuple):
    """A checkpoint that is read."""

    steps: int
    scale: Record | None
    """Of the loss."""
    fill: Callable[[np.ndarray], None]
    """Fills arrays one after another, in the order in which `writing` has them written."""


def _header(shapes: Mapping[str, Shape], steps: int, scale: Record | None) -> bytes:
    found: Record = {"__metadata__": {KEY: str(steps)} | ({} if scale is None else {SCALE: json.dumps(scale)})}
    begin = 0
    for prefix in ("", "first.", "second."):
        for name, shape in shapes.items():
            end = begin + 4 * math.prod(shape)
            found[prefix + name] = {"dtype": "F32", "shape": list(shape), "data_offsets": [begin, end]}
            begin = end
    text = json.dumps(found).encode()
    return text + b" " * (-len(text) % 8)


@contextmanager
def writing(
    path: files.Path, shapes: Mapping[str, Shape], steps: int, force: bool, scale: Record | None = None
) -> Iterator[IO[bytes]]:  # fmt: skip
    """A file that the block writes weights, first and second moments to, in this order, float32.

    Args:
        path: its name, which it gets when all is written.
        shapes: of the parameters, in order.
        steps: that were made.
        force: whether it may replace a file that is no such checkpoint.
        scale: of the loss, as `charcnn.ops.adamw_options.check_scale` takes it; None: there is none.

    Raises:
        OSError: as of `files.replacing`.
    """
    with files.replacing(path, "wb", force=force, mark=MARK) as file:
        header = _header(shapes, steps, scale)
        file.write(struct.pack("<Q", len(header)) + header)
        yield file


@contextmanager
def reading(path: files.Path, shapes: Mapping[str, Shape]) -> Iterator[Read]:
    """What `writing` was given.

    All that can be wrong with the file is looked at before.

    Args:
        path: the file.
        shapes: of the parameters, in order.

    Raises:
        ValueError: it is no checkpoint, not a whole one, or of another network.
        OSError: it cannot be read.
    """
    where = os.fspath(path)
    with open(path, "rb") as file:
        size = int.from_bytes(file.read(8), "little")
        try:
            said = json.loads(file.read(min(size, LARGEST_HEADER)))["__metadata__"]
            steps, scale = int(said[KEY]), json.loads(said.get(SCALE, "null"))
            if steps < 0:
                raise ValueError
            if scale is not None:
                check_scale(scale)
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise ValueError(f"{where} is no checkpoint of a training: need a file that --checkpoint wrote") from error
        header = _header(shapes, steps, scale)
        file.seek(8)
        if file.read(size) != header:
            raise ValueError(f"{where} is of another network: need the one whose layers it was written for")
        if os.fstat(file.fileno()).st_size != 8 + size + 3 * 4 * sum(map(math.prod, shapes.values())):
            raise ValueError(f"{where} is not whole: need a file that --checkpoint wrote")

        def fill(values: np.ndarray) -> None:
            if file.readinto(values.data) != values.nbytes:
                raise ValueError(f"{where} changed while it was read: need a file that nobody writes to")

        yield Read(steps, scale, fill)
