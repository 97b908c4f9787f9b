"""Time a network on two ranks that share batches, layers or stages, relative to one process on as many cores.

    python bench/parallel.py --json bench/results/offload/cpu-2-cores-parallel.json
    python bench/parallel.py --as wgmma --batches 1:1,64:4096,1024:8192 --json gpus.json

Each way runs through shared memory, and with --wire between two hosts, which are namespaces of this machine
(tests/hosts.py). Ways take turns. With a GPU technique each rank has one GPU, and so has the one process.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import raw
from mpi import AS_ROOT, mpiexec

from charcnn import catalog
from charcnn.host import machine
from charcnn.host.arguments import HelpFormatter

ROOT = Path(__file__).resolve().parents[1]
sys.path.append(str(ROOT / "tests"))

WAYS = ("one process", "async", "tensor", "pipeline")
BATCHES = "1:1,8:64,32:128"
"""Batches, and of each the inputs of a run: at batch 1 one alone, whose time is the latency."""

TCP = ("--mca", "pml", "ob1", "--mca", "btl", "self,tcp")


def once(options: argparse.Namespace, way: str, batch: int, hosts: Any, folder: str) -> dict[str, Any]:
    """One command's report."""
    file = Path(folder) / "report.json"
    words = ["-m", f"charcnn.networks.{options.network}", "--as", options.technique, "--batch", batch]
    words += ["--inputs", options.batches[batch], "--repeat", options.repeat, "--json", file]
    words += ["--variant", options.variant] if options.variant else []
    words += ["--precision", options.precision] if options.precision else []
    threads = (os.cpu_count() or 2) // 2
    environment = {**os.environ, **AS_ROOT, "NUMBA_NUM_THREADS": str(threads), "PYTHONPATH": str(ROOT)}
    if way == "one process":
        started = [sys.executable, *map(str, words), *(["--gpus", "1"] if options.on_gpus else [])]
        done = subprocess.run(started, capture_output=True, text=True, check=False)
    elif hosts is None:
        started = [mpiexec(), "-n", "2", sys.executable, *map(str, words), "--offload", way]
        done = subprocess.run(started, capture_output=True, text=True, env=environment, check=False)
    else:
        command = [sys.executable, *words, "--offload", way]
        done = hosts.mpiexec(mpiexec(), 1, command, options=("--bind-to", "none", *TCP), env=environment, timeout=600)
    if done.returncode:
        sys.exit(f"parallel: {way}, batch {batch}: {done.stdout}{done.stderr}")
    found: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return found


def measured(options: argparse.Namespace, link: str, hosts: Any) -> list[dict[str, Any]]:
    """Rows of all ways and batches through this link: medians over the rounds."""
    taken: dict[tuple[str, int], list[dict[str, Any]]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(options.rounds):
            for batch in options.batches:
                for way in WAYS if hosts is None else WAYS[1:]:
                    report = once(options, way, batch, hosts, folder)
                    taken.setdefault((way, batch), []).append(report)
                    print(f"{link}, {way}, batch {batch}: {report['inputs_per_second']:,.2f} inputs/s", flush=True)
    rows = []
    for (way, batch), reports in taken.items():
        seconds = [second for report in reports for second in report["seconds"]]
        inputs = options.batches[batch]
        rows.append({"link": link, "way": way, "batch": batch, "inputs": inputs, "seconds": seconds})
        rows[-1] |= {"inputs_per_second": inputs / statistics.median(seconds), "variant": reports[0]["config"]}
        rows[-1] |= {key: reports[-1][key] for key in ("idle", "parts", "cores") if key in reports[-1]}
    return rows


def batches(text: str) -> dict[int, int]:
    """Batches with the inputs of a run, as 1:1,8:64.

    Raises:
        ValueError: one is none.
    """
    found = {int(batch): int(inputs) for batch, inputs in (one.split(":") for one in text.split(","))}
    if min((*found, *found.values())) < 1 or 1 not in found:
        raise ValueError(f"{text}: need BATCH:INPUTS, of at least 1, and one of batch 1")
    return found


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=HelpFormatter)
    add = parser.add_argument
    add("--network", default="alexnet", metavar="NAME", help="default alexnet")
    add("--variant", metavar="V", help="default: the network's first")
    add("--as", dest="technique", default="winograd_cpu", metavar="T", help="technique (default winograd_cpu)")
    add("--precision", metavar="P", help="default: the technique's own")
    add("--batches", type=batches, default=BATCHES, metavar="BATCH:INPUTS,...", help=f"default {BATCHES}")
    add("--rounds", type=int, default=2, metavar="N", help="turns of each way (default 2)")
    add("--repeat", type=int, default=5, metavar="N", help="runs per turn (default 5)")
    add("--wire", type=float, nargs="*", default=[], metavar="BYTES", help="bytes per second between two hosts")
    add("--latency", type=float, default=1e-4, metavar="SECONDS", help="latency of the wire (default 1e-4)")
    add("--json", metavar="FILE", help="write the result here")
    options = parser.parse_args()
    options.on_gpus = {row.name: row.device for row in catalog.NETWORK_TECHNIQUES}.get(options.technique) == "cuda"
    rows = measured(options, "shared memory", None)
    for wire in options.wire:
        from hosts import Hosts

        link = f"{wire / 1e6:g} MB/s, {options.latency * 1e6:g} µs"
        with tempfile.TemporaryDirectory() as folder, Hosts(folder, latency=options.latency, speed=wire) as hosts:
            rows += measured(options, link, hosts)
    said = {"precision": options.precision} if options.precision else {}
    found = {"network": options.network, "technique": options.technique, **said, "rows": rows}
    if options.json is not None:
        raw.write(options.json, "parallel", {**found, "machine": machine.describe(), "commit": machine.commit()})


if __name__ == "__main__":
    main()
