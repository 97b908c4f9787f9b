"""Label the rows of a file: CSV, JSON Lines, Parquet or plain lines.

The output is of the same kind: all rows in their order, byte for byte, with a label and its probability. CSV and
Parquet get columns at the end, JSON objects keys; a plain line follows its label and probability and a tab. A row that
cannot be read gets an empty label and a line in a report; bytes that are not UTF-8 count as unknown characters.

A file may be compressed: news.csv.gz, news.jsonl.zst. The output is not. Several files, folders and patterns are
labelled by one start, each file to an output of its own. One that cannot be read is told, and keeps back no other.

The output has its name when it is whole. A run that was cut off is gone on with by the same command.
"""

from __future__ import annotations

import argparse
import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

from charcnn.aliases import Record
from charcnn.cli import DONE, UNREADABLE, inputs, ranks
from charcnn.cli.job import ClassifyJob, job_of
from charcnn.cli.labelling import Labelling, Unreadable, without_label
from charcnn.cli.model import (
    SHOWN,
    add_layout_arguments,
    add_min_probability,
    add_model_arguments,
    add_windows,
    format_of,
    load,
    model_of,
    open_bytes,
    open_input,
    tell_said,
    told,
    uncollected,
)
from charcnn.cli.sinks import Sink, StreamSink, file_sink, identity_of
from charcnn.files import check_paths, check_unchanged, naming, write_json
from charcnn.host.interrupts import keep
from charcnn.host.progress import Progress, add_log_every
from charcnn.host.terminal import counted, standard_output, tell, wrote
from charcnn.text.output import NOTES, PARTS
from charcnn.text.readers.formats import SUFFIXES, split_name

if TYPE_CHECKING:
    from charcnn.classify.classifier import Classifier
    from charcnn.text.readers.base import Block, Reader

SLOW = 4.0
"""Seconds after which a start is slow."""

EPILOG = """examples:
  echo "Stocks fell on Monday as oil rose." | charcnn classify -
  charcnn classify news.csv                              writes news.labelled.csv
  charcnn classify news.parquet -o labelled.parquet --text-columns headline --probabilities
  charcnn classify data -o labelled                      all files below data; the same command goes on after a kill
  charcnn classify essays.csv --windows --window-size 500   all of a text counts, however long it is
  tail -f headlines.txt | charcnn classify - | grep ^Sports
  charcnn classify news.jsonl --precision fp32 -o -      to standard output

exit status: 0 done; 1 failed while working; 2 unusable options, files or machine; 3 done, but some rows were
unreadable. Of several files the worst of all"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """INPUT, --output, and what they share with `evaluate`."""
    parser.epilog = EPILOG
    add = parser.add_argument
    add("input", metavar="INPUT", nargs="+", help="files, folders, patterns such as 'data/*/*.csv.gz'; or - alone")
    add(
        "-o",
        "--output",
        metavar="FILE",
        help="default: INPUT with .labelled before its ending; of -, standard output. Of several files a folder, in "
        "which they lie as below INPUT",
    )
    add("--force", action="store_true", help="replace files that are there, or an output that another run began")
    add("--report", metavar="FILE", help="unreadable rows, where there are any (default: OUTPUT and .unreadable.csv)")
    add("--probabilities", action="store_true", help="a column for the probability of each class")
    add_min_probability(parser)
    add(
        "--unsure-label",
        metavar="WORD",
        help="with --min-probability, the label of rows that are less probable (default: unsure)",
    )
    add_windows(parser)
    add("--json", metavar="FILE", help="write here what was done, how fast, and which stage bounds it")
    add("--quiet", action="store_true", help="no progress and no summary")
    add_log_every(add)
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
    mode = options.offload if comm is None else options.offload or "farm"
    if comm is not None and comm.rank > 0:
        return ranks.work(comm, mode, model_of(options))
    team = ranks.Ranks(comm, mode, deadline=options.deadline, root_serves=options.root_serves)
    try:
        job = job_of(options, team.check(options.input, model_of(options)))
        with _short_turns():
            status = (_label_several if inputs.several(job.inputs, job.output) else _label)(job, team)
    except BaseException as error:
        team.fell(error)
        team.close()
        raise
    return team.leave(status)


TURN = 1e-4
"""Seconds for which a thread keeps the interpreter from another: in Python's own 5 ms some blocks are scanned."""


@contextmanager
def _short_turns() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(TURN)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


def _label(job: ClassifyJob, team: ranks.Ranks) -> int:
    """The root's part, or that of a process alone."""
    (source,) = job.inputs
    output = job.output or inputs.default_output(source)
    to_file = output != "-" and (os.path.isfile(output) or not os.path.exists(output))
    with ExitStack() as stack:
        file = stack.enter_context(open_bytes(source))
        before = os.fstat(file.fileno())
        _fit(output, format_of(source, job.format))
        _check_paths(job, source, output, to_file)
        with _said_where_slow(job.quiet):
            classifier = load(job.model, windows=job.windows)
        team.join(classifier, quiet=job.quiet)
        reader = open_input(source, job.format, job.layout, classifier, file)
        labelling = Labelling(job, classifier)
        if not to_file:
            name = "standard output" if output == "-" else output
            stack.enter_context(naming(name))  # also what closing a full device says
            device = standard_output() if output == "-" else stack.enter_context(open(output, "wb"))
            sink: Sink = StreamSink(stack, device, name, job.report)
        else:
            sink = file_sink(stack, output, source, job, identity_of(source, job, classifier), reader)
            if sink.partial.resumed and not job.quiet:
                tell(f"going on after row {sink.rows:,} of a run that was cut off")
        keep(sink.kept)
        sink.open(reader, labelling.names, labelling.added(reader.taken), every=labelling.every)
        stack.callback(sink.writer.abandon)
        _warm_up(team, classifier, quiet=job.quiet)
        if not job.quiet:
            tell_said(reader, source)
        try:
            _label_all(job, labelling, reader, sink)
            labelling.unreadable = sink.unreadable
            check_unchanged(file, before, source)
        except ValueError:  # the input is damaged or was changed, and a mended one is another input
            sink.discard()
            raise
        sink.finish()
        shared = team.close()
        if not job.quiet:
            _summarise(labelling, sink)
            tell(*ranks.lines(shared))
        _write_report(job, labelling.report() | shared)
    return UNREADABLE if sink.unreadable else DONE


def _label_several(job: ClassifyJob, team: ranks.Ranks) -> int:
    """Label several files: see `_label`."""
    from charcnn.cli.several import Run

    if job.report is not None:
        raise ValueError("--report: of several files each has its own, beside its output")
    tasks, left_out = inputs.tasks(job.inputs, job.output, job.format is not None)
    files = inputs.written(tasks)
    check_paths(
        {"the input": [task.input for task in tasks], "--model": job.model.model},
        {**files, "--json": job.json},
        force=job.force,
        marks={"--json": JSON},
        kept=[*files],
        made=[*files],
    )
    with _said_where_slow(job.quiet):
        classifier = load(job.model, windows=job.windows)
    team.join(classifier, quiet=job.quiet)
    _warm_up(team, classifier, quiet=job.quiet)
    work = Run(job, Labelling(job, classifier), tasks, left_out)
    work.label_all()
    shared = team.close()
    if not job.quiet:
        work.summarise()
        tell(*ranks.lines(shared))
    _write_report(job, work.report() | shared)
    return work.status


def _warm_up(team: ranks.Ranks, classifier: Classifier, *, quiet: bool) -> None:
    """Have one text computed, so that what is compiled then is not timed."""
    from charcnn.text.columns import columns

    if team.comm is None:  # else ranks compile at the same time, each when its first batch comes
        with _said_where_slow(quiet), uncollected():
            texts = next(columns([""], 1))
            classifier.logits(texts)
            if classifier.encode_on == "gpu":
                classifier.engine.logits(classifier.to_encode(texts))
        classifier.engine.monitor.seconds.clear()


def _check_paths(job: ClassifyJob, source: str, output: str, to_file: bool) -> None:
    """Refuse outputs of one input that would lose something."""
    report = job.report or (f"{output}{inputs.REPORT}" if to_file else None)
    check_paths(
        {"the input": source, "--model": job.model.model},
        {
            "--output": output,
            "--report": report,
            "--json": job.json,
            "the journal": [*(f"{output}{part}" for part in PARTS), f"{report}.part"] if to_file else None,
        },
        force=job.force,
        marks={"--report": NOTES, "--json": JSON},
        kept=["the journal"],
    )


JSON = rb'\{\s*"rows": \d+,\s*"unreadable": '
"""How what `--json` writes begins."""


def _write_report(job: ClassifyJob, report: Record) -> None:
    """Where --json asks for it."""
    if job.json is not None:
        write_json(job.json, report, force=job.force, mark=JSON)
        if not job.quiet:
            wrote(job.json)


@contextmanager
def _said_where_slow(quiet: bool) -> Iterator[None]:
    """The block compiles when it runs for the first time on a machine: say so on a terminal."""
    words = "still starting: for the first time on a machine, code is compiled for it"
    timer = threading.Timer(SLOW, tell, [words])
    timer.daemon = True
    if sys.stderr.isatty() and not quiet:
        timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _fit(output: str, written: str) -> None:
    """Refuse a name that says another format than is written, which is the input's."""
    if output == "-" and written == "parquet":
        raise ValueError("--output -: a Parquet file needs a name")
    _, ending, compression = split_name(output)
    if compression:
        raise ValueError(f"--output {output}: what is written is not compressed")
    named = SUFFIXES.get(ending.lower(), written)
    if named != written and not {named, written} <= {"csv", "tsv", "lines"}:
        raise ValueError(f"--output {output}: what is written is {written}, as INPUT is")


def _label_all(job: ClassifyJob, labelling: Labelling, reader: Reader, sink: Sink) -> None:
    """Label all rows."""
    from charcnn.runtime import ordered

    def label(block: Block) -> tuple[Block, Any, Unreadable, int]:
        return block, *labelling.label(sink.writer, block, labelling.texts(reader, block))

    done, begun = reader.position, time.perf_counter()
    on_terminal = sink.file.isatty()
    progress = Progress(
        "classify",
        every=job.log_every,
        hidden=job.quiet or on_terminal,
        note=lambda: f"{labelling.rate():,.0f} rows/s",
    )
    progress.count(reader.size, reader.unit, done)
    with progress:
        blocks, threads = labelling.blocks(reader), labelling.classifier.engine.threads
        for block, rendered, unreadable, unsure in ordered.ordered(blocks, label, threads):
            for row in [] if job.quiet else unreadable[: max(0, SHOWN - sink.unreadable)]:
                progress.tell(told(*row))
            with labelling.monitor.stage("write"):
                sink.take(block, rendered, unreadable)
            labelling.count(block, unsure)
            labelling.seconds = time.perf_counter() - begun
            progress.update(block.end - done)
            done = block.end


def _summarise(labelling: Labelling, sink: Sink) -> None:
    """What was done, on standard error; of a stream only what is wrong with it, but on a terminal."""
    if sink.unreadable:
        more = "" if sink.report is None else f": see {sink.report}"
        tell(f"{without_label(sink.unreadable)}{more}")
    if sink.name is not None or sys.stderr.isatty():
        tell(
            *labelling.unsure_rows(),
            f"{counted(labelling.rows, 'row')} in {labelling.seconds:.1f} s, {labelling.rate():,.0f} rows/s, with "
            f"{labelling.classifier.engine.choice}{'' if sink.name is None else f': {sink.name}'}",
        )
        if labelling.classifier.engine.faster and sys.stderr.isatty():
            tell(f"--{labelling.classifier.engine.faster}")
