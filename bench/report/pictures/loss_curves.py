"""The picture of loss curves laid over each other: own kernels' and PyTorch's."""

from __future__ import annotations

from typing import Any

from charcnn.charts.svg import Axis, Picture
from report.loss_curves import NAMES, trainings_of_both
from report.schema import machine_called

LEFT, RIGHT, TOP, HEIGHT, GAP = 46, 16, 34, 190, 62

LINES = {("own", "train_loss"): "s0 thick", ("torch", "train_loss"): "s1 dashed",
         ("own", "valid_loss"): "s2 thick", ("torch", "valid_loss"): "s3 dashed"}  # fmt: skip
"""By engine and what is drawn."""

PARTS = {"train_loss": "learned from", "valid_loss": "validation"}


def loss_curves() -> str:
    """A panel a machine: the mean loss of each epoch, of rows that are learned from and of those that are not."""
    raws = [*trainings_of_both().values()]
    picture = Picture("Loss by epoch, trained by own kernels and by PyTorch", TOP + 18 + len(raws) * (HEIGHT + GAP))
    entries = [(line, f"{NAMES[engine]}, {PARTS[part]}") for (engine, part), line in LINES.items()]
    picture.legend(entries, LEFT, 14, 170)
    for at, raw in enumerate(raws):
        _panel(picture, raw, TOP + 18 + at * (HEIGHT + GAP))
    return str(picture)


def _panel(picture: Picture, raw: dict[str, Any], top: float) -> None:
    values = [row[part] for run in raw["runs"] for row in run["history"] for part in PARTS]
    low, high = int(10 * min(values)) / 10, int(10 * max(values) + 1) / 10
    epochs = max(len(run["history"]) for run in raw["runs"])
    across = Axis(1, epochs, LEFT, picture.width - RIGHT, log=False)
    up = Axis(low, high, top + HEIGHT, top + 18, log=False)
    said = f"{machine_called(raw['machine'])}, {raw['runs'][0]['training']['rows']:,} rows"
    picture.text(LEFT, top + 6, said, "said small")
    tenths = range(round(10 * low), round(10 * high) + 1)
    for tenth in [value for value in tenths if value % (1 + len(tenths) // 6) == 0]:
        picture.line(LEFT, up(tenth / 10), across.end, up(tenth / 10))
        picture.text(LEFT - 6, up(tenth / 10) + 4, f"{tenth / 10:.1f}", "small", "end")
    for epoch in sorted({1, epochs // 2, epochs}):
        picture.text(across(epoch), up.begin + 16, str(epoch), "small", "middle")
    picture.text(across.end, up.begin + 34, "epoch", "small", "end")
    for run in raw["runs"]:
        for part in PARTS:
            line = LINES[run["engine"], part]
            picture.path([(across(row["epoch"]), up(row[part])) for row in run["history"]], line)
