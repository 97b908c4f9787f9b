"""The blocks on steps of training: levels relative to PyTorch and JAX, ranks relative to one GPU."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from report import energy
from report.markdown import number, sources, table
from report.schema import machine_called, trainings

GOALS = {256: 4, 4096: 7}
"""Times torch.compile that a level is to reach, by batch."""

COMPILED = "torch.compile"
"""How titles of peers begin that it compiled."""

ALONE, REPLICAS = "t4", "t5"
"""What ranks are relative to: one GPU, and data parallel ones."""

SHARED = ("weights", "gradients", "masters", "moments")
"""Kinds of memory that stages of ZeRO share."""

Row = dict[str, Any]


def training_steps(document: Path) -> str:
    """Two tables for each machine; nothing where no steps were measured."""
    alone = {file: [run for run in runs if run.get("ranks", 1) == 1] for file, runs in trainings().items()}
    return "\n".join(_machine(document, file, runs) for file, runs in alone.items() if runs)


def training_ranks(document: Path) -> str:
    """A table for each run of several ranks: rates relative to one GPU's, times relative to t5's, bytes of a rank."""
    runs = [(file, run) for file, runs in trainings().items() for run in runs if run.get("ranks", 1) > 1]
    return "\n".join(_ranks(run) + sources(document, [file]) for file, run in runs)


def _ranks(run: Row) -> str:
    rate_of = {(row["name"], row["batch"]): rate(row) for row in run["rows"]}
    cells = []
    for row in run["rows"]:
        batch, kinds = row["batch"], row.get("kinds")
        if kinds:
            held = [f"{kinds[kind][0] / 1e6:.1f}" for kind in (*SHARED, "workspace")]
            off = max(abs(kinds[kind][0] / kinds[kind][1] - 1) for kind in (*SHARED, "features"))
            times = [f"{rate(row) / rate_of[ALONE, batch]:.2f}", f"{rate_of[REPLICAS, batch] / rate(row):.3f}"]
            cells.append([f"`{row['name']}`", f"{batch:,}", number(rate(row)), *times, *held, f"{off:.2%}"])
        else:
            cells.append([f"`{row['name']}`, one GPU", f"{batch:,}", number(rate(row)), "1.00", *"–" * 7])
    cells.sort(key=lambda cell: int(cell[1].replace(",", "")))
    called = f"{run['ranks']} ranks, {machine_called(run['machine'])}"
    head = [called, "rows a GPU", "samples/s", f"× {ALONE}", f"time, × {REPLICAS}", *(f"{kind}, MB" for kind in SHARED)]
    return table([*head, "workspace, MB", "off from the count by"], cells, right=1)


def _machine(document: Path, file: Path, runs: Sequence[Row]) -> str:
    rows = [row for run in runs for row in run["rows"]]
    host, batches = machine_called(runs[0]["machine"]), sorted({row["batch"] for row in rows})
    parts = [_rates(host, batches, rows, runs[0]["steps"]), _goals(batches, rows), _left_out(runs)]
    return "\n".join(filter(None, parts)) + sources(document, [file])


def rate(row: Row) -> float:
    """The faster one of steps that clip gradients and those that do not."""
    return max(row["samples_per_second"], row["unclipped_samples_per_second"] or 0.0)


def _rates(host: str, batches: Sequence[int], rows: Sequence[Row], steps: int) -> str:
    """Each contender's, with the loss at its first batch and the bytes at its last."""
    found: dict[str, dict[int, Row]] = {}
    for row in rows:
        found.setdefault(row["name"], {})[row["batch"]] = row
    cells, drawn = [], energy.columns(rows, batches, lambda row: row["batch"], lambda batch: f"N={batch:,}")
    for name, at in found.items():
        first, last = at[min(at)], at[max(at)]
        held = "–" if last["bytes"] is None else f"{last['bytes'] / 1e9:.2f}"
        rates = [number(rate(at[batch])) if batch in at else "–" for batch in batches]
        rates += [energy.joules(at.get(batch)) for batch in drawn]
        cells.append([f"{first['title']} (`{name}`)", first["precision"], *rates, f"{first['loss']:.4f}", held])
    head = [f"{host}: samples/s", "arithmetic", *(f"N={batch:,}" for batch in batches), *drawn.values()]
    made = table([*head, f"loss before step {steps}, least N", "GB, greatest N"], cells, right=2)
    return made + energy.said(rows, "samples")


def _goals(batches: Sequence[int], rows: Sequence[Row]) -> str:
    """Each level's rate relative to the fastest peer's, and to the fastest one's that torch.compile made."""
    cells = []
    for batch in batches:
        here = [row for row in rows if row["batch"] == batch]
        peers = [row for row in here if not row["level"]]
        compiled = [row for row in peers if row["title"].startswith(COMPILED)]
        for row in here:
            if row["level"]:
                goal = f"{GOALS[batch]}" if batch in GOALS else "–"
                cells.append([row["name"], f"{batch:,}", *_times(row, peers), *_times(row, compiled)[1:], goal])
    head = ["level", "N", "fastest peer", "times it", f"times {COMPILED}", "goal"]
    return table(head, cells, right=3) if cells else ""


def _times(row: Row, peers: Sequence[Row]) -> tuple[str, str]:
    """The fastest one's name, and how many times its rate the row has."""
    best = max(peers, key=rate, default=None)
    return ("–", "–") if best is None else (f"`{best['name']}`", f"{rate(row) / rate(best):.2f}")


def _left_out(runs: Sequence[Row]) -> str:
    """Who got no rate, where, and why."""
    reasons: dict[tuple[str, str], list[str]] = {}
    for out in (out for run in runs for out in run["left_out"]):
        reasons.setdefault((out["name"], out["reason"]), []).append(f"{out['batch']:,}")
    said = [f"`{name}` at N={', '.join(at)} ({reason})" for (name, reason), at in reasons.items()]
    return f"Left out: {'; '.join(said)}.\n" if said else ""
