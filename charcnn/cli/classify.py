"""Label the rows of CSV, JSON Lines, Parquet or plain-text files.

The output has the input's format and keeps all rows, byte for byte and in order. Each gains a label and its
probability: as last columns of CSV and Parquet, as keys of JSON objects, in front of a plain line, between tabs. A row
that cannot be read gets an empty label and a line in a report. Bytes that are not UTF-8 count as unknown characters.

Inputs may be compressed, such as news.csv.gz or news.jsonl.zst; outputs are not. Several files, folders and patterns
run as one command, each file to its own output. A file that cannot be read is reported; the others are still labelled.

The output gets its name once it is complete. After an interruption, the same command resumes.
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
from charcnn.host.openmetrics import MARK
from charcnn.host.progress import add_log_every, add_openmetrics, told_where_slow
from charcnn.host.terminal import tell, wrote
from charcnn.text.output import NOTES

EPILOG = """examples:
  echo "Stocks fell on Monday as oil rose." | charcnn classify -
  charcnn classify news.csv                  writes news.labelled.csv
  charcnn classify news.parquet --text-columns headline --probabilities
  charcnn classify data -o labelled          all files below data
  charcnn classify essays.csv --windows      long texts count as a whole
  tail -f headlines.txt | charcnn classify - | grep ^Sports
  charcnn classify news.jsonl -o -           to standard output

exit status: 0 done; 1 failed while working; 2 unusable options, files or machine; 3 done, but some rows were
unreadable; with several files, the worst"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """INPUT, --output, and what they share with `evaluate`."""
    parser.epilog = EPILOG
    add = parser.add_argument
    add(
        "input",
        metavar="INPUT",
        nargs="+",
        help="files, folders, or quoted patterns such as 'data/*/*.csv.gz'; or - alone, for standard input",
    )
    add(
        "-o",
        "--output",
        metavar="FILE",
        help="with several inputs, a folder that mirrors theirs (default: INPUT with .labelled before its suffix; for "
        "-, standard output)",
    )
    add("--force", action="store_true", help="replace existing files, or what another run left unfinished")
    add("--report", metavar="FILE", help="unreadable rows, if there are any (default: OUTPUT.unreadable.csv)")
    add("--probabilities", action="store_true", help="add a column with each class's probability")
    add_min_probability(parser)
    add(
        "--unsure-label",
        metavar="WORD",
        help="with --min-probability: label of the less probable rows (default: unsure)",
    )
    add_windows(parser)
    add("--json", metavar="FILE", help="write a report of what was done, how fast, and which stage limits the rate")
    add("--quiet", action="store_true", help="print no progress and no summary")
    add_log_every(add)
    add_openmetrics(add)
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
        openmetrics=options.openmetrics,
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


NUMPY_FIRST, FEW_BYTES = 8, 4096
"""So many texts need not wait for the compiler, where inputs have so few bytes or are streams."""


def _label(job: ClassifyJob, team: ranks.Ranks) -> int:
    """The root's part, or that of a process alone."""
    files = inputs.written(job.tasks)
    check_paths(
        {"the input": [task.input for task in job.tasks], "--model": job.model.model},
        {**files, "--json": job.json, "--openmetrics": job.openmetrics},
        force=job.force,
        marks={"--report": NOTES, "--json": JSON, "--openmetrics": MARK},
        kept=["the journal"] if job.alone else [*files],
        made=[] if job.alone else [*files],
    )
    few = NUMPY_FIRST if team.comm is None and job.bytes <= FEW_BYTES else 0
    with told_where_slow(job.quiet):
        classifier = load(job.model, windows=job.windows, numpy_first=few)
    team.join(classifier, quiet=job.quiet)
    from charcnn.classify.label_files import label_files  # after load: its imports are load's, and wait for no GPU

    # Ranks compile at the same time, each when its first batch comes.
    work = label_files(
        job, classifier, warm=team.comm is None and not few, explain=lambda error: explained(error)[0] or str(error)
    )
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
