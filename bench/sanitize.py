"""Run every CUDA variant, and what levels have beside them, under NVIDIA's compute-sanitizer, and keep what it found.

`python bench/sanitize.py` needs a GPU and compute-sanitizer on the PATH; writes results/MACHINE-sanitizer.json. The
tests run without the tools first; then under both at once, each on a GPU of its own where there are two.
Exit status: 0 clean, 1 it found something or a test failed, 2 it cannot run here.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from charcnn import catalog, files, machine

ROOT = Path(__file__).parent.parent
TOOLS = ("memcheck", "racecheck")
FILES = [f"tests/test_{name}.py" for name in ("ops", "wgmma", "spread", "one_hot_conv1d_half")]
SMALL_ONES = (
    "test_edges or test_wgmma or (test_spread and not graph and not level_16) or where_they_write or narrow_and_widen"
)
"""Of those that have no variant of their own, what such a slow run has time for."""
TESTS = (*FILES, "-k", SMALL_ONES)
# Errors that CUDA calls return are Python exceptions here, and cuda-bindings asks for entry points that a driver lacks.
OPTIONS = ("--report-api-errors", "no", "--error-exitcode", "99")
ONE_THREAD = {f"{library}_NUM_THREADS": "1" for library in ("OMP", "OPENBLAS", "MKL", "NUMBA")}
"""For references on the CPU: there are as many processes as cores."""


def run(tool: str | None, workers: int, gpu: int) -> tuple[subprocess.CompletedProcess[str], str]:
    """The tests under the tool, or without one; and what it reported."""
    with tempfile.TemporaryDirectory() as logs:
        command = [sys.executable, "-m", "pytest", "-q", "--tb=line", "-p", "no:cacheprovider", *TESTS]
        command += ["-n", str(workers), "--dist", "load"]
        if tool:
            under = ["compute-sanitizer", "--tool", tool, *OPTIONS, "--target-processes", "all"]
            command = [*under, "--log-file", f"{logs}/%p.txt", *command]
        done = subprocess.run(
            command, cwd=ROOT, env={**os.environ, **ONE_THREAD, "CUDA_VISIBLE_DEVICES": str(gpu)},
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        return done, "\n".join(path.read_text(encoding="utf-8", errors="replace") for path in Path(logs).iterdir())


def check(tool: str, workers: int, gpu: int) -> dict[str, object]:
    """What the tool says of the tests: its summaries, how many tests ran, and whether all is well."""
    done, report = run(tool, workers, gpu)
    summaries = Counter(re.findall(r"[A-Z]+ SUMMARY: .*", report))  # a line a process that used the GPU
    passed = re.search(r"(\d+) passed", done.stdout)
    found = sum(int(re.search(r"\d+", line).group()) * times for line, times in summaries.items())
    clean = done.returncode == 0 and found == 0 and summaries.total() >= workers and passed is not None
    if not clean:
        print(f"{tool}:\n{done.stdout[-2000:]}{report[-4000:]}", file=sys.stderr)
    return {
        "summary": "; ".join(summaries) or "none",
        "found": found,
        "processes": summaries.total(),
        "tests": int(passed.group(1)) if passed else 0,
        "clean": clean,
    }


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results-dir", type=Path, default=ROOT / "bench" / "results", metavar="DIR")
    parser.add_argument("--workers", type=int, metavar="N", help="processes a tool (default: half the cores)")
    options = parser.parse_args()
    here = machine.describe()
    if not here["gpus"] or shutil.which("compute-sanitizer") is None:
        print("sanitize: needs a GPU, and compute-sanitizer on the PATH", file=sys.stderr)
        return 2
    workers = max(1, options.workers or here["cores"] // len(TOOLS))
    done, _ = run(None, max(workers, here["cores"]), 0)  # fills the cache of compiled code, once for both tools
    if done.returncode:
        print(f"without a tool:\n{done.stdout[-4000:]}{done.stderr[-2000:]}", file=sys.stderr)
        return 1
    with ThreadPoolExecutor(len(TOOLS)) as pool:
        each = pool.map(lambda tool: check(tool, workers, TOOLS.index(tool) % len(here["gpus"])), TOOLS)
        found_by = dict(zip(TOOLS, each, strict=True))
    result = {
        "tests": " ".join(TESTS),
        "variants": [row.name for row in catalog.VARIANTS if row.device == "cuda"],
        "tools": found_by,
        "machine": here,
        "commit": machine.commit(),
    }
    with files.replacing(options.results_dir / f"{machine.name(here)}-sanitizer.json", "w") as file:
        json.dump(result, file, indent=1)
        file.write("\n")
    for tool, found in found_by.items():
        print(f"{tool}: {found['summary']} ({found['tests']} tests)")
    return 0 if all(found["clean"] for found in found_by.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
