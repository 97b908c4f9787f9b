"""charcnn's models beside what people use for short texts: accuracy, texts a second, size, time to train, noise.

    python bench/compare.py --train train.csv --test test.csv

Both files are labelled CSV as `charcnn evaluate` reads them. A linear model on words, one on words and characters
(scikit-learn), and fastText, where it is installed, learn from --train. charcnn's models ship: they learned from rows
of AG News, so that their row means nothing for other files. All label --test, and again with a share of the characters
replaced by random letters. One process each; rates are of texts in memory to labels, the best of three.

Exit status: 0 measured, 2 unusable files.
"""

from __future__ import annotations

import argparse
import json
import os
import pickle
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import raw

from charcnn.files import replacing
from charcnn.host import machine
from charcnn.text.encodings import ENCODINGS
from charcnn.text.texts import read_texts

CHANGED = (0.05, 0.1, 0.2)
"""Shares of the characters that are replaced."""

Labels = Callable[[list[str]], list[int]]


def changed(texts: list[str], share: float) -> list[str]:
    """Each character becomes a random letter with this probability."""
    rng, made = np.random.default_rng(0), []
    for text in texts:
        hit = rng.random(len(text)) < share
        letters = rng.integers(ord("a"), ord("z") + 1, len(text))
        made.append("".join(chr(b) if h else a for a, h, b in zip(text, hit, letters, strict=True)))
    return made


def linear(texts: list[str], labels: list[int], *, characters: bool) -> tuple[Labels, int]:
    """TF-IDF of words, or of words and character n-grams, and a linear support vector machine; and its bytes."""
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.pipeline import make_pipeline, make_union
    from sklearn.svm import LinearSVC

    words = TfidfVectorizer(sublinear_tf=True, min_df=2, ngram_range=(1, 2 if characters else 1))
    both = make_union(words, TfidfVectorizer(analyzer="char_wb", ngram_range=(2, 5), sublinear_tf=True, min_df=3))
    model = make_pipeline(both if characters else words, LinearSVC(C=0.5)).fit(texts, labels)
    return lambda given: model.predict(given).tolist(), len(pickle.dumps(model))


def fasttext(texts: list[str], labels: list[int]) -> tuple[Labels, int]:
    """fastText with word bigrams, and its bytes."""
    import fasttext as library

    with tempfile.TemporaryDirectory() as folder:
        rows, file = Path(folder) / "rows.txt", Path(folder) / "model.bin"
        lines = (f"__label__{label} {' '.join(text.split())}\n" for label, text in zip(labels, texts, strict=True))
        rows.write_text("".join(lines), encoding="utf-8")
        model = library.train_supervised(str(rows), wordNgrams=2, epoch=10, lr=0.5, dim=50, thread=2, verbose=0)
        model.save_model(str(file))
        size = file.stat().st_size

    def answers(given: list[str]) -> list[int]:  # its own predict fails with NumPy 2
        return [int(model.f.predict(f"{' '.join(text.split())}\n", 1, 0.0, "strict")[0][1][9:]) for text in given]

    return answers, size


def charcnn(name: str, precision: str, classes: int) -> tuple[Labels, int]:
    """A model that ships, on the CPU, and the bytes of its file."""
    from charcnn import Classifier
    from charcnn.model.shipped import FILES

    classifier = Classifier.load(name, device="cpu", precision=precision)
    if len(classifier.classes_) != classes:
        raise SystemExit(f"{name} has {len(classifier.classes_)} classes: need --test with as many, not {classes}")
    size = (raw.RESULTS.parents[1] / "charcnn" / "model" / "weights" / FILES[name]).stat().st_size
    return lambda given: (classifier.predict_proba(given).argmax(1) + 1).tolist(), size


WAYS: dict[str, Callable[[list[str], list[int]], tuple[Labels, int]]] = {
    "words, TF-IDF, LinearSVC": lambda texts, labels: linear(texts, labels, characters=False),
    "words and characters, TF-IDF, LinearSVC": lambda texts, labels: linear(texts, labels, characters=True),
    "fastText, bigrams": fasttext,
    **{
        f"charcnn {name}, {precision}": lambda texts, labels, name=name, precision=precision: charcnn(
            name, precision, len(set(labels))
        )
        for name in ("fast", "accurate")
        for precision in ("fp32", "int8")
    },
}


def measure(way: str, train: str, test: str) -> dict[str, Any]:
    """One way's row."""
    texts, labels = _read(train)
    begun = time.perf_counter()
    answers, size = WAYS[way](texts, labels)
    trained = None if way.startswith("charcnn") else time.perf_counter() - begun
    given, right = _read(test)
    answers(given[:256])
    seconds, correct = [], {}
    for _ in range(3):
        begun = time.perf_counter()
        found = answers(given)
        seconds.append(time.perf_counter() - begun)
    correct["0"] = float(np.mean(np.array(found) == right))
    for share in CHANGED:
        correct[f"{share:g}"] = float(np.mean(np.array(answers(changed(given, share))) == right))
    return {
        "way": way, "rows": len(given), "learned_from": len(texts), "training_s": trained, "bytes": size,
        "texts_per_second": len(given) / min(seconds), "accuracy": correct,
    }  # fmt: skip


def _read(path: str) -> tuple[list[str], list[int]]:
    data = read_texts(path, ENCODINGS["forward"])
    assert data.labels is not None
    return [bytes(text).decode("utf-8", "replace") for text in data.texts], [int(label) + 1 for label in data.labels]


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--train", required=True, metavar="FILE", help="labelled rows to learn from")
    parser.add_argument("--test", required=True, metavar="FILE", help="labelled rows to measure with")
    parser.add_argument("--ways", default=",".join(str(n) for n in range(len(WAYS))), help="numbers, from 0: all")
    parser.add_argument("--json", default=str(raw.RESULTS / "designs" / "cpu-2-cores-compare.json"), metavar="FILE")
    parser.add_argument("--way", choices=WAYS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.way:
        print(json.dumps(measure(options.way, options.train, options.test)))
        return 0
    rows, left_out = [], {}
    for way in [list(WAYS)[int(number)] for number in options.ways.split(",")]:
        words = [sys.executable, __file__, "--train", options.train, "--test", options.test, "--way", way]
        done = subprocess.run(words, capture_output=True, text=True, check=False, env=os.environ)
        if done.returncode:
            left_out[way] = (done.stderr.strip() or "?").splitlines()[-1]
            print(f"{way}: left out: {left_out[way]}", flush=True)
            continue
        rows.append(json.loads(done.stdout.splitlines()[-1]))
        print(rows[-1], flush=True)
    result = {
        "schema": "compare",
        "ways": rows,
        "left_out": left_out,
        "machine": machine.describe(),
        "commit": machine.commit(),
    }
    with replacing(options.json, "w") as file:
        file.write(json.dumps(result, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
