"""The subcommands of `charcnn`: a module each, imported when it is asked for.

A module has `add_arguments(parser)`, quick to import, and `run(options) -> int`, which gives the exit status. Its
docstring is the command's description. ValueError, OSError and DeviceError from `run` become one line on standard
error.
"""

from charcnn.host.interrupts import INTERRUPTED, TERMINATED
from charcnn.host.terminal import CLOSED

__all__ = ["CLOSED", "COMMANDS", "DONE", "FAILED", "INTERRUPTED", "TERMINATED", "UNREADABLE", "UNUSABLE"]

COMMANDS = {
    "classify": "label the rows of a file or of standard input",
    "evaluate": "compare labels with those that a file holds",
    "explain": "show which characters of a text moved the decision",
    "train": "learn from rows of text with labels",
    "convert": "a model from one kind of file to another",
    "compact": "a narrower model, less what never fires",
    "info": "the machine, and which level would run on it",
    "levels": "the table of levels, and which of them run here",
    "report": "a page on this machine: what runs, how fast, beside what ships, with pictures",
    "profile": "which kernels take a level's or a network's time on this GPU, and how near its peak they come",
    "show": "the PTX or the machine code of a layer's kernels, for this GPU or another",
    "tune": "choose the tiles of kernels for this GPU by measurement",
    "compile": "compile kernels into the cache, for this GPU or another, also where there is none",
    "plan": "what so many GPUs and hosts would give, and what bounds them",
    "completion": "a script that completes these commands in a shell",
}
"""Name: what `charcnn --help` says of it."""

DONE, FAILED, UNUSABLE, UNREADABLE = 0, 1, 2, 3
"""Exit statuses: done; failed while working; options, files or machine do not fit; done, but some rows had no text
that could be read. And of signals INTERRUPTED, TERMINATED and CLOSED."""
