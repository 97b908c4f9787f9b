"""Values of options, as argparse's `type` takes them: each raises ArgumentTypeError, which says what is needed."""

from __future__ import annotations

import argparse


def positive(value: str) -> int:
    """An int of at least 1."""
    number = int(value)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{value}: need at least 1")
    return number


def count(value: str) -> int:
    """An int of at least 1, of digits alone."""
    if not value.isdecimal() or int(value) < 1:
        raise argparse.ArgumentTypeError(f"{value}: need a whole number from 1")
    return int(value)


def above_0(value: str) -> float:
    """A number above 0."""
    number = float(value)
    if not 0 < number < float("inf"):
        raise argparse.ArgumentTypeError(f"{value}: need a number above 0")
    return number


def share(value: str) -> float:
    """A number from 0 to 1."""
    number = float(value)
    if not 0 <= number <= 1:
        raise argparse.ArgumentTypeError(f"{value}: need 0 to 1")
    return number
