"""Where `charcnn classify` writes: a stream, or a file that appears when it is whole."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import ExitStack
from typing import IO, TYPE_CHECKING, Any

from charcnn.aliases import Array, Record
from charcnn.cli.inputs import REPORT
from charcnn.cli.job import ClassifyJob
from charcnn.files import naming
from charcnn.host.terminal import counted

if TYPE_CHECKING:
    from charcnn.classify.classifier import Classifier
    from charcnn.text.readers.base import Block, Reader
    from charcnn.text.writers.base import Writer


class Sink:
    """Where rows go."""

    rows = unreadable = 0
    name: str | None = None
    whole = True
    """Whether the file holds all blocks that came."""

    def __init__(self, file: IO[bytes], where: str) -> None:
        self.file, self._where = file, where
        self.report: str | None = None

    def open(
        self,
        reader: Reader,
        names: list[str],
        added: list[str],
        *,
        every: bool | None = None,
        resumed: bool = False,
    ) -> None:
        """Make ready for the reader's rows, with columns `added` for labels that have these names.

        `every` is as of `open_writer`.
        """
        from charcnn.text.writers.open import open_writer

        with naming(self._where):
            self.writer: Writer = open_writer(reader, self.file, names, added, resumed=resumed, every=every)

    def take(self, block: Block, rendered: Any, unreadable: list[tuple[int, int | None, str]]) -> None:
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

    def __init__(self, stack: ExitStack, file: IO[bytes], where: str, report: str | None) -> None:
        super().__init__(file, where)
        self._stack, self.report = stack, report
        self._notes: IO[str] | None = None

    def take(self, block: Block, rendered: Any, unreadable: list[tuple[int, int | None, str]]) -> None:
        """See `Sink.take`; the block goes out at once."""
        super().take(block, rendered, unreadable)
        with naming(self._where):
            self.file.flush()
        if self.report is not None and unreadable:
            from charcnn.text import output

            if self._notes is None:
                self._notes = self._stack.enter_context(output.open_notes(self.report, 0))
            output.write_notes(self._notes, unreadable)

    def finish(self) -> None:
        """See `Sink.finish`."""
        super().finish()
        with naming(self._where):
            self.file.flush()


class FileSink(Sink):
    """A file that appears when it is whole."""

    listed: Callable[[int], None] | None = None
    """Called with its size before it gets its name."""

    def __init__(
        self, stack: ExitStack, path: str, identity: Record, *, size: int | None, report: str | None,
        resumable: bool, force: bool,
    ) -> None:  # fmt: skip
        from charcnn.text.output import Partial

        report = report or f"{path}{REPORT}"
        self.partial = Partial(path, report, identity, size=size, resumable=resumable, overwrite=force)
        stack.callback(self.partial.close)
        super().__init__(self.partial.file, self.partial.file.name)
        self.name, self.report, self._resumable = path, report, resumable
        state = self.partial.state
        self.rows, self.unreadable = state["rows"], state["unreadable"]
        self._waiting = 0, 0

    def open(
        self,
        reader: Reader,
        names: list[str],
        added: list[str],
        *,
        every: bool | None = None,
        resumed: bool = False,
    ) -> None:
        """See `Sink.open`; behind what an earlier start wrote, where it did."""
        super().open(reader, names, added, every=every, resumed=self.partial.resumed)
        if self.partial.resumed:
            state = self.partial.state
            try:
                reader.go_on(state["input"], state["rows"], state["lines"])
            except ValueError:
                self.discard()
                raise

    def take(self, block: Block, rendered: Any, unreadable: list[tuple[int, int | None, str]]) -> None:
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
        if self.listed is not None:
            self.listed(self.partial.sync())
        self.partial.finish()

    def kept(self) -> str:
        """What an interrupted start leaves of the output, and how to go on."""
        if not os.path.exists(self._where):
            return f"{self.name} is whole"
        if not self._resumable:
            return f"{self._where} stays, and no start goes on with it: --force replaces it"
        if not self.partial.kept:
            return "nothing is kept yet: the same command begins anew"
        return f"{counted(self.partial.kept, 'row')} kept in {self._where}: the same command goes on behind them"


def identity_of(path: str, job: ClassifyJob, classifier: Classifier) -> Record:
    """All that an output depends on, but for how its input is read.

    Not the options, but what they come to, as a default may be named or not.
    """
    from charcnn.classify.unsure import UNSURE

    source: list[Array] = [path]
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


def file_sink(stack: ExitStack, path: str, source: str, job: ClassifyJob, identity: Record, reader: Reader) -> FileSink:
    """The sink of the file `path`, with labels of the input `source`, whose identity is known."""
    reads = {"format": reader.format, "reads": reader.reads}
    return FileSink(
        stack, path, identity | reads, size=reader.size, report=job.report, resumable=source != "-", force=job.force
    )
