"""Time networks of images that several GPUs share, relative to one of them: one rank a GPU, started by mpiexec.

    mpiexec -n 2 python bench/shared_networks.py

`shared` has a share of every layer on each GPU, `stages` a stage of layers. Weights are random, inputs lie on the GPU,
and results are checked against the float64 reference and one GPU's. Ways take turns; the slowest rank's time counts,
and of one GPU that of the fastest rank. A run of all cases writes results/MACHINE-GPUs-shared-networks.json.

Exit status: 0 measured, 1 a result is wrong, 2 unusable machine or options.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import raw
from numba import cuda
from shared_layers import ROUNDS, seconds_of, times_of

from charcnn import offload
from charcnn.catalog import network, network_technique
from charcnn.gpu import device
from charcnn.gpu.collectives import Group
from charcnn.host import machine
from charcnn.host.arguments import HelpFormatter
from charcnn.model import params
from charcnn.model.validation import in_sigmas
from charcnn.networks import parts
from charcnn.networks.reference import expected
from charcnn.offload.relay import Relay, timed
from charcnn.runtime.monitor import Monitor


class Case(NamedTuple):
    """What is computed."""

    network: str
    variant: str
    technique: str
    precision: str
    batch: int
    micro: tuple[int, ...] = ()
    """Inputs of a micro-batch, of a single batch in stages; none: there are no stages."""


CASES = (
    Case("alexnet", "2012", "wgmma", "fp16", 1),
    Case("alexnet", "2012", "wgmma", "fp16", 1024, (128, 256)),
    Case("ffn", "1024", "wgmma", "fp16", 16),
    Case("ffn", "1024", "wgmma", "fp16", 4096),
    Case("alexnet", "torchvision", "wgmma", "fp16", 1),
    Case("alexnet", "torchvision", "wgmma", "fp16", 1024),
    Case("alexnet", "2012", "winograd", "fp32", 256),
)

STREAM = 24
"""Batches of a stream through stages."""

CHECKED = 4
"""Inputs that the float64 reference computes."""


class Bench:
    """A rank's side of a case.

    Args:
        comm: the ranks.
        group: theirs.
        case: what is computed.
    """

    def __init__(self, comm: Any, group: Group, case: Case) -> None:
        self.comm, self.group, self.case = comm, group, case
        self.network: Any = network(case.network).architecture(case.variant)
        self.row = network_technique(case.technique, case.network)
        self.held = params.init(self.network, 0)
        self.rows = np.random.default_rng(0).integers(0, 256, (case.batch, self.network.length), np.uint8)
        self.how = self.row.build_options(case.precision)
        self.found: list[dict[str, Any]] = []
        self.right: Any = None

    def one(self) -> Any:
        """The network on this GPU alone."""
        gpus = [device.current()]
        return self.row.build(
            self.case.technique, self.held, self.network, batch=self.case.batch, streams=1, gpus=gpus, **self.how
        )

    def share(self) -> tuple[Any, list[tuple[str, float]]]:
        """This rank's share; and seconds of each of its parts, where all ranks repeat it alone."""
        case, place = self.case, (self.comm.rank, self.comm.size)
        own, held = parts.gpu_share(self.network, case.batch, case.precision, place, self.held)
        how = {"batch": case.batch, "group": self.group, **self.how}
        self.comm.Barrier()
        run = self.row.build(case.technique, held, own, streams=1, gpus=[device.current()], **how)
        ops, prepared = self.row.module.network(case.technique, held, own, **how)
        self.comm.Barrier()
        stages = [stage for stage in prepared(ops) if stage[1]]
        each = timed([[stage] for stage in stages], case.batch, self.network.length)
        return run, [(name, seconds) for (name, _), (seconds, _) in zip(stages, each, strict=True)]

    def check(self, name: str, results: np.ndarray, one: np.ndarray) -> dict[str, float]:
        """How far results are from the reference, in sigmas, and from one GPU's, of the largest.

        Raises:
            SystemExit: too far, on some rank.
        """
        self.group.check()
        n = min(CHECKED, len(results))
        rounding = self.row.rounding(self.case.precision)
        if self.right is None:
            root = self.comm.rank == 0
            right = expected(self.rows[:n], self.held, self.network, rounding) if root else None
            self.right = self.comm.bcast(right)
        exact, sigma = self.right
        off = float(in_sigmas(results[:n], exact, sigma).max())
        beside = float(abs(results - one).max() / abs(one).max())
        sigmas = in_sigmas(results, one, np.full(one.shape, sigma.max())).max()
        bad = not (off < rounding.bound and sigmas < 2 * rounding.bound)
        if any(self.comm.allgather(bad)):
            raise SystemExit(
                f"shared_networks: {self.case}: {name} is off by {off:.2g} sigma, {beside:.2g} of one GPU's"
            )
        return {"sigmas": off, "beside_one": beside}

    def by_turns(self, starts: dict[str, Callable[[], Any]]) -> dict[str, list[float]]:
        """Seconds of each, in rounds."""
        comm, found = self.comm, dict[str, list[float]]()
        times = {name: times_of(comm, start) for name, start in starts.items()}
        for _ in range(ROUNDS):
            for name, start in starts.items():
                all_ = comm.allgather(seconds_of(comm, start, times[name]))
                found.setdefault(name, []).append(min(all_) if name == "one GPU" else max(all_))
        self.group.check()
        return found

    def add(self, name: str, seconds: Sequence[float], inputs: int, **more: Any) -> None:
        """A row of the result."""
        took = [1e6 * one for one in seconds]
        rate = inputs / statistics.median(seconds)
        row = {"made": name, **self.case._asdict(), "microseconds": statistics.median(took), "rounds": took}
        self.found.append({**row, "inputs_per_second": rate, **more})
        if self.comm.rank == 0:
            said = ", ".join(f"{key} {value}" for key, value in more.items() if key not in ("parts", "own"))
            print(f"{self.case!s}: {name}: {row['microseconds']:,.1f} us, {rate:,.0f} inputs/s; {said}", flush=True)

    def measure(self, *, timing: bool) -> None:
        """Rows of one GPU, of shares and of stages."""
        x, run = device.to_device(self.rows), self.one()
        right = run(self.rows)
        shared, each = self.share()
        error = {
            "one GPU": self.check("one GPU", right, right),
            "shared": self.check("shared", shared(self.rows), right),
        }
        if timing:
            starts = {"one GPU": partial(run.on_device, x), "shared": partial(shared.on_device, x)}
            all_parts = self.comm.allgather(each)
            for name, seconds in self.by_turns(starts).items():
                more = {"parts": [{part: 1e6 * s for part, s in one} for one in all_parts]} if name == "shared" else {}
                self.add(name, seconds, self.case.batch, **error[name], **more)
            if self.comm.rank == 0:
                for (part, one), (_, other) in zip(all_parts[0], all_parts[-1], strict=True):
                    print(f"    {part:28} {1e6 * one:9.1f} {1e6 * other:9.1f} us", flush=True)
        del shared
        if self.case.micro:
            self.stages(right, x, timing=timing)

    def stages(self, right: np.ndarray, x: Any, *, timing: bool) -> None:
        """Rows of a stream of batches, and of one batch in micro-batches."""
        comm, batch = self.comm, self.case.batch
        for micro in (batch, *self.case.micro):
            comm.Barrier()
            relay = parts.stage_on(
                comm,
                self.group,
                self.row,
                self.held,
                self.network,
                micro,
                self.case.precision,
                device.current(),
                Monitor(),
            )
            relay(self.rows[:micro])
            comm.Barrier()
            relay.chunk = micro
            source = self.rows if comm.rank == 0 else None
            results = relay.run(comm, source, batch, self.network.classes)
            error = self.check("stages", right if results is None else results, right)
            if not timing:
                continue
            count = STREAM if micro == batch else batch // micro
            comm.Barrier()
            alone = comm.allgather(relay.alone(micro, count))  # as long as a run, by all GPUs: clocks fall with heat
            if comm.rank == 0:
                for slot in range(2):
                    relay.bring(x[:micro], slot)
            comm.Barrier()
            seconds = [self.streamed(relay, micro, count) for _ in range(ROUNDS)]
            idle = 1 - sum(comm.allgather(relay.busy)) / (comm.size * seconds[-1])
            allowed = sum(alone) + (count - 1) * max(alone)
            name = "stages, a stream" if micro == batch else f"stages, one batch by {micro}"
            self.add(
                name, seconds, micro * count, micro_batches=count, allowed_share=allowed / statistics.median(seconds),
                stage_microseconds=[1e6 * one for one in alone], idle=idle,
                bubble=offload.bubble(comm.size, count), bubble_of_stages=offload.bubble_of(alone, count),
                begins=comm.allgather(relay.begins), sent_bytes=comm.bcast(relay.sent(micro)), **error,
            )  # fmt: skip

    def streamed(self, relay: Relay, micro: int, count: int) -> float:
        """Seconds of so many micro-batches, of the slowest rank."""
        comm = self.comm
        cuda.synchronize()
        comm.Barrier()
        relay.begin()
        for _ in range(count):
            relay.step(micro)
        relay.done()
        return float(max(comm.allgather(relay.elapsed)))


def main(argv: Sequence[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=HelpFormatter)
    parser.add_argument("--cases", metavar="I,J", help="only these, counted from 0 (default: all)")
    parser.add_argument("--compile", action="store_true", help="compute each once, and time nothing")
    parser.add_argument("--results-dir", type=Path, metavar="DIR", help="default: bench/results, for a run of all")
    options = parser.parse_args(argv)
    chosen = range(len(CASES)) if options.cases is None else [int(one) for one in options.cases.split(",")]
    comm = offload.world()
    if comm is None or device.SIMULATED or device.gpu_count() < comm.size:
        print("shared_networks: start it by mpiexec, with as many ranks as there are GPUs at most", file=sys.stderr)
        return 2
    cuda.select_device(offload.local_place(comm)[0])
    group, found = Group(comm, deadline=120), list[dict[str, Any]]()
    folder = options.results_dir or (raw.RESULTS if options.cases is None else None)
    for number in chosen:
        bench = Bench(comm, group, CASES[number])
        bench.measure(timing=not options.compile)
        found += bench.found
        if comm.rank == 0 and folder is not None and not options.compile:  # after each, should a limit of time come
            here = machine.describe()
            result = {"shared_networks": found, "ranks": comm.size, "link": group.link, "machine": here,
                      "commit": machine.commit()}  # fmt: skip
            name = f"{machine.name(here)}-{comm.size}-shared-networks.json"
            raw.write(folder / name, "shared_networks", result)
    group.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
