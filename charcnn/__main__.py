"""The command `charcnn`."""

from __future__ import annotations

import argparse
import errno
import gc
import os
import sys
from contextlib import suppress
from importlib import import_module
from typing import NoReturn

from charcnn.cli import CLOSED, COMMANDS, DONE, INTERRUPTED, TERMINATED
from charcnn.cli.errors import explained
from charcnn.host.arguments import HelpFormatter
from charcnn.host.interrupts import between_locks, ended
from charcnn.host.terminal import let_go_of, prepare_streams, printable, tell

EPILOG = """examples:
  echo "Stocks fell on Monday as oil rose." | charcnn classify -
  charcnn classify news.csv         writes news.labelled.csv
  charcnn evaluate test.csv         accuracy, by class, confusion matrix
  charcnn explain "The home team won the cup final."
  charcnn convert model.pt model.safetensors

exit status:
  0    done
  1    failed while working: a full disk, a file cut short meanwhile
  2    unusable options, file or machine; standard error says what to do
  3    done, but some rows are unreadable and have no label; a report lists them
  130  interrupted by Ctrl-C
  141  the reader of the output closed it, as head does
  143  terminated by SIGTERM"""

SIGNALS = "130 interrupted; 141 the output's reader closed it; 143 terminated"
"""The end of each subcommand's help."""

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
"""What writing fails with where there is no room left, or the device is broken."""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        super().error(printable(message))


def parser(chosen: str | None = None) -> argparse.ArgumentParser:
    """The command line: with the arguments of one subcommand, or of all where None; others keep their name."""
    top = _Parser(
        prog="charcnn",
        description="Label short texts with a character-level CNN, on CPUs and NVIDIA GPUs.",
        epilog=EPILOG,
        formatter_class=HelpFormatter,
    )
    top.add_argument("--version", action=_Version, nargs=0, help="print the version and exit")
    commands = top.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, summary in COMMANDS.items():
        own = commands.add_parser(name, help=summary, formatter_class=HelpFormatter)
        if chosen in (None, name):
            module = import_module(f"charcnn.cli.{name}")
            own.description = module.__doc__
            module.add_arguments(own)
            own.epilog = f"{own.epilog}; {SIGNALS}"
    return top


class _Version(argparse.Action):
    def __call__(self, parser, namespace, values, option_string=None):
        from importlib import metadata

        try:
            print(f"charcnn {metadata.version('charcnn')}")
        except metadata.PackageNotFoundError:
            print("charcnn, in a checkout that is not installed")
        parser.exit(DONE)


def main(argv: list[str] | None = None) -> int:
    """Run the command; gives the exit status.

    Args:
        argv: its words; the process's own where None.
    """
    prepare_streams()
    if argv is None:
        status = _main(sys.argv[1:])
        if status in (INTERRUPTED, TERMINATED):  # at once: threads may compute a block for a while
            for stream in (sys.stdout, sys.stderr):
                with suppress(OSError):
                    stream.flush()
            os._exit(status)
        return status
    try:
        return _main(argv)
    finally:
        gc.unfreeze()  # what commands keep from the garbage collector: this process goes on


def _main(argv: list[str]) -> int:
    chosen = next((word for word in argv if word in COMMANDS), "")
    options = parser(chosen).parse_args(argv)
    try:
        with between_locks():
            status: int = import_module(f"charcnn.cli.{options.command}").run(options)
        sys.stdout.flush()
    except BrokenPipeError:  # whoever read the output has seen enough
        let_go_of(sys.stdout)
        return CLOSED
    except KeyboardInterrupt as error:
        return ended(f"charcnn {options.command}", error)
    except Exception as error:
        _find_output(error)
        message, status = explained(error)
        if message is None:
            raise
        tell(f"charcnn {options.command}: {message}")
    return status


def _find_output(error: Exception) -> None:
    """Where standard output is what failed, have the error name it, as those of files name theirs, and let go of it."""
    if isinstance(error, OSError) and error.filename is None and error.errno in _FULL:
        error.filename = "standard output"
    try:
        sys.stdout.flush()
    except OSError:
        let_go_of(sys.stdout)


if __name__ == "__main__":
    sys.exit(main())
