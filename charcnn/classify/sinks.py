"""Where `charcnn classify` writes: a stream, or a file that appears when it is whole."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import ExitStack
from typing import IO

from charcnn.aliases import Record
from charcnn.classify.classifier import Classifier
from charcnn.classify.job import ClassifyJob, Task
from charcnn.classify.unsure import UNSURE
from charcnn.files import naming
from charcnn.host.terminal import counted, standard_output
from charcnn.text import output
from charcnn.text.readers.base import Block, Reader
from charcnn.text.writers.base import Writer

OpenWriter = Callable[..., Writer]
"""`charcnn.text.writers.open.open_writer` with all that it takes but the file, and whether that has its beginning."""


class Sink:
    """Where rows go."""

    rows = unreadable = 0
    whole = True
    """Whether the file holds all blocks that came."""

    def __init__(
        self, stack: ExitStack, file: IO[bytes], where: str, open_writer: OpenWriter, *, resumed: bool = False
    ) -> None:
        self.file, self._where = file, where
        with naming(where):
            self.writer: Writer = open_writer(file=file, resumed=resumed)
        stack.callback(self.writer.abandon)

    def take(self, block: Block, rendered: object, unreadable: list[tuple[int, int | None, str]]) -> None:
        """Write a block that is rendered; the rows of it that are unreadable are counted and noted."""
        with naming(self._where):
            self.whole = self.writer.write(rendered)
        self.rows += block.rows
        self.unreadable += len(unreadable)

    def discard(self) -> None:
        """What is written is of no use: leave nothing of it, where that is still possible."""

    def finish(self) -> None:
        """All rows are there."""
        with naming(self._where):
            self.writer.close()

    def kept(self) -> str:
        """What an interrupted start leaves."""
        return f"{counted(self.rows, 'row')} went to {self._where}"


class StreamSink(Sink):
    """Standard output, a pipe or a device: rows go out at once."""

    def __init__(self, stack: ExitStack, task: Task, open_writer: OpenWriter) -> None:
        where = "standard output" if task.output == "-" else task.output
        stack.enter_context(naming(where))  # also what closing a full device says
        file = standard_output() if task.output == "-" else open(task.output, "wb")  # noqa: SIM115 - the stack's
        if task.output != "-":
            stack.enter_context(file)
        super().__init__(stack, file, where, open_writer)
        self._stack, self._report = stack, task.report
        self._notes: IO[str] | None = None

    def take(self, block: Block, rendered: object, unreadable: list[tuple[int, int | None, str]]) -> None:
        """See `Sink.take`; the block goes out at once."""
        super().take(block, rendered, unreadable)
        with naming(self._where):
            self.file.flush()
        if self._report is not None and unreadable:
            if self._notes is None:
                self._notes = self._stack.enter_context(output.open_notes(self._report, 0))
            output.write_notes(self._notes, unreadable)

    def finish(self) -> None:
        """See `Sink.finish`."""
        super().finish()
        with naming(self._where):
            self.file.flush()


class FileSink(Sink):
    """A file that appears when it is whole; it goes on behind what an earlier start wrote, where it did.

    Args:
        stack: closes it.
        task: which file.
        identity: all that its rows depend on.
        reader: gives the rows.
        open_writer: makes what writes them.
        force: --force.
        listed: called with its size and its counts of rows before it gets its name.
    """

    def __init__(
        self, stack: ExitStack, task: Task, identity: Record, reader: Reader, open_writer: OpenWriter, *, force: bool,
        listed: Callable[[int, int, int], None] | None,
    ) -> None:  # fmt: skip
        self.name, self._resumable, self._listed, self._waiting = task.output, task.input != "-", listed, (0, 0)
        report = task.report or ""
        self.partial = output.Partial(
            self.name, report, identity, size=reader.size, resumable=self._resumable, overwrite=force
        )
        stack.callback(self.partial.close)
        state, resumed = self.partial.state, self.partial.resumed
        self.rows, self.unreadable = state["rows"], state["unreadable"]
        try:
            super().__init__(stack, self.partial.file, self.partial.file.name, open_writer, resumed=resumed)
            if resumed:
                reader.go_on(state["input"], state["rows"], state["lines"])
        except ValueError:
            self.discard()
            raise

    def take(self, block: Block, rendered: object, unreadable: list[tuple[int, int | None, str]]) -> None:
        """See `Sink.take`; where a second start goes on is kept."""
        super().take(block, rendered, unreadable)
        self.partial.note(unreadable)
        rows, lines = self._waiting
        self._waiting = rows + block.rows, lines + block.lines
        if self._resumable and self.whole:
            self.partial.advance(block.end, *self._waiting)
            self._waiting = 0, 0

    def discard(self) -> None:
        """Remove what waits for another start: the input is no longer what it was."""
        self.partial.discard()

    def finish(self) -> None:
        """See `Sink.finish`; the file gets its name."""
        super().finish()
        if self._listed is not None:
            self._listed(self.partial.sync(), self.rows, self.unreadable)
        self.partial.finish()

    def kept(self) -> str:
        """What an interrupted start leaves of the output, and how to go on."""
        if not os.path.exists(self._where):
            return f"{self.name} is whole"
        if not self._resumable:
            return f"{self._where} stays, but cannot be resumed: --force replaces it"
        if not self.partial.kept:
            return "nothing is kept yet: the same command starts over"
        return f"{counted(self.partial.kept, 'row')} kept in {self._where}: the same command resumes after them"


def identity_of(path: str, job: ClassifyJob, classifier: Classifier) -> Record:
    """All that an output depends on, but for how its input is read.

    Not the options, but what they come to, as a default may be named or not.
    """
    source: list[str | int] = [path]
    if path != "-":
        status = os.stat(path)
        source = [os.path.abspath(path), status.st_size, status.st_mtime_ns]
    return {
        "input": source,
        "model": classifier.digest,
        "config": classifier.config.to_dict(),
        "encoding": classifier.encoding.to_dict(),
        "classes": classifier.classes_.tolist(),
        "level": classifier.engine.choice.level.name,
        "precision": classifier.engine.choice.precision,
        "probabilities": job.probabilities,
        "unsure": [job.min_probability, job.unsure_label or UNSURE],
        **({"separator": job.layout.separator} if classifier.config.multi_label else {}),
        **({"windows": classifier.windows} if classifier.windows else {}),  # journals of before say nothing of them
    }
