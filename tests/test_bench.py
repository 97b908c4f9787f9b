"""`pytest bench/`: that it leaves a raw result, and where it would measure nothing, says so."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import raw

from charcnn import catalog
from charcnn.config import TINY

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


def test_prepared_layers_are_checked_and_timed(monkeypatch):
    import layers
    import turns

    monkeypatch.setattr(layers, "SMALL", TINY)
    monkeypatch.setattr(layers, "PRODUCTS", {node.layer.name: node for node in TINY.nodes if node.flops})
    layers.expected.cache_clear()
    ready = list(layers.layers_of(catalog.level("l13"), "fp32", 1, set()))
    assert [one.row["layer"] for one in ready if one.flop] == list(layers.PRODUCTS)
    assert all(one.row["sigmas"] <= one.row["bound"] for one in ready)
    ready[0].row = {}
    (row,) = turns.by_turns(ready[:1])
    assert row["microseconds"] > 0
    monkeypatch.setattr(layers.validation, "in_sigmas", lambda *_: np.array([np.nan]))
    with pytest.raises(SystemExit, match="l13 in fp32 is wrong"):
        list(layers.layers_of(catalog.level("l13"), "fp32", 1, set()))
    layers.expected.cache_clear()


def test_a_results_folder_is_made_where_there_is_none(tmp_path):
    file = tmp_path / "new" / "here" / "machine-peers.json"
    raw.write(file, "peers", {"rows": []})
    assert json.loads(file.read_text()) == {"schema": "peers", "rows": []}
