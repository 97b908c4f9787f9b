"""Run every CUDA variant on its edge cases under NVIDIA's compute-sanitizer, and keep what it found.

`python bench/sanitize.py` needs a GPU and compute-sanitizer on the PATH; writes results/MACHINE-sanitizer.json.
Exit status: 0 clean, 1 it found something or a test failed, 2 it cannot run here.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from charcnn import catalog, files, machine

ROOT = Path(__file__).parent.parent
TOOLS = ("memcheck", "racecheck")
TESTS = ("tests/test_ops.py", "-k", "test_edges")
# Errors that CUDA calls return are Python exceptions here, and cuda-bindings asks for entry points that a driver lacks.
OPTIONS = ("--report-api-errors", "no", "--error-exitcode", "99")


def check(tool: str) -> dict[str, object]:
    """What the tool says of the tests: its summary line, how many tests ran, and whether all is well."""
    with tempfile.NamedTemporaryFile("r", suffix=".txt") as log:
        command = ["compute-sanitizer", "--tool", tool, *OPTIONS, "--log-file", log.name]
        done = subprocess.run(
            [*command, sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *TESTS],
            cwd=ROOT, capture_output=True, text=True, check=False,
        )  # fmt: skip
        report = Path(log.name).read_text(encoding="utf-8", errors="replace")
    summary = re.search(r"[A-Z]+ SUMMARY: .*", report)
    tests = re.search(r"(\d+) passed", done.stdout)
    clean = done.returncode == 0 and summary is not None and tests is not None
    if not clean:
        print(f"{tool}:\n{done.stdout[-2000:]}{report[-4000:]}", file=sys.stderr)
    return {
        "summary": summary.group() if summary else "none",
        "tests": int(tests.group(1)) if tests else 0,
        "clean": clean,
    }


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results-dir", type=Path, default=ROOT / "bench" / "results", metavar="DIR")
    options = parser.parse_args()
    here = machine.describe()
    if not here["gpus"] or shutil.which("compute-sanitizer") is None:
        print("sanitize: needs a GPU, and compute-sanitizer on the PATH", file=sys.stderr)
        return 2
    with ThreadPoolExecutor(len(TOOLS)) as pool:  # mostly compiling, a core each
        found_by = dict(zip(TOOLS, pool.map(check, TOOLS), strict=True))
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
