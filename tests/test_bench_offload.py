"""bench/offload.py, and the tables that bench/report.py makes of what it leaves."""

import json
import subprocess
import sys

import pytest
from conftest import by_turns
from report import documents, schema
from test_mpi import ROOT, mpiexec, needs_mpi

from charcnn.config import SMALL


@needs_mpi
@pytest.mark.exhaustive
def test_what_the_root_can_move_is_measured(tmp_path):
    file = tmp_path / "path.json"
    options = ["--chunk", 16, "--inputs", 2000, "--repeat", 1, "--json", file]
    done = mpiexec(2, "bench/offload.py", "path", *options)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(file.read_text())
    assert (found["ranks"], found["chunk"]) == (2, 16)
    for way in ("async", "farm"):
        assert found["path"][way]["bytes_per_second"] > 0
        assert 0 < found["path"][way]["root_seconds_a_chunk"] < 1


@needs_mpi
@pytest.mark.exhaustive
def test_a_slowed_rank_keeps_to_its_rate(tmp_path):
    file = tmp_path / "mixed.json"
    options = ["--rate", 40, "--offload", "farm", "--config", "tiny", "--inputs", 60, "--batch", 2, "--json", file]
    done = mpiexec(2, "bench/offload.py", "slowed", "l2", *options)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(file.read_text())
    assert found["slowed_to"] == 40
    assert found["farm"]["ranks"][1]["inputs_per_second"] < 44


@by_turns
def test_the_farms_overhead_is_measured(tmp_path):
    file = tmp_path / "overhead.json"
    command = [sys.executable, "bench/offload.py", "overhead", "--chunks", "1", "--pairs", "3", "--json", str(file)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(json.loads(file.read_text())["pairs"]) == 3


def level_report(rate, *, ranks=1, mode="async", mpi=True, **more):
    machine = {"gpus": ["A GPU"] * 4, "cpu": "A CPU", "cores": 64, "mpi": "An MPI"}
    made = {
        "schema": "level",
        "level": "l12",
        "config": SMALL.to_dict(),
        "validation": {"passed": True},
        "machine": machine,
    }
    made |= {
        "inputs": 10**7,
        "batch": 256,
        "ranks": ranks,
        "offload": mode,
        "inputs_per_second": rate,
        "seconds": [1.0],
    }
    return made | ({"advice": []} if mpi else {}) | more


@pytest.fixture
def tables(tmp_path, monkeypatch):
    """The blocks of a page whose raw results these are."""
    monkeypatch.setattr(schema, "RESULTS", tmp_path)
    schema.offloads.cache_clear()

    def made(kind, **results):
        (tmp_path / "offload").mkdir()
        for name, raw in results.items():
            (tmp_path / "offload" / f"{name}.json").write_text(json.dumps(raw))
        return documents.KINDS[kind](tmp_path / "page.md")

    yield made
    schema.offloads.cache_clear()


def test_scaling_is_told_beside_one_gpu(tables):
    timeline = {"bound": "compute", "resource": "kernel", "busy": {"kernel": {"share": 0.99}}}
    text = tables(
        "scaling",
        one=level_report(1000.0, mpi=False),
        farm=level_report(3960.0, ranks=4, mode="farm", timeline=timeline),
        static=level_report(3000.0, ranks=4, mode="static"),
    )
    assert "| 1, no MPI | 10,000,000 | – | 1,000 | – | – | – |" in text
    assert "| 4 | 10,000,000 | 3,000 | – | 3,960 | 99.0% | compute (99% busy) |" in text
    assert "[farm](offload/farm.json)" in text


def test_mixed_ranks_are_told_beside_their_sum(tables):
    slowed = level_report(3100.0, ranks=4, mode="farm", slowed_to=250.0)
    text = tables("mixed", one=level_report(1000.0, mpi=False), mixed=slowed)
    assert "| l12, 4 × A GPU, one at 25% | farm | 3,100 | 95.4% |" in text


def test_forecasts_are_told_beside_measured_runs(tables):
    ways = {"farm": {"bytes_per_second": 9e9, "root_seconds_a_chunk": 1e-4}}
    machine = level_report(0.0)["machine"]
    one, four = level_report(1000.0, mpi=False), level_report(3960.0, ranks=4, mode="farm")
    text = tables(
        "forecasts", one=one, four=four, path={"schema": "path", "path": ways, "ranks": 4, "machine": machine}
    )
    assert "| l12, 4 × A GPU | farm | 3,960 | 4,000 | +1.0% | compute |" in text


def test_a_result_says_what_it_is(tables):
    with pytest.raises(schema.ReportError, match=r"run\.json: schema='a run': need one of benchmarks, level"):
        tables("scaling", run=level_report(1.0) | {"schema": "a run"})


def test_a_wrong_run_is_no_result(tables):
    with pytest.raises(schema.ReportError, match=r"wrong\.json: its validation failed"):
        tables("scaling", wrong=level_report(1.0) | {"validation": {"passed": False}})


def test_parts_of_networks_are_told_beside_one_process(tables):
    def row(way, batch, rate, **more):
        found = {"link": "a wire", "way": way, "batch": batch, "inputs": batch, "inputs_per_second": rate}
        return found | {"variant": {"variant": "tiny"}} | more

    rows = [row("one process", batch, rate) for batch, rate in ((1, 50.0), (8, 80.0), (32, 90.0))]
    rows += [row("tensor", batch, rate, idle=0.25) for batch, rate in ((1, 100.0), (8, 60.0), (32, 70.0))]
    raw = {"schema": "parallel", "network": "alexnet", "technique": "loops", "rows": rows}
    cores = raw | {"machine": {"cores": 2, "cpu": "a processor", "gpus": []}}
    gpus = raw | {"machine": {"cores": 32, "gpus": ["a GPU"] * 2}, "technique": "wgmma", "precision": "fp16"}
    gpus["rows"] = [row(one, *of) for one in ("one process", "pipeline") for of in ((1, 5000.0), (1024, 3e5))]
    text = tables("parallel", cores=cores, gpus=gpus)
    assert "2 CPU cores, a processor:" in text
    assert "| alexnet tiny as loops, a wire | one process | 20 | 80.00 | 90.00 | – |" in text
    assert "| alexnet tiny as loops, a wire | tensor | 10 | 60.00 | 70.00 | 25% |" in text
    assert "2 × a GPU:" in text
    assert "inputs/s, batch 1,024 | idle |" in text
    assert "| alexnet tiny as wgmma in fp16, a wire | pipeline | 0.2 | 300,000 | – |" in text


def test_levels_on_ranks_are_told_beside_one_process(tables):
    measured = ("l2", 1, 2.5), ("l2", 2, 5.0), ("l16", 1, 1e6), ("l16", 2, 1.97e6)
    names = "level", "ranks", "inputs_per_second"
    rows = [{**dict(zip(names, row, strict=True)), "offload": "static"} for row in measured]
    text = tables("ranks", run={"schema": "ranks", "rows": rows, "machine": {"cores": 32, "gpus": ["a GPU"] * 2}})
    assert "2 × a GPU, 32 cores:" in text
    assert "| l2 | static | 2.50 | 5.00 | 2.00 |" in text
    assert "| l16 | static | 1,000,000 | 1,970,000 | 1.97 |" in text


def test_ranks_are_told_beside_a_process_that_drives_all_gpus(tables):
    measured = (
        ("l16", 1, "async", 2e6),
        ("l16", 2, "static", 1.9e6),
        ("l16", 2, "async", 2.1e6),
        ("l9", 1, "async", 1.0),
    )
    names = "level", "ranks", "offload", "inputs_per_second"
    rows = [dict(zip(names, row, strict=True)) for row in measured]
    text = tables("whole", run={"schema": "whole", "rows": rows, "machine": {"gpus": ["a GPU"] * 2}})
    assert "| 2 × a GPU, inputs/s | one process | a rank a GPU, static | a rank a GPU, async |" in text
    assert "| l16 | 2,000,000 | 1,900,000 (95.0%) | 2,100,000 (105.0%) |" in text
    assert "l9" not in text, "it was cut"


def test_what_parts_send_follows_from_the_plans(tables):
    text = tables("parted")
    assert "| alexnet 2012 | 154,587 | 136,944 | exchange before localresponsenorm1, " in text
    assert "| ffn 768 | 768 | 3,072 | sum for the root | fc2 | 50% | 12,288 |" in text
