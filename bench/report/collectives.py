"""The blocks on GPUs that exchange values: collectives beside NCCL's, and layers that several GPUs share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from report.markdown import UNMEASURED, sources, table
from report.schema import machine_called, results

THEIRS = "NCCL"


def collectives(document: Path, what: str) -> str:
    """A table a machine: `sums`, `parts` and `rows` of bench/collectives.py, `layers` of bench/shared_layers.py.

    And `networks` and `stages` of bench/shared_networks.py.
    """
    found = results()
    of = {"layers": "shared_layers", "networks": "shared_networks", "stages": "shared_networks"}
    schema = of.get(what, "collectives")
    raws: dict[Path, dict[str, Any]] = getattr(found, schema)
    parts = []
    for file, raw in raws.items():
        host = f"{raw['ranks']} × {machine_called(raw['machine'])}"
        tables = {"layers": _layers, "networks": _networks, "stages": _stages}
        head, rows = tables[what](raw[schema]) if what in tables else _beside(raw[schema], what)
        parts.append(table([f"{host}, {head[0]}", *head[1:]], rows, right=1) + sources(document, [file]))
    return "\n".join(parts) if parts else UNMEASURED + "\n"


def _by_size(rows: list[dict[str, Any]]) -> Iterator[tuple[int, dict[str, float]]]:
    """Microseconds of all that have so many bytes."""
    found: dict[tuple[int, bool], dict[str, float]] = {}
    for row in rows:
        found.setdefault((row["bytes"], row["made"].startswith("rows")), {})[row["made"]] = row["microseconds"]
    for (nbytes, _), times in found.items():
        yield nbytes, times


def _beside(rows: list[dict[str, Any]], what: str) -> tuple[list[str], list[list[str]]]:
    """Of `sums` the all-reduce by each protocol; of `parts` the other two; of `rows` that with a LayerNorm."""
    found = []
    for nbytes, times in _by_size(rows):
        if what == "rows" and "rows" in times:
            ours, theirs = times["rows"], times[f"rows {THEIRS}, then ours"]
            found.append([f"{nbytes:,}", _us(ours), _us(theirs), f"{ours / theirs:.2f}"])
        elif what == "sums" and "rows" not in times:
            ways = ["all_reduce lines 1", "all_reduce tiles 1", "all_reduce tiles 2"]
            theirs = times[f"all_reduce {THEIRS}"]
            best = min(time for way, time in times.items() if way in ways)
            each = [_us(times[way]) if way in times else "–" for way in ways]
            found.append([f"{nbytes:,}", *each, _us(theirs), f"{best / theirs:.2f}"])
        elif what == "parts" and "rows" not in times:
            cells = []
            for kind in ("reduce_scatter", "all_gather"):
                ours = min(time for way, time in times.items() if way.startswith(kind) and THEIRS not in way)
                theirs = times[f"{kind} {THEIRS}"]
                cells += [_us(ours), _us(theirs), f"{ours / theirs:.2f}"]
            found.append([f"{nbytes:,}", *cells])
    heads = {
        "sums": ["lines", "tiles", "tiles, two shots", THEIRS, f"÷ {THEIRS}"],
        "parts": ["reduce_scatter", THEIRS, f"÷ {THEIRS}", "all_gather", THEIRS, f"÷ {THEIRS}"],
        "rows": ["one kernel", f"{THEIRS}, then our LayerNorm", f"÷ {THEIRS}"],
    }
    return ["bytes: µs", *heads[what]], found


def _layers(rows: list[dict[str, Any]]) -> tuple[list[str], list[list[str]]]:
    found: dict[tuple[Any, ...], dict[str, float]] = {}
    for row in rows:
        found.setdefault((row["variant"], row["n"], row["tokens"]), {})[row["made"]] = row["microseconds"]
    cells = []
    for (variant, n, tokens), times in found.items():
        one, shared = times["one GPU"], times["shared"]
        cells.append([f"{variant}, {n} × {tokens} tokens", f"{one:,.0f}", f"{shared:,.0f}", f"{one / shared:.2f} ×"])
    return ["fp16: µs a batch", "one GPU", "layers shared", "faster"], cells


def _called(row: dict[str, Any]) -> str:
    return f"{row['network']} {row['variant']} as {row['technique']} in {row['precision']}, batch {row['batch']:,}"


def _networks(rows: list[dict[str, Any]]) -> tuple[list[str], list[list[str]]]:
    """What one GPU takes, and GPUs that share each layer; and of those the time of their slowest exchanges."""
    found: dict[str, dict[str, dict[str, Any]]] = {}
    for row in rows:
        found.setdefault(_called(row), {})[row["made"]] = row
    cells = []
    for called, by in found.items():
        one, shared = (by[made]["microseconds"] for made in ("one GPU", "shared"))
        sent = [sum(us for part, us in of.items() if part.startswith(EXCHANGES)) for of in by["shared"]["parts"]]
        cells.append([called, _us(one), _us(shared), _us(max(sent)), f"{one / shared:.2f} ×"])
    return ["µs a batch", "one GPU", "layers shared", "of it, gathers and sums", "faster"], cells


EXCHANGES = "gathered", "summed"
"""How the names of layers begin that exchange features."""


def _stages(rows: list[dict[str, Any]]) -> tuple[list[str], list[list[str]]]:
    """Stages of layers, by the batches that go through them."""
    cells = []
    for row in rows:
        if row["made"].startswith("stages"):
            called, stages = row["made"].removeprefix("stages, "), row["stage_microseconds"]
            shares = f"{row['idle']:.1%}", f"{row['bubble']:.1%}", f"{row['bubble_of_stages']:.1%}"
            alone = " + ".join(_us(one) for one in stages)
            rate = f"{row['inputs_per_second']:,.0f}"
            cells.append([f"{_called(row)}: {called}", alone, rate, f"{row['allowed_share']:.0%}", *shares])
    head = ["micro-batches", "stages, µs", "inputs/s", "of what stages allow", "idle", "(S − 1) / (M + S − 1)"]
    return [*head, "bubble of these stages"], cells


def _us(microseconds: float) -> str:
    return f"{microseconds:,.2f}" if microseconds < 100 else f"{microseconds:,.0f}"
