"""`pytest bench/`: that it leaves a raw result, and where it would measure nothing, says so."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


def bench(*options):
    command = [sys.executable, "-m", "pytest", "bench", "-q", "--tiny", "-k", "argmax", "-p", "no:cacheprovider"]
    own = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}  # tells of -n here
    return subprocess.run(
        [*command, *map(str, options)],
        capture_output=True, text=True, check=False, cwd=ROOT, env={**own, "NUMBA_ENABLE_CUDASIM": "1"},
    )  # fmt: skip


def test_rows_are_checked_timed_and_kept(tmp_path):
    done = bench("--results-dir", tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    (file,) = tmp_path.iterdir()
    raw = json.loads(file.read_text())
    assert raw["red"] == []
    assert raw["benchmarks"]
    assert all(row["stats"]["median"] > 0 for row in raw["benchmarks"])


@pytest.mark.parametrize("options", [("-n", 2), ("--dist", "load")], ids=lambda options: options[0])
def test_several_processes_are_refused(tmp_path, options):
    done = bench("--results-dir", tmp_path, *options)
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    assert "measures nothing" in done.stderr
    assert not list(tmp_path.iterdir())
