"""Measure the accuracy on long texts without windows, and with windows of several sizes.

    python bench/long_texts.py --data test.csv

Each long text joins rows of one class, in random order.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import raw

from charcnn.classify.classifier import Classifier
from charcnn.host import machine
from charcnn.host.arguments import HelpFormatter
from charcnn.text.encodings import pack
from charcnn.text.texts import Texts, read_texts
from charcnn.text.windows import TextWindows
from charcnn.training.measure import interval

SIZES = (700, 500, 250)
"""Bytes of windows, beside those of the network's length."""


def joined(data: Texts, count: int, seed: int = 0) -> tuple[list[bytes], np.ndarray]:
    """Rows of a class put together, so many at a time, and the classes; rows that are left over are not used."""
    assert data.labels is not None
    rng, texts, labels = np.random.default_rng(seed), [], []
    for label in np.unique(data.labels):
        own = rng.permutation(np.flatnonzero(data.labels == label))
        for start in range(0, len(own) - count + 1, count):
            texts.append(b" ".join(data.texts[n] for n in own[start : start + count]))
            labels.append(label)
    return texts, np.array(labels)


def measure(model: Path | None, texts: list[bytes], labels: np.ndarray) -> list[dict[str, Any]]:
    """A row with no windows, one of the network's length, and one of each of SIZES that is less."""
    rows: list[dict[str, Any]] = []
    offsets, length = pack(texts)[1], Classifier.load(model, device="cpu").config.length
    given: list[bool | int] = [False, True, *(size for size in SIZES if size < length)]
    for windows in given:
        classifier = Classifier.load(model, device="cpu", windows=windows)
        size, computed = classifier.windows, len(texts)
        if size is not None:
            computed += int((TextWindows(offsets, size, None).counts - 1).sum())
        classifier.predict(texts[:2])
        begun = time.perf_counter()
        said = classifier.predict_proba(texts).argmax(axis=1)
        seconds = time.perf_counter() - begun
        right = int((said == labels).sum())
        low, high = interval(right, len(texts))
        row = {
            "window": size,
            "computed": computed,
            "texts": len(texts),
            "right": right,
            "accuracy": right / len(texts),
        }
        rows.append({**row, "interval": [low, high], "seconds": seconds})
        name = "none" if size is None else f"{size:,} bytes"
        print(
            f"windows {name:12} {computed:6,} computed, right {right / len(texts):.1%} "
            f"(95 %: {low:.1%} to {high:.1%}), {seconds:.1f} s"
        )
    return rows


def main(argv: Sequence[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=HelpFormatter)
    parser.add_argument(
        "--data", type=Path, metavar="FILE", help="CSV with labels (default: $CHARCNN_AG_NEWS/test.csv)"
    )
    parser.add_argument("--model", default="accurate", metavar="MODEL", help="default: accurate, which ships")
    parser.add_argument("--joined", type=int, default=8, metavar="N", help="rows per text (default 8)")
    parser.add_argument("--json", metavar="FILE", help="also write what is printed")
    options = parser.parse_args(argv)
    folder = os.environ.get("CHARCNN_AG_NEWS")
    if options.data is None and folder is None:
        parser.error("--data is missing: need a file, or its folder in CHARCNN_AG_NEWS")
    file = options.data or Path(str(folder)) / "test.csv"
    try:
        data = read_texts(file, Classifier.load(options.model, device="cpu").encoding)
    except (OSError, ValueError) as error:
        parser.error(f"--data {file}: {error}")
    if data.labels is None:
        parser.error(f"--data {file}: its rows have no labels")
    texts, labels = joined(data, options.joined)
    if not texts:
        parser.error(f"--data {file}: no class has {options.joined} rows")
    sizes = [len(text) for text in texts]
    print(f"{len(texts):,} texts of {options.joined} rows, {min(sizes):,} to {max(sizes):,} bytes")
    rows = measure(options.model, texts, labels)
    if options.json is not None:
        about = {"data": file.name, "joined": options.joined, "bytes": [min(sizes), max(sizes)], "windows": rows}
        raw.write(options.json, "long_texts", {**about, "machine": machine.describe(), "commit": machine.commit()})
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
