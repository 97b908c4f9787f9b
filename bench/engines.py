"""Time the programs of docs/engines.md and `charcnn classify` on the same rows, and compare their labels.

    python bench/engines.py --rows 100000 --json bench/results/designs/cpu-2-cores-engines.json
    python bench/engines.py --rows 1000000 --small --only classify ray

The rows repeat the sample texts, with one letter in twenty replaced, in four folders. Each run is timed from the start
of its process to its end. With --small the network costs almost nothing, so that the engine's own cost is left.
"""

from __future__ import annotations

import argparse
import csv
import json
import operator
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from importlib import metadata
from pathlib import Path
from typing import Any

import classify
import raw

from charcnn.classify.classifier import Classifier
from charcnn.config import TINY
from charcnn.host import machine
from charcnn.host.arguments import HelpFormatter
from charcnn.model import params
from charcnn.text import encodings

PAGE = raw.RESULTS.parent.parent / "docs" / "engines.md"
PROGRAM = re.compile(r"^```python\n(# label_(\w+)\.py\n.*?)^```$", re.DOTALL | re.MULTILINE)
FOLDERS = 4
WORKERS = 2
PACKAGES = ("ray", "dask", "distributed", "pyspark", "pandas", "pyarrow")


SHIPPED = ["accurate"]
"""The network where no small one is asked for, as a command and the programs take it."""


def programs() -> dict[str, str]:
    """The page's programs, by what they run on."""
    return {name: code for code, name in PROGRAM.findall(PAGE.read_text(encoding="utf-8"))}


def make(folder: Path, rows: int, again: Path) -> None:
    """A dataset of so many rows, with the columns id and text, in folders of a day each."""
    import pyarrow
    from pyarrow import parquet

    classify.make(Path(encodings.__file__).parent / "sample.csv", again, rows)
    with open(again, newline="", encoding="utf-8") as file:
        texts = [" ".join(fields[1:]) for fields in csv.reader(file)]
    for n in range(FOLDERS):
        part = range(n * rows // FOLDERS, (n + 1) * rows // FOLDERS)
        table = pyarrow.table({"id": pyarrow.array(part, pyarrow.int64()), "text": texts[part.start : part.stop]})
        (folder / f"day=2026-01-{n + 1:02}").mkdir(parents=True)
        parquet.write_table(table, folder / f"day=2026-01-{n + 1:02}" / "part-0.parquet", row_group_size=32768)


def labels(folder: Path) -> Any:
    """All rows below, in order: columns id, label, probability and day."""
    from pyarrow import dataset

    rows = dataset.dataset(folder, partitioning="hive", format="parquet", exclude_invalid_files=False).to_table()
    return rows.select(["id", "label", "probability", "day"]).sort_by("id")


def difference(rows: Any, other: Any) -> tuple[int, float]:
    """Labels that differ, and the largest difference of a probability.

    Raises:
        SystemExit: a row is lost, twice, or in another folder.
    """
    if any(rows[name].to_pylist() != other[name].to_pylist() for name in ("id", "day")):
        raise SystemExit("rows are lost, twice, or in another folder")
    differ = sum(a != b for a, b in zip(rows["label"].to_pylist(), other["label"].to_pylist(), strict=True))
    return differ, float(abs(rows["probability"].to_numpy() - other["probability"].to_numpy()).max())


def command(name: str, folder: Path, model: list[str]) -> tuple[list[str], dict[str, str]]:
    """What runs it on the dataset `in` to `out`, and the environment beside."""
    words = ["in", "out"]
    if name in ("classify", "mpiexec"):
        words = ["-m", "charcnn", "classify", "in", "-o", "out", "--quiet", *(["--model", *model] if model else [])]
        alone = [sys.executable, *words]
        return (alone, {}) if name == "classify" else (["mpiexec", "-n", str(WORKERS), *alone], {})
    (folder / f"label_{name}.py").write_text(programs()[name], encoding="utf-8")
    return [sys.executable, f"label_{name}.py", *words, *model], {"NUMBA_NUM_THREADS": "1"}


def measure(name: str, folder: Path, count: int, model: list[str]) -> tuple[dict[str, Any], Any]:
    """The run of one of them, and its rows."""
    words, environment = command(name, folder, model)
    started = time.perf_counter()
    done = subprocess.run(words, cwd=folder, env=os.environ | environment, capture_output=True, check=False)
    seconds = time.perf_counter() - started
    if done.returncode:
        raise SystemExit(done.stderr.decode(errors="replace"))
    rows = labels(folder / "out")
    shutil.rmtree(folder / "out")
    run = {
        "engine": name,
        "network": "as shipped" if model == SHIPPED else "TINY",
        "level": str(Classifier.load(*model).engine.choice),
        "rows": count,
        "seconds": seconds,
        "rows_per_second": count / seconds,
        "machine": machine.describe(),
        "commit": machine.commit(),
    }
    return run, rows


def write(file: Path, runs: list[dict[str, Any]]) -> None:
    """Add runs to a result. Of those with one engine, network and number of rows the fastest stays, and all times."""
    given = json.loads(file.read_text(encoding="utf-8"))["runs"] if file.exists() else []
    best: dict[tuple[Any, ...], dict[str, Any]] = {}
    for run in given + runs:
        key = run["engine"], run["network"], run["rows"]
        others = best.get(key, run)
        times = others["seconds_of_runs"] if key in best else []
        times = times + run.get("seconds_of_runs", [run["seconds"]])
        best[key] = {**min(others, run, key=operator.itemgetter("seconds")), "seconds_of_runs": times}
    versions = {name: metadata.version(name) for name in PACKAGES}
    raw.write(file, "engines", {"workers": WORKERS, "versions": versions, "runs": list(best.values())})


def main() -> None:
    """Measure, and write the result."""
    names = ["classify", "mpiexec", *programs()]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=HelpFormatter)
    parser.add_argument("--rows", type=int, default=100_000, metavar="N", help="default 100,000")
    parser.add_argument(
        "--small", action="store_true", help="a tiny network of random weights, which costs almost nothing"
    )
    only = f"{', '.join(names)} (default: all)"
    parser.add_argument("--only", nargs="+", choices=names, default=names, metavar="NAME", help=only)
    parser.add_argument("--json", type=Path, metavar="FILE", help="add the result to this file's runs")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as root:
        folder = Path(root)
        make(folder / "in", options.rows, folder / "rows.csv")
        model = SHIPPED
        if options.small:
            model = [str(folder / "small.safetensors")]
            params.save(model[0], params.init(TINY, 3), TINY, encoding="crepe", classes=encodings.CLASSES)
        runs: list[dict[str, Any]] = []
        first = None
        for name in options.only:
            run, rows = measure(name, folder, options.rows, model)
            first = rows if first is None else first
            run["labels_that_differ"], run["largest_difference"] = difference(rows, first)
            runs.append(run)
            print(json.dumps(run), flush=True)
    if options.json:
        write(options.json, runs)


if __name__ == "__main__":
    main()
