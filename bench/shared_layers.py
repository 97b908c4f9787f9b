"""Time encoders whose layers several GPUs share, relative to one of them: one rank a GPU, started by mpiexec.

    mpiexec -n 2 python bench/shared_layers.py

Weights are random. Token ids lie on the GPUs, and so do embeddings, which are compared with one GPU's first. The two
ways take turns, the slowest rank's time counts, and of one GPU that of the fastest rank. A run writes
results/MACHINE-GPUs-shared-layers.json.

Exit status: 0 measured, 1 a result is wrong, 2 unusable machine or options.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import bert as encoders
import numpy as np
import raw
from numba import cuda

from charcnn import offload
from charcnn.catalog import encoder_technique
from charcnn.gpu import device
from charcnn.gpu.collectives import Group
from charcnn.host import machine
from charcnn.host.arguments import HelpFormatter
from charcnn.model import params
from charcnn.networks import bert
from charcnn.networks.encoder import EncoderNetwork

CASES = (
    encoders.Case("base", 1, 128), encoders.Case("base", 1, 512), encoders.Case("base", 16, 512),
    encoders.Case("base", 64, 512),
)  # fmt: skip

ROUNDS, SECONDS = 7, 0.05
"""Of a way."""

PRECISION = "fp16"


def measured(comm: Any, group: Group, case: encoders.Case) -> list[dict[str, Any]]:
    """A row a way.

    Raises:
        SystemExit: embeddings differ.
    """
    network = EncoderNetwork("bert", case.variant, bert.layers(case.variant), case.tokens)
    held = params.init(network, 0)
    ids = np.random.default_rng(0).integers(0, network.vocabulary, (case.n, case.tokens), np.int32)
    row, rows = encoder_technique("wgmma"), ids.view(np.uint8)
    gpus = [device.current()]
    starts: dict[str, Callable[[], Any]] = {}
    found, runs = {}, []
    for name, of in {"one GPU": None, "shared": group}.items():
        comm.Barrier()
        run = row.build("wgmma", held, network, batch=case.n, streams=1, gpus=gpus, precision=PRECISION, group=of)
        runs.append(run)
        found[name] = run(rows)
        starts[name] = encoders.on_gpu(run, rows)
    group.check()
    off = float(np.linalg.norm(found["shared"] - found["one GPU"], axis=1).max())
    if not all(comm.allgather(off <= encoders.TOLERANCES[PRECISION])):
        raise SystemExit(f"shared_layers: {case}: off by {off:.2g} on rank {comm.rank}")
    alike = len({one.tobytes() for one in comm.allgather(found["shared"])}) == 1
    seconds: dict[str, list[float]] = {name: [] for name in starts}
    times = {name: times_of(comm, start) for name, start in starts.items()}
    for _ in range(ROUNDS):
        for name, start in starts.items():
            all_ = comm.allgather(seconds_of(comm, start, times[name]))
            seconds[name].append(min(all_) if name == "one GPU" else max(all_))
    group.check()
    rows_ = []
    for name, each in seconds.items():
        took = [1e6 * one for one in each]
        rows_.append(
            {"made": name, **case._asdict(), "precision": PRECISION, "microseconds": statistics.median(took),
             "rounds": took, "error": off, "alike": alike}
        )  # fmt: skip
        if comm.rank == 0:
            print(f"{case!s:32} {name:10} {rows_[-1]['microseconds']:10.1f} us, off by {off:.2g}, {alike}", flush=True)
    return rows_


def times_of(comm: Any, start: Callable[[], Any]) -> int:
    """Calls of a round."""
    seconds_of(comm, start, 2)
    return int(comm.bcast(max(1, round(SECONDS / seconds_of(comm, start, 3)))))


def seconds_of(comm: Any, start: Callable[[], Any], times: int) -> float:
    """Of a call, over so many."""
    cuda.synchronize()
    comm.Barrier()
    begun = time.perf_counter()
    for _ in range(times):
        start()
    cuda.synchronize()
    return (time.perf_counter() - begun) / times


def main(argv: Sequence[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=HelpFormatter)
    parser.add_argument("--results-dir", type=Path, metavar="DIR", default=raw.RESULTS, help="default: bench/results")
    options = parser.parse_args(argv)
    comm = offload.world()
    if comm is None or device.SIMULATED or device.gpu_count() < comm.size:
        print("shared_layers: start it by mpiexec, with as many ranks as there are GPUs at most", file=sys.stderr)
        return 2
    cuda.select_device(offload.local_place(comm)[0])
    group = Group(comm, deadline=120)
    found = [row for case in CASES for row in measured(comm, group, case)]
    if comm.rank == 0:
        here = machine.describe()
        result = {"shared_layers": found, "ranks": comm.size, "link": group.link, "machine": here,
                  "commit": machine.commit()}  # fmt: skip
        raw.write(options.results_dir / f"{machine.name(here)}-{comm.size}-shared-layers.json", "shared_layers", result)
    group.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
