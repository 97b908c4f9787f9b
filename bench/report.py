"""Write what is generated in README.md, docs/*.md and the model's card: tables and numbers from raw results, code.

`python bench/report.py` fills the blocks `<!-- KIND:begin ARGUMENTS --> ... <!-- KIND:end -->`:

- levels: the table of the catalogue's levels, with inputs a second on each machine measured;
- precisions: which levels compute in what;
- operators: the table of operators and techniques;
- peers: other libraries beside the levels, a table for each machine;
- cost lK: what level K costs, and the level before it, stage by stage;
- change lJ lK: what differs between two levels' `build`;
- code FILE NAME: a function or class, as it stands in the file;
- chain METHOD: the plan of blocks 3 to 6, fused by this method, on an H200;
- scaling, mixed, path, strikes, overhead, forecasts: the offload, from bench/results/offload;
- classify: `charcnn classify` from file to file, beside the level's own rate;
- sanitizer: what compute-sanitizer found;
- tensor_cores: the network's products beside cuBLAS's, in each precision;
- wgmma_steps: the ladder of wgmma kernels: what each step can reach, and what it reached beside cuBLAS;
- agreement: what each precision does to a trained network's labels, from bench/precisions.py;
- accuracy PART: what the model that ships reached on its "validation" or "test" rows;
- training: the command that trained it, and what it ran on.

`python bench/report.py --check` changes nothing, and exits with status 1 if a block is out of date.
"""

from __future__ import annotations

import argparse
import ast
import difflib
import json
import os
import re
import shlex
import sys
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from charcnn import catalog
from charcnn.classify.classifier import SHIPPED
from charcnn.config import SMALL
from charcnn.files import replacing
from charcnn.gpu import device
from charcnn.host import machine
from charcnn.model import params
from charcnn.model.rounding import ROUNDINGS
from charcnn.offload.cost_model import Machine, Work, forecast
from charcnn.ops.chain import Conv1d, Plan, Relu, Stat
from charcnn.ops.chain import plan as plan_chain
from charcnn.ops.conv1d.wgmma.steps import layer as ladder
from charcnn.ops.conv1d.wgmma.steps.layer import STEPS
from charcnn.training.measure import Measured

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "bench" / "results"
WEIGHTS = ROOT / "charcnn" / "weights"
BLOCK = re.compile(r"(<!-- (\w+):begin ?([^\n]*?) ?-->\n).*?(<!-- \2:end -->)", re.DOTALL)
UNMEASURED = "not yet measured"

L2_BYTES_PER_SECOND = 5.5e12
"""What the second-level cache of an H200 gives at most."""

CUBLAS_FLOP_PER_SECOND = 790e12
"""What cuBLAS reached there in its largest products in half precision: the power limit bounds it."""


class ReportError(ValueError):
    """A document or a raw result does not fit: a message of one line."""


@dataclass(frozen=True, order=True)
class Place:
    """What a level ran on."""

    host: str
    """As `machine.name` calls it with one GPU; hosts with no GPU sort first."""
    gpus: int
    """GPUs used; 1 for a CPU level on a host with GPUs, so that it stands in their column."""
    ranks: int


@dataclass(frozen=True)
class LevelResult:
    """One measured level."""

    inputs_per_second: float
    stages: dict[str, float]
    """Milliseconds an input of the whole run: what the threads of several GPUs spent at once is divided by them."""


@dataclass(frozen=True)
class Results:
    """All raw results."""

    files: tuple[Path, ...]
    hosts: dict[Place, str]
    """How people call the place."""
    levels: dict[tuple[str, Place], LevelResult]
    operators: dict[tuple[str, str, str, str], dict[str, Any]]
    """extra_info by operator, layer, technique and host."""
    sanitized: dict[str, dict[str, Any]]
    """What bench/sanitize.py wrote, by host."""
    dram: dict[str, dict[str, Any]]
    """What bench/dram.py wrote, by host."""
    peers: dict[Path, dict[str, Any]]
    """What bench/peers.py wrote, by file."""
    products: dict[str, dict[str, Any]]
    """What bench/tensor_cores.py wrote, by host."""
    ladder: dict[Path, dict[str, Any]]
    """What bench/wgmma_steps.py wrote, by file."""
    classified: dict[Path, dict[str, Any]]
    """What bench/classify.py wrote, by file."""
    agreed: dict[Path, dict[str, Any]]
    """What bench/precisions.py wrote, by file."""
    validated: dict[Path, dict[str, Any]]
    """What bench/validation.py wrote, by file."""


@cache
def results() -> Results:
    """Read bench/results.

    Raises:
        ReportError: a file is no result, or not one to publish: a failed check, another config, a second of its kind.
    """
    found = Results(tuple(sorted(RESULTS.glob("*.json"))), {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {})
    for file in found.files:
        raw = json.loads(file.read_text(encoding="utf-8"))
        if "benchmarks" in raw:
            rows, host = [row["extra_info"] for row in raw["benchmarks"]], raw["machine_info"]
        elif "level" in raw:
            if not raw["validation"]["passed"]:
                raise ReportError(f"{file.name}: its validation failed")
            rows, host = [raw], raw["machine"]
        elif "tools" in raw:
            found.sanitized[machine.name(raw["machine"])] = raw
            continue
        elif "tensor_cores" in raw:
            found.products[machine.name(raw["machine"])] = raw
            continue
        elif "wgmma_steps" in raw:
            found.ladder[file] = raw
            continue
        elif "dram" in raw:
            found.dram[machine.name(raw["machine"])] = raw
            continue
        elif "precisions" in raw:
            found.agreed[file] = raw
            continue
        elif "validation" in raw:
            found.validated[file] = raw
            continue
        elif "minutes" in raw or "program" in raw:  # of bench/soak.py, of docs/upstream: no table shows them
            continue
        elif "peers" in raw:
            _check_config(file, raw, "it")
            found.peers[file] = raw
            continue
        elif "command" in raw:
            found.classified[file] = raw
            continue
        else:
            raise ReportError(
                f"{file.name}: need what pytest bench/, sanitize.py, dram.py, wgmma_steps.py, peers.py, classify.py or "
                "a level's --json writes"
            )
        for row in rows:
            if "level" in row:
                _add_level(found, file, row, host)
            else:
                found.operators[row["operator"], row["layer"], row["technique"], machine.name(host)] = row
    for file, row in offloads():  # of a level that was measured there alone, its own way to offload
        if "validation" in row and "slowed_to" not in row and row["offload"] == "async":
            place = _place(row, row["machine"])
            if place in found.hosts and (row["level"], place) not in found.levels:
                _add_level(found, file, row, row["machine"])
    return found


def _check_config(file: Path, raw: dict[str, Any], what: str) -> None:
    if {**raw["config"], "kernel_sizes": tuple(raw["config"]["kernel_sizes"])} != SMALL.to_dict():
        raise ReportError(f"{file.name}: {what} was measured at another config than SMALL")


def _place(row: dict[str, Any], host: dict[str, Any]) -> Place:
    gpus = max(1, len(host["gpus"]) if row["ranks"] > 1 else row["gpus"])  # the row's are those of a rank
    return Place(machine.name(host), gpus, row["ranks"])


def _add_level(found: Results, file: Path, row: dict[str, Any], host: dict[str, Any]) -> None:
    _check_config(file, row, row["level"])
    place, gpus = _place(row, host), max(1, row["gpus"])
    if (row["level"], place) in found.levels:
        raise ReportError(f"{file.name}: a second result for {row['level']} on {found.hosts[place]}")
    found.hosts[place] = _called(host, place)
    stages = {stage: 1e3 * seconds / row["inputs"] / gpus for stage, seconds in row["stages"].items()}
    found.levels[row["level"], place] = LevelResult(row["inputs_per_second"], stages)


def _called(host: dict[str, Any], place: Place) -> str:
    hardware = f"{host['cores']} CPU cores"
    if host["gpus"]:
        hardware = f"{place.gpus} × {host['gpus'][0]}" if place.gpus > 1 else host["gpus"][0]
    return hardware + (f", {place.ranks} ranks" if place.ranks > 1 else "")


def _machine(host: dict[str, Any]) -> str:
    """One machine without others, a processor by its name."""
    called = _called(host, Place(machine.name(host), 1, 1))
    return called if host["gpus"] else f"{called}, {host['cpu']}"


def _table(head: list[str], rows: list[list[str]], right: int) -> str:
    """A Markdown table, whose columns from `right` on are aligned to the right."""
    rule = ["---:" if i >= right else "---" for i in range(len(head))]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in [head, rule, *rows]) + "\n"


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:,.1f}" if value >= 100 else f"{value:.2f}"


def _places() -> list[Place]:
    return sorted(results().hosts, key=lambda place: (not place.host.startswith("cpu-"), place))


def _sources(document: Path, files: Iterable[Path] | None = None) -> str:
    files = results().files if files is None else files
    links = [f"[{file.stem}]({os.path.relpath(file, document.parent)})" for file in files]
    return f"\nRaw results: {', '.join(links)}.\n" if links else ""


def levels(document: Path) -> str:
    """The table of levels: inputs a second on each machine."""
    places = _places()
    rows = []
    for level in catalog.LEVELS:
        link = os.path.relpath(ROOT / "docs" / "history.md", document.parent)
        link = f"[{level.name}]({'' if document.name == 'history.md' else link}#{anchor(_section(level.name))})"
        cells = [link, level.title, "" if level.original is None else f"{level.original:.2f}"]
        measured = [results().levels.get((level.name, place)) for place in places]
        cells += [_number(result.inputs_per_second) if result else "–" for result in measured]
        if not any(measured):
            cells[3:] = [UNMEASURED, *("–" for _ in places[1:])]
        rows.append(cells)
    heads = [results().hosts[place] for place in places] or ["measured"]
    return _table(["level", "step", "original", *heads], rows, 2) + _sources(document)


def precisions(document: Path) -> str:
    """Which levels compute in what, and how close their logits must come."""
    head, rows = ["precision", "levels", "its own of", "error allowed, in sigmas of rounding"], []
    for name, rounding in ROUNDINGS.items():
        having = [row for row in catalog.LEVELS if name in row.precisions]
        if having:
            own = [row for row in having if row.precision() == name]
            cells = catalog.spoken(having), catalog.spoken(own) if own else "–"
            rows.append([f"`{name}`", *cells, f"{rounding.bound:g}"])
    return _table(head, rows, right=3)


def operators(document: Path) -> str:
    """What each technique reached at layers' shapes: on the CPU as measured with no GPU, in CUDA with one."""
    measured = results().operators
    hosts = sorted({host for *_, host in measured}, key=lambda host: (not host.startswith("cpu-"), host))
    rows = []
    for operator in catalog.OPERATORS:
        variants = [variant for variant in catalog.VARIANTS if variant.operator == operator.name]
        layers = list(dict.fromkeys(layer for name, layer, *_ in measured if name == operator.name)) or [""]
        for layer in layers:
            found = {
                (variant.label, host): row
                for variant in variants
                for host in hosts
                if host.startswith("cpu-") == (variant.device == "cpu")
                and (row := measured.get((operator.name, layer, variant.label, host)))
            }
            unit = "GFLOP/s" if any("gflop_per_second" in row for row in found.values()) else "GB/s"
            rows.append([f"`{operator.name}`" if layer == layers[0] else "", layer, unit if found else ""])
            rows[-1] += [_techniques(variants, host, found) for host in hosts]
    return _table(["operator", "layer", "unit", *map(_spoken, hosts)], rows, 99) + _sources(document)


def _spoken(host: str) -> str:
    """How people call a host with one GPU or none."""
    return next((said for place, said in results().hosts.items() if place == Place(host, 1, 1)), host)


def _techniques(variants: Sequence[catalog.Variant], host: str, found: Mapping[tuple[str, str], dict[str, Any]]) -> str:
    """What each technique reached on a host, in the order of the story, the fastest in bold."""
    rates = {technique: _rate(row) for (technique, where), row in found.items() if where == host}
    best, cells = max(rates.values(), default=0.0), []
    for variant in variants:
        if variant.label in rates:
            said = f"{variant.label} {_number(rates[variant.label])}"
            cells.append(f"**{said}**" if rates[variant.label] == best and len(rates) > 1 else said)
        elif host.startswith("cpu-") == (variant.device == "cpu"):
            cells.append(f"{variant.label} –")
    return ", ".join(cells)


def _rate(row: dict[str, Any]) -> float:
    rate: float = row.get("gflop_per_second", row.get("gb_per_second"))
    return rate


def _rated(row: dict[str, Any]) -> str:
    return f"{_number(_rate(row))} {'GFLOP/s' if 'gflop_per_second' in row else 'GB/s'}"


def cost(document: Path, name: str) -> str:
    """What a level costs, beside the one before, on each machine where it was measured."""
    number = [level.name for level in catalog.LEVELS].index(name)
    level, before = catalog.LEVELS[number], catalog.LEVELS[number - 1] if number else None
    lines = []
    if level.original is not None:
        was = "" if before is None or before.original is None else f", after {before.original:.2f}"
        lines.append(f"The original program: {level.original:.2f} inputs/s{was}.\n")
    places = [place for place in _places() if (name, place) in results().levels]
    for place in places:
        now = results().levels[name, place]
        was_place, was_result = _before(before, place)
        columns = [result for result in (was_result, now) if result]
        fast = all(result.inputs_per_second > 10_000 for result in columns)
        unit, factor = ("µs", 1e3) if fast else ("ms", 1.0)
        head = [f"{results().hosts[place]}: {unit} an input", *([before.name] if was_result and before else []), name]
        if was_result and was_place != place:
            head[1] += f" ({results().hosts[was_place]})"
        rows = [["whole", *(_number(factor * 1e3 / result.inputs_per_second) for result in columns)]]
        for stage in dict.fromkeys(stage for result in columns for stage in result.stages):
            spent = [result.stages.get(stage) for result in columns]
            rows.append([stage, *("" if value is None else _number(factor * value) for value in spent)])
        rows.append(["inputs/s", *(_number(result.inputs_per_second) for result in columns)])
        lines.append(_table(head, rows, 1))
    return "\n".join(lines if places else [*lines, f"Here: {UNMEASURED}.\n"])


def _before(level: catalog.Level | None, place: Place) -> tuple[Place, LevelResult | None]:
    """The level's result at the place nearest to this one: with fewer GPUs where it uses fewer, else on one rank."""
    if level is not None:
        for ranks in (place.ranks, 1):
            nearest = Place(place.host, min(place.gpus, level.gpus or place.gpus), ranks)
            if found := results().levels.get((level.name, nearest)):
                return nearest, found
    return place, None


def change(document: Path, before: str, after: str) -> str:
    """What differs between two levels' `build`, with a line of context; `...` stands for what is the same."""
    old, new = (_source(document, f"charcnn/levels/{name}.py", "build").splitlines() for name in (before, after))
    lines = list(difflib.unified_diff(old, new, lineterm="", n=1))[3:]
    if not lines:
        raise ReportError(f"{document.name}: `build` is the same in {before} and {after}")
    return "```diff\n" + "\n".join("..." if line.startswith("@@") else line for line in lines) + "\n```\n"


def code(document: Path, file: str, name: str) -> str:
    """A function or class of a file; `outer.inner` for one inside another."""
    return f"```python\n# {file}\n{_source(document, file, name)}\n```\n"


def _source(document: Path, file: str, name: str) -> str:
    text = (ROOT / file).read_text(encoding="utf-8")
    node: Any = ast.parse(text)
    for part in name.split("."):
        kinds = (ast.FunctionDef, ast.ClassDef)
        inside = [child for child in ast.walk(node) if isinstance(child, kinds) and child.name == part]
        if not inside:
            raise ReportError(f"{document.name}: {file} has no {name}")
        node = inside[0]
    first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
    return textwrap.dedent("\n".join(text.splitlines()[first - 1 : node.end_lineno]))


def chain(document: Path, method: str) -> str:
    """What the planner says of blocks 3 to 6, before anything is compiled."""
    return f"```\n{_planned(method).describe()}\n```\n"


def trade(document: Path) -> str:
    """Blocks 3 to 6 fused whole and in pairs: what each recomputes, moves, and takes."""
    head = ["method", "launches", "recomputed", "feature maps in DRAM an input", "time an input", "TFLOP/s"]
    rows = []
    for method in ("whole", "pairs"):
        plan = _planned(method)
        planned = [
            method,
            str(plan.launches),
            f"{plan.recomputed / plan.positions:.2%}",
            f"{plan.dram_bytes / 1e3:,.0f} kB",
        ]
        measured = [row for (name, _, technique, _), row in results().operators.items()
                    if (name, technique) == (catalog.CHAIN, method)]  # fmt: skip
        for row in measured:
            cells = [f"{1e6 / row['inputs_per_second']:.2f} µs", f"{row['gflop_per_second'] / 1e3:.1f}"]
            rows.append([*planned, *cells])
        if not measured:
            rows.append([*planned, UNMEASURED, "–"])
    return _table(head, rows, right=1)


def steps(document: Path, operator: str, layer: str) -> str:
    """The techniques of one operator at one layer, in the order of the story: what each takes and reaches."""
    techniques = [variant.label for variant in catalog.VARIANTS if variant.operator == operator]
    hosts = sorted({host for name, at, _, host in results().operators if (name, at) == (operator, layer)})
    rows = []
    for technique in techniques:
        cells = [technique]
        for host in hosts:
            row = results().operators.get((operator, layer, technique, host))
            cells += [f"{1e6 / row['inputs_per_second']:.2f} µs", _rated(row)] if row else [UNMEASURED, "–"]
        rows.append(cells if hosts else [technique, UNMEASURED])
    heads = [head for host in hosts for head in (f"{host}: time an input", "rate")] or ["measured"]
    return _table([f"{operator}, {layer}", *heads], rows, right=1)


def _planned(method: str) -> Plan:
    layers = [layer for size in SMALL.kernel_sizes[2:] for layer in (Conv1d(SMALL.channels, size), Relu())]
    return plan_chain(
        [*layers[:-1], Stat()],
        in_channels=SMALL.channels,
        length=SMALL.block_lengths[1],
        method=method,
        shared_limit=device.SHARED_LIMIT,
    )


def sanitizer(document: Path) -> str:
    """What compute-sanitizer said of the CUDA variants."""
    if not results().sanitized:
        return UNMEASURED + "\n"
    head, rows = ["GPU", "tool", "variants", "tests", "result"], []
    for raw in results().sanitized.values():
        for tool, said in raw["tools"].items():
            rows.append(
                [raw["machine"]["gpus"][0], tool, str(len(raw["variants"])), str(said["tests"]), said["summary"]]
            )
    return _table(head, rows, right=2)


def validation(document: Path) -> str:
    """How far from the reference, in sigmas, right results are at most, and mistakes at least."""
    if not results().validated:
        return UNMEASURED + "\n"
    kinds = ("zeroed", "swapped", "constant", "FP8 for it", "tap shifted", "bias dropped")
    rows = []
    for raw in results().validated.values():
        for name in ROUNDINGS:
            own = [row for row in raw["validation"] if row["precision"] == name]
            if any(not row["within"] for row in own):
                raise ReportError(f"validation: a right result of {name} is not within its bound")
            wrong = [
                [row["mutants"][kind]["least_of_samples"] for row in own if kind in row["mutants"]] for kind in kinds
            ]
            cells = [f"{min(least):,.3g}" if least else "–" for least in wrong]
            inputs, largest = sum(row["inputs"] for row in own), max(row["largest"] for row in own)
            rows.append([f"`{name}`", f"{inputs:,}", f"{largest:.2f}", f"**{ROUNDINGS[name].bound:g}**", *cells])
    head = ["precision", "inputs", "right, at most", "allowed", *(f"{kind}, at least" for kind in kinds)]
    return _table(head, rows, right=1) + _sources(document, results().validated)


def peers(document: Path) -> str:
    """Other libraries beside the levels, a table for each machine and device."""
    blocks = [_peers(os.path.relpath(file, document.parent), raw) for file, raw in results().peers.items()]
    return "\n".join(blocks) or UNMEASURED + "\n"


def _peers(link: str, raw: dict[str, Any]) -> str:
    runs = [raw, *raw.get("earlier", [])]  # each batch size in one of them
    batches, rows, missed = sorted(batch for run in runs for batch in run["batches"]), [], []
    left_out: dict[tuple[str, str], list[str]] = {}
    for out in sorted((out for run in runs for out in run["left_out"]), key=lambda out: int(out["batch"])):
        left_out.setdefault((out["name"], out["reason"]), []).append(str(out["batch"]))
    for name in dict.fromkeys(name for run in runs for name in run["order"]):
        measured = {row["batch"]: row for run in runs for row in run["peers"] if row["name"] == name}
        cells = []
        for batch in batches:
            row = measured.get(batch)
            cells.append(_number(row["inputs_per_second"]) if row else "–")
            if row and not row["within_tolerance"]:
                cells[-1] += " \\*"
                if "sigmas" in row:
                    off = f"{row['sigmas']:.2g} sigma of rounding, meant {row['bound']:g}"
                else:  # older ones know the relative error alone
                    off = f"{row['error']:.1e}, meant {row['tolerance']:g}"
                missed.append(f"`{name}` at batch {batch} {off}")
        for row in [*measured.values()][:1]:
            rows.append([f"{row['title']} (`{name}`)", row["precision"], row["timed"], *cells])
    where = _machine(raw["machine"])
    parts = [_table([f"{where}: inputs/s", "arithmetic", "timed", *(f"N={batch}" for batch in batches)], rows, 3)]
    if missed:
        parts.append(f"\\* Off by more than its arithmetic is meant to be: {'; '.join(missed)}.\n")
    if left_out:
        reasons = [
            f"`{name}`{'' if len(at) == len(batches) else ' at N=' + ', '.join(at)} ({reason})"
            for (name, reason), at in left_out.items()
        ]
        parts.append(f"Left out: {'; '.join(reasons)}.\n")
    said: dict[str, list[str]] = {}
    for run in runs:
        settings = [f"{name}={value}" for name, value in run["environment"].items()]
        settings = [f"{run['threads']} CPU threads", *settings, *(f"{name} {v}" for name, v in run["versions"].items())]
        said.setdefault(", ".join(settings), []).append(f"N={', '.join(map(str, sorted(run['batches'])))}")
    # Each run has its own clocks: what stands in a column is of one.
    told = "; ".join(said if len(runs) == 1 else (f"{' and '.join(at)}: {settings}" for settings, at in said.items()))
    parts.append(f"[Raw result]({link}): {told}.\n")
    return "\n".join(parts)


def tensor_cores(document: Path) -> str:
    """The network's products in each precision, in TFLOP/s, and as a share of cuBLAS's."""
    if not results().products:
        return UNMEASURED + "\n"
    parts = []
    for raw in results().products.values():
        rows = {(row["layer"], row["precision"]): row for row in raw["tensor_cores"]}
        precisions, layers = (list(dict.fromkeys(names)) for names in zip(*((p, n) for n, p in rows), strict=True))
        table = []
        for layer in layers:
            cells = [layer]
            for precision in precisions:
                row = rows.get((layer, precision))
                if row is None:
                    cells.append("–")
                    continue
                other = rows.get(("cuBLAS", "fp16" if row["products"] > 1 else precision))
                done = row["tflop_per_second"]
                share = f" ({100 * done * row['products'] / other['tflop_per_second']:.0f} %)" if other else ""
                cells.append(f"{done:,.0f}{'' if layer == 'cuBLAS' else share}")
            table.append(cells)
        head = [f"{raw['machine']['gpus'][0]}: TFLOP/s", *precisions]
        parts.append(_table(head, table, right=1))
    return "\n".join(parts)


def wgmma_steps(document: Path) -> str:
    """The ladder: each step's idea, the rate that it cannot exceed, and what it reached at the largest batch."""
    head, names, columns = ["step", "idea", "FLOP a byte", "conv2: TFLOP/s at most"], dict.fromkeys(STEPS), []
    for file, raw in results().ladder.items():
        largest = max(row["batch"] for row in raw["wgmma_steps"])
        rows = [row for row in raw["wgmma_steps"] if row["batch"] == largest]
        names |= {row["step"]: None for row in rows}
        for layer in dict.fromkeys(row["layer"] for row in rows):
            rates = {row["step"]: row["tflop_per_second"] for row in rows if row["layer"] == layer}
            link = f"[{raw['machine']['gpus'][0]}]({_link(document, file)})"
            head.append(f"{link}, N = {largest:,}: {layer}, TFLOP/s (of cuBLAS)")
            columns.append(
                {name: f"{rate:,.0f} ({100 * rate / rates['cuBLAS']:.0f} %)" for name, rate in rates.items()}
            )
    if not columns:
        head.append("measured")
        columns.append(dict.fromkeys(names, UNMEASURED))
    table = []
    for name in names:
        cells = _step(document, name) if name in STEPS else [name, "", "", ""]
        table.append([*cells, *(column.get(name, "–") for column in columns)])
    return _table(head, table, right=2)


def _step(document: Path, name: str) -> list[str]:
    """A step of the ladder: its file, its idea, FLOP that a byte of its copies serves, its ceiling at conv2."""
    module, length, taps = STEPS[name], SMALL.block_lengths[0], SMALL.kernel_sizes[1]
    idea = re.match(r"Step \d: (.*?)\. Since", str(module.__doc__), re.DOTALL)
    if idea is None:
        raise ReportError(f"{name}.py: need a docstring that begins with 'Step 1: its idea. Since ...'")
    flop = module.config(taps, SMALL.channels).flop_per_byte(taps)
    outputs = (length - taps + 1) / length  # an input's other rows are computed for nothing
    most = min(flop * outputs * L2_BYTES_PER_SECOND, CUBLAS_FLOP_PER_SECOND)
    return [f"[{name}]({_link(document, Path(str(module.__file__)))})", idea[1], f"{flop:.0f}", f"{most / 1e12:.0f}"]


def _link(document: Path, file: Path) -> str:
    return os.path.relpath(file, document.parent)


def dram(document: Path) -> str:
    """Bytes an input that crossed DRAM, counted and predicted."""
    if not results().dram:
        return UNMEASURED + "\n"
    head, rows = ["GPU", "level", "kernels a batch", "read", "written", "read + written", "predicted"], []
    for raw in results().dram.values():
        for level, found in raw["dram"].items():
            total = found["read"] + found["written"]
            kilobytes = [
                f"{value / 1e3:,.0f} kB" for value in (found["read"], found["written"], total, found["predicted"])
            ]
            batches = -(-raw["inputs"] // raw["batch"])
            rows.append([raw["machine"]["gpus"][0], level, str(found["kernels"] // batches), *kilobytes])
    return _table(head, rows, right=2)


@cache
def offloads() -> tuple[tuple[Path, dict[str, Any]], ...]:
    """The raw results of bench/results/offload: levels' reports on ranks, and what bench/offload.py wrote.

    Raises:
        ReportError: a run whose logits were wrong, or at another config.
    """
    found = []
    for file in sorted((RESULTS / "offload").glob("*.json")):
        raw = json.loads(file.read_text(encoding="utf-8"))
        if "validation" in raw:
            _check_config(file, raw, raw["level"])
            if not raw["validation"]["passed"]:
                raise ReportError(f"{file.name}: its validation failed")
        found.append((file, raw))
    return tuple(found)


def _runs(slowed: bool) -> dict[tuple[str, str], list[dict[str, Any]]]:
    """Reports of levels by (level, what ran it), with one rank slowed or not."""
    runs: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for _, raw in offloads():
        if "validation" in raw and ("slowed_to" in raw) == slowed:
            where = raw["machine"]["gpus"][0] if raw["machine"]["gpus"] else raw["machine"]["cpu"]
            runs.setdefault((raw["level"], where), []).append(raw)
    return runs


def _alone(runs: list[dict[str, Any]]) -> dict[str, Any] | None:
    """The run of one process without MPI: its machine names none, and it gives no advice on ranks."""
    return next((run for run in runs if run["ranks"] == 1 and "advice" not in run), None)


def _linked(document: Path, files: list[Path]) -> str:
    links = ", ".join(f"[{file.stem}]({os.path.relpath(file, document.parent)})" for file in files)
    return f"\nRaw results: {links}.\n"


def scaling(document: Path) -> str:
    """A level over ranks, one GPU each, by each way to offload."""
    blocks = []
    for (level, where), runs in _runs(slowed=False).items():
        alone = _alone(runs)
        if alone is None:
            continue
        head = [f"{level}, {where}: GPUs", "inputs", "static", "async", "farm", "farm: of as many times one GPU"]
        rows = [
            ["1, no MPI", f"{alone['inputs']:,}", "–", _number(alone["inputs_per_second"]), "–", "–", _bound(alone)]
        ]
        for ranks in sorted({run["ranks"] for run in runs if run is not alone}):
            by = {run["offload"]: run for run in runs if run["ranks"] == ranks and run is not alone}
            rates = [
                _number(by[mode]["inputs_per_second"]) if mode in by else "–" for mode in ("static", "async", "farm")
            ]
            share = "–"
            if "farm" in by:
                share = f"{by['farm']['inputs_per_second'] / ranks / alone['inputs_per_second']:.1%}"
            shown = by.get("farm") or next(iter(by.values()))
            rows.append([str(ranks), f"{shown['inputs']:,}", *rates, share, _bound(shown)])
        blocks.append(_table([*head, "bound by"], rows, 1))
    files = [file for file, raw in offloads() if "validation" in raw and "slowed_to" not in raw]
    return "\n".join(blocks) + _linked(document, files) if blocks else UNMEASURED + "\n"


def _bound(run: dict[str, Any]) -> str:
    found = run.get("timeline")
    return "–" if found is None else f"{found['bound']} ({found['busy'][found['resource']]['share']:.0%} busy)"


def mixed(document: Path) -> str:
    """Ranks of which one is slowed, beside the ideal sum of their rates."""
    rows, files = [], [file for file, raw in offloads() if "slowed_to" in raw]
    for (level, where), runs in _runs(slowed=True).items():
        alone = _alone(_runs(slowed=False).get((level, where), []))
        for run in runs if alone is not None else []:
            ideal = (run["ranks"] - 1) * alone["inputs_per_second"] + run["slowed_to"]
            rows.append(
                [
                    f"{level}, {run['ranks']} × {where}, one at {run['slowed_to'] / alone['inputs_per_second']:.0%}",
                    run["offload"],
                    _number(run["inputs_per_second"]),
                    f"{run['inputs_per_second'] / ideal:.1%}",
                ]
            )
    head = ["ranks", "offload", "inputs/s", "of the ideal sum"]
    return _table(head, sorted(rows), 2) + _linked(document, files) if rows else UNMEASURED + "\n"


def path(document: Path) -> str:
    """What the root can move, where workers answer without computing."""
    rows, files = [], []
    for file, raw in offloads():
        for way, found in raw.get("path", {}).items():
            where = f"{raw['machine']['cores']} cores, {raw['machine']['mpi']}"
            gigabytes = f"{found['bytes_per_second'] / 1e9:.1f}"
            chunk = f"{found['root_seconds_a_chunk'] * 1e6:.0f}"
            rows.append([where, str(raw["ranks"]), way, gigabytes, chunk])
            files = [*files, file] if file not in files else files
    head = ["machine", "ranks", "offload", "GB/s through MPI", "µs a chunk of few bytes"]
    return _table(head, rows, 1) + _linked(document, files) if rows else UNMEASURED + "\n"


def strikes(document: Path) -> str:
    """What became of runs whose ranks were killed or stopped."""
    rows, files = [], []
    for file, raw in offloads():
        for kind in raw.get("mode_and_ulfm", []):
            complete, ended = kind.get("complete", 0), kind.get("ended", 0)
            other = kind["runs"] - complete - ended
            counts = [str(count) for count in (kind["runs"], complete, ended, other)]
            rows.append([kind["mode"] + ", ULFM" * kind["ulfm"], *counts, f"{kind['longest']:.0f} s"])
            files = [*files, file] if file not in files else files
    head = ["offload", "runs", "complete", "ended by a line and a status", "hung, lost inputs or else", "longest"]
    return _table(head, rows, 1) + _linked(document, files) if rows else UNMEASURED + "\n"


def overhead(document: Path) -> str:
    """What the farm adds at one rank."""
    rows, files = [], []
    for file, raw in offloads():
        if "overhead" in raw:
            low, high = raw["quartiles"]
            where = f"{raw['level']}, {raw['machine']['cores']} CPU cores"
            rows.append([where, str(len(raw["pairs"])), f"{raw['overhead']:.2%}", f"{low:.2%} to {high:.2%}"])
            files.append(file)
    for (level, where), runs in _runs(slowed=False).items():
        alone = _alone(runs)
        farms = [run for run in runs if run["ranks"] == 1 and run["offload"] == "farm"]
        if alone is not None and farms:
            adds = alone["inputs_per_second"] / farms[0]["inputs_per_second"] - 1
            rows.append([f"{level}, {where}", str(len(alone["seconds"])), f"{adds:.2%}", "–"])
    head = ["level", "pairs of runs", "the farm adds", "quartiles"]
    return _table(head, rows, 1) + _linked(document, files) if rows else UNMEASURED + "\n"


def forecasts(document: Path) -> str:
    """What the cost model says of the measured runs."""
    rows = []
    ways = [way for _, raw in offloads() if raw["machine"]["gpus"] for way in raw.get("path", {}).values()]
    for (level, where), runs in _runs(slowed=False).items():
        alone = _alone(runs)
        if alone is None or not ways:
            continue
        for run in sorted(runs, key=lambda run: (run["ranks"], run["offload"])):
            if run is alone or run["offload"] == "static":
                continue
            machine_ = Machine(
                alone["inputs_per_second"],
                run["ranks"],
                local_link=min(way["bytes_per_second"] for way in ways),
                root_message=max(way["root_seconds_a_chunk"] for way in ways),
            )
            made = forecast(machine_, Work(run["inputs"], chunk=run["batch"]))
            measured = run["inputs_per_second"]
            cells = [
                _number(measured),
                _number(made.inputs_per_second),
                f"{made.inputs_per_second / measured - 1:+.1%}",
            ]
            rows.append([f"{level}, {run['ranks']} × {where}", run["offload"], *cells, made.bound])
    head = ["GPUs", "offload", "measured, inputs/s", "forecast", "off by", "bound, as forecast"]
    return _table(head, rows, 2) if rows else UNMEASURED + "\n"


def classify(document: Path) -> str:
    """File to labelled file: what ran, how fast, what bounded it."""
    if not results().classified:
        return UNMEASURED + "\n"
    head = [
        "machine",
        "level",
        "precision",
        "encoded by",
        "rows",
        "rows/s",
        "the level alone",
        "fullest stage",
        "memory",
        "first label",
    ]
    rows = []
    for file, raw in results().classified.items():
        said, level, first = raw["command"], raw["level_rows_per_second"], raw["first_label_seconds"]
        link = os.path.relpath(file, document.parent)
        where = _machine(raw["machine"])
        alone = "–" if level is None else f"{_number(level)} ({said['rows_per_second'] / level:.0%})"
        rows.append(
            [
                f"[{where}]({link})",
                "none: logits are zeros" if raw["files_alone"] else said["level"],
                "–" if raw["files_alone"] else said["precision"],
                {"cpu": "the CPU", "gpu": "the GPU"}[said["encode_on"]],
                f"{said['rows']:,}",
                _number(said["rows_per_second"]),
                alone,
                f"{said['bound']}, {said['busy'][said['bound']]:.0%} of the time",
                f"{said['peak_resident_bytes'] / 1e6:,.0f} MB" if said["peak_resident_bytes"] else "–",
                "–" if first is None else f"{min(first['later']):.1f} s",
            ]
        )
    return _table(head, rows, right=4)


def agreement(document: Path) -> str:
    """What each precision does to a trained network's labels."""
    if not results().agreed:
        return UNMEASURED + "\n"
    rows = []
    for file, raw in results().agreed.items():
        link = os.path.relpath(file, document.parent)
        where = _machine(raw["machine"])
        for row in raw["precisions"]:
            rows.append([f"`{row['precision']}`", f"{row['level']}, [{where}]({link})", f"{row['rows']:,}"])
            rows[-1] += [f"{row['agreement']:.2%}", f"{row['accuracy']:.2%}", f"{row['error']:.1e}"]
    return _table(["precision", "computed by", "rows", "labels as fp32's", "right", "error of logits"], rows, right=2)


def accuracy(document: Path, part: str) -> str:
    """What the model that ships reached on a part of the rows, "validation" or "test", and its classes."""
    model = _shipped()
    if part not in model.metadata:
        raise ReportError(f"{document.name}: the model says nothing of its {part} rows")
    assert model.classes is not None
    measured = Measured(np.array(model.metadata[part]["confusion"]), 0.0)
    low, high = measured.interval
    rows = []
    for index, (name, counts) in enumerate(zip(model.classes, measured.confusion, strict=True)):
        wrong = counts.copy()
        wrong[index] = 0
        recall, precision = measured.recalls[index], measured.precisions[index]
        mistaken = f"{model.classes[int(wrong.argmax())]} ({wrong.max()})"
        rows.append([name, f"{counts.sum():,}", f"{recall:.1%}", f"{precision:.1%}", mistaken])
    return (
        f"Right for {np.trace(measured.confusion):,} of {measured.confusion.sum():,} {part} rows, "
        f"**{measured.accuracy:.2%}**, 95 % interval {low:.2%} to {high:.2%} (Wilson).\n\n"
        + _table(["class", "rows", "recall", "precision", "most often taken for"], rows, right=1)
    )


def training(document: Path) -> str:
    """How the model that ships was trained."""
    said = _shipped().metadata["training"]
    words = [*shlex.split(said["command"]), "--out", SHIPPED]
    lines = [""]
    for word in words:  # an option and its value share a line
        if len(lines[-1]) + len(word) > 90 and word.startswith("--"):
            lines.append(" ")
        lines[-1] += f" {shlex.quote(word)}" if lines[-1] else word
    spelled = " \\\n".join(lines)
    return (
        f"```sh\n{spelled}\n```\n\n"
        f"Seed {said['recipe']['seed']}; {said['rows']:,} rows to learn from; {said['precision']} on one "
        f"{said['device']} with PyTorch {said['torch']}.\n"
        f"The weights are those of epoch {said['epoch']} of {said['recipe']['epochs']}, a moving average. All that the "
        "command does not say is its default.\n"
    )


@cache
def _shipped() -> params.Params:
    return params.load(WEIGHTS / SHIPPED)


_BLOCKS = (
    levels, precisions, validation, operators, peers, cost, change, code, steps, chain, trade, dram, sanitizer,
    tensor_cores, wgmma_steps, scaling, mixed, path, strikes, overhead, forecasts, classify, agreement, accuracy,
    training,
)  # fmt: skip
KINDS = {kind.__name__: kind for kind in _BLOCKS}


def documents() -> list[Path]:
    """The files that may hold blocks."""
    folders = WEIGHTS, Path(ladder.__file__).parent
    return [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), *(folder / "README.md" for folder in folders)]


def filled(document: Path) -> str:
    """The document's text with every block written anew.

    Raises:
        ReportError: a block's kind, arguments or end are wrong.
    """

    def fill(match: re.Match[str]) -> str:
        begin, kind, arguments, end = match.groups()
        if kind not in KINDS:
            raise ReportError(f"{document.name}: no block is called {kind}: need one of {', '.join(KINDS)}")
        return begin + KINDS[kind](document, *arguments.split()) + end

    text = document.read_text(encoding="utf-8")
    result = BLOCK.sub(fill, text)
    if (begun := text.count(":begin")) != (whole := len(BLOCK.findall(text))):
        raise ReportError(f"{document.name}: {begun} blocks begin, and {whole} of them end")
    return result


def headings(text: str) -> Iterator[str]:
    """The headings of a Markdown text, code apart."""
    for line in re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE).splitlines():
        if match := re.match(r"#+ +(.*)", line):
            yield match[1]


def anchor(heading: str) -> str:
    """The anchor that GitHub gives a heading."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def _section(name: str) -> str:
    """The heading of a level's section in docs/history.md, which begins with its name and a colon."""
    for heading in headings((ROOT / "docs" / "history.md").read_text(encoding="utf-8")):
        if heading.startswith(f"{name}:"):
            return heading
    raise ReportError(f"docs/history.md has no section for {name}: need a heading '{name}: ...'")


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(
        description="Fill the generated blocks of README.md, docs/*.md and the model's card."
    )
    parser.add_argument("--check", action="store_true", help="change nothing; exit with 1 if a block is out of date")
    check = parser.parse_args().check
    try:
        stale = [(document, text) for document in documents() if (text := filled(document)) != document.read_text()]
    except ReportError as error:
        print(error, file=sys.stderr)
        return 1
    names = ", ".join(str(document.relative_to(ROOT)) for document, _ in stale)
    if check and stale:
        print(f"out of date: {names}; run python bench/report.py", file=sys.stderr)
        return 1
    for document, text in stale:
        with replacing(document, "w") as file:
            file.write(text)
    print(f"written: {names}" if stale else "up to date")
    return 0


if __name__ == "__main__":
    sys.exit(main())
