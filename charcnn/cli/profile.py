"""Time each kernel of a level, image network or encoder on one GPU, for one whole batch.

This is --profile of the level's or network's own command; logits are checked as always. GFLOP/s and GB/s appear if a
kernel's arithmetic is known, and its bytes, each value read or written once. "of peak" is the kernel's share of its
roofline: the arithmetic that cuBLAS reached on such a GPU, or the memory's bandwidth.
"""

from __future__ import annotations

import argparse
import inspect
from typing import NoReturn

EPILOG = """examples:
  charcnn profile l16
  charcnn profile l15 --precision bf16 --trace trace.json
  charcnn profile alexnet --as wgmma --batch 1024 --json profile.json
  charcnn profile bert --as wgmma --variant base

exit status: 0 done; 1 wrong logits or a crash; 2 unusable options or machine"""

PASSED_ON = ("--precision", "--batch", "--repeat", "--as", "--variant", "--params", "--trace", "--json")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What to profile, and the options of its own command that matter here."""
    parser.epilog = EPILOG
    add = parser.add_argument
    add("name", metavar="NAME", help="a level, such as l16, or a network, such as alexnet or bert")
    add("--precision", metavar="P", help="arithmetic (default: NAME's own)")
    add("--batch", metavar="B", help="inputs per batch (default: NAME's own)")
    add("--repeat", metavar="R", help="runs, of which medians are taken (default and least: 5)")
    add("--as", metavar="T", help="a network's technique (default: the fastest here)")
    add("--variant", metavar="V", help="a network's variant (default: its first)")
    add("--params", metavar="FILE", help="weights (default: the shipped ones of a network, else random)")
    add("--trace", metavar="FILE", help="write a timeline of a batch's kernels and the run, for ui.perfetto.dev")
    add("--json", metavar="FILE", help="write the report, with all numbers under profile")
    add("--force", action="store_true", help="replace existing files that are not such reports")


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
    from charcnn.networks.runner.encoder import EncoderCommand

    kinds = catalog.LEVELS, catalog.NETWORKS, catalog.ENCODERS
    levels, networks, encoders = ([row.name for row in rows] for rows in kinds)
    name = options.name
    words = ["--profile"]
    for option in PASSED_ON:
        if (value := getattr(options, option.lstrip("-"))) is not None:
            words += [option, value]
    words += ["--force"] * options.force
    subject: command.Subject
    if name in levels:
        if (wrong := next((option for option in ("as", "variant") if getattr(options, option)), None)) is not None:
            raise ValueError(f"--{wrong} {getattr(options, wrong)}: {name} is a level and takes no --{wrong}")
        subject = LevelCommand(name, catalog.level(name).module.build)
    elif name in networks:
        subject = NetworkCommand(name)
    elif name in encoders:
        subject = EncoderCommand(name)
    else:
        raise ValueError(f"{name}: need one of {', '.join([*levels, *networks, *encoders])}")
    chosen = subject.parser(quiet=False).parse_args(words)
    program, build = subject.program(chosen)
    words += ["--gpus", "1"] if program.device == "cuda" else []  # one on the CPU says what times it
    batch = chosen.batch or inspect.signature(build).parameters["batch"].default
    command.run(subject, [*words, "--inputs", str(batch)])
