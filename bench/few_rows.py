"""Training on few rows: `charcnn.train` by default beside a linear model, on the same rows of six sets.

The linear model is TF-IDF of characters (char_wb, 2 to 5, sublinear) with logistic regression, of scikit-learn. Sets
are those of `text_sets.py` that the machine can make; AG News needs the variable CHARCNN_AG_NEWS. One half of each set
is for whoever chooses settings (`--choose`), and the other half is tested with.

    python bench/few_rows.py --out few-rows.json                  # all that docs/train.md shows; goes on where it ended
    python bench/few_rows.py --sets digits --rows 50 --seeds 1    # a try
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import raw
import text_sets

import charcnn
from charcnn.host.arguments import HelpFormatter
from charcnn.host.machine import describe

SCHEMA = "charcnn/few-rows/1"


def linear(learned: text_sets.Rows, tested: text_sets.Rows) -> np.ndarray:
    """The linear model's labels of `tested`."""
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline

    grams = TfidfVectorizer(analyzer="char_wb", ngram_range=(2, 5), sublinear_tf=True)
    model = make_pipeline(grams, LogisticRegression(max_iter=1000))
    model.fit([text for _, text in learned], [label for label, _ in learned])
    return np.array(model.predict([text for _, text in tested]))


def scores(labels: Sequence[str], found: np.ndarray) -> dict[str, float]:
    """Accuracy, and its mean over classes."""
    wanted = np.array(labels)
    right = found == wanted
    recalls = [right[wanted == label].mean() for label in np.unique(wanted)]
    return {"accuracy": round(float(right.mean()), 4), "balanced_accuracy": round(float(np.mean(recalls)), 4)}


TRIED = (200, 300, 0)
"""What was drawn of whole sets when the network's form was chosen: rows, rows tested with, and the seed."""

ONCE = 2000
"""From so many rows on, and for nine rows to one, there is one drawing."""

Case = tuple[str, int, bool, int]
"""Set, rows, whether nine to one, seed."""


def measure(rows: text_sets.Rows, seen: set[str], case: Case, options: argparse.Namespace) -> Any:
    """One drawing: how both do, and what the training took."""
    name, count, rare, seed = case
    learned, tested = text_sets.drawn(rows, count, options.tested, seed, rare=rare, seen=seen)
    labels, texts = [label for label, _ in tested], [text for _, text in tested]
    started, cpu = time.perf_counter(), time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        how = {"encoding": text_sets.SETS[name][1], "preset": options.preset, "device": "cpu", "seed": seed}
        model = charcnn.train([text for _, text in learned], [label for label, _ in learned], **how)
    took = {"seconds": round(time.perf_counter() - started, 2), "cpu_seconds": round(time.process_time() - cpu, 2)}
    started = time.perf_counter()
    own = scores(labels, np.array(model.predict(texts)))
    rate = round(len(texts) / (time.perf_counter() - started), 1)
    return {
        "set": name, "asked": count, "rows": len(learned), "tested": len(tested), "classes": len(set(labels)),
        "rare": rare, "seed": seed, "preset": options.preset, "charcnn": own,
        "linear": scores(labels, linear(learned, tested)), **took, "rows_per_second": rate,
    }  # fmt: skip


def main(words: list[str] | None = None) -> int:
    """Measure, and write a raw result after each drawing."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=HelpFormatter)
    parser.add_argument("--out", type=Path, metavar="FILE", help="raw result (default: print alone)")
    parser.add_argument("--sets", nargs="+", choices=text_sets.SETS, default=list(text_sets.SETS), metavar="SET")
    parser.add_argument("--rows", nargs="+", type=int, default=[50, 200, 500, 2000], metavar="N")
    parser.add_argument("--seeds", type=int, default=3, metavar="N", help=f"drawings below {ONCE} rows (default 3)")
    parser.add_argument("--tested", type=int, default=250, metavar="N", help="other rows to test with (default 250)")
    parser.add_argument("--preset", help="of charcnn train (default balanced)")
    parser.add_argument("--choose", action="store_true", help="use the half of each set that settings are chosen on")
    options = parser.parse_args(words)
    made: dict[str, tuple[text_sets.Rows, set[str]]] = {}
    for name in options.sets:
        try:
            rows = text_sets.SETS[name][0]()
        except (OSError, ValueError, subprocess.CalledProcessError) as error:
            print(f"{name}: left out: {error}", file=sys.stderr)
            continue
        made[name] = text_sets.halves(rows)[not options.choose], {text for _, text in text_sets.drawn(rows, *TRIED)[1]}
    result: dict[str, Any] = {"machine": describe(), "load": None, "runs": []}
    if options.out is not None and options.out.exists():
        result |= json.loads(options.out.read_text())
    done = {(run["set"], run["asked"], run["rare"], run["seed"]) for run in result["runs"]}
    for case in cases(list(made), options.rows, options.seeds):
        if case in done:
            continue
        try:
            run = measure(*made[case[0]], case, options)
        except ValueError as error:
            print(f"{case}: left out: {error}", file=sys.stderr)
            continue
        result["runs"].append(run)
        result["load"] = round(os.getloadavg()[2], 1)
        key = "balanced_accuracy" if run["rare"] else "accuracy"
        print(
            f"{case}: charcnn {run['charcnn']}, linear {run['linear']} "
            f"({100 * (run['charcnn'][key] - run['linear'][key]):+.1f}), {run['seconds']} s",
            flush=True,
        )
        if options.out is not None:
            raw.write(options.out, SCHEMA, {key: value for key, value in result.items() if key != "schema"})
    return 0


def cases(names: Sequence[str], rows: Sequence[int], seeds: int) -> list[Case]:
    """Each set at each number of rows, drawn `seeds` times; once of ONCE rows, and of 200 that are nine to one."""
    often = [(name, count, False, seed) for seed in range(seeds) for count in rows for name in names if count < ONCE]
    once = [(name, count, False, 0) for count in rows for name in names if count >= ONCE]
    return often + [(name, TRIED[0], True, 0) for name in names] + once


if __name__ == "__main__":
    sys.exit(main())
