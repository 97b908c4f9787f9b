"""The block on trainings by both engines: what each reached, and how fast."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from report.markdown import number, sources, table
from report.schema import RESULTS, machine_called, read

NAMES = {"own": "own kernels", "torch": "PyTorch"}
"""Of engines."""


@cache
def trainings_of_both() -> dict[Path, dict[str, Any]]:
    """What bench/loss_curves.py wrote, by file of bench/results/designs, GPUs first."""
    found = {file: read(file) for file in (RESULTS / "designs").glob("*-loss-curves.json")}
    return dict(sorted(found.items(), key=lambda one: (not one[1]["machine"]["gpus"], one[0])))


def rate(run: dict[str, Any]) -> float:
    """Rows a second within epochs, the first one left out: it compiles."""
    first, *_, last = (row["seconds"] for row in run["history"])
    return float(run["training"]["rows"] * (len(run["history"]) - 1) / (last - first))


def loss_curves(document: Path) -> str:
    """A row a training."""
    rows = [_cells(raw, run) for raw in trainings_of_both().values() for run in raw["runs"]]
    head = [
        "trained on",
        "by",
        "epochs",
        "loss of the last",
        "validation loss",
        "test rows right (95 %)",
        "rows/s",
        "s",
    ]
    return table(head, rows, right=2) + sources(document, [*trainings_of_both()])


def _cells(raw: dict[str, Any], run: dict[str, Any]) -> list[str]:
    last, (low, high) = run["history"][-1], run["test"]["interval"]
    right = f"{100 * run['test']['accuracy']:.1f} % ({100 * low:.1f} to {100 * high:.1f})"
    losses = [f"{last[name]:.4f}" for name in ("train_loss", "valid_loss")]
    by = f"{NAMES[run['engine']]}, {run['training']['precision']}"
    figures = [number(rate(run)), f"{run['seconds']:.1f}"]
    return [machine_called(raw["machine"]), by, str(len(run["history"])), *losses, right, *figures]
