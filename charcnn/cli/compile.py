"""Compile kernels of levels or networks into the cache that later runs load, for this machine's GPU or another.

No GPU is needed. Several processes compile kernels; one more compiles the CPU code that reads and writes files. What is
in the cache already stays.

The cache is Numba's, in the package or in the folder that NUMBA_CACHE_DIR names. It serves the same versions of
charcnn, Numba and CUDA's compiler.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from typing import TYPE_CHECKING

from charcnn.cli import DONE, FAILED
from charcnn.cli.sizes import HELP, config_of
from charcnn.host.arguments import count

if TYPE_CHECKING:
    from charcnn.compiling.networks import BuiltLevel, ImageNetwork
    from charcnn.compiling.stand_in import Target

EPILOG = """examples:
  charcnn compile               all levels that this machine's GPU runs
  charcnn compile sm_90a        for an H100 or H200, on any machine
  charcnn compile sm_90a --levels l16 --precision fp16
  charcnn compile sm_90a --networks alexnet --as wgmma
  charcnn compile sm_90a --networks bert:minilm --as wgmma --precision fp16
  NUMBA_CACHE_DIR=/shared/kernels charcnn compile    later runs need it, too

exit status: 0 done; 1 a process that compiles failed; 2 unusable options or machine"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What to compile."""
    parser.epilog = EPILOG
    add = parser.add_argument
    add("capability", nargs="?", metavar="CAPABILITY", help="sm_75 to sm_121 (default: this machine's GPU's)")
    add("--levels", nargs="+", metavar="LEVEL", help="levels to compile (default: all that such a GPU runs)")
    add(
        "--networks",
        nargs="+",
        metavar="NAME[:VARIANT]",
        help="networks to compile instead of levels",
    )
    add(
        "--as",
        dest="techniques",
        nargs="+",
        metavar="T",
        help="the networks' techniques (default: all that such a GPU runs)",
    )
    add("--precision", metavar="P", help="one precision (default: all that each level has)")
    add("--config", default="small", metavar="SIZES", help=f"{HELP} (default small)")
    add("--batch", type=count, metavar="B", help="largest batch, in inputs (default: each level's own)")
    add("--jobs", type=count, metavar="N", help="processes that compile kernels (default: one per core)")


def run(options: argparse.Namespace) -> int:
    """Compile; the exit status."""
    from charcnn.compiling.workers import CPU, compiled
    from charcnn.gpu import device
    from charcnn.host import cores

    device.require_compiler()
    target = target_of(options.capability)
    jobs, networks = options.jobs or len(cores.usable()), _networks(options, target)
    kind = "networks" if options.networks else "levels"
    print(f"{target}: {len(networks)} {kind} and precisions, {jobs} processes", flush=True)
    started, counts = time.perf_counter(), Counter[str]()
    try:
        for done in compiled(networks, target, jobs):
            if done.problem is not None:
                if options.levels or options.networks:
                    raise ValueError(f"{done.network}: {done.problem}")
                print(f"{done.network} is left out: {done.problem}", flush=True)
                continue
            counts[done.network] += 1
            elapsed = time.perf_counter() - started
            print(f"{elapsed:7.1f} s  {done.seconds:6.2f} s  {done.network:<11}  {done.kernel}", flush=True)
    except RuntimeError as error:
        print(f"charcnn compile: {error}", file=sys.stderr)
        return FAILED
    functions = counts.pop(CPU, 0)
    print(
        f"{counts.total()} kernels and {functions} functions for this CPU compiled in "
        f"{time.perf_counter() - started:.1f} s; all others were in the cache already"
    )
    return DONE


def target_of(capability: str | None) -> Target:
    """The GPU of this name, or this machine's.

    Raises:
        ValueError, DeviceError: the name is none, or there is no GPU.
    """
    from charcnn.compiling.stand_in import Target
    from charcnn.gpu import device

    if capability is not None:
        return Target.named(capability)
    if device.SIMULATED:
        raise device.DeviceError("the simulator compiles nothing: name a compute capability, such as sm_90a")
    try:
        device.gpu_count()
    except device.DeviceError as error:
        raise device.DeviceError(f"{error}; or name a compute capability, such as sm_90a") from error
    return Target.current()


def _networks(options: argparse.Namespace, target: Target) -> list[BuiltLevel | ImageNetwork]:
    """The levels or networks, with their precisions: those that are named, or all that such a GPU runs.

    Raises:
        ValueError: none fits, or one that is named does not.
    """
    from charcnn import catalog
    from charcnn.compiling.networks import (
        TOKENS,
        BuiltEncoder,
        BuiltLevel,
        ImageNetwork,
        runnable,
        runnable_techniques,
    )  # fmt: skip

    if options.networks is None:
        if options.techniques:
            raise ValueError(f"--as {' '.join(options.techniques)}: needs --networks")
        config = config_of(options.config)
        chosen = _chosen(options, target, "--levels", options.levels, list(runnable(target)))
        return [BuiltLevel(level, precision, config, options.batch) for level, precision in chosen]
    if options.levels:
        raise ValueError("--networks: leave out either --networks or --levels")
    named = [_named(name) for name in options.networks]
    found: list[BuiltLevel | ImageNetwork] = []
    for name, variant in named:
        encoder = name in (row.name for row in catalog.ENCODERS)
        rows = catalog.ENCODER_TECHNIQUES if encoder else catalog.NETWORK_TECHNIQUES
        chosen = _chosen(options, target, "--as", options.techniques, list(runnable_techniques(target, rows)))
        if encoder:
            most = catalog.encoder(name).module.network(variant, 1).layers[0].positions
            sizes = sorted({min(tokens, most) for tokens in TOKENS})
            found += [BuiltEncoder(name, *how, variant, options.batch, size) for how in chosen for size in sizes]
            continue
        able = [how for how in chosen if catalog.network_technique(how[0]).computes(name, target.shared_limit)]
        if not able:
            ways = ", ".join(dict.fromkeys(way for way, _ in chosen))
            raise ValueError(f"--networks {name}: {ways} cannot compute it on {target}")
        found += [ImageNetwork(name, *how, variant, options.batch) for how in able]
    return found


def _chosen(
    options: argparse.Namespace, target: Target, option: str, named: list[str] | None, found: list[tuple[str, str]]
) -> list[tuple[str, str]]:
    """Of what such a GPU runs, with precisions, what an option and --precision name."""
    from charcnn import catalog

    known = dict.fromkeys(name for name, _ in found)
    for name in named or ():
        if name not in known:
            raise ValueError(f"{option} {name}: a GPU of {target} runs {', '.join(known)}")
    if options.precision is not None and options.precision not in catalog.PRECISIONS:
        raise ValueError(f"--precision {options.precision}: need one of {', '.join(catalog.PRECISIONS)}")
    chosen = [
        (name, precision)
        for name, precision in found
        if name in (named or known) and options.precision in (None, precision)
    ]
    if not chosen:
        raise ValueError(f"--precision {options.precision}: none of these computes in it on a GPU of {target}")
    return chosen


def _named(text: str) -> tuple[str, str | None]:
    """A network's name and variant, from "name" or "name:variant"."""
    from charcnn import catalog

    name, _, variant = text.partition(":")
    known = {row.name: row for row in (*catalog.NETWORKS, *catalog.ENCODERS)}
    if name not in known:
        raise ValueError(f"--networks {text}: need {', '.join(known)}")
    variants = known[name].module.VARIANTS
    if variant and variant not in variants:
        raise ValueError(f"--networks {text}: {name} has the variants {', '.join(variants)}")
    return name, variant or None
