"""The files of one `charcnn classify`, one or many: their blocks follow one another, and each has its own output."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import cache, partial
from itertools import chain

from charcnn.aliases import Record
from charcnn.classify.classifier import Classifier
from charcnn.classify.done import Done
from charcnn.classify.job import REPORT, ClassifyJob, Task
from charcnn.classify.labelling import Labelled, Labelling, open_input, without_label
from charcnn.classify.reading import SHOWN, open_bytes, said, told
from charcnn.classify.sinks import FileSink, Sink, StreamSink, identity_of
from charcnn.files import check_unchanged
from charcnn.host.garbage import uncollected
from charcnn.host.interrupts import keep
from charcnn.host.openmetrics import OpenMetrics, Sample
from charcnn.host.progress import Progress, told_where_slow
from charcnn.host.terminal import counted, printable, tell
from charcnn.model import shipped
from charcnn.runtime import ordered
from charcnn.text.columns import columns
from charcnn.text.readers.base import Block, Reader

PATIENCE = 5.0
"""Seconds that a command which ends in the middle waits for a file to be opened: it may be a pipe, and for ever."""


def label_files(
    job: ClassifyJob, classifier: Classifier, *, warm: bool, explain: Callable[[Exception], str]
) -> LabellingRun:
    """Label all rows of all files of a job.

    Args:
        job: what is asked for.
        classifier: computes.
        warm: whether to have one text computed first, so that what is compiled then is not timed.
        explain: what people read of an error.

    Returns:
        What was done.

    Raises:
        OSError: an output cannot be written; or what is wrong with the only file.
        ValueError: what is wrong with the only file, or options do not fit the classifier.
    """
    run = LabellingRun(job, Labelling(job, classifier), explain)
    try:
        run.open_first()
        if warm:
            _warm_up(classifier, quiet=job.quiet)
        run.label_all()
    finally:
        run.close()
    return run


def _warm_up(classifier: Classifier, *, quiet: bool) -> None:
    with told_where_slow(quiet), uncollected():
        texts = next(columns([""], 1))
        classifier.logits(texts)
        if classifier.encode_on == "gpu":
            classifier.engine.logits(classifier.to_encode(texts))
    classifier.engine.monitor.seconds.clear()


class File:
    """One of the files, from when it is opened to when its output has its name.

    Args:
        task: which.
        job: what is asked of the command.
        labelling: what labels it.
        done_in: the list of what is done, of a folder.
    """

    def __init__(self, task: Task, job: ClassifyJob, labelling: Labelling, done_in: Callable[[str], Done]) -> None:
        self.task, self._job, self._labelling, self._done_in = task, job, labelling, done_in
        self._stack = ExitStack()
        self._size, self._shown = _size(task), 0
        self.error: Exception | None = None
        self.before: Record | None = None
        """Where it was done before: its counts."""
        self.reader: Reader
        self.sink: Sink
        self.ready = False
        """Whether there is something to be done, and a sink for it."""
        self.said = ""
        """How the reader finds its texts, for people."""
        self.resumed = 0
        """Rows that an earlier start did."""

    def open(self) -> None:
        """Make ready, where it is not done.

        Raises:
            ValueError, OSError: the file cannot be read, or its output not be written.
        """
        task, job, classifier = self.task, self._job, self._labelling.classifier
        identity, listed = identity_of(task.input, job, classifier), None
        if task.root is not None:
            done, whole = self._done_in(task.root), identity | {"layout": _layout(job)}
            self.before = done.find(task.output, whole)
            if self.before is not None:
                return
            listed = partial(done.add, task.output, whole)
        self._file = file = self._stack.enter_context(open_bytes(task.input))
        self._status = os.fstat(file.fileno())
        self.reader = reader = open_input(task.input, job.format, job.layout, classifier, file)
        self.said = reader.said
        open_writer = self._labelling.writer_of(reader, task.partitions)
        if task.stream:
            self.sink = StreamSink(self._stack, task, open_writer)
        else:
            if task.root is not None:
                os.makedirs(os.path.dirname(task.output) or ".", exist_ok=True)
            identity |= {"format": reader.format, "reads": reader.reads}
            self.sink = FileSink(self._stack, task, identity, reader, open_writer, force=job.force, listed=listed)
        self.resumed, self.ready = self.sink.rows, True

    def blocks(self) -> Iterator[Block]:
        """Its rows, as `Labelling.blocks`."""
        return self._labelling.blocks(self.reader) if self.ready else iter(())

    def finish(self) -> None:
        """All rows are there: the output gets its name, or `error` says why it has none."""
        try:
            if self.ready and self.error is None:
                check_unchanged(self._file, self._status, self.task.input)
                self.sink.finish()
        except (ValueError, FileExistsError) as error:
            self.error = error
        if self.ready and isinstance(self.error, ValueError):  # not one of the system, which may pass
            self.sink.discard()  # the input is damaged or was changed, and a mended one is another input
        self.close()

    def close(self) -> None:
        """Let go of the file; what is written stays for another start."""
        self._stack.close()

    def count(self, progress: Progress) -> None:
        """Have the progress count what the reader does, as it is the only file."""
        self._size, self._shown = 0, self.reader.position
        progress.count(self.reader.size, self.reader.unit, self._shown)

    def progress(self, end: int | None) -> int:
        """What is done of the input and was not told yet, up to where a block ends; None for all."""
        if end is None:
            now = self._size
        elif self.task.root is None:
            now = end
        else:
            now = self._size * end // self.reader.size if self.reader.size else 0
        self._shown, before = max(now, self._shown), self._shown
        return self._shown - before

    @property
    def counts(self) -> Record:
        """Its rows, and how many of them have no label; none where it could not be labelled."""
        if self.error is not None:
            return {"rows": 0, "unreadable": 0}
        if self.before is not None:
            return {name: self.before[name] for name in ("rows", "unreadable")}
        return {"rows": self.sink.rows, "unreadable": self.sink.unreadable}

    def report(self, explain: Callable[[Exception], str]) -> Record:
        """What became of it, as JSON values."""
        found: Record = {"input": self.task.input, "output": self.task.output}
        if self.error is not None:
            return found | {"error": explain(self.error)}
        return found | self.counts | {"done_before": self.before is not None}


class LabellingRun:
    """All files of a job, one after the other: threads compute one while the next is read.

    What is wrong with one of several files is told, and keeps back no other; with the only file, it is raised.

    Args:
        job: what is asked of the command.
        labelling: what labels them.
        explain: what people read of an error.
    """

    def __init__(self, job: ClassifyJob, labelling: Labelling, explain: Callable[[Exception], str]) -> None:
        self._job, self._labelling, self._explain = job, labelling, explain
        self._open: list[File] = []
        self._opening, self._stopped = threading.Lock(), False
        self._told = 0
        self._said: set[str] = set()
        self._files = self._opened()
        self.files: list[File] = []
        """Those that are through."""
        self.unreadable = 0
        """Rows of all files that have no label."""

    def close(self) -> None:
        """Let go of all files that are open."""
        self._stopped = True
        waited = self._opening.acquire(timeout=PATIENCE)  # the file that is being opened, too
        for file in list(self._open):
            file.close()
        if waited:
            self._opening.release()

    def _opened(self) -> Iterator[File]:
        """Each file, ready or with an error."""
        done_in = cache(Done)
        for task in self._job.tasks:
            file = File(task, self._job, self._labelling, done_in)
            with self._opening:
                if self._stopped:
                    return
                self._open.append(file)
                try:
                    file.open()
                except (ValueError, OSError) as error:
                    file.error = error
            yield file

    def open_first(self) -> None:
        """Open the first file, so that what is wrong with it is told before anything is compiled."""
        keep(self._kept)
        first = next(self._files, None)
        if first is None:
            return
        self._files = chain([first], self._files)
        if self._job.alone:
            if first.error is not None:
                raise first.error
            if first.resumed and not self._job.quiet:
                tell(f"resuming after row {first.resumed:,} of an interrupted run")

    def _items(self) -> Iterator[tuple[File, Block | None, Exception | None]]:
        """Blocks of all files; behind those of each None, and what was wrong with it."""
        for file in self._files:
            wrong: Exception | None = None
            try:
                for block in file.blocks():
                    yield file, block, None
                    if file.error is not None:
                        break
            except (ValueError, OSError) as error:
                wrong = error
            yield file, None, wrong

    def _label(
        self, item: tuple[File, Block | None, Exception | None]
    ) -> tuple[File, Block | None, Labelled | Exception | None]:
        file, block, wrong = item
        if block is None or file.error is not None:
            return file, block, wrong
        try:
            texts = self._labelling.texts(file.reader, block)
        except (ValueError, OSError) as error:
            return file, block, error
        return file, block, self._labelling.label(file.sink.writer, block, texts)

    def label_all(self) -> None:
        """Label all rows of all files, of which the first is open."""
        labelling, job, begun = self._labelling, self._job, time.perf_counter()
        progress = Progress(
            "classify",
            every=job.log_every,
            hidden=job.quiet or any(file.ready and file.sink.file.isatty() for file in self._open),
            note=self._note,
        )
        if job.alone:
            self._tell_said(self._open[0], progress)
            self._open[0].count(progress)
        else:
            progress.count(sum(map(_size, job.tasks)), "B")
        with progress, OpenMetrics(job.openmetrics, "classify", self._samples, force=job.force):
            for file, block, found in ordered.ordered(self._items(), self._label, labelling.classifier.engine.threads):
                self._tell_said(file, progress)
                if isinstance(found, Exception):
                    file.error = file.error or found
                if block is None:
                    self._through(file, progress)
                elif file.error is None and isinstance(found, tuple):
                    self._write(file, block, found, progress)
                labelling.seconds = time.perf_counter() - begun
        self.unreadable = sum(file.counts["unreadable"] for file in self.files)

    def _write(self, file: File, block: Block, labelled: Labelled, progress: Progress) -> None:
        rendered, unreadable, unsure = labelled
        for row in [] if self._job.quiet else unreadable[: SHOWN - self._told]:
            self._told += 1
            progress.tell(f"{'' if self._job.alone else f'{file.task.input}: '}{told(*row)}")
        with self._labelling.monitor.stage("write"):
            file.sink.take(block, rendered, unreadable)
        self._labelling.count(block, unsure)
        progress.update(file.progress(block.end))

    def _through(self, file: File, progress: Progress) -> None:
        file.finish()
        self._open.remove(file)
        self.files.append(file)
        if self._job.alone:
            if file.error is not None:
                raise file.error
        elif file.error is not None:
            progress.tell(f"charcnn classify: {self._explain(file.error)}")
        elif file.resumed and not self._job.quiet:
            progress.tell(f"{file.task.input}: resumed after row {file.resumed:,} of an interrupted run")
        progress.update(file.progress(None))

    def _tell_said(self, file: File, progress: Progress) -> None:
        """How a file's texts are found, where no file before was read so."""
        if file.said and file.said not in self._said and not self._job.quiet:
            self._said.add(file.said)
            progress.tell(said(file.said, file.task.input))

    def _samples(self) -> Iterator[Sample]:
        """How far it is, for `--openmetrics`."""
        labelling, engine = self._labelling, self._labelling.classifier.engine
        unreadable = sum(file.counts["unreadable"] for file in [*self.files, *self._open] if file.ready)
        yield Sample(
            "classify_rows", "rows that this start labelled, or found unreadable", labelling.rows, counter=True
        )
        yield Sample("classify_unreadable_rows", "rows with no label, of files with an earlier start", unreadable)
        yield Sample("classify_rows_per_second", "mean rate since this start", labelling.rate())
        yield Sample("classify_files", "files that there are", len(self._job.tasks))
        yield Sample("classify_files_done", "files that are through", len(self.files))
        yield Sample("classify_files_failed", "files that could not be labelled", len(self.errors))
        how = {"level": engine.choice.level.name, "precision": str(engine.choice.precision)}
        yield Sample("classify_level", "what computes", 1, how)

    def _note(self) -> str:
        rate = f"{self._labelling.rate():,.0f} rows/s"
        return rate if self._job.alone else f"{len(self.files):,} of {len(self._job.tasks):,} files, {rate}"

    def _kept(self) -> str:
        """What an interrupted start leaves."""
        if self._job.alone:
            return "".join(file.sink.kept() for file in [*self.files, *self._open] if file.ready)
        whole = sum(file.error is None for file in self.files)
        of = counted(len(self._job.tasks), "file")
        return f"{whole:,} of {of} labelled so far; the same command resumes"

    def summarise(self) -> None:
        """What was done, on standard error; of a stream only what is wrong with it, but on a terminal."""
        labelling, job = self._labelling, self._job
        wrong = len(self.errors)
        before = sum(file.before is not None for file in self.files)
        if job.left_out:
            tell(f"left out {counted(job.left_out, 'file')}: outputs of others, or reports of unreadable rows")
        report = job.tasks[0].report if job.alone else f"each OUTPUT{REPORT}"
        if self.unreadable:
            tell(f"{without_label(self.unreadable)}{'' if report is None else f': see {report}'}")
        streams = job.alone and job.tasks[0].stream
        if streams and not sys.stderr.isatty():
            return
        engine, model = labelling.classifier.engine, os.path.basename(job.model.model or shipped.DEFAULT)
        tell(
            *labelling.unsure_rows(),
            counted(labelling.rows, "row")
            + ("" if job.alone else f" of {counted(len(self.files) - wrong - before, 'file')}")
            + f" in {labelling.seconds:.1f} s, {labelling.rate():,.0f} rows/s, with {printable(model)}, {engine.by}"
            + (f": {job.tasks[0].output}" if job.alone and not streams else "")
            + (f"; {counted(before, 'file')} done before" if before else "")
            + (f"; {wrong:,} could not be labelled" if wrong else ""),
        )
        if engine.faster and sys.stderr.isatty():
            tell(f"--{engine.faster}")

    def report(self) -> Record:
        """What was done, as JSON values: of all files together, and of each of several."""
        each = {} if self._job.alone else {"files": [file.report(self._explain) for file in self.files]}
        return self._labelling.report(self.unreadable) | each

    @property
    def errors(self) -> list[Exception]:
        """What was wrong with files."""
        return [file.error for file in self.files if file.error is not None]


def _size(task: Task) -> int:
    """Bytes of the input; 0 where it is gone meanwhile."""
    try:
        return os.path.getsize(task.input)
    except OSError:
        return 0


def _layout(job: ClassifyJob) -> list[str | bool | None]:
    """What lists hold, which earlier starts wrote: options as they are typed. The separator is in the identity."""
    layout = job.layout
    delimiter = r"\t" if layout.delimiter == "\t" else layout.delimiter
    return [job.format, ",".join(layout.texts) or None, layout.label, layout.header, delimiter]
