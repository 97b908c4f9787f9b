"""What one `charcnn classify` is to do: made of its options once, and never changed."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

from charcnn.text.layout import Layout

REPORT = ".unreadable.csv"
"""What a report's name has behind its output's."""


@dataclass(frozen=True)
class Task:
    """A file, and where its labels go."""

    input: str
    """A path; "-" for standard input."""
    output: str
    """A path; "-" for standard output."""
    root: str | None = None
    """The folder whose list of what is done has the output; None for the only file of a job, which is on no list."""
    stream: bool = False
    """Whether the output is a pipe or a device, to which rows go at once."""
    asked_report: str | None = None
    """--report."""

    @property
    def report(self) -> str | None:
        """Where its unreadable rows are told; None for a stream's, where nobody asked for it."""
        return self.asked_report or (None if self.stream else f"{self.output}{REPORT}")

    @property
    def partitions(self) -> set[str]:
        """Names of columns that stand in folders' names, as in year=2024: whoever reads a folder has them, too."""
        folders = [] if self.root is None else os.path.dirname(os.path.abspath(self.input)).split(os.sep)
        return {folder.partition("=")[0] for folder in folders if "=" in folder}


@dataclass(frozen=True)
class ModelChoice:
    """A model, and what computes it: each field is the option of its name."""

    model: str | None
    encoding: str | None
    device: str | None
    precision: str | None
    level: str | None
    batch: int | None
    gpus: int | Sequence[int] | None
    encode_on: str | None


@dataclass(frozen=True)
class ClassifyJob:
    """A `charcnn classify`: which files, read how, labelled how by which model, and where the labels go.

    Each field is the option of its name, where it does not say more.
    """

    tasks: tuple[Task, ...]
    left_out: int
    """Files that are not labelled, as they are outputs of others."""
    json: str | None
    openmetrics: str | None
    force: bool
    quiet: bool
    log_every: float
    format: str | None
    layout: Layout
    label_separator: str | None
    """None where nobody asked for one: the layout has the default."""
    probabilities: bool
    min_probability: float | None
    unsure_label: str | None
    model: ModelChoice
    windows: bool | int
    """For `Classifier`."""

    @property
    def bytes(self) -> int:
        """Of all inputs that are files."""
        return sum(os.path.getsize(task.input) for task in self.tasks if os.path.isfile(task.input))

    @property
    def alone(self) -> bool:
        """Whether it is of one file, which is named: what is wrong with that is an error of the command."""
        return len(self.tasks) == 1 and self.tasks[0].root is None
