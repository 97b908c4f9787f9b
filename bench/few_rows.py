"""Training on few rows: `charcnn.train` by default beside a linear model, on the same rows of six sets.

The linear model is TF-IDF of characters (char_wb, 2 to 5, sublinear) with logistic regression, of scikit-learn. Sets
are those of `text_sets.py` that the machine can make; AG News needs the variable CHARCNN_AG_NEWS.

    python bench/few_rows.py --out few-rows.json                  # all that docs/train.md shows
    python bench/few_rows.py --sets digits --rows 50 --seeds 1    # a try
"""

from __future__ import annotations

import argparse
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


def measure(rows: text_sets.Rows, encoding: str, count: int, seed: int, options: argparse.Namespace, rare: bool) -> Any:
    """One drawing: how both do, and what the training took."""
    learned, tested = text_sets.drawn(rows, count, options.tested, seed, rare=rare)
    labels, texts = [label for label, _ in tested], [text for _, text in tested]
    started, cpu = time.perf_counter(), time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        how = {"encoding": encoding, "preset": options.preset, "device": "cpu", "seed": seed}
        model = charcnn.train([text for _, text in learned], [label for label, _ in learned], **how)
    took = {"seconds": round(time.perf_counter() - started, 2), "cpu_seconds": round(time.process_time() - cpu, 2)}
    started = time.perf_counter()
    own = scores(labels, np.array(model.predict(texts)))
    rate = round(len(texts) / (time.perf_counter() - started), 1)
    return {
        "rows": len(learned), "tested": len(tested), "classes": len(set(labels)), "rare": rare, "seed": seed,
        "preset": options.preset, "charcnn": own, "linear": scores(labels, linear(learned, tested)), **took,
        "rows_per_second": rate,
    }  # fmt: skip


def main(words: list[str] | None = None) -> int:
    """Measure, and write a raw result after each drawing."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=HelpFormatter)
    parser.add_argument("--out", type=Path, metavar="FILE", help="raw result (default: print alone)")
    parser.add_argument("--sets", nargs="+", choices=text_sets.SETS, default=list(text_sets.SETS), metavar="SET")
    parser.add_argument("--rows", nargs="+", type=int, default=[50, 200, 500, 2000], metavar="N")
    parser.add_argument("--seeds", type=int, default=2, metavar="N", help="drawings of each (default 2)")
    parser.add_argument("--tested", type=int, default=400, metavar="N", help="other rows to test with (default 400)")
    parser.add_argument("--preset", help="of charcnn train (default balanced)")
    options = parser.parse_args(words)
    made: dict[str, text_sets.Rows] = {}
    for name in options.sets:
        try:
            made[name] = text_sets.SETS[name][0]()
        except (OSError, ValueError, subprocess.CalledProcessError) as error:
            print(f"{name}: left out: {error}", file=sys.stderr)
    result: dict[str, Any] = {"machine": describe(), "load": None, "runs": []}
    cases = [(count, seed, name, rare) for count in options.rows for seed in range(options.seeds) for name in made
             for rare in (False, True)]  # fmt: skip
    for count, seed, name, rare in cases:
        try:
            run = measure(made[name], text_sets.SETS[name][1], count, seed, options, rare)
        except ValueError as error:
            print(f"{name}, {count} rows: left out: {error}", file=sys.stderr)
            continue
        result["runs"].append({"set": name, **run})
        result["load"] = round(os.getloadavg()[2], 1)
        key = "balanced_accuracy" if rare else "accuracy"
        print(
            f"{name}, {count} rows{', 9:1' * rare}, seed {seed}: charcnn {run['charcnn']}, linear {run['linear']} "
            f"({100 * (run['charcnn'][key] - run['linear'][key]):+.1f}), {run['seconds']} s",
            flush=True,
        )
        if options.out is not None:
            raw.write(options.out, SCHEMA, result)
    return 0


if __name__ == "__main__":
    sys.exit(main())
