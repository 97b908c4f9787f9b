"""Time collectives of GPUs of one host, relative to NCCL: one rank a GPU, started by mpiexec.

    mpiexec -n 2 python bench/collectives.py

It needs PyTorch, which brings NCCL. All messages are float16. Each collective is recorded in a CUDA graph of several
calls; graphs take turns, and the slowest rank's time counts. The sums are checked first, on every rank: whole numbers,
which float16 adds exactly, and NCCL's must be the same. `rows` is an all-reduce with residual and LayerNorm in
its kernel; beside NCCL it has our kernel for those. A run of all sizes writes results/MACHINE-GPUs-collectives.json.

Exit status: 0 measured, 1 a result is wrong, 2 unusable machine or options.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import raw
from numba import cuda

from charcnn import offload
from charcnn.gpu import device, graph
from charcnn.gpu.collectives import PROTOCOLS, Group
from charcnn.host import machine
from charcnn.host.arguments import HelpFormatter
from charcnn.ops.common.precision import HALF_PRECISIONS
from charcnn.ops.encoder import rows
from charcnn.ops.encoder.reduced_rows import launch_reduce_add

SIZES = (1 << 10, 1 << 13, 1 << 16, 786_432, 1 << 20, 1 << 22, 1 << 24, 1 << 27, 1 << 30)
"""Bytes of a rank; 786,432 are 512 rows of BERT-base."""

WIDTH = 768
"""Of rows."""

ROUNDS, SECONDS = 7, 0.02
"""Of a graph."""

PERIOD = 1 << 16
"""Numbers that are drawn for a rank."""

FROM_TILES = 1 << 22
"""Bytes from which lines are left out."""


class Timed(NamedTuple):
    """A graph that passed its check."""

    name: str
    launch: Callable[[], Any]
    wait: Callable[[], Any]
    calls: int


def drawn(rank: int, size: int) -> np.ndarray:
    """A rank's whole numbers, float16: PERIOD of them again and again."""
    return np.resize(np.random.default_rng(rank).integers(-8, 9, PERIOD, np.int8).astype(np.float16), size)


def added(ranks: int, size: int) -> np.ndarray:
    """The sum of all ranks' numbers."""
    few = np.sum([drawn(rank, PERIOD) for rank in range(ranks)], axis=0, dtype=np.float32)
    return np.resize(few.astype(np.float16), size)


def calls_of(nbytes: int) -> int:
    """Of a graph."""
    return max(1, min(20, (1 << 27) // nbytes))


class Bench:
    """A rank: its group, its NCCL.

    Args:
        comm: the ranks.
    """

    def __init__(self, comm: Any) -> None:
        import torch
        import torch.distributed as dist

        self.comm, self.torch, self.dist = comm, torch, dist
        gpu = device.current()
        torch.cuda.set_device(gpu)
        port = comm.bcast(20_000 + os.getpid() % 20_000)
        dist.init_process_group(
            "nccl", init_method=f"tcp://127.0.0.1:{port}", rank=comm.rank, world_size=comm.size,
            device_id=torch.device("cuda", gpu),
        )  # fmt: skip
        self.group, self.stream = Group(comm), cuda.stream()

    def right(self, good: bool, what: str) -> None:
        """End all ranks if one is wrong."""
        if not all(self.comm.allgather(bool(good))):
            raise SystemExit(f"collectives: {what} is wrong on rank {self.comm.rank}: {good}")

    def ours(self, name: str, start: Callable[[Any], Any], calls: int) -> Timed:
        """A graph of so many."""

        def all_calls(stream: Any) -> None:
            for _ in range(calls):
                start(stream)

        self.comm.Barrier()
        recorded = graph.Graph(all_calls, self.stream)
        return Timed(name, recorded.launch, self.stream.synchronize, calls)

    def theirs(self, name: str, start: Callable[[], Any], calls: int) -> Timed:
        """A graph of PyTorch's calls."""
        torch = self.torch
        for _ in range(3):
            start()
        torch.cuda.synchronize()
        recorded = torch.cuda.CUDAGraph()
        with torch.cuda.graph(recorded):
            for _ in range(calls):
                start()
        return Timed(name, recorded.replay, torch.cuda.synchronize, calls)

    def of_size(self, nbytes: int) -> list[dict[str, Any]]:
        """Rows of all collectives that have so many bytes a rank."""
        return self.by_turns(nbytes, [*self.all_reduces(nbytes), *self.parts(nbytes)])

    def all_reduces(self, nbytes: int) -> Iterator[Timed]:
        """Ours, by each protocol and number of shots, and NCCL's."""
        torch, group, size, calls = self.torch, self.group, nbytes // 2, calls_of(nbytes)
        mine, total = drawn(group.rank, size), added(group.ranks, size)
        x, y = device.to_device(mine), device.empty((size,), np.float16)
        for protocol in PROTOCOLS:
            for shots in (1, 2):
                if protocol == "lines" and nbytes >= FROM_TILES:
                    continue
                start = partial(group.all_reduce, x, y, protocol=protocol, shots=shots)
                start(stream=self.stream)
                name = f"all_reduce {protocol} {shots}"
                self.stream.synchronize()
                group.check()
                self.right(np.array_equal(y.copy_to_host(), total), f"{name} of {nbytes} bytes")
                yield self.ours(name, lambda stream, start=start: start(stream=stream), calls)
        theirs = torch.from_numpy(mine).cuda()
        self.dist.all_reduce(theirs)
        self.right(np.array_equal(theirs.cpu().numpy(), total), f"NCCL's sum of {nbytes} bytes")
        theirs.zero_()  # so that sums stay small
        yield self.theirs("all_reduce NCCL", partial(self.dist.all_reduce, theirs), calls)

    def parts(self, nbytes: int) -> Iterator[Timed]:
        """reduce_scatter and all_gather of arrays of so many bytes on all ranks together."""
        torch, dist, group, calls = self.torch, self.dist, self.group, calls_of(nbytes)
        size = nbytes // 2 // group.ranks
        whole = drawn(group.rank, size * group.ranks), added(group.ranks, size * group.ranks)
        mine, sums = (one.reshape(group.ranks, size) for one in whole)
        x, y = device.to_device(mine), device.empty((size,), np.float16)
        z = device.empty((group.ranks, size), np.float16)
        for protocol in PROTOCOLS:
            if protocol == "lines" and nbytes >= FROM_TILES:
                continue
            group.reduce_scatter(x, y, self.stream, protocol=protocol)
            group.all_gather(y, z, self.stream, protocol=protocol)
            self.stream.synchronize()
            self.right(
                np.array_equal(y.copy_to_host(), sums[group.rank]), f"reduce_scatter {protocol} of {nbytes} bytes"
            )
            self.right(np.array_equal(z.copy_to_host(), sums), f"all_gather {protocol} of {nbytes} bytes")
            for name, start in {
                "reduce_scatter": partial(group.reduce_scatter, x, y, protocol=protocol),
                "all_gather": partial(group.all_gather, y, z, protocol=protocol),
            }.items():
                yield self.ours(f"{name} {protocol}", lambda stream, start=start: start(stream=stream), calls)
        one, all_ = (
            torch.zeros(size, dtype=torch.float16, device="cuda"),
            torch.zeros_like(torch.from_numpy(mine)).cuda(),
        )
        yield self.theirs("reduce_scatter NCCL", partial(dist.reduce_scatter_tensor, one, all_), calls)
        yield self.theirs("all_gather NCCL", partial(dist.all_gather_into_tensor, all_, one), calls)

    def fused(self, count: int) -> list[dict[str, Any]]:
        """Rows of the kernel that adds up, and normalises, so many rows; beside NCCL and then our own kernel."""
        group, torch, of = self.group, self.torch, HALF_PRECISIONS["fp16"]
        given = [drawn(rank, count * WIDTH).reshape(count, WIDTH) for rank in range(group.ranks)]
        residual, zeros = drawn(99, count * WIDTH).reshape(count, WIDTH), np.zeros(WIDTH, np.float32)
        sums = np.sum([one.astype(np.float64) for one in given], axis=0) + residual
        right = (sums - sums.mean(1, keepdims=True)) / np.sqrt(sums.var(1, keepdims=True) + 1e-5)
        x, kept, beta = (device.to_device(one) for one in (given[group.rank], residual, zeros))
        gamma, y, calls = device.to_device(zeros + 1), device.empty((count, WIDTH), np.float16), 20
        start = partial(launch_reduce_add, group, x, kept, gamma, beta, y, 1e-5, of)
        start(stream=self.stream)
        self.stream.synchronize()
        group.check()
        off = float(np.abs(y.copy_to_host() - right).max())
        self.right(off < 4e-3, f"rows, off by {off:.2g},")
        timed = [self.ours("rows", lambda stream: start(stream=stream), calls)]
        theirs = torch.from_numpy(given[group.rank]).cuda()
        sum_ = cuda.as_cuda_array(theirs)

        def both() -> None:
            self.dist.all_reduce(theirs)
            rows.launch_add(sum_, kept, gamma, beta, y, 1e-5, of, torch.cuda.current_stream().cuda_stream)

        timed.append(self.theirs("rows NCCL, then ours", both, calls))
        return self.by_turns(count * WIDTH * 2, timed)

    def by_turns(self, nbytes: int, every: Sequence[Timed]) -> list[dict[str, Any]]:
        """The time of each: of its slowest rank, in rounds."""
        found: list[list[float]] = [[] for _ in every]
        times = [self._times(one) for one in every]
        for _ in range(ROUNDS):
            for i, one in enumerate(every):
                found[i].append(self._seconds(one, times[i]))
        rows = []
        for one, seconds in zip(every, found, strict=True):
            took = [1e6 * each / one.calls for each in seconds]
            rows.append({"made": one.name, "bytes": nbytes, "microseconds": statistics.median(took), "rounds": took})
            if self.comm.rank == 0:
                print(f"{nbytes:>13,} {one.name:24} {rows[-1]['microseconds']:10.2f} us", flush=True)
        self.group.check()
        return rows

    def _times(self, one: Timed) -> int:
        self._seconds(one, 1)
        return int(self.comm.bcast(max(1, round(SECONDS / self._seconds(one, 3)))))

    def _seconds(self, one: Timed, times: int) -> float:
        one.wait()
        self.comm.Barrier()
        begun = time.perf_counter()
        for _ in range(times):
            one.launch()
        one.wait()
        return float(max(self.comm.allgather((time.perf_counter() - begun) / times)))


def main(argv: Sequence[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=HelpFormatter)
    parser.add_argument("--sizes", metavar="N", type=int, default=len(SIZES), help="only the first N (default: all)")
    parser.add_argument("--results-dir", type=Path, metavar="DIR", help="default: bench/results, for a run of all")
    options = parser.parse_args(argv)
    if not 1 <= options.sizes <= len(SIZES):
        parser.error(f"--sizes {options.sizes}: need 1 to {len(SIZES)}")
    comm = offload.world()
    if comm is None or device.gpu_count() < comm.size or device.SIMULATED:
        print("collectives: start it by mpiexec, with as many ranks as there are GPUs at most", file=sys.stderr)
        return 2
    cuda.select_device(offload.local_place(comm)[0])
    bench = Bench(comm)
    found = [row for nbytes in SIZES[: options.sizes] for row in bench.of_size(nbytes)]
    found += [row for count in (32, 128, 512, 8192) for row in bench.fused(count)]
    bench.dist.destroy_process_group()
    bench.group.close()
    folder = options.results_dir or (raw.RESULTS if options.sizes == len(SIZES) else None)
    if comm.rank == 0 and folder is not None:
        here = machine.describe()
        versions = {"torch": bench.torch.__version__, "nccl": ".".join(map(str, bench.torch.cuda.nccl.version()))}
        result = {"collectives": found, "ranks": comm.size, "link": bench.group.link, "versions": versions,
                  "machine": here, "commit": machine.commit()}  # fmt: skip
        raw.write(folder / f"{machine.name(here)}-{comm.size}-collectives.json", "collectives", result)
    return 0


if __name__ == "__main__":
    sys.exit(main())
