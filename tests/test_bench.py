"""`pytest bench/`: that it leaves a raw result, and where it would measure nothing, says so."""

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import raw
from conftest import by_turns

from charcnn import catalog
from charcnn.config import TINY

ROOT = Path(__file__).parent.parent


def run(*command):
    own = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}  # tells of -n here
    return subprocess.run(
        [sys.executable, "-m", *map(str, command)],
        capture_output=True, text=True, check=False, cwd=ROOT, env={**own, "NUMBA_ENABLE_CUDASIM": "1"},
    )  # fmt: skip


def bench(*options, chosen=("-k", "argmax")):
    return run("pytest", "bench", "-q", "--tiny", "-p", "no:cacheprovider", *chosen, *options)


def test_rows_are_checked_timed_and_kept(tmp_path):
    done = bench("--results-dir", tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    (file,) = tmp_path.iterdir()
    raw = json.loads(file.read_text())
    assert raw["red"] == []
    assert raw["benchmarks"]
    assert all(row["stats"]["median"] > 0 for row in raw["benchmarks"])


@pytest.mark.exhaustive
def test_the_readme_compares_rows_by_one_input(tmp_path):
    block = next(part for part in (ROOT / "bench" / "README.md").read_text().split("```") if "\npytest bench/" in part)
    saved, printed = tmp_path / "levels.json", []
    for line in block.splitlines()[1:]:
        program, *words = shlex.split(line.replace("levels.json", str(saved)))
        tiny = ["--tiny", "-p", "no:cacheprovider"] if program == "pytest" else []
        done = run({"pytest-benchmark": "pytest_benchmark"}.get(program, program), *words, *tiny)
        assert done.returncode == 0, done.stdout + done.stderr
        printed.append(done.stdout)
    measured, compared, operators = printed
    rows = json.loads(saved.read_text())["benchmarks"]
    rates = {row["extra_info"]["level"]: row["extra_info"]["inputs_per_second"] for row in rows}
    assert list(rates) == ["l0", "l2", "l11", "l18"]
    for row in rows:
        assert row["extra_info"]["inputs"] > 1
        assert row["stats"]["median"] == pytest.approx(1 / rates[row["extra_info"]["level"]])
        assert row["stats"]["ops"] == pytest.approx(rates[row["extra_info"]["level"]])
    for table in (measured, compared):
        assert re.findall(r"^test_level\[(\w+)\]", table, re.M) == sorted(rates, key=rates.__getitem__, reverse=True)
    for name, before in (("l2", "l0"), ("l11", "l2"), ("l18", "l11")):
        times = f"{rates[name] / rates[before]:,.2f} x {before}"
        assert re.search(rf"^{name} .* {rates[name]:,.2f} +{times}$", measured, re.M)
    (title,) = re.findall(r" benchmark '(.*)': \d+ tests ", operators)
    assert title == "conv3"
    for name in ("conv1d_loops", "conv1d_naive", "conv1d_nlc_winograd", "conv1d_nlc_winograd_cpu"):
        assert f"\ntest_operator[{name}-conv3] " in operators


@pytest.mark.exhaustive
def test_levels_are_chosen_by_their_whole_names():
    done = bench("--collect-only", chosen=("--levels", "l2"))
    assert re.findall(r"\[(.*)\]", done.stdout) == ["l2"]
    done = bench(chosen=("--levels", "l2,l99"))
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    known = ",".join(level.name for level in catalog.LEVELS)
    assert f"--levels l2,l99: there is no level 'l99': need some of {known}" in done.stderr


@by_turns
@pytest.mark.parametrize(
    "options",
    [("-n", 2), pytest.param(("--dist", "load"), marks=pytest.mark.exhaustive)],
    ids=lambda options: options[0],
)
def test_several_processes_are_refused(tmp_path, options):
    done = bench("--results-dir", tmp_path, *options)
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    assert "measures nothing" in done.stderr
    assert not list(tmp_path.iterdir())


@by_turns
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
