"""A network on two ranks that share batches, layers or stages, beside one process on as many cores.

    python bench/parallel.py --json bench/results/offload/cpu-2-cores-parallel.json

Each way at batch 1, one image alone, and at larger ones; through shared memory, and, with `--wire BYTES`, over two
hosts that are namespaces of this machine (tests/hosts.py), with a wire of so many bytes a second between, and
`--latency`. Ways go by turns.
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

from charcnn.host import machine

ROOT = Path(__file__).resolve().parents[1]
sys.path.append(str(ROOT / "tests"))

WAYS = ("one process", "async", "tensor", "pipeline")
BATCHES = {1: 1, 8: 64, 32: 128}
"""Inputs of a run, by batch: at batch 1 one alone, whose time is the latency."""

TCP = ("--mca", "pml", "ob1", "--mca", "btl", "self,tcp")


def once(options: argparse.Namespace, way: str, batch: int, hosts: Any, folder: str) -> dict[str, Any]:
    """One command's report."""
    file = Path(folder) / "report.json"
    words = ["-m", f"charcnn.networks.{options.network}", "--as", options.technique, "--batch", batch]
    words += ["--inputs", BATCHES[batch], "--repeat", options.repeat, "--json", file]
    words += ["--variant", options.variant] if options.variant else []
    mpiexec = str(Path(sys.executable).with_name("mpiexec"))
    threads = (os.cpu_count() or 2) // 2
    environment = {**os.environ, "NUMBA_NUM_THREADS": str(threads), "OMPI_ALLOW_RUN_AS_ROOT": "1"}
    environment |= {"OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "PYTHONPATH": str(ROOT)}
    if way == "one process":
        started = [sys.executable, *map(str, words)]
        done = subprocess.run(started, capture_output=True, text=True, check=False)
    elif hosts is None:
        started = [mpiexec, "-n", "2", sys.executable, *map(str, words), "--offload", way]
        done = subprocess.run(started, capture_output=True, text=True, env=environment, check=False)
    else:
        command = [sys.executable, *words, "--offload", way]
        done = hosts.mpiexec(mpiexec, 1, command, options=("--bind-to", "none", *TCP), env=environment, timeout=600)
    if done.returncode:
        sys.exit(f"parallel: {way}, batch {batch}: {done.stdout}{done.stderr}")
    found: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return found


def measured(options: argparse.Namespace, link: str, hosts: Any) -> list[dict[str, Any]]:
    """Rows of all ways and batches through this link: medians over the rounds."""
    taken: dict[tuple[str, int], list[dict[str, Any]]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(options.rounds):
            for batch in BATCHES:
                for way in WAYS if hosts is None else WAYS[1:]:
                    taken.setdefault((way, batch), []).append(once(options, way, batch, hosts, folder))
    rows = []
    for (way, batch), reports in taken.items():
        seconds = [second for report in reports for second in report["seconds"]]
        rows.append({"link": link, "way": way, "batch": batch, "inputs": BATCHES[batch], "seconds": seconds})
        rows[-1] |= {"inputs_per_second": BATCHES[batch] / statistics.median(seconds), "variant": reports[0]["config"]}
        rows[-1] |= {key: reports[-1][key] for key in ("idle", "parts", "cores") if key in reports[-1]}
        print(f"{link}, {way}, batch {batch}: {rows[-1]['inputs_per_second']:,.2f} inputs/s", flush=True)
    return rows


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--network", default="alexnet")
    add("--variant")
    add("--as", dest="technique", default="winograd_cpu")
    add("--rounds", type=int, default=2, help="times that every way has its turn (default 2)")
    add("--repeat", type=int, default=5, help="runs a turn (default 5)")
    add("--wire", type=float, nargs="*", default=[], metavar="BYTES", help="a second, between two hosts")
    add("--latency", type=float, default=1e-4, metavar="SECONDS", help="of the wire (default 1e-4)")
    add("--json", metavar="FILE")
    options = parser.parse_args()
    rows = measured(options, "shared memory", None)
    for wire in options.wire:
        from hosts import Hosts

        link = f"{wire / 1e6:g} MB/s, {options.latency * 1e6:g} µs"
        with tempfile.TemporaryDirectory() as folder, Hosts(folder, latency=options.latency, speed=wire) as hosts:
            rows += measured(options, link, hosts)
    found = {"network": options.network, "technique": options.technique, "rows": rows}
    if options.json is not None:
        raw.write(options.json, "parallel", {**found, "machine": machine.describe(), "commit": machine.commit()})


if __name__ == "__main__":
    main()
