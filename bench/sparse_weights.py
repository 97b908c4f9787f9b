"""What 2:4 sparse weights cost in accuracy, and what they save: labels, inputs/s, joules, by dense and sparse kernels.

    python bench/sparse_weights.py --data test.csv --model sparse.safetensors

Models are `accurate`, the same one pruned (the two largest weights of each four stay), and what `charcnn train --sparse
2:4` wrote. All go through level 19, which multiplies by zeros. Those with zeros also go through level 22, which leaves
them out. Rates and joules are of batches of the rows on the GPU, by turns. It needs a Hopper GPU, and adds to
results/designs/MACHINE-sparse.json.

Exit status: 0 measured, 2 unusable machine, files or options.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import energy
import numpy as np
import raw

from charcnn import catalog
from charcnn.gpu import device
from charcnn.host import machine
from charcnn.host.arguments import HelpFormatter
from charcnn.model import params, shipped, sparsity
from charcnn.text import encodings
from charcnn.text.texts import read_texts
from charcnn.training.measure import interval

BATCH, PRECISIONS, LEVELS = 4096, ("fp16", "fp8"), ("l19", "l22")

ROUNDS, WARM, SECONDS = 2, 0.3, 2.0

CALLS = 3
"""Batches that are waited for together."""


def models(paths: Sequence[str]) -> dict[str, params.Params]:
    """The model that ships, it pruned, and those of files.

    Raises:
        ValueError: a file's model is not 2:4 sparse; names it.
        OSError: it cannot be read.
    """
    dense = shipped.load("accurate")
    found = {"dense": dense, "pruned": sparsity.pruned(dense)}
    for path in paths:
        model = params.load(path)
        try:
            sparsity.check(model, model.config)
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from None
        found[Path(path).stem] = model
    return found


class Running:
    """A model in a precision.

    Args:
        name: the model's.
        model: its weights.
        level: the level's row.
        precision: one of its.
        ids: uint8 (N, L) of labelled rows.
        labels: int (N,).
    """

    def __init__(
        self, name: str, model: params.Params, level: catalog.Level, precision: str, ids: np.ndarray, labels: np.ndarray
    ) -> None:
        options = level.build_options(precision)
        self._run = level.module.build(model, model.config, batch=BATCH, gpus=device.choose(1), **options)
        right = int((self._run(ids).argmax(1) == labels).sum())
        self._batch = device.to_device(np.resize(ids, (BATCH, ids.shape[1])))
        self._row = {
            "level": level.name,
            "model": name,
            "command": model.metadata.get("training", {}).get("command"),
            "precision": precision,
            "rows": len(labels),
            "accuracy": right / len(labels),
            "interval": list(interval(right, len(labels))),
        }
        self.rounds: list[dict[str, float]] = []

    def start(self) -> Callable[[], object]:
        """Some batches; gives what waits for them."""
        for _ in range(CALLS):
            self._run.on_device(self._batch)
        return energy.marked()

    def measure(self, counter: energy.Counter) -> None:
        """A round."""
        drawn = energy.drawn(self.start, counter, warm=WARM, seconds=SECONDS)
        inputs = drawn.calls * CALLS * BATCH
        self.rounds.append({
            "inputs/s": inputs / drawn.seconds,
            "J/million": drawn.joules / inputs * 1e6,
            "W": drawn.joules / drawn.seconds,
            "MHz": drawn.mhz,
        })  # fmt: skip

    def row(self) -> dict[str, Any]:
        """Means of the rounds, and all of them."""
        means = {name: float(np.mean([one[name] for one in self.rounds])) for name in self.rounds[0]}
        return {**self._row, **means, "rounds": self.rounds}


def main(argv: Sequence[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=HelpFormatter)
    parser.add_argument("--data", required=True, metavar="FILE", help="labelled rows: CSV, JSON Lines or Parquet")
    parser.add_argument("--model", action="append", default=[], metavar="FILE", help="of --sparse 2:4; may be repeated")
    names = ",".join(LEVELS)
    parser.add_argument("--levels", default=names, metavar="lK,...", help=f"that compute them (default {names})")
    parser.add_argument("--results-dir", default=raw.RESULTS / "designs", metavar="DIR", type=Path)
    options = parser.parse_args(argv)
    if device.SIMULATED or not device.has_tensor_cores(hopper=True):
        print("sparse_weights: needs a Hopper GPU", file=sys.stderr)
        return 2
    try:
        found = models(options.model)
        dense = found["dense"]
        texts = read_texts(options.data, dense.encoding or "crepe")
    except (OSError, ValueError) as error:
        print(f"sparse_weights: {error}", file=sys.stderr)
        return 2
    if texts.labels is None:
        print(f"sparse_weights: {options.data}: its rows have no labels", file=sys.stderr)
        return 2
    ids = encodings.encode(texts.texts, dense.encoding or "crepe", dense.config.length)
    running = [
        Running(name, model, level, precision, ids, np.asarray(texts.labels))
        for precision in PRECISIONS
        for level in map(catalog.level, options.levels.split(","))
        for name, model in found.items()
        if not (level.sparse and name == "dense")
    ]
    counter = energy.Counter()
    for _ in range(ROUNDS):
        for one in running:
            one.measure(counter)
    rows = [one.row() for one in running]
    for row in rows:
        print(
            *(row[name] for name in ("level", "model", "precision", "accuracy", "interval", "inputs/s", "J/million")),
            flush=True,
        )
    here, part = machine.describe(), "weights" if options.levels == LEVELS[0] else "level"
    raw.add(
        options.results_dir / f"{machine.name(here)}-sparse.json",
        "sparse",
        {part: {"machine": here, "commit": machine.commit(), "rows": rows}},
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
