"""What levels are held against: the fastest other library, and what the hardware could do."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from charcnn import catalog
from charcnn.config import SMALL
from charcnn.host import machine
from report.schema import RESULTS, Place, results

FINEST_FIRST = ("fp32", "fp16x3", "tf32", "fp16", "bf16", "int8", "fp8")
"""Precisions, by what they round off a network's logits."""
MULTIPROCESSORS, FLOAT32_UNITS = 132, 128
"""Of an H200, and of each: CUDA C++ Programming Guide, compute capability 9.0. A unit does a multiply-add a cycle."""
CLOCK = RESULTS / "designs" / "nvidia-h200-wgmma.json"


@dataclass(frozen=True)
class Peer:
    """The fastest other library."""

    title: str
    precision: str
    inputs_per_second: float
    batch: int
    file: Path


def predecessor(name: str) -> catalog.Level | None:
    """The level that this one builds on; None for the first."""
    return catalog.level(name).predecessor


def peer_rows(raw: dict[str, Any], batch: int) -> list[dict[str, Any]]:
    """What a peers' result has of one batch size, which is of one run."""
    return [row for run in (raw, *raw.get("earlier", [])) for row in run["peers"] if row["batch"] == batch]


def best_peer(file: Path, precision: str, batch: int | None = None) -> Peer | None:
    """The fastest library of a peers' result whose arithmetic is no coarser than this; None where none was measured.

    Args:
        file: the result.
        precision: fp32 and so on, as a level calls it.
        batch: None: the largest one of the newest run.
    """
    raw, accurate = results().peers[file], FINEST_FIRST[: FINEST_FIRST.index(precision) + 1]
    batch = batch or max(raw["batches"])
    rows = [row for row in peer_rows(raw, batch) if not row.get("level") and called(row["precision"]) in accurate]
    if not rows:
        return None
    row = max(rows, key=lambda row: float(row["inputs_per_second"]))
    return Peer(row["title"], row["precision"], row["inputs_per_second"], batch, file)


def called(precision: str) -> str:
    """A precision of bench/peers.py, as levels call it."""
    return "fp32" if precision == "float32" else precision


def beside_peers(level: catalog.Level) -> tuple[float, Peer] | None:
    """A level's inputs/s and the fastest library's on the same machine.

    On a GPU the level's rate is from host to host, the library's from GPU to GPU. On a CPU both are of one run where
    the level was in it, else the level's is its own. None: no library was measured there.
    """
    # Of several results, that of the largest batches: a level's own are large, too.
    for file, raw in sorted(results().peers.items(), key=lambda item: -max(item[1]["batches"])):
        if raw["device"] != level.device:
            continue
        if (peer := best_peer(file, level.precision())) is None:
            continue
        place = Place(machine.name(raw["machine"]), 1, 1)
        together = [row for row in raw["peers"] if row["name"] == level.name and row["batch"] == peer.batch]
        if level.device == "cpu" and together:
            return together[0]["inputs_per_second"], peer
        if own := results().levels.get((level.name, place)):
            return own.inputs_per_second, peer
    return None


def flops(name: str) -> int:
    """Operations of an input that a level's products are: a direct convolution's, however it takes them."""
    first = 2 * SMALL.channels * SMALL.conv_lengths[0] * SMALL.alphabet * SMALL.kernel_sizes[0]
    return SMALL.flops - (first if catalog.level(name).gathered else 0)


def ceiling(host: str, precision: str) -> float | None:
    """Operations a second of a GPU: of its float32 units as they are built, of tensor cores as cuBLAS reaches them."""
    if precision == "fp32":
        if host != "nvidia-h200":
            return None
        clock = json.loads(CLOCK.read_text(encoding="utf-8"))["max_clock_mhz"] * 1e6
        return float(MULTIPROCESSORS * FLOAT32_UNITS * 2 * clock)
    raws = [raw for raw in results().layers.values() if machine.name(raw["machine"]) == host]
    found = [peak for raw in raws if (peak := peak_of(raw, precision))]
    return 1e12 * found[0] if found else None


def peak_of(raw: dict[str, Any], precision: str) -> float | None:
    """TFLOP/s of cuBLAS's product of large matrices, in the same run; None where it has none in that precision."""
    found = [row for row in raw["layers"] if (row["layer"], row["precision"]) == ("peak", precision)]
    return float(found[0]["tflop_per_second"]) if found else None


def limit(level: catalog.Level, place: Place) -> float | None:
    """Inputs/s of a level whose products alone took time, at the hardware's rate; None where that is not known."""
    rate = ceiling(place.host, level.precision()) if level.device == "cuda" else None
    return None if rate is None else place.gpus * rate / flops(level.name)
