"""Time the kernels of a level or of a network of images one by one, on one GPU: a row a kernel.

It is the same as `--profile` of the level's or the network's own command, of one whole batch. GFLOP/s and GB/s stand
where it is known what a kernel computes, and moves if it reads or writes each value once. "of peak" is the share of
what bounds it at best: of arithmetic as cuBLAS reached it on such a GPU, or of the memory's bandwidth. Logits are
checked as ever.
"""

from __future__ import annotations

import argparse
import inspect
from typing import NoReturn

EPILOG = """examples:
  charcnn profile l16
  charcnn profile l15 --precision bf16 --trace trace.json       open it in ui.perfetto.dev
  charcnn profile alexnet --as wgmma --batch 1024 --json profile.json

exit status: 0 done; 1 wrong logits or a crash; 2 unusable options or machine"""

PASSED_ON = ("--precision", "--batch", "--repeat", "--as", "--variant", "--params", "--trace", "--json")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What to profile, and the options of its own command that matter here."""
    parser.epilog = EPILOG
    add = parser.add_argument
    add("name", metavar="NAME", help="a level, such as l16, or a network of images, such as alexnet")
    add("--precision", metavar="P", help="what it computes in (default: its own)")
    add("--batch", metavar="B", help="inputs of the batch (default: its own)")
    add("--repeat", metavar="R", help="runs that medians are taken of, at least 5")
    add("--as", metavar="T", help="of a network: the technique (default: the fastest here)")
    add("--variant", metavar="V", help="of a network")
    add("--params", metavar="FILE", help="weights (default: random, or those that ship)")
    add("--trace", metavar="FILE", help="a timeline, for ui.perfetto.dev: the kernels of a batch, and the run")
    add("--json", metavar="FILE", help="keep the report here, with all numbers under profile")
    add("--force", action="store_true", help="replace files that are there and are no such reports")


def run(options: argparse.Namespace) -> NoReturn:
    """Profile; ends the process.

    Raises:
        ValueError: there is no such level or network.
    """
    from charcnn.levels import prepare

    prepare()
    from charcnn import catalog
    from charcnn.levels.runner import command
    from charcnn.levels.runner.level_options import LevelCommand
    from charcnn.networks.runner.command import NetworkCommand

    levels, networks = ([row.name for row in rows] for rows in (catalog.LEVELS, catalog.NETWORKS))
    name = options.name
    words = ["--profile"]
    for option in PASSED_ON:
        if (value := getattr(options, option.lstrip("-"))) is not None:
            words += [option, value]
    words += ["--force"] * options.force
    subject: command.Subject
    if name in levels:
        if (wrong := next((option for option in ("as", "variant") if getattr(options, option)), None)) is not None:
            raise ValueError(f"--{wrong} {getattr(options, wrong)}: {name} is a level, and has none")
        subject = LevelCommand(name, catalog.level(name).module.build)
    elif name in networks:
        subject = NetworkCommand(name)
    else:
        raise ValueError(f"{name}: need one of {', '.join([*levels, *networks])}")
    chosen = subject.parser(quiet=False).parse_args(words)
    program, build = subject.program(chosen)
    words += ["--gpus", "1"] if program.device == "cuda" else []  # one on the CPU says what times it
    batch = chosen.batch or inspect.signature(build).parameters["batch"].default
    command.run(subject, [*words, "--inputs", str(batch)])
