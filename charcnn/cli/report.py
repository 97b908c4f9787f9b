"""Measure the levels that run on this machine, and write one HTML page with pictures: what runs, how fast, compared
with the machines whose results ship.

Each level runs in a process of its own, as its command does: a rate is shown only if the logits passed their check.
The page needs no other file, so you can send it to somebody.
"""

from __future__ import annotations

import argparse
import json

from charcnn.cli import DONE, FAILED

PAGE, JSON = rb"<!doctype html>.*<title>charcnn on ", rb'\{\s*"schema": "report"'
"""How a page, and what `--json` keeps, begin."""

EPILOG = """examples:
  charcnn report                                   writes report.html
  charcnn report -o here.html --json here.json     also keeps the numbers
  charcnn report --levels l0 l11 l18 --seconds 1
  charcnn report --from here.json -o here.html     only writes the page again

exit status: 0 done; 1 no level's logits passed; 2 unusable options or files"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Where to, and what."""
    parser.epilog = EPILOG
    add = parser.add_argument
    add("-o", "--output", metavar="FILE", default="report.html", help="the page (default report.html)")
    add("--levels", nargs="+", metavar="LEVEL", help="levels to measure (default: all that run here)")
    add("--seconds", type=_seconds, metavar="S", help="rough length of each of a level's three runs (default 2)")
    add("--json", metavar="FILE", help="also write the numbers here")
    add("--force", action="store_true", help="replace existing files that are not such reports")
    add("--from", dest="source", metavar="FILE", help="make the page from what --json wrote; measure nothing")


def _seconds(value: str) -> float:
    number = float(value)
    if not 0 < number <= 600:
        raise argparse.ArgumentTypeError(f"{value}: need more than 0, up to 600")
    return number


def run(options: argparse.Namespace) -> int:
    """Measure, and write; the exit status."""
    from pathlib import Path

    from charcnn import files
    from charcnn.charts import measure, page

    files.check_paths(
        {"--from": options.source},
        {"--output": options.output, "--json": options.json},
        force=options.force,
        marks={"--output": PAGE, "--json": JSON},
    )
    if options.source is not None:
        if options.levels or options.seconds:
            raise ValueError("--from: nothing is measured; leave out --levels and --seconds")
        try:
            found = json.loads(Path(options.source).read_text(encoding="utf-8"))
        except ValueError as error:
            raise ValueError(f"--from {options.source}: is not JSON ({error})") from error
        if not isinstance(found, dict) or found.get("schema") != measure.SCHEMA:
            raise ValueError(f"--from {options.source}: need what charcnn report --json wrote")
    else:
        found = measure.measure(
            options.levels, options.seconds or measure.SECONDS, lambda line: print(line, flush=True)
        )
    try:
        made = page.page(found)
    except (AttributeError, KeyError, TypeError) as error:
        if options.source is None:
            raise
        raise ValueError(f"--from {options.source}: lacks something that charcnn report --json writes") from error
    if options.json is not None:
        files.write_json(options.json, found, force=options.force, mark=JSON)
    with files.replacing(options.output, force=options.force, mark=PAGE) as out:
        out.write(made)
    print(f"wrote {options.output}")
    return DONE if any("why" not in row for row in found["levels"].values()) else FAILED
