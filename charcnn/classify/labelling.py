"""From blocks of rows to rendered ones, and what that took."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from io import FileIO

import numpy as np

from charcnn.aliases import Record
from charcnn.classify.classifier import Classifier
from charcnn.classify.engine import overflowed
from charcnn.classify.job import ClassifyJob
from charcnn.classify.multi_label import MIN_PROBABILITY
from charcnn.classify.unsure import UNSURE, check_unsure_label, likeliest
from charcnn.host.progress import told_where_slow
from charcnn.host.terminal import counted, printable
from charcnn.runtime.monitor import Monitor
from charcnn.text.layout import Layout
from charcnn.text.readers import scan
from charcnn.text.readers.base import Block, Reader
from charcnn.text.readers.formats import format_of
from charcnn.text.readers.open import open_reader
from charcnn.text.strings import PackedStrings
from charcnn.text.writers.base import Writer, free_name
from charcnn.text.writers.open import open_writer

BUFFER = {"cpu": 1 << 20, "cuda": 8 << 20}
"""Bytes that are read at once."""

BLOCK_SECONDS = 5.0
"""Seconds that a block of rows takes at most, where a batch takes no longer: what is shown and kept goes by blocks."""

Unreadable = list[tuple[int, int | None, str]]
"""Number, line and reason of each row that cannot be read."""

Labelled = tuple[object, Unreadable, int]
"""A block as its writer renders it, with labels; rows that cannot be read; how many are unsure, or get no label."""


def without_label(count: int) -> str:
    """What people read of so many rows that cannot be read."""
    be, have = ("is", "has") if count == 1 else ("are", "have")
    return f"{counted(count, 'row')} {be} unreadable and {have} no label"


def open_input(path: str, format: str | None, layout: Layout, classifier: Classifier, file: FileIO) -> Reader:
    """The rows of an input, which is open; `format` is None where its name shows that."""
    return open_reader(
        format_of(path, format),
        "standard input" if path == "-" else path,
        file,
        layout,
        classifier.encoding,
        rows=classifier.rows,
        capacity=BUFFER[classifier.engine.choice.level.device],
        guessed=format is None,
    )


def logits_of(
    classifier: Classifier,
    block: Block,
    texts: PackedStrings,
    stage: Callable[[str], AbstractContextManager[object]] = nullcontext,
) -> np.ndarray:
    """Logits of all rows, float32 (N, C); zeros of those that cannot be read, which are not computed.

    A row whose logits are not finite becomes one of these. `stage` is as of `Classifier.logits`.
    """
    readable = np.flatnonzero(block.kinds == scan.READABLE)
    logits = np.zeros((len(block.kinds), len(classifier.classes_)), np.float32)
    if readable.size:
        logits[readable] = classifier.logits(texts.taken(block.kinds == scan.READABLE), stage)
    for n in overflowed(logits):
        logits[n] = 0
        block.kinds[n] = scan.NOT_TEXT  # whole, but none for this network: of JSON Lines, an object
        block.reasons[int(n)] = classifier.engine.overflow
    return logits


class Labelling:
    """One classifier's labels for the rows of any number of files.

    Args:
        job: what is asked of it.
        classifier: computes.
    """

    def __init__(self, job: ClassifyJob, classifier: Classifier) -> None:

        self._job, self.classifier = job, classifier
        self.monitor = Monitor()
        self.names: list[str] = classifier.classes_.tolist()
        """The labels."""
        several = classifier.config.multi_label
        self.every: bool | None = job.probabilities if several else None
        """Of lists of labels, whether each class's probability has a column; None where a row has one label."""
        if job.label_separator is not None and not several:
            raise ValueError(f"--label-separator {job.label_separator}: the model gives one label a text")
        if several:
            if job.unsure_label is not None:
                raise ValueError(f"--unsure-label {job.unsure_label}: the model gives several labels a text, or none")
            self._least = MIN_PROBABILITY if job.min_probability is None else job.min_probability
        elif job.min_probability is None and job.unsure_label is not None:
            raise ValueError(f"--unsure-label {job.unsure_label}: needs --min-probability")
        elif job.min_probability is not None:
            label = job.unsure_label or UNSURE
            self.names = [*self.names, check_unsure_label(label, classifier.classes_, "--unsure-label")]
        self.rows, self.unsure, self.seconds = 0, 0, 0.0
        """What was done so far: the caller counts."""

    def writer_of(self, reader: Reader, partitions: set[str]) -> Callable[..., Writer]:
        """`open_writer` of the reader's rows, with columns for labels: it takes the file, and `resumed`.

        Args:
            reader: gives the rows.
            partitions: names of columns that whoever reads the output has besides.
        """
        names, taken = ["label", "probability"], partitions.union(reader.taken)
        if self._job.probabilities:
            names[1:] = [f"probability of {name}" for name in self.classifier.classes_]
        added = [free_name(name, taken) for name in names]
        return partial(open_writer, reader, names=self.names, added=added, every=self.every)

    def blocks(self, reader: Reader) -> Iterator[Block]:
        """The file's rows; reading is a stage."""
        blocks, most = reader.blocks(), reader.rows
        while True:
            reader.rows = min(most, self._block_rows())
            with self.monitor.stage("read and scan"):
                block = next(blocks, None)
            if block is None:
                return
            yield block

    def _block_rows(self) -> int:
        """Rows of the next block, in whole batches: on tensor cores all that one may have, until they prove slow."""
        most, batch, rate = self.classifier.rows, self.classifier.engine.batch, self.rate()
        if not rate and self.classifier.engine.choice.level.tensor_cores:
            return most
        return min(most, max(1, int(rate * BLOCK_SECONDS) // batch) * batch)

    def texts(self, reader: Reader, block: Block) -> PackedStrings:
        """The block's texts.

        Raises:
            ValueError, OSError: the file is damaged.
        """
        with self.monitor.stage("gather texts"):
            return reader.texts(block)

    def label(self, writer: Writer, block: Block, column: PackedStrings) -> Labelled:
        """The block with labels of its texts, rendered; rows that cannot be read; how many are unsure, or get none."""
        with told_where_slow(self._job.quiet) if self.classifier.engine.waits(len(column)) else nullcontext():
            logits = logits_of(self.classifier, block, column, self.monitor.stage)
        with self.monitor.stage("render"):
            shares, readable = self.classifier.shares(logits), block.kinds == scan.READABLE
            if self.every is not None:
                chosen = shares >= self._least
                none = int((readable & ~chosen.any(axis=1)).sum())
                return writer.render(block, chosen, shares), block.unreadable(), none
            labels = likeliest(shares, self._job.min_probability)
            if not self._job.probabilities:
                shares = shares.max(axis=1, keepdims=True)
            unsure = (labels == len(self.classifier.classes_)) & readable
            return writer.render(block, labels, shares), block.unreadable(), int(unsure.sum())

    def count(self, block: Block, unsure: int) -> None:
        """A block is written."""
        self.rows, self.unsure = self.rows + block.rows, self.unsure + unsure

    def unsure_rows(self) -> list[str]:
        """What people read of rows that are unsure: a line, or none."""
        if self.every is not None:
            return [f"{self.unsure:,} of {self.rows:,} rows have no label of probability {self._least:g} or more"]
        if self._job.min_probability is None:
            return []
        kept = f"less probable than {self._job.min_probability:g}"
        return [f"{self.unsure:,} of {self.rows:,} rows are {kept}, and labelled {printable(self.names[-1])}"]

    def rate(self) -> float:
        """Rows a second."""
        return self.rows / self.seconds if self.seconds else 0.0

    def report(self, unreadable: int) -> Record:
        """What was done, with so many rows that cannot be read, and what bounded it, as JSON values.

        "busy" is each stage's share of the time that its threads had: one reads and scans, one writes, the others
        encode, compute and render. The fullest is the bound. "stages_of_the_level" are seconds, of a GPU by its own
        clock; those of streams that share it add up.
        """
        engine = self.classifier.engine
        busy = {}
        for stage, spent in self.monitor.seconds.items():
            share_of = 1 if stage in ("read and scan", "write") else engine.threads
            busy[stage] = round(spent / share_of / self.seconds, 4) if self.seconds else 0.0
        return {
            "rows": self.rows,
            "unreadable": unreadable,
            **({} if self.every is None else {"without_label": self.unsure}),
            **({} if self.every is not None or self._job.min_probability is None else {"unsure": self.unsure}),
            "seconds": self.seconds,
            "rows_per_second": self.rate(),
            "level": engine.choice.level.name,
            "precision": engine.choice.precision,
            "by_numpy": engine.by_numpy,
            "reasons": engine.reasons,
            "faster": engine.faster,
            "encode_on": self.classifier.encode_on,
            "windows": self.classifier.windows,
            "threads": engine.threads,
            "busy": busy,
            "stages_of_the_level": {name: round(spent, 4) for name, spent in engine.monitor.seconds.items()},
            "bound": max(busy, key=lambda stage: busy[stage], default=None),
            "peak_resident_bytes": _peak_resident(),
        }


def _peak_resident() -> int | None:
    """Bytes of this process; getrusage would count what the process held that started it."""
    try:
        with open("/proc/self/status") as file:
            return next((1024 * int(line.split()[1]) for line in file if line.startswith("VmHWM:")), None)
    except OSError:
        return None
