"""Print a script with which a shell completes charcnn's commands, options and files."""

from __future__ import annotations

import argparse
from typing import Any

from charcnn.cli import DONE
from charcnn.host.install import pip_install

EPILOG = """examples:
  eval "$(charcnn completion bash)"             for this shell only
  charcnn completion bash > ~/.local/share/bash-completion/completions/charcnn
  charcnn completion zsh > "${fpath[1]}/_charcnn"

exit status: 0 done; 2 unusable options, or shtab is not installed"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """SHELL."""
    parser.epilog = EPILOG
    parser.add_argument("shell", choices=("bash", "zsh", "tcsh"), help="your shell")


def run(options: argparse.Namespace) -> int:
    """Print the script; the exit status."""
    try:
        import shtab
    except ImportError as error:
        raise ValueError(f"needs shtab: {pip_install('completion')}") from error
    from charcnn.__main__ import parser

    whole: Any = parser()  # argparse has no public way to its subcommands
    for command in whole._subparsers._group_actions[0].choices.values():
        for action in command._actions:
            if action.metavar in ("FILE", "INPUT", "OUTPUT"):
                action.complete = shtab.FILE
    print(shtab.complete(whole, shell=options.shell))
    return DONE
