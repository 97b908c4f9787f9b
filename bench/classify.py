"""Time `charcnn classify` from file to labelled file, relative to the level's own rate; and start to first label, and
memory.

    python bench/classify.py --rows 5000000
    python bench/classify.py --rows 5000000 --files-alone
    python bench/classify.py --rows 5000000 --format parquet

The file repeats the rows of --text, with one letter in twenty replaced. The level is timed on the same texts, encoded
beforehand, in its own process, before and after the command.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import raw

from charcnn.host import machine
from charcnn.host.arguments import HelpFormatter
from charcnn.text import encodings

MAIN = "import sys\nfrom charcnn.__main__ import main\nsys.exit(main(sys.argv[1:]))"

NO_NETWORK = """
import numpy as np
from charcnn.classify.engine import Engine
Engine.logits = lambda self, ids: np.zeros((len(ids), self.config.classes), np.float32)
"""

LEVEL = """
import json, sys, time
from charcnn.classify.classifier import Classifier
from charcnn.text.texts import read_texts
model, source, seconds, options = sys.argv[1], sys.argv[2], float(sys.argv[3]), json.loads(sys.argv[4])
classifier = Classifier.load(model, **options)
texts = read_texts(source, classifier.encoding).texts
ids = classifier.encode([texts[n % len(texts)] for n in range(4 * classifier.rows)])
classifier.engine.logits(ids[: classifier.rows])
rows, started = 0, time.perf_counter()
while time.perf_counter() - started < seconds:
    classifier.engine.logits(ids)
    rows += len(ids)
print(json.dumps(rows / (time.perf_counter() - started)))
"""


def make(source: Path, target: Path, rows: int) -> None:
    """Write so many rows: those of the source again and again, each time other letters replaced."""
    lines = source.read_bytes().splitlines(keepends=True)
    times = max(1, 20_000 // len(lines))
    part = np.frombuffer(b"".join(lines * times), np.uint8)
    small = (part >= ord("a")) & (part <= ord("z"))
    rng, each = np.random.default_rng(0), times * len(lines)
    with open(target, "wb") as file:
        for _ in range(rows // each):
            new = np.where(small & (rng.random(part.size, np.float32) < 0.05), 0, part)
            letters = rng.integers(ord("a"), ord("z") + 1, part.size, np.uint8)
            file.write(np.where(new == 0, letters, new).data)
        file.writelines((lines * times)[: rows % each])


def convert(source: Path, target: Path) -> None:
    """Write a CSV file's rows as Parquet or JSON Lines."""
    from pyarrow import csv, parquet

    names = ["class", "title", "description"]
    read = csv.ReadOptions(column_names=names, block_size=1 << 25)
    with csv.open_csv(source, read, csv.ParseOptions(newlines_in_values=True)) as batches:
        if target.suffix == ".parquet":
            with parquet.ParquetWriter(target, batches.schema) as file:
                for batch in batches:
                    file.write_batch(batch)
            return
        with open(target, "w", encoding="utf-8") as lines:
            for batch in batches:
                rows = zip(*(batch[name].to_pylist() for name in names), strict=True)
                lines.writelines(json.dumps(dict(zip(names, row, strict=True))) + "\n" for row in rows)


def rows_of(file: Path) -> int:
    """Of a labelled file."""
    if file.suffix == ".parquet":
        from pyarrow import parquet

        return int(parquet.read_metadata(file).num_rows)
    with open(file, "rb") as lines:
        return sum(1 for _ in lines)


def command(code: str, *words: object, **options: Any) -> subprocess.CompletedProcess[bytes]:
    """Run Python on this code."""
    here = str(Path(__file__).resolve().parent.parent)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([here, os.environ.get("PYTHONPATH", "")])}
    done = subprocess.run(
        [sys.executable, "-c", code, *map(str, words)], env=environment, capture_output=True, check=False, **options
    )
    if done.returncode not in (0, 3):
        raise SystemExit(done.stderr.decode(errors="replace"))
    return done


def main() -> None:
    """Measure, and write the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=HelpFormatter)
    add = parser.add_argument
    add("--rows", type=int, default=10_000, metavar="N", help="rows of the file (default 10,000)")
    add(
        "--text",
        metavar="CSV",
        type=Path,
        default=Path(encodings.__file__).parent / "sample.csv",
        help="rows to repeat (default: the shipped sample)",
    )
    add("--model", default="accurate", metavar="MODEL", help="of a file, or that ships (default: accurate)")
    add("--file", metavar="FILE", type=Path, help="write the file here unless it exists, and keep it")
    add("--format", choices=("csv", "jsonl", "parquet"), default="csv", help="default csv")
    add("--device", choices=("cpu", "cuda"), help="default: the command's")
    add("--precision", metavar="P", help="default: the command's")
    add("--encode-on", choices=("cpu", "gpu"), help="default: the command's")
    add(
        "--seconds",
        type=float,
        default=10.0,
        metavar="S",
        help="to time the level, before and after (default 10; 0: no)",
    )
    add("--starts", type=int, default=4, metavar="N", help="starts to time; the first compiles (default 4)")
    add("--files-alone", action="store_true", help="run no network: only read, encode and write")
    add(
        "--results-dir",
        metavar="DIR",
        type=Path,
        help=f"for MACHINE-classify-PRECISION[-FORMAT][-encoded-on-WHERE].json (default {raw.RESULTS.name}/)",
    )
    options = parser.parse_args()
    results = options.results_dir or raw.RESULTS
    if not results.is_dir():
        parser.error(f"--results-dir {results}: no such folder")
    with tempfile.TemporaryDirectory() as folder:
        result = measure(options, Path(folder))
    print(json.dumps(result, indent=1))
    said = result["command"]
    kind = "files-alone" if options.files_alone else said["precision"]
    if options.format != "csv":
        kind += f"-{options.format}"
    if options.encode_on is not None and not options.files_alone:
        kind += f"-encoded-on-{options.encode_on}"
    target = results / f"{machine.name(result['machine'])}-classify-{kind}.json"
    raw.write(target, "classify", result)


def measure(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """The raw result."""
    source, report = options.file or folder / f"in.{options.format}", folder / "report.json"
    if not source.exists():
        rows = source if options.format == "csv" else folder / "rows.csv"
        make(options.text, rows, options.rows)
        if rows != source:
            convert(rows, source)
    target = folder / f"out.{options.format}"
    if options.files_alone:
        options.encode_on = "cpu"  # else nothing encodes
    chosen = {"device": options.device, "precision": options.precision}
    words = []
    for name in ("model", "device", "precision", "encode_on"):
        if getattr(options, name) is not None:
            words += [f"--{name.replace('_', '-')}", getattr(options, name)]
    rates, starts = [], []

    def level() -> None:
        if options.seconds and not options.files_alone:
            done = command(LEVEL, options.model or "", options.text, options.seconds, json.dumps(chosen))
            rates.append(json.loads(done.stdout))

    for _ in range(0 if options.files_alone else options.starts):  # the first compiles
        started = time.perf_counter()
        command(MAIN, "classify", "-", *words, input=b"Stocks fell on Monday as oil rose.\n")
        starts.append(time.perf_counter() - started)
    level()
    started = time.perf_counter()
    code = (NO_NETWORK if options.files_alone else "") + MAIN
    command(code, "classify", source, "-o", target, "--json", report, "--quiet", *words)
    seconds = time.perf_counter() - started
    level()
    if (labelled := rows_of(target)) != options.rows:
        raise SystemExit(f"the output has {labelled} rows: need {options.rows}")
    return {
        "rows": options.rows,
        "input_bytes": source.stat().st_size,
        "text": options.text.name,
        "format": options.format,
        "files_alone": options.files_alone,
        "seconds_with_start": seconds,
        "command": json.loads(report.read_text()),
        "level_rows_per_second": statistics.mean(rates) if rates else None,
        "first_label_seconds": {"first": starts[0], "later": starts[1:]} if starts else None,
        "machine": machine.describe(),
        "commit": machine.commit(),
    }


if __name__ == "__main__":
    main()
