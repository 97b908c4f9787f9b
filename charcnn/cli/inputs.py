"""Several inputs of one `charcnn classify`: files, folders and patterns, and where the labels of each file go."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterator, Sequence

from charcnn.classify.done import NAME
from charcnn.classify.job import REPORT, Task
from charcnn.files import is_free
from charcnn.text.output import JOURNAL, NOTES, PARTS
from charcnn.text.readers.formats import SUFFIXES, format_of, split_name


def to_label(
    inputs: Sequence[str], output: str | None, report: str | None, format: str | None
) -> tuple[list[Task], int]:
    """What is to be labelled, and how many files were left out: of a command's INPUT, --output, --report and --format.

    Raises:
        ValueError: they do not go together, or as of `tasks`.
        FileNotFoundError: an input is not there.
    """
    if several(inputs, output):
        if report is not None:
            raise ValueError("--report: with several files, each has its own report next to its output; leave it out")
        return tasks(inputs, output, format is not None)
    (source,) = inputs
    if source != "-":
        os.stat(source)
    output = output or default_output(source)
    _fit(output, format_of(source, format))
    stream = output == "-" or (os.path.exists(output) and not os.path.isfile(output))
    return [Task(source, output, stream=stream, asked_report=report)], 0


def _fit(output: str, written: str) -> None:
    """Refuse a name that says another format than is written, which is the input's."""
    if output == "-" and written == "parquet":
        raise ValueError("--output -: a Parquet file needs a name")
    _, ending, compression = split_name(output)
    if compression:
        raise ValueError(f"--output {output}: outputs are not compressed: need a name without {compression}")
    named = SUFFIXES.get(ending.lower(), written)
    if named != written and not {named, written} <= {"csv", "tsv", "lines"}:
        raise ValueError(f"--output {output}: the output has INPUT's format, {written}: need its suffix")


def written(tasks: Sequence[Task]) -> dict[str, list[str]]:
    """All files that are written for these, by what they are, as `files.check_paths` takes them."""
    files = [task for task in tasks if not task.stream]
    roots = [root for root in {task.root: None for task in tasks} if root is not None]
    return {
        "--output": [task.output for task in tasks],
        "the report" if roots else "--report": [task.report for task in tasks if task.report is not None],
        "the journal": [
            *(f"{task.output}{part}" for task in files for part in PARTS),
            *(f"{task.report}.part" for task in files),
        ],
        "the list of what is done": [os.path.join(root, NAME) for root in roots],
    }


def default_output(path: str) -> str:
    """Beside the input: `news.labelled.csv` of news.csv and of news.csv.gz; of standard input, standard output."""
    if path == "-":
        return "-"
    stem, suffix, _ = split_name(path)
    return f"{stem}.labelled{suffix}"


def several(inputs: Sequence[str], output: str | None) -> bool:
    """Whether these are not just one file, with an output that is one: else nothing here is asked."""
    if len(inputs) > 1 or os.path.isdir(inputs[0]) or _is_pattern(inputs[0]):
        return True
    return output is not None and inputs[0] != "-" and (output.endswith(os.sep) or os.path.isdir(output))


def tasks(inputs: Sequence[str], output: str | None, every_file: bool) -> tuple[list[Task], int]:
    """The files to be labelled, in order; and how many files were left out: outputs of others, and what a run of before
    left beside its outputs.

    A file goes by its own name to the folder `output`, and those of a folder or a pattern as they lie below that, or
    below where the pattern begins; of several inputs, a folder keeps its own name. With no `output` a file's goes
    beside it, and a folder's to one beside that.

    Args:
        inputs: files, folders, and patterns as `glob` has them.
        output: a folder, which need not be there.
        every_file: whether a folder's files are taken whatever their ending; else those of SUFFIXES.

    Raises:
        ValueError: there is no file, or two have one output.
        FileNotFoundError: an input is not there.
    """
    if "-" in inputs:
        raise ValueError("-: standard input cannot be combined with files")
    if output is not None and (output == "-" or (os.path.exists(output) and not os.path.isdir(output))):
        raise ValueError(f"--output {output}: need a folder: each of several files gets its own output")
    found: dict[str, Task] = {}
    for given in inputs:
        own = list(_of_one(given, output, len(inputs) > 1, every_file))
        if not own:
            if not os.path.isdir(given):
                raise ValueError(f"{given}: no file matches")
            raise ValueError(f"{given}: holds no file that ends in {', '.join(SUFFIXES)}: name files, or --format")
        for task in own:
            found.setdefault(os.path.abspath(task.input), task)
    made = {os.path.abspath(place) for task in found.values() for place in (task.output, default_output(task.input))}
    made |= {f"{place}{REPORT}" for place in made}
    kept = [
        task
        for path, task in found.items()
        if (path not in made or os.path.abspath(task.output) == path) and not _is_beside_output(path)
    ]
    _check(kept)
    return kept, len(found) - len(kept)


def _check(kept: Sequence[Task]) -> None:
    """Raise ValueError where two have one output."""
    whose: dict[str, str] = {}
    for task in kept:
        place = os.path.abspath(task.output)
        if place in whose:
            raise ValueError(
                f"{whose[place]} and {task.input} would both be written to {task.output}: name a folder above both, a "
                "pattern in quotes, or one of them in a command of its own"
            )
        whose[place] = task.input


def _is_beside_output(path: str) -> bool:
    """Whether a run left the file beside its output: a report, or a journal and what that is of."""
    if path.endswith(REPORT):
        return is_free(path, NOTES)
    for part in PARTS[::-1]:
        if path.endswith(part):
            journal = f"{path.removesuffix(part).removesuffix(REPORT)}{PARTS[1]}"
            return os.path.exists(journal) and is_free(journal, JOURNAL)
    return False


def _of_one(given: str, output: str | None, among_others: bool, every_file: bool) -> Iterator[Task]:
    if os.path.isdir(given):
        folder = _default_folder(given) if output is None else output
        if output is not None and among_others:
            folder = os.path.join(output, os.path.basename(os.path.abspath(given)))
        for path in _walked(given, every_file, [folder, *([] if output is None else [output])]):
            yield Task(path, os.path.join(folder, _unpacked(os.path.relpath(path, given))), folder)
    elif _is_pattern(given):
        start = _start(given)
        for path in sorted(glob.glob(given, recursive=True)):
            files = [path]
            if os.path.isdir(path):
                files = [] if "**" in given else list(_walked(path, every_file, [] if output is None else [output]))
            for file in files:
                yield _task(file, output, os.path.relpath(file, start))
    elif not os.path.exists(given):
        raise FileNotFoundError(2, "No such file or directory", given)
    else:
        yield _task(given, output, os.path.basename(given))


def _task(path: str, output: str | None, name: str) -> Task:
    if output is None:
        return Task(path, default_output(path), os.path.dirname(path) or ".")
    return Task(path, os.path.join(output, _unpacked(name)), output)


def _unpacked(path: str) -> str:
    stem, suffix, _ = split_name(path)
    return f"{stem}{suffix}"


def _default_folder(folder: str) -> str:
    name = os.path.normpath(folder)
    if os.path.basename(name) in ("", ".", ".."):
        raise ValueError(f"{folder}: is a folder with no name of its own here: name an output folder (-o)")
    stem, suffix = os.path.splitext(name)  # Spark writes folders that are called news.parquet
    return f"{stem}.labelled{suffix}" if suffix.lower() in SUFFIXES else f"{name}.labelled"


def _is_pattern(path: str) -> bool:
    return glob.has_magic(path) and not os.path.exists(path)


def _start(pattern: str) -> str:
    """The folder in which a pattern begins."""
    parts = pattern.split(os.sep)
    first = next(n for n, part in enumerate(parts) if glob.has_magic(part))
    return os.sep.join(parts[:first]) + os.sep * (first > 0) or "."


def _walked(folder: str, every_file: bool, but: Sequence[str]) -> Iterator[str]:
    """Files below a folder, in order; none whose name begins as hidden ones and marks of other programs do."""
    closed = {os.path.realpath(path) for path in but}

    def fail(error: OSError) -> None:
        raise error

    for place, folders, names in os.walk(folder, onerror=fail):
        folders[:] = sorted(
            name
            for name in folders
            if not name.startswith((".", "_")) and os.path.realpath(os.path.join(place, name)) not in closed
        )
        for name in sorted(names):
            known = split_name(name)[1].lower() in SUFFIXES
            if (every_file or known) and not name.startswith((".", "_")):
                yield os.path.join(place, name)
