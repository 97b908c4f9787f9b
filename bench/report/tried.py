"""What a level tried in vain, from trials of kernels in bench/results/designs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from report.ideas import DESIGNS, TURNS, trials_of
from report.markdown import link, table
from report.schema import ReportError

STAGES = DESIGNS / "nvidia-h200-wgmma-stages.json"


@dataclass(frozen=True)
class Tried:
    """A design that was no better, with the rows that say so."""

    what: str
    predicted: str
    file: Path
    before: str
    """How the design begins that it was held against, in the same run."""
    after: tuple[str, ...]
    """How its own begin."""
    layers: tuple[str, ...] = ()
    """Of which rates are in TFLOP/s; inputs/s of the level where there is none."""


TRIED = {
    "l17": (
        Tried(
            "store a tile's sums under the next tile's products, by two warpgroups", "conv3 a sixth faster", STAGES,
            "the kernel before", ("results stored under the next tile",), ("conv3", "conv6"),
        ),
        Tried(
            "clusters of two for few steps, too, as for conv2", "a third to a half of L2's traffic less", STAGES,
            "as shipped", ("3 stages, 2 ahead, cl", "4 stages, 3 ahead, cl", "4 stages, 2 ahead, cl"),
            ("conv3", "conv6"),
        ),
        Tried(
            "a stage of weights more, no copy further ahead", "–", STAGES,
            "as shipped", ("4 stages of weights, 2 ahead",), ("conv2",),
        ),
        Tried(
            "fewer stages of weights", "–", STAGES,
            "as shipped", ("2 stages of weights", "3 stages of weights"), ("conv2", "conv3", "conv6"),
        ),
        Tried(
            "ask for features after the next tile's first product, or its second", "–", TURNS,
            "as shipped", ("features of the tile after",), ("conv2", "conv3", "conv6"),
        ),
        Tried(
            "warpgroups begin apart in time", "–", TURNS,
            "as shipped", ("the same, second step; warpgroups begin 600", "the same; warpgroups begin 1000"),
            ("conv3",),
        ),
        Tried(
            "tiles backwards in every other layer, so that L2 has what was written last", "–", TURNS,
            "few outputs", ("as the former; conv3 and conv5",),
        ),
    ),
}  # fmt: skip


def tried(document: Path, name: str) -> str:
    """What was tried in vain, with what was expected and what was seen."""
    if name not in TRIED:
        raise ReportError(f"{document.name}: nothing is kept of what {name} tried: need one of {', '.join(TRIED)}")
    rows = [[one.what, one.predicted, link(document, one.file, _seen(name, one))] for one in TRIED[name]]
    return table(["tried", "predicted", "seen"], rows, 3)


def _seen(level: str, one: Tried) -> str:
    """By how much the rate changed, of each layer."""
    told = []
    for layer in one.layers or (None,):
        of = {"layer": layer, "precision": "fp8"} if layer else {"level": level}
        rate = "tflop_per_second" if layer else "inputs_per_second"
        after = [row for design in one.after for row in trials_of(one.file, design=design, **of)]
        before = {row["run"]: row[rate] for row in trials_of(one.file, design=one.before, **of)}
        changes = [row[rate] / before[row["run"]] - 1 for row in after if row["run"] in before]
        if not changes:
            raise ReportError(f"{one.file.name}: no run of {layer or level} has {one.before!r} and one of {one.after}")
        told.append(f"{layer or level} {_range(changes)}")
    return ", ".join(told)


def _range(changes: list[float]) -> str:
    """Changes of a rate: −16 to −11 %."""
    least, most = (
        "0" if abs(value) < 0.005 else f"{100 * value:+.0f}".replace("-", "−") for value in (min(changes), max(changes))
    )
    return f"{least} %" if least == most else f"{least} to {most} %"
