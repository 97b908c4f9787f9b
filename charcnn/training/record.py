"""What is left to read after a training: a row of figures an epoch, and their curves."""

from __future__ import annotations

import csv
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from charcnn.aliases import Record
from charcnn.files import PNG, SOFTWARE, Path, replacing
from charcnn.host.openmetrics import Sample

METRICS = rb"epoch,seconds,rate,train_loss,"
"""How our files of metrics begin, as `files.is_free` takes it."""

CHECKPOINTS = {
    "own": rb"PK\x03\x04.{26}charcnn_checkpoint\.npy",
    "torch": rb"PK\x03\x04.*/data\.pkl.*\x06\0\0\0format.*\x08\0\0\0settings",
}
"""How checkpoints begin, by engine."""

CHECKPOINT = b"|".join(CHECKPOINTS.values())


def write_metrics(path: Path, history: Sequence[Mapping[str, Any]], columns: Sequence[str], *, force: bool) -> None:
    """Write the epochs' figures as CSV; a figure that was not taken is an empty field. `force` is as of `put`."""
    with replacing(path, force=force, mark=METRICS) as file:
        writer = csv.DictWriter(file, columns, lineterminator="\n")
        writer.writeheader()
        for row in history:
            writer.writerow(
                {name: f"{value:.6g}" if isinstance(value, float) else value for name, value in row.items()}
            )


class Seen:
    """How far a training is, as samples of OpenMetrics.

    Args:
        learned: rows learned from, an epoch's.
    """

    def __init__(self, learned: int) -> None:
        self._learned, self._rows, self._begun = learned, 0, time.monotonic()
        self._row: Record = {}
        self._epochs = 0

    def step(self, rows: int) -> None:
        """So many more rows were learned from."""
        self._rows += rows

    def epoch(self, row: Record, epochs: int) -> None:
        """An epoch is over: its figures, and how many epochs there are to be."""
        self._row, self._epochs = row, epochs

    def samples(self) -> Iterator[Sample]:
        """What is known so far."""
        yield Sample("train_rows", "rows of all steps so far, since this start", self._rows, counter=True)
        seconds = time.monotonic() - self._begun
        yield Sample("train_rows_per_second", "mean rate since this start", self._rows / max(seconds, 1e-9))
        yield Sample("train_rows_of_an_epoch", "rows learned from", self._learned)
        if not self._row:
            return
        yield Sample("train_epoch", "epochs that are over, of the network that is trained now", self._row["epoch"])
        yield Sample("train_epochs", "epochs that there are to be", self._epochs)
        yield Sample("train_rate", "learning rate of the last epoch's first step", self._row["rate"])
        for figure, what in (("loss", "mean loss of the last epoch"), ("accuracy", "share of right answers")):
            for part in ("train", "valid"):
                if (name := f"{part}_{figure}") in self._row:
                    yield Sample(f"train_{figure}", what, self._row[name], {"part": part})


def draw_curve(path: Path, history: Sequence[Mapping[str, Any]], kept: int, *, force: bool) -> None:
    """Draw loss and accuracy over the epochs as PNG, with a line at the epoch that was kept. `force` is as of `put`.

    Raises:
        ImportError: Matplotlib is missing.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # no pyplot: it looks for a screen
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 4), layout="constrained")
    FigureCanvasAgg(figure)
    epochs = [row["epoch"] for row in history]
    for axes, what in zip(figure.subplots(1, 2), ("loss", "accuracy"), strict=True):
        for part, label in (("train", "training part, changed at random"), ("valid", "validation part")):
            name = f"{part}_{what}"
            if name in history[0]:
                axes.plot(epochs, [row[name] for row in history], label=label, marker="." if len(epochs) < 20 else "")
        axes.axvline(kept, color="gray", linewidth=0.8, linestyle=":", label=f"kept: epoch {kept}")
        axes.set(xlabel="epoch", title=what)
        axes.grid(alpha=0.3)
        axes.legend()
    with replacing(path, "wb", force=force, mark=PNG) as file:
        figure.savefig(file, format="png", dpi=120, metadata=SOFTWARE)
