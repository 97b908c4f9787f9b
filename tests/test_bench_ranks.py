"""bench/ranks.py and bench/parallel.py: commands on ranks and alone, what they keep, and what they are asked for."""

from __future__ import annotations

import json
import subprocess
import sys
from types import SimpleNamespace

import mpi
import parallel
import pytest
import ranks
from test_mpi import ENVIRONMENT, ROOT, needs_mpi

from charcnn.catalog.measured import machines


def started(*words):
    # Not this process's environment: once mpi4py is imported, Open MPI 4 takes what it starts for a part of a job.
    options = {"cwd": ROOT, "env": ENVIRONMENT, "capture_output": True, "text": True, "check": False}
    done = subprocess.run([sys.executable, *map(str, words)], **options)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@needs_mpi
@pytest.mark.exhaustive
def test_a_level_on_two_ranks_and_alone(tmp_path):
    file = tmp_path / "ranks.json"
    said = started("bench/ranks.py", "--levels", "l11", "--seconds", 0.01, "--repeat", 1, "--json", file)
    assert [line.split()[:2] for line in said.splitlines()] == [["l11", "1"], ["l11", "2"]]
    rows = json.loads(file.read_text())["rows"]
    assert [(row["level"], row["ranks"], row["validation"]["passed"]) for row in rows] == [
        ("l11", 1, True), ("l11", 2, True),
    ]  # fmt: skip
    assert rows[1]["inputs"] == 2 * rows[0]["inputs"]


@needs_mpi
@pytest.mark.exhaustive
def test_a_level_by_each_way_beside_the_whole_host(tmp_path):
    file, text = tmp_path / "whole.json", tmp_path / "rows.csv"
    text.write_text('"1","a title","a text"\n')
    words = ("--whole", "--levels", "l11", "--seconds", 0.01, "--repeat", 1, "--text", text, "--json", file)
    started("bench/ranks.py", *words)
    found = json.loads(file.read_text())
    ways = [(row["ranks"], row["offload"]) for row in found["rows"]]
    assert (found["schema"], ways) == ("whole", [(1, "static"), (2, "static"), (2, "async")])
    assert len({row["inputs"] for row in found["rows"]}) == 1


@needs_mpi
@pytest.mark.exhaustive
def test_a_network_by_each_way(tmp_path):
    file, words = tmp_path / "parallel.json", ("--network", "ffn", "--as", "cpu_gemm", "--rounds", 1, "--repeat", 1)
    started("bench/parallel.py", *words, "--batches", "1:2", "--json", file)
    rows = json.loads(file.read_text())["rows"]
    assert {(row["way"], row["batch"], row["inputs"]) for row in rows} == {(way, 1, 2) for way in parallel.WAYS}


def test_inputs_are_what_a_level_computes_in_so_long():
    best = max(of["levels"]["l16"]["inputs_per_second"] for of in machines().values() if "l16" in of["levels"])
    for seconds in (1, 4):
        assert ranks.inputs("l16", seconds) % 4096 == 0
        assert ranks.inputs("l16", seconds) == pytest.approx(seconds * best, abs=2048)
    assert ranks.inputs("l2", 1e-6) == 16, "a batch at least"


def test_numbers_that_are_none():
    assert ranks.counts("1,4") == [1, 4]
    assert parallel.batches("1:1,8:64") == {1: 1, 8: 64}
    for given in ("0", "1,-2", "two"):
        with pytest.raises(ValueError, match=r"need at least 1|invalid literal"):
            ranks.counts(given)
    for given in ("8:64", "1:0", "1"):
        with pytest.raises(ValueError, match=r"need BATCH:INPUTS|not enough values"):
            parallel.batches(given)


def test_without_mpiexec_a_line_says_so(monkeypatch, tmp_path):
    monkeypatch.setattr(mpi, "sys", SimpleNamespace(executable=str(tmp_path / "python"), exit=sys.exit))
    monkeypatch.setattr(mpi.shutil, "which", lambda name: None)
    with pytest.raises(SystemExit, match="there is no mpiexec: pip install"):
        mpi.mpiexec()
