"""Numba's functions for the CPU that stand between a file and its labels: compiled by labelling a row of each format.

A level on a GPU is stood in for: its logits are zeros. All else is what `charcnn classify` and `Classifier` run, with
texts that the CPU encodes and with texts that go to a GPU as they are.

    python -m charcnn.classify.cpu_functions FILE ...       compiles for these FILES and says so, then for the others
"""

from __future__ import annotations

import io
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np

from charcnn.compiling import workers
from charcnn.compiling.stand_in import replaced
from charcnn.config import TINY
from charcnn.gpu import zero_copy
from charcnn.gpu.launch import title

ROWS = {
    "lines": b"Stocks fell.\n",
    "csv": b"title,description\nStocks,They fell.\n",
    "jsonl": b'{"text": "Stocks fell."}\n',
}
"""A file of each of `workers.FILES`."""


class NoLevel:
    """In place of `charcnn.classify.engine.Engine`."""

    takes_text, cores_a_gpu, threads, batch, few = True, 1.0, 1, 1, 0

    def __init__(self, params: Any, **options: Any) -> None:
        from charcnn.classify.engine import choices

        (self.choice,) = choices("cuda", level="l16")
        self._classes = params.config.classes

    def logits(self, batch: Any) -> np.ndarray:
        """Zeros."""
        if not isinstance(batch, np.ndarray):
            batch.pack(np.empty(batch.packed_size, np.uint8))
        return np.zeros((len(batch), self._classes), np.float32)


def label(file: str) -> None:
    """Label a file of one row, of one of `workers.FILES`."""
    from charcnn.classify import classifier as package
    from charcnn.model.params import Params
    from charcnn.text.layout import Layout
    from charcnn.text.readers.open import open_reader
    from charcnn.text.writers.open import open_writer

    params = Params({name: np.zeros(shape, np.float32) for name, shape in TINY.parameter_shapes.items()}, TINY)
    with ExitStack() as stack:
        replaced(stack, package, Engine=NoLevel)
        for encode_on in package.ENCODE_ON:
            classifier = package.Classifier(params, encoding="crepe", encode_on=encode_on)
            classifier.predict(["a"])
            with tempfile.TemporaryFile(buffering=0) as source:
                source.write(ROWS[file])
                source.seek(0)
                encoding, rows = classifier.encoding, classifier.rows
                reader = open_reader(file, "a row", source, Layout(), encoding, rows=rows, capacity=1 << 16)
                writer = open_writer(reader, io.BytesIO(), classifier.classes_.tolist(), ["label", "probability"])
                for block in reader.blocks():
                    shares = classifier.probabilities(reader.texts(block))
                    labels = shares.argmax(axis=1)
                    writer.render(block, labels, np.take_along_axis(shares, labels[:, None], axis=1))


@contextmanager
def announced() -> Iterator[None]:
    """What the block compiles of charcnn is told as kernels are."""
    from numba.core import event

    started: list[float] = []

    class Listener(event.Listener):  # type: ignore[misc, unused-ignore]
        def on_start(self, event: Any) -> None:
            started.append(time.perf_counter())

        def on_end(self, event: Any) -> None:
            seconds, function = time.perf_counter() - started.pop(), event.data["dispatcher"]
            if function.py_func.__module__.startswith("charcnn."):
                workers.tell(workers.Compiled(workers.CPU, title(function), seconds))

    with event.install_listener("numba:compile", Listener()):
        yield


def main(*files: str) -> None:
    """Compile for these, say so, and go on with the others."""
    with announced():
        zero_copy.compile_ahead()
        for file in files:
            label(file)
        workers.ready()
        for file in workers.FILES[len(files) :]:
            workers.leave_alone()
            label(file)


if __name__ == "__main__":
    main(*sys.argv[1:])
