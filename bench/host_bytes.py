"""Time networks on bytes that lie on the host: what the bus and the host's memory allow, and how near runs come.

    python bench/host_bytes.py --networks alexnet-torchvision --levels l21

It needs an NVIDIA GPU, but for --tiny, which tries the harness in the simulator. Rows of bytes are random. Results from
the host must have the bits of those from the GPU. Ways take turns; medians of rounds count. It writes
results/MACHINE-host-bytes.json.

Exit status: 0 measured, 1 results differ, 2 unusable options.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import networks
import numpy as np
import raw
from numba import cuda

from charcnn import catalog
from charcnn.aliases import Array, Record, Stream
from charcnn.config import SMALL
from charcnn.gpu import device, graph, pieces
from charcnn.host import machine
from charcnn.host.arguments import HelpFormatter, positive
from charcnn.model import params
from charcnn.runtime import pipeline, staging, stream
from charcnn.runtime.monitor import Monitor
from charcnn.runtime.timeline import Timeline

ROUNDS = 7
BATCHES_TIMED = 16
RESIDENT = 4
"""Batches that lie on the GPU, by turns."""

BEFORE, STAGED, PINNED, RESIDENTS = "before", "staged", "pinned", "on the GPU"
"""Ways: by 8 threads to pinned memory of a batch, two streams; as the package has it; from pinned pages; no copies."""

THREADS, SIZES, COUNTS = (1, 2, 4, 8, 12, 16), (1 << 19, 1 << 20, 1 << 21, 1 << 22), (2, 3, 4)
"""Tried of `charcnn.gpu.pieces`: threads, bytes of a piece, pieces of a thread."""


def bytes_of(count: int, length: int) -> np.ndarray:
    """Random rows."""
    whole = np.random.default_rng(0).integers(0, 1 << 63, -(-count * length // 8), np.uint64)
    return whole.view(np.uint8)[: count * length].reshape(count, length)


def gigabytes(nbytes: int, call: Callable[[], object], rounds: int = ROUNDS) -> float:
    """GB/s of a call that moves so many bytes and waits for them."""
    call()
    found = []
    for _ in range(rounds):
        started = time.perf_counter()
        call()
        found.append(time.perf_counter() - started)
    return nbytes / statistics.median(found) / 1e9


def shared(pool: ThreadPoolExecutor, threads: int, to: np.ndarray, source: np.ndarray) -> None:
    """Copy on the host, a part each."""
    step = -(-len(source) // threads)
    parts = [slice(i, i + step) for i in range(0, len(source), step)]
    for task in [pool.submit(np.copyto, to[part], source[part]) for part in parts]:
        task.result()


def host_memory(batch: np.ndarray, most: int) -> dict[str, float]:
    """GB/s of so many threads that copy a batch to memory of its size."""
    to, found = np.zeros(batch.nbytes, np.uint8), {}
    for threads in (n for n in THREADS if n <= most):
        with ThreadPoolExecutor(threads) as pool:
            found[str(threads)] = gigabytes(batch.nbytes, partial(shared, pool, threads, to, batch.reshape(-1)))
    return found


def bus(batch: np.ndarray) -> dict[str, float]:
    """GB/s from pinned memory of a batch's size to the GPU, whole and in pieces, and back."""
    own, to = cuda.stream(), device.empty(batch.shape, np.uint8)
    pinned = cuda.pinned_array(batch.shape, np.uint8)
    pinned[...] = batch

    def up(size: int) -> None:
        flat = pinned.reshape(-1)
        for begin in range(0, flat.size, size):
            graph.copy_up(to, flat[begin : begin + size], begin, own)
        own.synchronize()

    def down() -> None:
        to.copy_to_host(pinned, stream=own)
        own.synchronize()

    found = {f"up in {size >> 10} KB": gigabytes(batch.nbytes, partial(up, size)) for size in SIZES}
    return {"up": gigabytes(batch.nbytes, partial(up, batch.nbytes)), **found, "down": gigabytes(batch.nbytes, down)}


def staged(batches: Sequence[np.ndarray], most: int) -> list[Record]:
    """GB/s of `CopyThreads` by threads, bytes of a piece and pieces of a thread: copies alone, nothing is computed."""
    own, to, rows = cuda.stream(), device.empty(batches[0].shape, np.uint8), []
    tried = [(n, pieces.PIECE, pieces.PIECES) for n in THREADS if n <= most]
    best = min(most, staging._MOST)
    tried += [(best, size, count) for size in SIZES for count in COUNTS]
    for threads, size, count in dict.fromkeys(tried):
        with mock.patch.multiple(pieces, PIECE=size, PIECES=count):
            made = pieces.CopyThreads(threads)

        def up(made: pieces.CopyThreads = made) -> None:
            for one in batches:
                made.copy_up(one, to, own)
            own.synchronize()

        rate = gigabytes(sum(one.nbytes for one in batches), up, 3)
        rows.append({"threads": threads, "piece": size, "pieces": count, "gb_per_second": rate})
    return rows


def registering(array: np.ndarray) -> Record:
    """How long it takes to pin an array's pages, and to let them go."""
    started = time.perf_counter()
    with cuda.pinned(array):
        pinned = time.perf_counter()
    return {"bytes": array.nbytes, "seconds": pinned - started, "back_seconds": time.perf_counter() - pinned}


@contextmanager
def as_before(batch: int, length: int) -> Iterator[None]:
    """Batches travel as they did: whole ones by way of pinned memory of their size, and the last is no smaller one."""
    held: dict[int, np.ndarray] = {}
    with ThreadPoolExecutor(8) as pool:

        def copy_up(array: np.ndarray, room: Callable[..., np.ndarray], to: Array, own: Stream) -> str:
            if array.nbytes <= 1 << 24:
                np.copyto(there := room(array.shape, np.uint8), array)
                to.copy_to_device(there, stream=own)
                return BEFORE
            if int(own) not in held:
                held[int(own)] = cuda.pinned_array((batch, length), np.uint8)
            there, step = held[int(own)], max(1, (1 << 23) // length)
            tasks = [(i, pool.submit(np.copyto, there[i : i + step][: len(array) - i], array[i : i + step]))
                     for i in range(0, len(array), step)]  # fmt: skip
            for i, task in tasks:
                task.result()
                graph.copy_up(to, there[i : min(i + step, len(array))], i * length, own)
            return BEFORE

        with mock.patch.object(stream, "copy_up", copy_up), mock.patch.object(pipeline, "MANY", 1 << 30):
            yield


def from_gpu(run: Any, rows: np.ndarray) -> np.ndarray:
    """Results of rows that are copied before, in the batches that a call would have."""
    size = run.size(len(rows))
    parts = [
        run.on_device(device.to_device(rows[start:stop])).copy_to_host()
        for start, stop in pipeline.cuts(0, len(rows), size, rows.shape[1])
    ]
    return np.concatenate(parts)


def resident(run: Any, rows: np.ndarray) -> Callable[[], None]:
    """What computes as many batches as the rows have, of a few that lie on the GPU."""
    held = [device.to_device(rows[i * run.batch : (i + 1) * run.batch]) for i in range(RESIDENT)]
    cuda.synchronize()

    def call() -> None:
        for i in range(len(rows) // run.batch):
            run.on_device(held[i % RESIDENT])
        cuda.synchronize()

    return call


def spans(run: Any, monitor: Monitor, rows: np.ndarray) -> list[list[Any]]:
    """What each stream did when, by CUDA events, and when the host waited: name, row, begin and end in milliseconds."""
    monitor.timeline.on = True
    started = time.perf_counter()
    run(rows)
    monitor.timeline.on = False
    return [
        [one.name, one.row, *(round(1e3 * (at - started), 3) for at in (one.start, one.stop))]
        for one in sorted(monitor.timeline.spans, key=lambda one: one.start)
    ]


def measured(name: str, build: Callable[..., Any], length: int, batch: int, inputs: int, rounds: int) -> Record:
    """One network: its rates from the host by every way, and on the GPU."""
    rows, here = bytes_of(inputs, length), not device.SIMULATED
    monitor = Monitor(timeline=Timeline(on=False))
    run = build(batch=batch, monitor=monitor)
    run.warm(rows[:batch], inputs)
    calls: dict[str, Callable[[], Any]] = {STAGED: partial(run, rows)}
    contexts: dict[str, Callable[[], Any]] = {}
    if here:
        calls[PINNED], calls[RESIDENTS] = partial(run, rows), resident(run, rows)
        contexts[PINNED] = lambda: cuda.pinned(rows)
        earlier = build(batch=batch, streams=2)
        calls[BEFORE] = partial(earlier, rows)
        contexts[BEFORE] = partial(as_before, batch, length)
    expected = from_gpu(run, rows) if here else calls[STAGED]()
    seconds: dict[str, list[float]] = {way: [] for way in calls}
    took: dict[str, list[str]] = {}
    different = {}
    for i in range(rounds + 1):
        for way in map(str, np.random.default_rng(i).permutation(list(calls))):
            monitor.copied.clear()
            with contexts.get(way, nullcontext)():
                started = time.perf_counter()
                found = calls[way]()
                elapsed = time.perf_counter() - started
            took[way] = sorted(monitor.copied)
            if i > 0:
                seconds[way].append(elapsed)
            elif way in (STAGED, PINNED):
                different[way] = int((found != expected).any(axis=1).sum())
            elif found is not None:  # in other batches, whose kernels may round otherwise
                different[way] = int((found.argmax(axis=1) != expected.argmax(axis=1)).sum())
    rates = {way: inputs / statistics.median(found) for way, found in seconds.items()}
    print(name, {way: f"{rate:,.0f}" for way, rate in rates.items()}, different, took, flush=True)
    return {
        "network": name, "batch": batch, "inputs": inputs, "input_bytes": length, "inputs_per_second": rates,
        "seconds": seconds, "copied": took, "different": different, "spans": spans(run, monitor, rows),
    }  # fmt: skip


def main(argv: Sequence[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=HelpFormatter)
    add, every = parser.add_argument, networks.architectures()
    add("--networks", default="alexnet-torchvision", metavar="NAME,...", help="default alexnet-torchvision; or none")
    add("--levels", default="", metavar="NAME,...", help="levels that have on_device")
    add("--as", dest="technique", default="wgmma", help="the networks' technique (default wgmma)")
    add("--precision", default="fp16", help="default fp16")
    add("--batch", type=positive, default=1024, help="images of a batch (default 1024); levels have their own")
    add("--inputs", type=positive, metavar="N", help=f"default {BATCHES_TIMED} batches; 96 of a level")
    add("--rounds", type=positive, default=ROUNDS)
    add(
        "--reports",
        type=Path,
        nargs="*",
        default=[],
        metavar="FILE",
        help="of the networks' commands, to keep rates of",
    )
    add("--tiny", action="store_true", help="a tiny network, few images")
    add("--results-dir", type=Path, default=raw.RESULTS, metavar="DIR")
    chosen = parser.parse_args(argv)
    if device.SIMULATED and not chosen.tiny:
        parser.error("there is no GPU: --tiny tries the harness")
    names = [name for name in chosen.networks.split(",") if name != "none"]
    if unknown := [name for name in names if name not in every]:
        parser.error(f"--networks {unknown[0]}: need {', '.join(every)}")
    found = []
    for name in names:
        network = catalog.network(name.partition("-")[0]).architecture("tiny") if chosen.tiny else every[name]
        technique = catalog.network_technique(chosen.technique)
        how: Mapping[str, Any] = {"gpus": [0], **technique.build_options(chosen.precision)}
        build = partial(technique.build, technique.name, params.init(network, 0), network, **how)
        inputs = chosen.inputs or BATCHES_TIMED * chosen.batch
        found.append(measured(name, build, network.length, chosen.batch, inputs, chosen.rounds))
    for name in filter(None, chosen.levels.split(",")):
        level = catalog.level(name)
        how = {"gpus": [0], **level.build_options(chosen.precision)}
        build = partial(level.module.build, level.taken(params.init(SMALL, 0)), SMALL, **how)
        rows = chosen.inputs or 96 * 4096
        found.append(measured(f"{name} {chosen.precision}", build, SMALL.length, 4096, rows, chosen.rounds))
    result: Record = {"networks": found, "technique": chosen.technique, "precision": chosen.precision}
    if not device.SIMULATED:
        length = max(one["input_bytes"] for one in found)
        batch, most = max(one["batch"] for one in found if one["input_bytes"] == length), machine.describe()["cores"]
        whole = bytes_of(4 * batch, length)
        parts = [whole[i * batch : (i + 1) * batch] for i in range(4)]
        result |= {
            "bus": bus(parts[0]),
            "host_memory": host_memory(parts[0], most),
            "pieces": staged(parts, most),
            "registering": registering(whole),
        }
        print(*(f"{key}: {result[key]}" for key in ("bus", "host_memory", "pieces", "registering")), sep="\n")
    here, kept = machine.describe(), ("network", "source", "inputs", "batch", "seconds", "inputs_per_second", "copied")
    reports = [json.loads(file.read_text()) for file in chosen.reports]
    result["commands"] = [{key: report[key] for key in kept} for report in reports]
    result |= {"machine": here, "commit": machine.commit()}
    raw.write(chosen.results_dir / f"{machine.name(here)}-host-bytes.json", "host_bytes", result)
    return 1 if any(one["different"].get(way) for one in found for way in (STAGED, PINNED)) else 0


if __name__ == "__main__":
    sys.exit(main())
