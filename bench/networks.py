"""Time image networks in charcnn's techniques and in other libraries, side by side in one run.

    python bench/networks.py --networks alexnet-2012,mnist-stride1 --batches 1,8 --as wgmma --peers torch

All get the same parameters and bytes, are checked against the float64 reference, and take turns, as in
`bench/peers.py`. A run of all networks writes results/MACHINE-networks.json.

Exit status: 0 measured, 1 a technique is wrong or nothing could be measured, 2 unusable options.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import energy
import numpy as np
import raw
from libraries import Network, own
from peers import ARITHMETIC, PEERS, ROUNDS, Contender, Job, _show, measure

from charcnn import catalog
from charcnn.gpu import device
from charcnn.host import machine
from charcnn.host.arguments import HelpFormatter
from charcnn.levels.runner.options import serves
from charcnn.model import params
from charcnn.model.rounding import Rounding
from charcnn.networks.architecture import Architecture
from charcnn.networks.reference import expected

BATCHES = {"cpu": (1, 8, 32), "cuda": (1, 32, 1024)}

_EXPECTED: dict[tuple[Any, ...], tuple[np.ndarray, np.ndarray]] = {}


@dataclass(frozen=True)
class ImageJob(Job):
    """A network of images."""

    def draw(self, n: int) -> np.ndarray:
        """Random bytes."""
        return np.random.default_rng(0).integers(0, 256, (n, self.config.length), np.uint8)

    def expected(self, ids: np.ndarray, rounding: Rounding) -> tuple[np.ndarray, np.ndarray]:
        """The network's command's; of some images once, as each takes seconds for AlexNet."""
        key = (self.config.name, self.config.variant, rounding, ids.tobytes())
        if key not in _EXPECTED:
            _EXPECTED[key] = expected(ids, self.weights, self.config, rounding)
        return _EXPECTED[key]


def architectures() -> dict[str, Architecture]:
    """Every variant that is no tiny one, by its name."""
    found = {}
    for row in catalog.NETWORKS:
        for variant in row.module.VARIANTS[:-1]:
            found[f"{row.name}-{variant}"] = Architecture(row.name, variant, row.module.layers(variant))
    return found


def techniques(where: str) -> list[Contender]:
    """charcnn's, of this device, in each precision."""

    def row(program: catalog.NetworkTechnique, precision: str) -> Contender:
        def build(job: Job) -> Network:
            gpus = {"gpus": device.choose(1)} if program.device == "cuda" else {}
            how = program.build_options(precision) | gpus
            return own.face(program.build(program.name, job.weights, job.config, batch=job.batch, **how))

        arithmetic = ARITHMETIC.get(precision, precision)
        name = f"{program.name}-{arithmetic}"
        return Contender(name, f"charcnn {program.name}", arithmetic, (where,), build, level=program)

    rows = [row for row in catalog.NETWORK_TECHNIQUES if row.device == where and serves(row, None)]
    return [row(program, precision) for program in rows for precision in program.precisions]


def main(argv: Sequence[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=HelpFormatter)
    add, every = parser.add_argument, architectures()
    add("--networks", metavar="NAME,...", help=f"{', '.join(every)} (default: all)")
    add("--device", choices=("cpu", "cuda"), help="default: cuda if there is a GPU")
    add("--batches", metavar="N,...", help="default: 1,8,32 on a CPU, 1,32,1024 on a GPU")
    add("--as", dest="ways", metavar="NAME,...", help="techniques (default: all of the device)")
    add("--peers", metavar="NAME,...", help="names or their beginnings, such as jax, or none (default: all)")
    add("--seconds", type=float, default=0.3, metavar="S", help="seconds per turn (default 0.3)")
    add("--rounds", type=int, default=ROUNDS, metavar="N", help=f"rounds; the median counts (default {ROUNDS})")
    compiling = "leave out peers that compile longer (default 120)"
    add("--compile-seconds", type=float, default=120.0, metavar="S", help=compiling)
    energy.add_option(add)
    add("--results-dir", type=Path, metavar="DIR", help="default: bench/results, for a run of all networks")
    options = parser.parse_args(argv)
    here = machine.describe()
    where = options.device or ("cuda" if here["gpus"] and not device.SIMULATED else "cpu")
    if where == "cuda" and (device.SIMULATED or not here["gpus"]):
        parser.error("--device cuda: there is no GPU")
    names = options.networks.split(",") if options.networks else [*every]
    if unknown := [name for name in names if name not in every]:
        parser.error(f"--networks {unknown[0]}: need {', '.join(every)}")
    batches = [int(n) for n in options.batches.split(",")] if options.batches else BATCHES[where]
    ways = [row for row in techniques(where) if _meant(row, options.ways)]
    peers = [row for row in PEERS if where in row.devices and "gather" not in row.name and "bag" not in row.name]
    contenders = [*ways, *(row for row in peers if _meant(row, options.peers))]
    meter = energy.meter(options.joules, where)
    rows: list[dict[str, Any]] = []
    left_out: list[dict[str, Any]] = []
    for name in names:
        for batch in batches:
            network = every[name]
            job = ImageJob(params.init(network, 0), network, where, here["cores"], batch)
            timing = {"seconds": options.seconds, "rounds": options.rounds, "compile_seconds": options.compile_seconds}
            able = [row for row in contenders if row.level is None or row.level.computes(network.name)]
            found, lost = measure(able, job, **timing, meter=meter)
            print(f"{name}, {network.flops:,} FLOP an input")
            _show(found, lost)
            rows += [{"network": name, "flops": network.flops, **row} for row in found]
            left_out += [{"network": name, **row} for row in lost]
    if where == "cpu":
        here["gpus"], here["driver"] = [], None  # none was used
    folder = options.results_dir or (None if options.networks or options.ways or options.peers else raw.RESULTS)
    if folder is not None:
        data = {"data": "uniform random bytes and weights, seed 0", "machine": here, "commit": machine.commit()}
        result = {"networks": rows, "left_out": left_out, **data}
        raw.write(folder / f"{machine.name(here)}-networks.json", "networks", result)
    own_rows = [row for row in rows if row["level"]]
    wrong = [row for row in left_out if row["wrong"]] + [row for row in own_rows if not row["within_tolerance"]]
    return 1 if wrong or not rows else 0


def _meant(row: Contender, given: str | None) -> bool:
    return given is None or any(row.called(name) for name in given.split(","))


if __name__ == "__main__":
    sys.exit(main())
