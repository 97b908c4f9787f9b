"""The block on other libraries: the network beside them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from report import energy
from report.limits import best_peer, called, peer_rows
from report.markdown import UNMEASURED, number, sources, table
from report.schema import machine_called, results


def beside(document: Path) -> str:
    """Levels on a GPU beside the fastest other library whose arithmetic is no coarser, a table for each result."""
    files = [file for file, raw in results().peers.items() if raw["device"] == "cuda"]
    return "\n".join(_beside(document, file) for file in files)


def _beside(document: Path, file: Path) -> str:
    raw = results().peers[file]
    batches = sorted(batch for run in (raw, *raw.get("earlier", [])) for batch in run["batches"])
    found: dict[tuple[str, str], dict[int, str]] = {}
    for batch in batches:
        for row in peer_rows(raw, batch):
            if row.get("level"):
                level = row["name"].partition("-")[0], called(row["precision"])
                if peer := best_peer(file, level[1], batch):
                    times = row["inputs_per_second"] / peer.inputs_per_second
                    found.setdefault(level, {})[batch] = f"{times:.2f}"
    rows = [[f"{name}, {precision}", *(cells.get(batch, "–") for batch in batches)]
            for (name, precision), cells in sorted(found.items())]  # fmt: skip
    head = [f"{raw['machine']['gpus'][0]}: times the fastest other library", *(f"N={batch:,}" for batch in batches)]
    return table(head, rows, 1) + sources(document, [file])


def peers(document: Path, level: str = "") -> str:
    """Other libraries beside the levels, a table for each machine and device; beside one level, where it has a name."""
    blocks = [
        machine_table(os.path.relpath(file, document.parent), raw)
        for file, raw in results().peers.items()
        if not level or level in raw["order"]
    ]
    return "\n".join(blocks) or UNMEASURED + "\n"


def machine_table(link: str, raw: dict[str, Any]) -> str:
    """The table of one machine, what was off or left out, and what the runs were of."""
    runs = [raw, *raw.get("earlier", [])]  # each batch size in one of them
    batches, rows, missed = sorted(batch for run in runs for batch in run["batches"]), [], []
    left_out: dict[tuple[str, str], list[str]] = {}
    for out in sorted((out for run in runs for out in run["left_out"]), key=lambda out: int(out["batch"])):
        left_out.setdefault((out["name"], out["reason"]), []).append(str(out["batch"]))
    every = [row for run in runs for row in run["peers"]]
    drawn = energy.columns(every, batches, lambda row: row["batch"], lambda batch: f"N={batch}")
    for name in dict.fromkeys(name for run in runs for name in run["order"]):
        measured = {row["batch"]: row for run in runs for row in run["peers"] if row["name"] == name}
        cells = []
        for batch in batches:
            row = measured.get(batch)
            cells.append(number(row["inputs_per_second"]) if row else "–")
            if row and not row["within_tolerance"]:
                cells[-1] += " \\*"
                if "sigmas" in row:
                    off = f"{row['sigmas']:.2g} sigma of rounding, meant {row['bound']:g}"
                else:  # older ones know the relative error alone
                    off = f"{row['error']:.1e}, meant {row['tolerance']:g}"
                missed.append(f"`{name}` at N={batch} {off}")
        for row in [*measured.values()][:1]:
            cells += [energy.joules(measured.get(batch)) for batch in drawn]
            rows.append([f"{row['title']} (`{name}`)", row["precision"], row["timed"], *cells])
    where = machine_called(raw["machine"])
    head = [f"{where}: inputs/s", "arithmetic", "timed", *(f"N={batch}" for batch in batches), *drawn.values()]
    parts = [table(head, rows, 3) + energy.said(every, "inputs")]
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
