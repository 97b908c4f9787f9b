"""Measure what each precision does to a trained network's labels: agreement with fp32, and accuracy, on real texts.

    python bench/precisions.py --data test.csv

It classifies labelled rows with the shipped model, in each precision by the fastest level that has it here. If all
precisions ran it writes results/MACHINE-precisions.json; it lists those left out.

Exit status: 0 measured, 2 unusable machine.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import cases
import raw

from charcnn import catalog
from charcnn.classify import engine
from charcnn.gpu.device import DeviceError
from charcnn.host import machine
from charcnn.host.arguments import HelpFormatter
from charcnn.model import params, validation
from charcnn.model.shipped import FILES
from charcnn.text import encodings
from charcnn.text.texts import Texts, read_texts

WEIGHTS = raw.RESULTS.parents[1] / "charcnn" / "model" / "weights"

CHECKED = 32
"""Rows whose logits are held against the float64 reference."""


def measure(model: params.Params, data: Texts, device: str) -> tuple[list[dict[str, Any]], list[dict[str, str]]]:
    """A row for each precision that a level has here, fp32 first; and what is left out, with the reason."""
    assert data.labels is not None
    ids = encodings.encode(data.texts, model.encoding or "crepe", model.config.length)
    rows: list[dict[str, Any]] = []
    left_out, labels = [], None
    for precision in catalog.PRECISIONS:
        if not any(row.device == device and precision in row.precisions for row in catalog.LEVELS):
            continue  # of the other device
        try:
            computing = engine.Engine(model, device=device, precision=precision)
        except (ValueError, DeviceError) as error:
            left_out.append({"precision": precision, "reason": str(error)})
            continue
        logits = computing.logits(ids)
        computing.close()
        rounding = computing.choice.level.rounding(precision)
        expected, sigma = validation.expected(ids[:CHECKED], model, model.config, rounding)
        said = logits.argmax(1)
        labels = said if labels is None else labels
        rows.append(
            {
                "precision": precision,
                "level": computing.choice.level.name,
                "rows": len(ids),
                "agreement": float((said == labels).mean()),
                "accuracy": float((said == data.labels).mean()),
                "error": cases.error(logits[:CHECKED], expected),
                "sigmas": float(validation.in_sigmas(logits[:CHECKED], expected, sigma).max()),
                "bound": rounding.bound,
            }
        )
        print(
            "{precision:8} {level:4} agrees {agreement:.2%}, right {accuracy:.2%}, error {error:.1e}, "
            "{sigmas:.2g} sigma of {bound:g}".format(**rows[-1])
        )
    return rows, left_out


def main(argv: Sequence[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=HelpFormatter)
    parser.add_argument(
        "--data", type=Path, metavar="FILE", help="CSV with labels (default: $CHARCNN_AG_NEWS/test.csv)"
    )
    parser.add_argument("--device", choices=engine.DEVICES, help="default: cuda if a GPU is usable, else cpu")
    parser.add_argument("--results-dir", type=Path, metavar="DIR", help="default: bench/results, for all precisions")
    options = parser.parse_args(argv)
    folder = os.environ.get("CHARCNN_AG_NEWS")
    if options.data is None and folder is None:
        parser.error("--data is missing: need a file, or its folder in CHARCNN_AG_NEWS")
    file = options.data or Path(str(folder)) / "test.csv"
    model = params.load(WEIGHTS / FILES["accurate"])
    try:
        data = read_texts(file, model.encoding or "crepe")
    except (OSError, ValueError) as error:
        parser.error(f"--data {file}: {error}")
    if data.labels is None:
        parser.error(f"--data {file}: its rows have no labels")
    rows, left_out = measure(model, data, options.device or engine.default_device()[0])
    for out in left_out:
        print("{precision:8} left out: {reason}".format(**out))
    if not rows:
        return 2
    here = machine.describe()
    kept = options.results_dir or (None if left_out else raw.RESULTS)
    if kept is not None:
        kept.mkdir(parents=True, exist_ok=True)
        result = {"precisions": rows, "left_out": left_out, "data": file.name, "model": FILES["accurate"]}
        result |= {"machine": here, "commit": machine.commit()}
        raw.write(kept / f"{machine.name(here)}-precisions.json", "precisions", result)
    return 0


if __name__ == "__main__":
    sys.exit(main())
