"""Train the same network by each engine of `charcnn train`: loss of every epoch, accuracy on test rows, and seconds.

Rows, recipe, seed and first weights are the same; what is drawn afterwards differs by engine. Each training is a
process of its own, timed from start to end. On a GPU, PyTorch gets `--compile`. With --teacher a model answers each row
first, and networks also learn from these answers, as `--teacher-probabilities` has it. Words behind `--` go to
`charcnn train`.

    python bench/loss_curves.py --data train.csv --test test.csv --json FILE --teacher accurate -- --epochs 40
"""

from __future__ import annotations

import argparse
import csv
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import raw

from charcnn.host import machine
from charcnn.host.arguments import HelpFormatter
from charcnn.model import params, shipped
from charcnn.ops.reference import softmax
from charcnn.training import data, engines

SCHEMA = "loss_curves"


def drawn(file: Path, count: int | None, seed: int, out: Path) -> int:
    """Write some rows of a file of CSV, or all, in an order of the seed; how many there are."""
    with file.open(newline="", encoding="utf-8") as given:
        rows = list(csv.reader(given))
    random.Random(seed).shuffle(rows)
    with out.open("w", newline="", encoding="utf-8") as made:
        csv.writer(made).writerows(rows[:count])
    return len(rows[:count])


def answered(name: str, rows: Path, device: str, out: Path) -> None:
    """Write what a model answers to each row, as --teacher-probabilities takes it: classes in the model's order."""
    model = shipped.load(name)
    read = data.read_rows(rows, model.encoding)
    index = data.name_labels(data.find_labels(read.labels), model.classes)
    ids = data.to_examples(read, index, model.encoding, model.config.length)[0].ids
    engine = engines.choose("own", device, say=print, warn=print)
    np.save(out, softmax(engine.answers(model.config, model, ids, 256)))


def trained(engine: str, rows: Path, words: Sequence[str], folder: Path, limit: float) -> dict[str, Any]:
    """Train by an engine; what its files say.

    Raises:
        subprocess.SubprocessError: it failed, or took too long.
    """
    out = folder / f"{engine}.safetensors"
    given = ["--engine", engine, "--data", rows, "--out", out, "--no-curve", "--no-header", *words]
    began = time.perf_counter()
    subprocess.run([sys.executable, "-m", "charcnn", "train", *map(str, given)], check=True, timeout=limit)
    seconds, said = time.perf_counter() - began, params.load(out).metadata
    with (folder / f"{engine}-metrics.csv").open(newline="") as file:
        history = [{name: float(value) for name, value in row.items()} for row in csv.DictReader(file)]
    of = {part: said[part] for part in ("validation", "test") if part in said}
    return {"engine": engine, "seconds": seconds, "training": said["training"], **of, "history": history}


def main(words: list[str] | None = None) -> int:
    """Train by each, and write the raw result after each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=HelpFormatter)
    parser.add_argument("--data", type=Path, required=True, metavar="FILE", help="CSV without a header: label, texts")
    parser.add_argument("--test", type=Path, required=True, metavar="FILE", help="the same to test with")
    parser.add_argument("--rows", type=int, metavar="N", help="draw so many of --data (default all)")
    parser.add_argument("--engines", nargs="+", choices=("own", "torch"), default=["own", "torch"], metavar="ENGINE")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="default cpu")
    parser.add_argument("--teacher", metavar="MODEL", help="a model whose answers are learned from, too")
    parser.add_argument("--limit", type=float, default=3600, metavar="S", help="seconds a training may take (3600)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="raw result (default: print alone)")
    parser.add_argument("words", nargs="*", metavar="WORD", help="of charcnn train")
    options = parser.parse_args(words)
    with tempfile.TemporaryDirectory() as root:
        folder, rows = Path(root), Path(root, "rows.csv")
        count, test = drawn(options.data, options.rows, 0, rows), ["--test", str(options.test)]
        taught = []
        if options.teacher:
            answered(options.teacher, rows, options.device, folder / "taught.npy")
            taught = ["--teacher-probabilities", str(folder / "taught.npy"), "--teacher-name", options.teacher]
        result: dict[str, Any] = {
            "machine": machine.describe(), "commit": machine.commit(), "rows": count, "teacher": options.teacher,
            "words": options.words, "runs": [],
        }  # fmt: skip
        for engine in options.engines:
            fused = ["--compile"] * (engine == "torch" and options.device == "cuda")
            given = ["--device", options.device, *fused, *test, *taught, *options.words]
            try:
                result["runs"].append(trained(engine, rows, given, folder, options.limit))
            except subprocess.SubprocessError as error:
                print(f"{engine}: left out: {error}", file=sys.stderr)
                continue
            result["load"] = round(os.getloadavg()[1], 1)
            if options.json:
                raw.write(options.json, SCHEMA, result)
    return 0 if len(result["runs"]) == len(options.engines) else 1


if __name__ == "__main__":
    sys.exit(main())
