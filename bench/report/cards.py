"""The block on what a card of a known name runs, and how fast."""

from __future__ import annotations

import math
from pathlib import Path
from typing import NamedTuple

from charcnn import catalog
from charcnn.classify.engine import choices
from charcnn.compiling.networks import runnable
from charcnn.compiling.stand_in import Target
from report.limits import flops
from report.markdown import link, table
from report.operators import blocks_3_to_6
from report.schema import results


class Card(NamedTuple):
    """A GPU as people call it, and what NVIDIA says that its products reach."""

    name: str
    capability: tuple[int, int]
    tflops: float
    """In the precision that a level takes there by itself, with sums in float32 and no sparsity, at the boost clock."""
    source: str
    measured: str = ""
    """How raw results call it."""


CARDS = (
    Card("T4", (7, 5), 65, "T4's data sheet"),
    Card("A10G", (8, 6), 70, "A10G's data sheet"),
    Card("L4", (8, 9), 121, "L4's data sheet, less sparsity"),
    Card("A100", (8, 0), 312, "A100's data sheet"),
    Card("RTX 3090", (8, 6), 71, "white paper of GA102"),
    Card("RTX 4090", (8, 9), 165.2, "white paper of AD102"),
    Card("RTX 5090", (12, 0), 209.5, "white paper of GB202"),
    Card("H100", (9, 0), 989.4, "H100's data sheet, less sparsity", "NVIDIA H100 80GB HBM3"),
    Card("H200", (9, 0), 989.4, "H200's data sheet, less sparsity", "NVIDIA H200"),
)


def ways_of(capability: tuple[int, int]) -> list[tuple[str, str]]:
    """Levels that run on a GPU, each with a precision: by the catalogue, and by the shared memory that l10 takes."""
    target = Target.named(".".join(map(str, capability)))
    room = blocks_3_to_6("whole").shared_bytes <= target.shared_limit
    return [way for way in runnable(target) if room or way[0] != "l10"]


def taken_of(ways: list[tuple[str, str]]) -> tuple[str, str]:
    """What the classifier tries first."""
    tried = ((choice.level.name, choice.precision) for choice in choices("cuda"))
    return next(way for way in tried if way in ways)


def cards(document: Path) -> str:
    """What a card runs, and how fast: measured where it was, else what its products allow at most."""
    head = ["card", "compute capability", "levels on the GPU", "precisions", "default", "inputs/s", "source"]
    rows = []
    for card in CARDS:
        ways = ways_of(card.capability)
        level, precision = taken_of(ways)
        having = [row for row in catalog.LEVELS if row.name in {name for name, _ in ways}]
        precisions = [name for name in catalog.PRECISIONS if name in {precision for _, precision in ways}]
        cells = [card.name, ".".join(map(str, card.capability)), catalog.level_ranges(having), ", ".join(precisions)]
        rows.append([*cells, f"{level}, {precision}", *_rate(document, card, level, precision)])
    return table(head, rows, right=7)


def _rate(document: Path, card: Card, level: str, precision: str) -> list[str]:
    """Inputs/s and whence: the newest result of the largest batch, else the data sheet's FLOP/s by an input's."""
    found = [
        (row["batch"], row["inputs_per_second"], file)
        for file, raw in results().peers.items() if card.measured and card.measured in raw["machine"]["gpus"]
        for row in raw["peers"] if (row["name"], row["precision"]) == (level, precision)
    ]  # fmt: skip
    if found:
        batch, rate, file = max(found, key=lambda one: one[0])
        return [f"**{rate:,.0f}**", f"measured at N={batch:,}: {link(document, file, 'raw result')}"]
    most = card.tflops * 1e12 / flops(level)
    digits = 10 ** (len(str(int(most))) - 2)
    return [f"at most {math.ceil(most / digits) * digits:,}", f"computed: {card.tflops:g} TFLOP/s, {card.source}"]


def portable(document: Path) -> str:
    """How much of its computed limit the level of tensor cores of any kind reaches where it was measured."""
    level = catalog.level("l21")
    (h200,) = [card for card in CARDS if card.name == "H200"]
    (own,) = [
        found for (name, place), found in results().levels.items()
        if (name, place.host, place.gpus, place.ranks) == (level.name, "nvidia-h200", 1, 1)
    ]  # fmt: skip
    most = h200.tflops * 1e12 / flops(level.name)
    return (
        f"On the H200, {level.name} in {level.precision()} reaches {own.inputs_per_second:,.0f} inputs/s from host to "
        f"host ({link(document, own.file, 'raw result')}). That is {own.inputs_per_second / most:.0%} of the limit "
        "that its data sheet gives, computed in the same way.\n"
    ).replace("%", " %")
