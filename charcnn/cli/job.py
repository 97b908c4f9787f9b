"""What one `charcnn classify` is to do: made of its options once, and never changed."""

from __future__ import annotations

import argparse
from dataclasses import dataclass

from charcnn.cli.model import ModelChoice, layout_of, windows_of
from charcnn.text.layout import Layout


@dataclass(frozen=True)
class ClassifyJob:
    """A `charcnn classify`: which files, read how, labelled how by which model, and where the labels go.

    Each field is the option of its name, where it does not say more.
    """

    inputs: tuple[str, ...]
    output: str | None
    report: str | None
    json: str | None
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


def job_of(options: argparse.Namespace, model: ModelChoice) -> ClassifyJob:
    """What the options say.

    Args:
        options: of the command.
        model: theirs, as far as the ranks let it be.

    Raises:
        ValueError: options contradict each other.
    """
    return ClassifyJob(
        inputs=tuple(options.input),
        output=options.output,
        report=options.report,
        json=options.json,
        force=options.force,
        quiet=options.quiet,
        log_every=options.log_every,
        format=options.format,
        layout=layout_of(options),
        label_separator=options.label_separator,
        probabilities=options.probabilities,
        min_probability=options.min_probability,
        unsure_label=options.unsure_label,
        model=model,
        windows=windows_of(options),
    )
