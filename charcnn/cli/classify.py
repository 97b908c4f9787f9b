"""Label the rows of a file: CSV, JSON Lines, Parquet or plain lines.

The output is of the same kind: all rows in their order, byte for byte, with a label and its probability. CSV and
Parquet get columns at the end, JSON objects keys; a plain line follows its label and probability and a tab. A row that
cannot be read gets an empty label and a line in a report; bytes that are not UTF-8 count as unknown characters.

The output has its name when it is whole. A run that was cut off is gone on with by the same command; a Parquet file is
begun anew.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

from charcnn.cli import DONE, UNREADABLE, ranks
from charcnn.cli.model import (
    SHOWN,
    add_layout_arguments,
    add_model_arguments,
    format_of,
    leave_out_overflowed,
    load,
    open_bytes,
    open_input,
    told,
    uncollected,
)
from charcnn.cli.sinks import FileSink, Sink, StreamSink
from charcnn.files import naming
from charcnn.host.terminal import standard_output, tell
from charcnn.text.readers.formats import SUFFIXES

if TYPE_CHECKING:
    import numpy as np

    from charcnn.classify.classifier import Classifier
    from charcnn.text.readers.base import Block, Reader

SLOW = 4.0
"""Seconds after which a start is slow."""

EPILOG = """examples:
  echo "Stocks fell on Monday as oil rose." | charcnn classify -
  charcnn classify news.csv                              writes news.labelled.csv
  charcnn classify news.parquet -o labelled.parquet --text-columns headline --probabilities
  tail -f headlines.txt | charcnn classify - | grep ^Sports
  charcnn classify news.jsonl --precision fp32 -o -      to standard output

exit status: 0 done; 1 failed while working; 2 unusable options, files or machine; 3 done, but some rows were
unreadable; 130 interrupted"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """INPUT, --output, and what they share with `evaluate`."""
    parser.epilog = EPILOG
    add = parser.add_argument
    add("input", metavar="INPUT", help="a file, or - for standard input")
    add("-o", "--output", metavar="FILE", help="default: INPUT with .labelled before its ending; of -, standard output")
    add("--force", action="store_true", help="replace an output that is there, or that another run began")
    add("--report", metavar="FILE", help="unreadable rows, where there are any (default: OUTPUT and .unreadable.csv)")
    add("--probabilities", action="store_true", help="a column for the probability of each class")
    add("--json", metavar="FILE", help="write here what was done, how fast, and which stage bounds it")
    add("--quiet", action="store_true", help="no progress and no summary")
    add_layout_arguments(parser)
    add_model_arguments(parser)
    ranks.add_rank_arguments(parser)


def run(options: argparse.Namespace) -> int:
    """Label the rows; the exit status."""
    from charcnn import offload

    try:
        comm = offload.world()
    except RuntimeError as error:
        raise ValueError(str(error)) from error
    if comm is not None and comm.rank > 0:
        return ranks.work(comm, options)
    team = ranks.team(comm, options)
    try:
        team.check()
        status = _label(options, team)
    except BaseException as error:
        team.fell(error)
        team.close()
        raise
    return team.leave(status)


def _label(options: argparse.Namespace, team: ranks.Team) -> int:
    """The root's part, or that of a process alone."""
    from charcnn.files import replacing
    from charcnn.text.columns import columns

    output = options.output or _default_output(options.input)
    with ExitStack() as stack:
        file = stack.enter_context(open_bytes(options.input))
        _fit(options, output)
        if "-" not in (output, options.input) and os.path.exists(output) and os.path.samefile(options.input, output):
            raise ValueError(f"--output {output}: is the input")
        with _said_where_slow(options):
            classifier = load(options)
        team.join(classifier)
        reader = open_input(options, classifier, file)
        names, added = classifier.classes_.tolist(), _added(reader, classifier, options.probabilities)
        job = _Job(options, classifier, reader)
        if output == "-" or (os.path.exists(output) and not os.path.isfile(output)):
            name = "standard output" if output == "-" else output
            stack.enter_context(naming(name))  # also what closing a full device says
            device = standard_output() if output == "-" else stack.enter_context(open(output, "wb"))
            sink: Sink = StreamSink(stack, device, name, options.report)
        else:
            sink = FileSink(stack, output, options, classifier, reader)
        sink.open(reader, names, added)
        stack.callback(sink.writer.abandon)
        if team.comm is None:  # else ranks compile at the same time, each when its first batch comes
            with _said_where_slow(options), uncollected():
                classifier.logits(next(columns([""], 1)))
            classifier.engine.monitor.seconds.clear()
        job.label_all(sink)
        sink.finish()
        shared = team.close()
        if not options.quiet:
            job.summarise(sink)
            tell(*ranks.lines(shared))
        if options.json is not None:
            with replacing(options.json) as out:
                json.dump(job.report(sink) | shared, out, indent=1, allow_nan=False)
                out.write("\n")
    return UNREADABLE if sink.unreadable else DONE


@contextmanager
def _said_where_slow(options: argparse.Namespace) -> Iterator[None]:
    """The block compiles when it runs for the first time on a machine: say so on a terminal."""
    words = "still starting: for the first time on a machine, code is compiled for it"
    timer = threading.Timer(SLOW, tell, [words])
    timer.daemon = True
    if sys.stderr.isatty() and not options.quiet:
        timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _default_output(path: str) -> str:
    if path == "-":
        return "-"
    stem, suffix = os.path.splitext(path)
    return f"{stem}.labelled{suffix}"


def _fit(options: argparse.Namespace, output: str) -> None:
    """Refuse a name that says another format than the input is."""
    written = format_of(options)
    if output == "-" and written == "parquet":
        raise ValueError("--output -: a Parquet file needs a name")
    named = SUFFIXES.get(os.path.splitext(output)[1].lower(), written)
    if named != written and not {named, written} <= {"csv", "tsv", "lines"}:
        raise ValueError(f"--output {output}: what is written is {written}, as INPUT is")


def _added(reader: Reader, classifier: Classifier, every: bool) -> list[str]:
    """Names of the columns to add, none of which the file has."""
    from charcnn.text.readers.base import free_name

    names = ["label", "probability"]
    if every:
        names[1:] = [f"probability of {name}" for name in classifier.classes_]
    return [free_name(name, reader.taken) for name in names]


def _peak_resident() -> int | None:
    """Bytes of this process; getrusage would count what the process held that started it."""
    try:
        with open("/proc/self/status") as file:
            return next((1024 * int(line.split()[1]) for line in file if line.startswith("VmHWM:")), None)
    except OSError:
        return None


class _Job:
    """From blocks of rows to rendered ones."""

    def __init__(self, options: argparse.Namespace, classifier: Classifier, reader: Reader) -> None:
        from charcnn.runtime.monitor import Monitor

        self._options, self._classifier, self._reader = options, classifier, reader
        self._monitor = Monitor()
        self.rows, self.seconds = 0, 0.0

    def _blocks(self) -> Iterator[Block]:
        blocks = self._reader.blocks()
        while True:
            with self._monitor.stage("read and scan"):
                block = next(blocks, None)
            if block is None:
                return
            yield block

    def _label(self, block: Block) -> tuple[Block, Any, list[tuple[int, int | None, str]]]:
        import numpy as np

        from charcnn.ops.softmax.loops import softmax_loops

        stage = self._monitor.stage
        with stage("gather texts"):
            column = self._reader.texts(block)
        if self._classifier.encode_on == "gpu":
            given: Any = self._classifier.to_encode(column)
        else:
            with stage("encode"):
                given = self._classifier.encode(column)
        with stage("compute"):
            logits = self._classifier.engine.logits(given)
        with stage("render"):
            leave_out_overflowed(block, logits, self._classifier.engine)
            shares: np.ndarray = softmax_loops(logits, out=logits)
            labels = shares.argmax(axis=1)
            if not self._options.probabilities:
                shares = np.take_along_axis(shares, labels[:, None], axis=1)
            return block, self._reader.render(block, labels, shares), block.unreadable()

    def label_all(self, sink: Sink) -> None:
        """Label all rows."""
        from tqdm import tqdm

        from charcnn.runtime import ordered

        reader, quiet = self._reader, self._options.quiet
        done, begun = reader.position, time.perf_counter()
        on_terminal = sink.file.isatty()
        bar = tqdm(
            total=reader.size,
            initial=done,
            desc="classify",
            unit=reader.unit,
            unit_scale=True,
            disable=True if quiet or on_terminal else None,  # None: shown on a terminal only
            delay=0.5,
            leave=False,
        )
        with bar:
            for block, rendered, unreadable in ordered.ordered(
                self._blocks(), self._label, self._classifier.engine.threads
            ):
                for row in [] if quiet else unreadable[: max(0, SHOWN - sink.unreadable)]:
                    bar.write(told(*row), file=sys.stderr)
                with self._monitor.stage("write"):
                    sink.take(block, rendered, unreadable)
                self.rows += block.rows
                self.seconds = time.perf_counter() - begun
                bar.set_postfix_str(f"{self.rows / self.seconds:,.0f} rows/s", refresh=False)
                bar.update(block.end - done)
                done = block.end

    def report(self, sink: Sink) -> dict[str, Any]:
        """What was done, and what bounded it, as JSON values.

        "busy" is each stage's share of the time that its threads had: one reads and scans, one writes, the others
        encode, compute and render. The fullest is the bound. "stages_of_the_level" are seconds, of a GPU by its own
        clock; those of streams that share it add up.
        """
        engine, threads = self._classifier.engine, self._classifier.engine.threads
        busy = {}
        for stage, spent in self._monitor.seconds.items():
            share_of = 1 if stage in ("read and scan", "write") else threads
            busy[stage] = round(spent / share_of / self.seconds, 4) if self.seconds else 0.0
        return {
            "rows": self.rows,
            "unreadable": sink.unreadable,
            "seconds": self.seconds,
            "rows_per_second": self.rows / self.seconds if self.seconds else 0.0,
            "level": engine.choice.level.name,
            "precision": engine.choice.precision,
            "reasons": engine.reasons,
            "faster": engine.faster,
            "encode_on": self._classifier.encode_on,
            "threads": threads,
            "busy": busy,
            "stages_of_the_level": {name: round(spent, 4) for name, spent in engine.monitor.seconds.items()},
            "bound": max(busy, key=lambda stage: busy[stage], default=None),
            "peak_resident_bytes": _peak_resident(),
        }

    def summarise(self, sink: Sink) -> None:
        """What was done, on standard error; of a stream only what is wrong with it, but on a terminal."""
        if sink.unreadable:
            more = "" if sink.report is None else f": see {sink.report}"
            tell(f"{sink.unreadable:,} rows are unreadable and have no label{more}")
        if sink.name is not None or sys.stderr.isatty():
            rate = self.rows / self.seconds if self.seconds else 0.0
            tell(
                f"{self.rows:,} rows in {self.seconds:.1f} s, {rate:,.0f} rows/s, with "
                f"{self._classifier.engine.choice}{'' if sink.name is None else f': {sink.name}'}"
            )
            if self._classifier.engine.faster:
                tell(f"--{self._classifier.engine.faster}")
