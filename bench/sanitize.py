"""Run every CUDA variant, and the levels' other kernels, under NVIDIA's compute-sanitizer.

It needs a GPU and compute-sanitizer on the PATH, and writes results/MACHINE-sanitizer.json. Both tools run at once,
each on its own GPU if there are two, in several processes of some tests each. MACHINE-sanitizer.part keeps what is done
and clean: a second start resumes from it, unless the sources changed. What a tool finds is reported, and then nothing
is published.

Exit status: 0 clean, 1 a tool found something or a test failed, 2 unusable machine, 3 --seconds ended first.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from pathlib import Path
from threading import Lock
from typing import TypedDict

import raw

from charcnn import catalog, files
from charcnn.host import machine
from charcnn.host.arguments import HelpFormatter

ROOT = Path(__file__).parent.parent
TOOLS = ("memcheck", "racecheck")
ABOUT = (
    "ops", "wgmma", "small_batch", "small_batch_block_1", "small_batch_conv2d", "split_k", "token_conv1d_weights",
    "cluster_moments", "few_outputs", "layernorm_precisions",
)  # fmt: skip
FILES = [f"tests/test_{name}.py" for name in ABOUT]
SMALL_ONES = (
    "test_edges or test_wgmma or test_layernorm_precisions or (test_small_batch and not graph and not level_16) "
    "or where_they_write or narrow_and_widen or depth_is_split"
)
"""Of those that have no variant of their own, what such a slow run has time for."""
TESTS = (*FILES, "-k", SMALL_ONES)
# Errors that CUDA calls return are Python exceptions here, and cuda-bindings asks for entry points that a driver lacks.
OPTIONS = ("--report-api-errors", "no", "--error-exitcode", "99")
ONE_THREAD = {f"{library}_NUM_THREADS": "1" for library in ("OMP", "OPENBLAS", "MKL", "NUMBA")}
"""For references on the CPU: there are as many processes as cores."""


PART = 24
"""Tests of a process: what a start that is stopped loses at most of each."""


class Said(TypedDict):
    """Of some tests under a tool: its summaries, a line a process that used the GPU, and how many passed."""

    summary: str
    processes: int
    tests: int


class Found(Exception):
    """What a tool found, as text."""


def collect() -> list[str]:
    """The tests' names."""
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "--all", "-p", "no:cacheprovider", *TESTS]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"sanitize: pytest cannot collect the tests:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return [line for line in done.stdout.splitlines() if "::" in line]


def digest(tests: Sequence[str]) -> str:
    """Of the tests' names, and of all that they run."""
    found, package = sha256("\n".join(tests).encode()), ROOT / "charcnn"
    sources = [*package.rglob("*.py"), *package.rglob("*.json"), *(ROOT / "tests").glob("*.py"), Path(__file__)]
    for path in sorted(sources):
        found.update(path.read_bytes())
    return found.hexdigest()


def check(tool: str, tests: Sequence[str], gpu: int) -> Said:
    """What the tool says of these tests, in a process of their own: its summaries, and how many passed.

    Not by pytest's own workers: under memcheck they were seen to begin no test in minutes, and under racecheck to leave
    one summary for all of them.

    Raises:
        Found: it found something, a test failed, or tests ran and no process left a summary.
    """
    with tempfile.TemporaryDirectory() as logs:
        command = ["compute-sanitizer", "--tool", tool, *OPTIONS, "--target-processes", "all"]
        command += ["--log-file", f"{logs}/%p.txt", sys.executable, "-m", "pytest", "-q", "--tb=line"]
        command += ["-p", "no:cacheprovider", *tests]
        done = subprocess.run(
            command, cwd=ROOT, env={**os.environ, **ONE_THREAD, "CUDA_VISIBLE_DEVICES": str(gpu)},
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        report = "\n".join(path.read_text(encoding="utf-8", errors="replace") for path in Path(logs).iterdir())
    summaries = Counter(re.findall(r"[A-Z]+ SUMMARY: .*", report))  # a line a process that used the GPU
    passed = int((re.search(r"(\d+) passed", done.stdout) or ["", "0"])[1])  # none where all need another GPU
    found = sum(int(re.findall(r"\d+", line)[0]) * times for line, times in summaries.items())
    if done.returncode or found or (passed and not summaries):
        raise Found(f"{tool}:\n{done.stdout[-2000:]}{done.stderr[-1000:]}{report[-4000:]}")
    return {"summary": "; ".join(summaries), "processes": summaries.total(), "tests": passed}


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=HelpFormatter)
    parser.add_argument(
        "--results-dir", type=Path, default=ROOT / "bench" / "results", metavar="DIR", help="default: bench/results"
    )
    parser.add_argument("--workers", type=int, metavar="N", help="processes per tool (default: half the cores)")
    parser.add_argument("--seconds", type=float, default=math.inf, metavar="S", help="start no test later than this")
    options = parser.parse_args()
    here, began = machine.describe(), time.monotonic()
    if not here["gpus"] or shutil.which("compute-sanitizer") is None:
        print("sanitize: needs a GPU, and compute-sanitizer on the PATH", file=sys.stderr)
        return 2
    workers = max(1, options.workers or here["cores"] // len(TOOLS))
    tests = collect()
    sources = digest(tests)
    parts = [tests[start : start + PART] for start in range(0, len(tests), PART)]
    kept = options.results_dir / f"{machine.name(here)}-sanitizer.part"
    done: dict[str, dict[str, Said]] = {tool: {} for tool in TOOLS}
    if kept.exists():
        before = json.loads(kept.read_text(encoding="utf-8"))
        done = before["done"] if before["sources"] == sources else done
    found: list[str] = []
    lock = Lock()

    def through(tool: str, i: int) -> None:
        if str(i) in done[tool] or time.monotonic() - began > options.seconds:
            return
        try:
            said = check(tool, parts[i], TOOLS.index(tool) % len(here["gpus"]))
        except Found as what:
            found.append(str(what))
            print(what, file=sys.stderr)
            return
        with lock:
            done[tool][str(i)] = said
            with files.replacing(kept, "w") as file:
                json.dump({"sources": sources, "done": done}, file)
        print(f"{tool}: {len(done[tool])} of {len(parts)} parts, {time.monotonic() - began:.0f} s", flush=True)

    with ThreadPoolExecutor(workers) as first, ThreadPoolExecutor(workers) as second:
        # The second tool goes from the other end: what one has compiled the other one finds.
        jobs = [first.submit(through, TOOLS[0], i) for i in range(len(parts))]
        jobs += [second.submit(through, TOOLS[1], i) for i in reversed(range(len(parts)))]
    for job in jobs:
        job.result()
    if found:
        return 1
    if any(len(done[tool]) < len(parts) for tool in TOOLS):
        print("sanitize: --seconds are over; a second start goes on", file=sys.stderr)
        return 3
    tools = {tool: summed(done[tool].values()) for tool in TOOLS}
    result = {
        "tests": " ".join(TESTS),
        "variants": [row.name for row in catalog.VARIANTS if row.device == "cuda"],
        "tools": tools,
        "machine": here,
        "commit": machine.commit(),
    }
    raw.write(options.results_dir / f"{machine.name(here)}-sanitizer.json", "sanitizer", result)
    kept.unlink()
    for tool, said in tools.items():
        print(f"{tool}: {said['summary']} ({said['tests']} tests)")
    return 0


def summed(parts: Collection[Said]) -> dict[str, object]:
    """Of all parts of a tool."""
    return {
        "summary": "; ".join(dict.fromkeys(part["summary"] for part in parts if part["summary"])),
        "processes": sum(part["processes"] for part in parts),
        "tests": sum(part["tests"] for part in parts),
    }


if __name__ == "__main__":
    sys.exit(main())
