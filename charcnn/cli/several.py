"""Several files in one `charcnn classify`: their blocks follow one another, and each has an output of its own."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from charcnn.aliases import Record
from charcnn.cli import DONE, FAILED, UNREADABLE, UNUSABLE, done, inputs
from charcnn.cli.errors import explained
from charcnn.cli.job import ClassifyJob
from charcnn.cli.labelling import Labelling, Unreadable, without_label
from charcnn.cli.model import SHOWN, open_bytes, open_input, told
from charcnn.cli.sinks import FileSink, file_sink, identity_of
from charcnn.files import check_unchanged
from charcnn.host.interrupts import keep
from charcnn.host.progress import Progress
from charcnn.host.terminal import counted, tell

if TYPE_CHECKING:
    from charcnn.text.output import Partial
    from charcnn.text.readers.base import Block, Reader


PATIENCE = 5.0
"""Seconds that a command which ends in the middle waits for a file to be opened: it may be a pipe, and for ever."""


class Lists:
    """What is done in the folders of all outputs."""

    def __init__(self) -> None:
        self._lists: dict[str, done.Done] = {}

    def of(self, folder: str) -> done.Done:
        """That of one folder."""
        if folder not in self._lists:
            self._lists[folder] = done.Done(folder)
        return self._lists[folder]


class File:
    """One of the files, from when it is opened to when its output has its name.

    Args:
        task: which.
        job: what is asked of the command.
        labelling: what labels it.
        lists: what is done.
    """

    def __init__(self, task: inputs.Task, job: ClassifyJob, labelling: Labelling, lists: Lists) -> None:
        self.task, self._job, self._labelling = task, job, labelling
        self._list = lists.of(task.root)
        self._stack = ExitStack()
        self.size, self._shown = _size(task), 0
        self.error: Exception | None = None
        self.before: Record | None = None
        """Where it was done before: its counts."""
        self.reader: Reader
        self.sink: FileSink
        self._partial: Partial | None = None
        self.said = ""
        """How the reader finds its texts, for people."""
        self.resumed = 0
        """Rows that an earlier start did."""

    def open(self) -> bool:
        """Make ready; whether there is something to be done.

        Raises:
            ValueError, OSError: the file cannot be read, or its output not be written.
        """
        task, job, labelling = self.task, self._job, self._labelling
        known = identity_of(task.input, job, labelling.classifier)
        identity = known | {"layout": _layout(job)}
        self.before = self._list.find(task.output, identity)
        if self.before is not None:
            return False
        file = self._stack.enter_context(open_bytes(task.input))
        self._file, self._status = file, os.fstat(file.fileno())
        self.reader = open_input(task.input, job.format, job.layout, labelling.classifier, file)
        self.said = self.reader.said
        os.makedirs(os.path.dirname(task.output) or ".", exist_ok=True)
        self.sink = file_sink(self._stack, task.output, task.input, job, known, self.reader)
        self._partial, self.resumed = self.sink.partial, self.sink.rows
        added = labelling.added(task.partitions.union(self.reader.taken))
        self.sink.open(self.reader, labelling.names, added, every=labelling.every)
        self._stack.callback(self.sink.writer.abandon)
        self.sink.listed = lambda size: self._list.add(
            task.output, identity, size, self.sink.rows, self.sink.unreadable
        )
        return True

    def blocks(self) -> Iterator[Block]:
        """Its rows, as `Labelling.blocks`."""
        return self._labelling.blocks(self.reader)

    def finish(self) -> None:
        """All rows are there: the output gets its name, or `error` says why it has none."""
        try:
            check_unchanged(self._file, self._status, self.task.input)
            self.sink.finish()
        except (ValueError, FileExistsError) as error:
            self.error = error

    def discard(self) -> None:
        """The input is damaged: leave nothing of its output, as another input is needed."""
        if self._partial is not None:
            self._partial.discard()

    def close(self) -> None:
        """Let go of the file; what is written stays for another start."""
        self._stack.close()

    def progress(self, end: int | None) -> int:
        """Bytes of the input that are done and were not told yet, up to where a block ends; None for all."""
        if end is None or not self.reader.size:
            now = self.size if end is None else 0
        else:
            now = self.size * end // self.reader.size
        self._shown, before = max(now, self._shown), self._shown
        return self._shown - before

    @property
    def unreadable(self) -> int:
        """Rows that have no label; 0 where the file could not be labelled."""
        if self.error is not None:
            return 0
        return self.sink.unreadable if self.before is None else int(self.before["unreadable"])

    def report(self) -> Record:
        """What became of it, as JSON values."""
        found: Record = {"input": self.task.input, "output": self.task.output}
        if self.error is not None:
            return found | {"error": _line(self.error)}
        rows = self.sink.rows if self.before is None else self.before["rows"]
        return found | {"rows": rows, "unreadable": self.unreadable, "done_before": self.before is not None}


class Run:
    """All files, one after the other: threads compute one while the next is read.

    Args:
        job: what is asked of the command.
        labelling: what labels them.
        tasks: which.
        left_out: how many were not taken, as they are outputs of others.
    """

    def __init__(self, job: ClassifyJob, labelling: Labelling, tasks: list[inputs.Task], left_out: int) -> None:
        self._job, self._labelling, self._tasks, self._left_out = job, labelling, tasks, left_out
        self._open: list[File] = []
        self._opening, self._stopped = threading.Lock(), False
        self._told = 0
        self._said: set[str] = set()
        self.files: list[File] = []
        """Those that are through."""

    def _items(self) -> Iterator[tuple[File, Block | None]]:
        lists = Lists()
        for task in self._tasks:
            file = File(task, self._job, self._labelling, lists)
            try:
                with self._opening:
                    if self._stopped:
                        return
                    self._open.append(file)
                    there = file.open()
                if there:
                    for block in file.blocks():
                        yield file, block
                        if file.error is not None:
                            break
            except (ValueError, OSError) as error:
                file.error = file.error or error
            yield file, None

    def _label(self, item: tuple[File, Block | None]) -> tuple[File, Block | None, Any, Unreadable, int]:
        file, block = item
        if block is None or file.error is not None:
            return file, block, None, [], 0
        try:
            column = self._labelling.texts(file.reader, block)
        except (ValueError, OSError) as error:
            file.error = file.error or error
            return file, block, None, [], 0
        return file, block, *self._labelling.label(file.sink.writer, block, column)

    def label_all(self) -> None:
        """Label all rows of all files.

        Raises:
            OSError: an output cannot be written.
        """
        from charcnn.runtime import ordered

        labelling, begun = self._labelling, time.perf_counter()
        progress = Progress(
            "classify",
            every=self._job.log_every,
            hidden=self._job.quiet,
            note=lambda: f"{len(self.files):,} of {len(self._tasks):,} files, {labelling.rate():,.0f} rows/s",
        )
        progress.count(sum(map(_size, self._tasks)), "B")
        keep(self._kept)
        failed = False  # blocks of a file that is damaged may come behind the one that showed it
        with progress:
            try:
                results = ordered.ordered(self._items(), self._label, labelling.classifier.engine.threads)
                for file, block, rendered, unreadable, unsure in results:
                    self._tell_said(file, progress)
                    if block is None:
                        self._through(file, progress)
                        failed = False
                    elif failed or rendered is None:
                        failed = True
                    else:
                        self._tell_rows(file, unreadable, progress)
                        with labelling.monitor.stage("write"):
                            file.sink.take(block, rendered, unreadable)
                        labelling.count(block, unsure)
                        progress.update(file.progress(block.end))
                    labelling.seconds = time.perf_counter() - begun
            finally:
                self._stopped = True
                waited = self._opening.acquire(timeout=PATIENCE)  # the file that is being opened, too
                for file in list(self._open):
                    file.close()
                if waited:
                    self._opening.release()
        labelling.unreadable = sum(file.unreadable for file in self.files)

    def _through(self, file: File, progress: Progress) -> None:
        if file.error is None and file.before is None:
            file.finish()
        if isinstance(file.error, ValueError):  # not one of the system, which may pass
            file.discard()
        file.close()
        self._open.remove(file)
        self.files.append(file)
        if file.error is not None:
            progress.tell(f"charcnn classify: {_line(file.error)}")
        elif file.resumed and not self._job.quiet:
            said = f"went on after row {file.resumed:,} of a run that was cut off"
            progress.tell(f"{file.task.input}: {said}")
        progress.update(file.progress(None))

    def _tell_said(self, file: File, progress: Progress) -> None:
        """How a file's texts are found, where no file before was read so."""
        if file.said and file.said not in self._said and not self._job.quiet:
            self._said.add(file.said)
            progress.tell(f"{file.task.input}: {file.said}")

    def _tell_rows(self, file: File, unreadable: Unreadable, progress: Progress) -> None:
        for row in [] if self._job.quiet else unreadable[: SHOWN - self._told]:
            self._told += 1
            progress.tell(f"{file.task.input}: {told(*row)}")

    def _kept(self) -> str:
        """What an interrupted start leaves."""
        whole = sum(file.error is None for file in self.files)
        of = counted(len(self._tasks), "file")
        return f"{whole:,} of {of} labelled so far; the same command goes on behind what is done"

    def summarise(self) -> None:
        """What was done, on standard error."""
        labelling = self._labelling
        wrong = [file for file in self.files if file.error is not None]
        before = sum(file.before is not None for file in self.files)
        if self._left_out:
            tell(f"left out {counted(self._left_out, 'file')}: outputs of others, or reports of unreadable rows")
        if labelling.unreadable:
            tell(f"{without_label(labelling.unreadable)}: see each OUTPUT{inputs.REPORT}")
        done_now = len(self.files) - len(wrong) - before
        tell(
            *labelling.unsure_rows(),
            f"{counted(labelling.rows, 'row')} of {counted(done_now, 'file')} in {labelling.seconds:.1f} s, "
            f"{labelling.rate():,.0f} rows/s, with {labelling.classifier.engine.choice}"
            + (f"; {counted(before, 'file')} done before" if before else "")
            + (f"; {len(wrong):,} could not be labelled" if wrong else ""),
        )

    def report(self) -> Record:
        """What was done, as JSON values: of all files together, and of each."""
        return self._labelling.report() | {"files": [file.report() for file in self.files]}

    @property
    def status(self) -> int:
        """The exit status: the worst of all files'."""
        failed = {explained(file.error)[1] for file in self.files if file.error is not None}
        if failed:
            return FAILED if FAILED in failed else UNUSABLE
        return UNREADABLE if self._labelling.unreadable else DONE


def _size(task: inputs.Task) -> int:
    """Bytes of the input; 0 where it is gone meanwhile."""
    try:
        return os.path.getsize(task.input)
    except OSError:
        return 0


def _line(error: Exception) -> str:
    return explained(error)[0] or str(error)


def _layout(job: ClassifyJob) -> list[Any]:
    """What lists hold, which earlier starts wrote: options as they are typed. The separator is in the identity."""
    layout = job.layout
    delimiter = r"\t" if layout.delimiter == "\t" else layout.delimiter
    return [job.format, ",".join(layout.texts) or None, layout.label, layout.header, delimiter]
