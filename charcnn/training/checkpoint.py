"""A checkpoint without PyTorch: arrays as an .npz file, and among them what JSON holds of the rest."""

from __future__ import annotations

import io
import json
from typing import IO

import numpy as np

from charcnn.aliases import Argument, Record
from charcnn.model.model_files import open_archive

NAME, ARRAY = "charcnn_checkpoint", "array"
"""The first array, which is JSON's bytes; and what stands there for another one: a dict of this and its name."""


def packed(state: Record) -> memoryview:
    """The bytes of a checkpoint.

    Args:
        state: dicts, lists, arrays, and what JSON holds.
    """
    arrays: dict[str, np.ndarray] = {}

    def apart(value: Argument) -> Argument:
        if isinstance(value, np.ndarray):
            arrays[f"{ARRAY}{len(arrays)}"] = value
            return {ARRAY: f"{ARRAY}{len(arrays) - 1}"}
        return value.item()  # a number of NumPy's

    said, buffer = json.dumps(state, default=apart, allow_nan=False).encode(), io.BytesIO()
    everything: Record = {NAME: np.frombuffer(said, np.uint8), **arrays}
    np.savez(buffer, **everything)
    return buffer.getbuffer()


def unpacked(file: IO[bytes]) -> Record:
    """What `packed` was given.

    Raises:
        zipfile.BadZipFile, ValueError, KeyError: the file is damaged, or no such checkpoint.
    """
    archive = open_archive(file)
    if archive.testzip() is not None:
        raise ValueError("a checksum is another")
    file.seek(0)
    with np.load(file, allow_pickle=False) as arrays:

        def whole(value: Record) -> Argument:
            return arrays[value[ARRAY]] if value.keys() == {ARRAY} else value

        state: Record = json.loads(arrays[NAME].tobytes(), object_hook=whole)
        return state
