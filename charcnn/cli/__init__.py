"""The subcommands of `charcnn`: a module each, imported when it is asked for.

A module has `add_arguments(parser)`, quick to import, and `run(options) -> int`, which gives the exit status. Its
docstring is the command's description. ValueError, OSError and DeviceError from `run` become one line on standard
error.
"""

from charcnn.host.interrupts import INTERRUPTED, TERMINATED
from charcnn.host.terminal import CLOSED

__all__ = ["CLOSED", "COMMANDS", "DONE", "FAILED", "INTERRUPTED", "TERMINATED", "UNREADABLE", "UNUSABLE"]

COMMANDS = {
    "classify": "label the rows of files or of standard input",
    "evaluate": "measure how well the labels match those in a file",
    "explain": "show which characters of a text decided its label",
    "train": "train a model on labelled rows of text",
    "convert": "write a model in another file format",
    "compact": "write a narrower model, without channels that never fire",
    "info": "show the machine, and which level would run on it",
    "levels": "list the levels, and which of them run here",
    "report": "measure this machine, and write a page with pictures",
    "profile": "time each kernel of a level or network on this GPU, relative to its peak",
    "show": "print the PTX or machine code of a layer's kernels or your own, for any GPU",
    "tune": "choose the kernels' tiles for this GPU by measurement",
    "compile": "compile kernels into the cache, for any GPU, even without one",
    "plan": "forecast the rate of several GPUs and hosts, and what limits it",
    "completion": "print a script that completes these commands in a shell",
}
"""Name: what `charcnn --help` says of it."""

DONE, FAILED, UNUSABLE, UNREADABLE = 0, 1, 2, 3
"""Exit statuses: done; failed while working; options, files or machine do not fit; done, but some rows had no text
that could be read. And of signals INTERRUPTED, TERMINATED and CLOSED."""
