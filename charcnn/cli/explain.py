"""Show which characters of a text decided its label.

Each window of characters is blanked in turn. On a terminal, a green background speaks for the class and a red one
against it. Elsewhere the most influential words are listed.
"""

from __future__ import annotations

import argparse
import json
import os
import sys

from charcnn.cli import DONE
from charcnn.cli.model import add_model_arguments, load, model_of
from charcnn.host.arguments import positive
from charcnn.host.terminal import wrote

HTML = b'<!doctype html><meta charset="utf-8"><meta name="generator" content="charcnn explain">'
"""How a page begins."""

EPILOG = """examples:
  charcnn explain "The home team won the cup final."
  charcnn explain "The home team won the cup final." --label World --json
  charcnn explain "The home team won the cup final." --html why.html

exit status: 0 done; 1 failed while working; 2 unusable options, files or machine"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """TEXT and how to show it."""
    parser.epilog = EPILOG
    add = parser.add_argument
    add("text", metavar="TEXT", help="a text, or - for standard input")
    add("--label", metavar="CLASS", help="the class to explain (default: the likeliest)")
    add("--width", type=positive, default=4, metavar="W", help="characters per window (default 4)")
    shown = parser.add_mutually_exclusive_group()
    shown.add_argument("--json", action="store_true", help="print label, probability and each character's score")
    shown.add_argument("--html", metavar="FILE", help="write an HTML page")
    add("--force", action="store_true", help="replace an existing file that is not such a page")
    add_model_arguments(parser)


def standard_input() -> bytes:
    """The text, less the end of its last line.

    Raises:
        ValueError: it is no text in UTF-8.
    """
    from charcnn.text.foreign import refuse_foreign

    given = sys.stdin.buffer.read()
    try:
        refuse_foreign(given)
    except ValueError as error:
        raise ValueError(f"standard input: {error}") from error
    return given.rstrip(b"\r\n")


def run(options: argparse.Namespace) -> int:
    """Explain; the exit status."""
    from charcnn.files import check_paths, replacing

    check_paths({"--model": options.model}, {"--html": options.html}, force=options.force, marks={"--html": HTML})
    given = standard_input() if options.text == "-" else os.fsencode(options.text)
    text = given.decode("utf-8", "surrogateescape")  # whatever the locale is
    found = load(model_of(options)).explain(text, label=options.label, width=options.width)
    if options.json:
        values = {"text": found.text, "label": found.label, "probability": found.probability}
        values |= {"scores": [round(score, 4) for score in found.scores.tolist()]}
        print(json.dumps(values, allow_nan=False))
    elif options.html is not None:
        with replacing(options.html, force=options.force, mark=HTML) as file:
            file.write(f"{HTML.decode()}\n{found.html()}\n")
        wrote(options.html)
    else:
        print(found)
    return DONE
