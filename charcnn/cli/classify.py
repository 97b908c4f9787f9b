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
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from charcnn.classify.job import ClassifyJob, ModelChoice
from charcnn.cli import DONE, FAILED, UNREADABLE, UNUSABLE, inputs, ranks
from charcnn.cli.errors import explained
from charcnn.cli.model import (
    add_layout_arguments,
    add_min_probability,
    add_model_arguments,
    add_windows,
    layout_of,
    load,
    model_of,
    windows_of,
)
from charcnn.files import check_paths, write_json
from charcnn.host.progress import add_log_every, told_where_slow
from charcnn.host.terminal import tell, wrote
from charcnn.text.output import NOTES

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


def job_of(options: argparse.Namespace, model: ModelChoice) -> ClassifyJob:
    """What the options say.

    Args:
        options: of the command.
        model: theirs, as far as the ranks let it be.

    Raises:
        ValueError: options contradict each other.
        FileNotFoundError: an input is not there.
    """
    layout, windows = layout_of(options), windows_of(options)
    tasks, left_out = inputs.to_label(options.input, options.output, options.report, options.format)
    return ClassifyJob(
        tasks=tuple(tasks),
        left_out=left_out,
        json=options.json,
        force=options.force,
        quiet=options.quiet,
        log_every=options.log_every,
        format=options.format,
        layout=layout,
        label_separator=options.label_separator,
        probabilities=options.probabilities,
        min_probability=options.min_probability,
        unsure_label=options.unsure_label,
        model=model,
        windows=windows,
    )


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
            status = _label(job, team)
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
    files = inputs.written(job.tasks)
    check_paths(
        {"the input": [task.input for task in job.tasks], "--model": job.model.model},
        {**files, "--json": job.json},
        force=job.force,
        marks={"--report": NOTES, "--json": JSON},
        kept=["the journal"] if job.alone else [*files],
        made=[] if job.alone else [*files],
    )
    with told_where_slow(job.quiet):
        classifier = load(job.model, windows=job.windows)
    team.join(classifier, quiet=job.quiet)
    from charcnn.classify.label_files import label_files  # after load: its imports are load's, and wait for no GPU

    # Ranks compile at the same time, each when its first batch comes.
    work = label_files(job, classifier, warm=team.comm is None, explain=lambda error: explained(error)[0] or str(error))
    shared = team.close()
    if not job.quiet:
        work.summarise()
        tell(*ranks.lines(shared))
    if job.json is not None:
        write_json(job.json, work.report() | shared, force=job.force, mark=JSON)
        if not job.quiet:
            wrote(job.json)
    failed = {explained(error)[1] for error in work.errors}
    if failed:
        return FAILED if FAILED in failed else UNUSABLE
    return UNREADABLE if work.unreadable else DONE


JSON = rb'\{\s*"rows": \d+,\s*"unreadable": '
"""How what `--json` writes begins."""
