"""The raw results of bench/results, read and checked."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from charcnn.config import SMALL
from charcnn.host import machine

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "bench" / "results"
RENAMED = {
    f"{was}{precision}": f"{now}_{precision}"
    for was, now in (
        ("gather_", "warp_gather"),
        ("gather_half_", "warp_gather"),
        ("", "vectorized"),
        ("half_", "vectorized"),
        ("spread_", "small_batch"),
    )
    for precision in ("fp16", "bf16")
} | {"lowered": "cpu_gemm", "winograd_lowered": "winograd_cpu"}
"""Techniques as the catalogue labels them today, by what they are called in older results."""
WEIGHTS = ROOT / "charcnn" / "model" / "weights"


class ReportError(ValueError):
    """A document or a raw result does not fit: a message of one line."""


@dataclass(frozen=True, order=True)
class Place:
    """What a level ran on."""

    host: str
    """`machine.name` with one GPU; hosts with no GPU sort first."""
    gpus: int
    """GPUs used; 1 for a CPU level on a host with GPUs, so that it stands in their column."""
    ranks: int


@dataclass(frozen=True)
class LevelResult:
    """One measured level."""

    inputs_per_second: float
    stages: dict[str, float]
    """Milliseconds an input of the whole run: what the threads of several GPUs spent at once is divided by them."""
    batch: int
    file: Path
    """The raw result that has it."""
    row: dict[str, Any] = field(default_factory=dict, compare=False)
    """It as it stands there, with its joules where they were counted."""


@dataclass(frozen=True)
class Results:
    """All raw results."""

    files: tuple[Path, ...]
    hosts: dict[Place, str] = field(default_factory=dict)
    """How people call the place."""
    levels: dict[tuple[str, Place], LevelResult] = field(default_factory=dict)
    operators: dict[tuple[str, str, str, str], dict[str, Any]] = field(default_factory=dict)
    """extra_info by operator, layer, technique and host."""
    operator_files: set[Path] = field(default_factory=set)
    """The raw results that have operators."""
    sanitized: dict[str, dict[str, Any]] = field(default_factory=dict)
    """What bench/sanitize.py wrote, by host."""
    dram: dict[str, dict[str, Any]] = field(default_factory=dict)
    """What bench/dram.py wrote, by host."""
    peers: dict[Path, dict[str, Any]] = field(default_factory=dict)
    """What bench/peers.py wrote, by file."""
    layers: dict[Path, dict[str, Any]] = field(default_factory=dict)
    """What bench/layers.py wrote, by file."""
    convolutions: dict[str, dict[Path, dict[str, Any]]] = field(
        default_factory=lambda: {"conv2d": {}, "conv2d_cpu": {}}
    )
    """What bench/conv2d.py and bench/conv2d_cpu.py wrote, by schema and file."""
    networks: dict[Path, dict[str, Any]] = field(default_factory=dict)
    """What bench/networks.py wrote, by file."""
    host_bytes: dict[Path, dict[str, Any]] = field(default_factory=dict)
    """What bench/host_bytes.py wrote, by file."""
    fused_layers: dict[Path, dict[str, Any]] = field(default_factory=dict)
    """What bench/fused_layers.py wrote, by file."""
    fused_alexnet: dict[Path, dict[str, Any]] = field(default_factory=dict)
    """What bench/fused_alexnet.py wrote, by file."""
    half_chain: dict[Path, dict[str, Any]] = field(default_factory=dict)
    """Blocks 3 to 6 as one kernel in half precision, which is no more: by file."""
    op_times: dict[Path, dict[str, Any]] = field(default_factory=dict)
    """What bench/op_times.py wrote, by file."""
    calls: dict[Path, dict[str, Any]] = field(default_factory=dict)
    """What bench/calls.py wrote, by file."""
    attention: dict[Path, dict[str, Any]] = field(default_factory=dict)
    """What bench/attention.py wrote, by file."""
    bert: dict[Path, dict[str, Any]] = field(default_factory=dict)
    """What bench/bert.py wrote, by file."""
    gemm: dict[Path, dict[str, Any]] = field(default_factory=dict)
    """What bench/gemm.py wrote, by file."""
    costs: dict[Path, dict[str, Any]] = field(default_factory=dict)
    """What bench/tensor_energy.py --zeros and bench/byte_energy.py wrote, by file."""
    collectives: dict[Path, dict[str, Any]] = field(default_factory=dict)
    """What bench/collectives.py wrote, by file."""
    shared_layers: dict[Path, dict[str, Any]] = field(default_factory=dict)
    """What bench/shared_layers.py wrote, by file."""
    shared_networks: dict[Path, dict[str, Any]] = field(default_factory=dict)
    """What bench/shared_networks.py wrote, by file."""
    ladders: dict[str, dict[Path, dict[str, Any]]] = field(default_factory=lambda: {"mma_steps": {}, "wgmma_steps": {}})
    """What bench/steps.py wrote, by ladder and file."""
    classified: dict[Path, dict[str, Any]] = field(default_factory=dict)
    """What bench/classify.py wrote, by file."""
    agreed: dict[Path, dict[str, Any]] = field(default_factory=dict)
    """What bench/precisions.py wrote, by file."""
    validated: dict[Path, dict[str, Any]] = field(default_factory=dict)
    """What bench/validation.py wrote, by file."""


@cache
def results() -> Results:
    """Read bench/results.

    Raises:
        ReportError: a file is no result, or not one to publish: a failed check, another config, a second of its kind.
    """
    found = Results(tuple(sorted(RESULTS.glob("*.json"))))
    by_host = {"sanitizer": found.sanitized, "dram": found.dram}
    by_file = {
        "layers": found.layers,
        "networks": found.networks,
        "host_bytes": found.host_bytes,
        "fused_layers": found.fused_layers,
        "fused_alexnet": found.fused_alexnet,
        "half_chain": found.half_chain,
        "op_times": found.op_times,
        "calls": found.calls,
        "attention": found.attention,
        "bert": found.bert,
        "gemm": found.gemm,
        "costs": found.costs,
        "collectives": found.collectives,
        "shared_layers": found.shared_layers,
        "shared_networks": found.shared_networks,
        "precisions": found.agreed,
        "validation": found.validated,
        "peers": found.peers,
        "classify": found.classified,
        **found.ladders,
        **found.convolutions,
    }
    for file in found.files:
        raw = read(file)
        schema = raw["schema"]
        if schema in by_host:
            by_host[schema][machine.name(raw["machine"])] = raw
        elif schema in by_file:
            if schema == "peers":
                check_config(file, raw, "it")
            by_file[schema][file] = raw
        if schema not in ("benchmarks", "level"):
            continue
        if schema == "level" and not raw["validation"]["passed"]:
            raise ReportError(f"{file.name}: its validation failed")
        rows, host = ([raw], raw["machine"]) if schema == "level" else (
            [row["extra_info"] for row in raw["benchmarks"]], raw["machine_info"]
        )  # fmt: skip
        for row in rows:
            if "level" in row:
                _add_level(found, file, row, host)
            else:
                technique = RENAMED.get(row["technique"], row["technique"])
                if (row["operator"], technique) == ("one_hot_conv1d", "cpu_gemm"):
                    technique = "cpu_gather"
                found.operators[row["operator"], row["layer"], technique, machine.name(host)] = row
                found.operator_files.add(file)
    for file, row in offloads():  # of a level that was measured there alone, its own way to offload
        if "validation" in row and "slowed_to" not in row and row["offload"] == "async":
            place = _place(row, row["machine"])
            if place in found.hosts and (row["level"], place) not in found.levels:
                _add_level(found, file, row, row["machine"])
    return found


SCHEMAS = (
    "benchmarks", "level", "sanitizer", "dram", "layers", "conv2d", "conv2d_cpu", "tiles", "mma_steps", "wgmma_steps",
    "precisions", "validation", "networks", "host_bytes", "op_times", "fused_layers", "half_chain",
    "fused_alexnet",
    "peers", "classify", "soak", "exits", "overhead", "path", "strikes", "parallel", "ranks", "dot", "engines",
    "compare", "amx", "models", "wgmma_trace", "calls", "attention",
    "attention_trace", "bert", "gemm", "collectives", "shared_layers", "shared_networks", "whole", "training", "sparse",
    "costs", "loss_curves", "backends",
)  # fmt: skip
"""What a raw result says of itself. Tables show all but soak, exits and dot; pictures the traces."""


def read(file: Path) -> dict[str, Any]:
    """A raw result.

    Raises:
        ReportError: it does not say of which of SCHEMAS it is.
    """
    raw: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    if raw.get("schema") not in SCHEMAS:
        raise ReportError(f"{file.name}: schema={raw.get('schema')!r}: need one of {', '.join(SCHEMAS)}")
    return raw


def check_config(file: Path, raw: dict[str, Any], what: str) -> None:
    """A ReportError where a result is of another network than SMALL."""
    if {**raw["config"], "kernel_sizes": tuple(raw["config"]["kernel_sizes"])} != SMALL.to_dict():
        raise ReportError(f"{file.name}: {what} was measured at another config than SMALL")


def _place(row: dict[str, Any], host: dict[str, Any]) -> Place:
    gpus = max(1, len(host["gpus"]) if row["ranks"] > 1 else row["gpus"])  # the row's are those of a rank
    return Place(machine.name(host), gpus, row["ranks"])


def _add_level(found: Results, file: Path, row: dict[str, Any], host: dict[str, Any]) -> None:
    check_config(file, row, row["level"])
    place, gpus = _place(row, host), max(1, row["gpus"])
    if (row["level"], place) in found.levels:
        raise ReportError(f"{file.name}: a second result for {row['level']} on {found.hosts[place]}")
    found.hosts[place] = _called(host, place)
    stages = {stage: 1e3 * seconds / row["inputs"] / gpus for stage, seconds in row["stages"].items()}
    found.levels[row["level"], place] = LevelResult(row["inputs_per_second"], stages, row["batch"], file, row)


def _called(host: dict[str, Any], place: Place) -> str:
    hardware = f"{host['cores']} CPU cores"
    if host["gpus"]:
        hardware = f"{place.gpus} × {host['gpus'][0]}" if place.gpus > 1 else host["gpus"][0]
    return hardware + (f", {place.ranks} ranks" if place.ranks > 1 else "")


def machine_called(host: dict[str, Any]) -> str:
    """One machine without others, a processor by its name."""
    called = _called(host, Place(machine.name(host), 1, 1))
    return called if host["gpus"] else f"{called}, {host['cpu']}"


def places() -> list[Place]:
    """Places that levels were measured at, hosts with no GPU first."""
    return sorted(results().hosts, key=lambda place: (not place.host.startswith("cpu-"), place))


@cache
def offloads() -> tuple[tuple[Path, dict[str, Any]], ...]:
    """The raw results of bench/results/offload: levels' reports on ranks, and what bench/offload.py wrote.

    Raises:
        ReportError: a run whose logits were wrong, or at another config.
    """
    found = []
    for file in sorted((RESULTS / "offload").glob("*.json")):
        raw = read(file)
        if raw["schema"] == "level":
            check_config(file, raw, raw["level"])
            if not raw["validation"]["passed"]:
                raise ReportError(f"{file.name}: its validation failed")
        found.append((file, raw))
    return tuple(found)


@cache
def trainings() -> dict[Path, list[dict[str, Any]]]:
    """The runs of bench/training.py, by file of bench/results/training.

    Raises:
        ReportError: a run in the simulator, or at another config.
    """
    found = {}
    for file in sorted((RESULTS / "training").glob("*.json")):
        found[file] = read(file)["runs"]
        for run in found[file]:
            check_config(file, run, "it")
            if run["simulated"]:
                raise ReportError(f"{file.name}: was measured in the simulator")
    return found
