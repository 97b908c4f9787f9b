"""List the levels: the idea of each, its device and precisions, and whether it runs here."""

from __future__ import annotations

import argparse
import json

from charcnn.cli import DONE, UNUSABLE
from charcnn.host.terminal import tell

EPILOG = """examples:
  charcnn levels
  charcnn levels --json
  charcnn levels --diff l15
  python -m charcnn.levels.l5 --help       run one

exit status: 0 done; 2 unusable options"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """--json."""
    parser.epilog = EPILOG
    add = parser.add_mutually_exclusive_group().add_argument
    add("--json", action="store_true", help="print JSON")
    add("--diff", metavar="LEVEL", help="print a unified diff from the level that LEVEL builds on")


def run(options: argparse.Namespace) -> int:
    """List; the exit status."""
    from charcnn import catalog

    if options.diff is not None:
        return _show_difference(options.diff)
    from charcnn.classify import engine
    from charcnn.gpu import absent, simulator
    from charcnn.host.install import pip_install

    gpu = simulator.gpu_present()
    rows = []
    for level in catalog.LEVELS:
        here = "emulated" if level.tensor_cores else "simulated"
        if level.device == "cuda" and absent.MISSING:
            here = "no"
        elif level.device == "cpu" or gpu:
            here = "yes" if engine.obstacle(engine.Choice(level, level.precision())) is None else "no"
        rows.append(
            {
                "level": level.name,
                "device": level.device,
                "precisions": ", ".join(level.precisions),
                "runs here": here,
                "step": level.title,
            }
        )
    if options.json:
        print(json.dumps(rows, indent=1, allow_nan=False))
        return DONE
    names = list(rows[0])
    wide = {name: max(len(name), *(len(row[name]) for row in rows)) for name in names}
    for row in ({name: name for name in names}, *rows):
        print("  ".join(f"{row[name]:<{wide[name]}}" for name in names).rstrip())
    if any(row["runs here"] == "no" for row in rows):
        print("\nno: it needs a newer GPU, or a processor with AVX-512 VNNI, which this machine lacks")
    if absent.MISSING:
        print(f"a level of the GPU needs numba-cuda: {pip_install('simulator')}")
    elif not gpu:
        print("\nsimulated: without a visible NVIDIA GPU it runs in Numba's simulator, at a tiny size")
        print("emulated: as simulated, with tensor cores and TMA emulated")
    return DONE


def _show_difference(name: str) -> int:
    from charcnn import catalog

    named = {level.name: level for level in catalog.LEVELS}
    if name not in named:
        tell(f"charcnn levels: --diff {name}: need one of {', '.join(named)}")
        return UNUSABLE
    print("\n".join(named[name].difference() or [f"{name} is the first level"]))
    return DONE
