"""How commands print their help, and values of options as argparse's `type` takes them.

Each of these raises ArgumentTypeError, which says what is needed.
"""

from __future__ import annotations

import argparse
import re
import textwrap


class HelpFormatter(argparse.HelpFormatter):
    """Fills the terminal with each paragraph, except those with an indented line, such as examples: these stay."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        kept = (
            part if re.search(r"^ ", part, re.MULTILINE) else "\n".join(_lines(part, width))
            for part in text.strip("\n").split("\n\n")
        )
        return textwrap.indent("\n\n".join(kept), indent)

    def _split_lines(self, text: str, width: int) -> list[str]:
        return _lines(text, width)


def _lines(text: str, width: int) -> list[str]:
    """Lines of whole words: names of options and files stay in one piece."""
    return textwrap.wrap(" ".join(text.split()), width, break_on_hyphens=False, break_long_words=False)


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
