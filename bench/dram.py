"""Count the DRAM bytes per input of the levels on the GPU by Nsight Compute, and compare them with the prediction.

The prediction is what the launchers are handed: each array written once and read once by the kernel that takes it. A
kernel that reads its input again, as LayerNorm does, moves more; hits in the L2 cache save some. It needs a GPU and ncu
on the PATH, and writes results/MACHINE-dram.json.

Exit status: 0 measured, 1 a level or ncu failed, 2 unusable machine.
"""

from __future__ import annotations

import argparse
import csv
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import raw

from charcnn import catalog
from charcnn.config import SMALL
from charcnn.gpu.launch import Call
from charcnn.host import machine
from charcnn.host.arguments import HelpFormatter
from charcnn.model import params, validation

ROOT = Path(__file__).parent.parent
LEVELS = ("l8", "l9", "l10")
BATCH = 256
COUNTERS = ("dram__bytes_read.sum", "dram__bytes_write.sum")


def profiled(level: str, inputs: int) -> None:
    """Run the level under ncu, which started this process: check, warm up, then count. Prints the prediction."""
    from numba import cuda

    predicted = 0
    made = Call.__init__

    def counting(call: Call, out: Any, stream: Any, shape: Any, dtype: Any = np.float32, **inputs: Any) -> None:
        nonlocal predicted
        made(call, out, stream, shape, dtype, **inputs)
        predicted += sum(array.nbytes for array in call.inputs) + call.out.nbytes

    weights = params.init(SMALL, seed=0)
    ids = np.random.default_rng(0).integers(0, SMALL.alphabet + 1, (inputs, SMALL.length), np.uint8)
    run = catalog.level(level).module.build(weights, SMALL, batch=BATCH, streams=1, gpus=1)
    logits = run(ids)
    rounding = catalog.level(level).rounding()
    error = validation.in_sigmas(logits[:2], *validation.expected(ids[:2], weights, SMALL, rounding)).max()
    if not error <= rounding.bound:
        raise SystemExit(f"{level} is wrong: an error of {error:.2g} sigma of rounding, {rounding.bound:g} allowed")
    Call.__init__ = counting  # type: ignore[method-assign]
    with cuda.profiling():
        run(ids)
    print(json.dumps({"predicted": predicted / inputs}))


def counted(level: str, inputs: int) -> dict[str, Any]:
    """Bytes an input that crossed DRAM: {read, written, kernels, predicted}."""
    found, said = under_ncu([__file__, "--run", level, "--inputs", str(inputs)], level, inputs)
    return found | json.loads(next(line for line in said.splitlines() if line.startswith("{")))


def under_ncu(words: Sequence[str], name: str, inputs: int) -> tuple[dict[str, Any], str]:
    """Bytes an input that crossed DRAM while this Python program ran, {read, written, kernels}, and what it printed.

    Raises:
        SystemExit: it failed, or ncu did; says what they wrote.
    """
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "ncu.csv"
        done = subprocess.run(
            [
                "ncu", "--clock-control", "none", "--cache-control", "none", "--profile-from-start", "off",
                "--metrics", ",".join(COUNTERS), "--page", "raw", "--csv", "--print-units", "base", "--log-file", log,
                sys.executable, *words,
            ],
            cwd=ROOT, capture_output=True, text=True, check=False,
        )  # fmt: skip
        lines = log.read_text(encoding="utf-8").splitlines() if log.exists() else []
    rows = list(csv.DictReader(line for line in lines if line.startswith('"')))[1:]  # the first holds the units
    if done.returncode != 0 or not rows:
        raise SystemExit(f"{name}: ncu failed\n{done.stdout[-1000:]}{done.stderr[-2000:]}{lines[-5:]}")
    read, written = (sum(float(row[counter].replace(",", "")) for row in rows) / inputs for counter in COUNTERS)
    return {"read": read, "written": written, "kernels": len(rows)}, done.stdout


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=HelpFormatter)
    parser.add_argument(
        "--results-dir", type=Path, default=ROOT / "bench" / "results", metavar="DIR", help="default: bench/results"
    )
    parser.add_argument("--inputs", type=int, default=2 * BATCH, metavar="N", help=f"default {2 * BATCH}")
    parser.add_argument("--run", metavar="LEVEL", help=argparse.SUPPRESS)  # what ncu starts
    options = parser.parse_args()
    if options.run is not None:
        profiled(options.run, options.inputs)
        return 0
    here = machine.describe()
    if not here["gpus"] or shutil.which("ncu") is None:
        print("dram: needs a GPU, and ncu on the PATH", file=sys.stderr)
        return 2
    result = {
        "dram": {level: counted(level, options.inputs) for level in LEVELS},
        "inputs": options.inputs,
        "batch": BATCH,
        "counters": COUNTERS,
        "machine": here,
        "commit": machine.commit(),
    }
    raw.write(options.results_dir / f"{machine.name(here)}-dram.json", "dram", result)
    for level, found in result["dram"].items():
        total = found["read"] + found["written"]
        print(f"{level}: {total:,.0f} bytes an input, {found['predicted']:,.0f} predicted, {found['kernels']} kernels")
    return 0


if __name__ == "__main__":
    sys.exit(main())
