"""bench/training.py: contenders are checked and timed in processes of their own, and the page has a table of them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import training
import training_work as work
from conftest import by_turns
from libraries.training import build, draw
from processes import Ended, Process
from report import training as block
from report.schema import SCHEMAS
from test_mpi import needs_mpi

from charcnn import SMALL, TINY
from charcnn.catalog import TRAINING_LEVELS
from charcnn.gpu import device

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    """Of the smallest network on this CPU, with the reference's file."""
    made = work.Job("t0", "cpu", True, [4], 0.01, 2, 3, 30.0, str(tmp_path_factory.mktemp("right") / "right.npz"))
    work.reference(made)
    return made


def contender(kind, *arguments, precision="bf16"):
    return work.Contender("one", "One", kind, precision, arguments)


@by_turns
@pytest.mark.skipif(not device.SIMULATED, reason="there is a GPU, where it measures")
def test_a_level_and_a_peer_in_the_simulator(tmp_path, monkeypatch):
    """The whole command, and its result on a page."""
    pytest.importorskip("torch", reason="it measures beside PyTorch")
    level = next(row.name for row in TRAINING_LEVELS if row.device == "cuda")
    words = ["--tiny", "--levels", level, "--peers", "eager-last", "--seconds", "0.01", "--results-dir", str(tmp_path)]
    done = subprocess.run(
        [sys.executable, "bench/training.py", *words], cwd=ROOT, capture_output=True, text=True, check=False,
        env={**os.environ, "NUMBA_ENABLE_CUDASIM": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    (file,) = tmp_path.iterdir()
    raw = json.loads(file.read_text())
    assert raw["schema"] == "training"
    assert raw["schema"] in SCHEMAS
    (run,) = raw["runs"]
    assert run["simulated"]
    assert run["left_out"] == []
    assert [row["name"] for row in run["rows"]] == [level, "eager-last"]
    ours, peer = run["rows"]
    assert ours["level"] > peer["level"]
    assert ours["bytes"] > 16 * TINY.parameters
    assert ours["unclipped_samples_per_second"] is None
    assert peer["unclipped_samples_per_second"] > 0
    assert ours["loss"] == pytest.approx(peer["loss"], rel=0.02)
    monkeypatch.setattr(block, "trainings", lambda: {file: raw["runs"]})
    text = block.training_steps(tmp_path / "page.md")
    assert f"| charcnn {level} (`{level}`) | {ours['precision']} | {ours['samples_per_second']:.2f} |" in text
    assert f"| {level} | 4 | `eager-last` | " in text


@needs_mpi
@pytest.mark.exhaustive
def test_levels_of_two_ranks(tmp_path, monkeypatch):
    monkeypatch.setenv("OMPI_MCA_rmaps_default_mapping_policy", ":oversubscribe")
    monkeypatch.setenv("PRTE_MCA_rmaps_default_mapping_policy", ":oversubscribe")
    words = ["--tiny", "--device", "cpu", "--levels", "t7,t7-3", "--peers", "none", "--ranks", "2", "--seconds", "0.01"]
    assert training.main([*words, "--results-dir", str(tmp_path)]) == 0
    (file,) = tmp_path.iterdir()
    (run,) = json.loads(file.read_text())["runs"]
    assert [row["name"] for row in run["rows"]] == ["t7", "t7-3"]
    for row in run["rows"]:
        held, counted = row["kinds"]["moments"]
        assert row["ranks"] == 2
        assert counted == 4 * TINY.parameters <= held <= 1.03 * counted
        assert row["error"] < work.TOLERANCES["fp32"].error


@by_turns
@pytest.mark.parametrize("form", work.FORMS)
def test_every_form_has_the_networks_gradients(form, job):
    pytest.importorskip("torch", reason="it measures beside PyTorch")
    row = work.measured(contender("torch", "eager", form), job, 8)
    assert 0 < row["error"] < work.TOLERANCES["bf16"].error
    assert len(row["windows"]) == 2
    assert row["samples_per_second"] > 0


def test_jax_has_the_networks_gradients(job):
    pytest.importorskip("jax", reason="it measures beside JAX")
    assert 0 < work.measured(contender("jax"), job, 8)["error"] < work.TOLERANCES["bf16"].error


@pytest.mark.parametrize(("kind", "arguments"), [("torch", ("eager", "last")), ("jax", ())])
def test_peers_step_as_levels_do(kind, arguments, job):
    """Ten steps with the whole learning rate: the same losses up to rounding; clipped to nothing, AdamW's eps holds."""
    pytest.importorskip(kind, reason="it measures beside it")
    task, losses = replace(job.task(8), rate=1.0), []
    for one, limit, clip in (("own", 1.0, True), (kind, 1.0, True), (kind, 1e-8, False), (kind, 1e-8, True)):
        steps = build(one, replace(task, clip=limit), *(("t0",) if one == "own" else arguments))
        steps.load(*draw(TINY, work.texts(task), 8))
        steps.start(clip=clip)
        losses.append([])
        for _ in range(10):
            steps.step()
            losses[-1].append(steps.loss())
        steps.close()
    ours, clipped, unclipped, held = np.array(losses)
    assert ours[-1] < 0.8 * ours[0]
    np.testing.assert_allclose(clipped, ours, rtol=0.05)
    np.testing.assert_allclose(unclipped, ours, rtol=0.05)
    assert held[-1] > 0.9 * ours[0]


def test_modes_and_forms_are_those_that_pytorch_has():
    pytest.importorskip("torch", reason="it measures beside PyTorch")
    from libraries.training_torch import FORMS

    assert FORMS.keys() == work.FORMS.keys() == {form for forms in work.TRIED.values() for form in forms}
    assert work.TRIED.keys() == work.MODES.keys()
    names = {one.name for one in work.PEERS}
    assert set(training.QUICK) < names
    assert len(names) == len(work.PEERS)


def test_rows_begin_alike_in_every_batch():
    texts = np.zeros((3, TINY.length), np.uint8)
    few, many = draw(TINY, texts, 4), draw(TINY, texts, 64)
    assert all(np.array_equal(one, other[:4]) for one, other in zip(few, many, strict=True))


class Given:
    """Steps whose loss and gradients are the reference's, changed."""

    clips_always = True

    def __init__(self, job, change):
        self.versions = {}
        with np.load(job.reference) as right:
            self.found = {name: right[name] for name in right.files}
        change(self.found)
        self.slow = 0.0

    def load(self, rows, targets):
        assert len(rows) == len(targets) == 8
        assert rows.shape[1] == TINY.length

    def loss_and_gradients(self):
        return float(self.found.pop("loss")), self.found

    def start(self, clip):
        return 0

    def step(self):
        time.sleep(self.slow or 1e-3)

    def loss(self):
        return 1.0

    def memory(self):
        return 1

    def close(self):
        pass


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("conv2.bias", lambda one: 1.2 * one, "the length of that of conv2.bias is off by 0.2, 0.1 allowed"),
        ("fc1.weight", lambda one: -one, "the gradient of fc1.weight is off by 2, 0.4 allowed"),
        ("fc1.weight", lambda one: one * np.nan, "the gradient of fc1.weight is off by nan, 0.4 allowed"),
        ("loss", lambda one: 1.1 * one, "the loss is off by 0.1, 0.02 allowed"),
        ("fc3.bias", None, "no gradient of fc3.bias"),
    ],
)
def test_what_is_wrong_is_not_timed(name, change, message, job, monkeypatch):
    def changed(found):
        found[name] = found.pop(name) if change is None else change(found[name])
        if change is None:
            del found[name]

    monkeypatch.setattr(work, "build", lambda *_: Given(job, changed))
    monkeypatch.setattr(Given, "step", lambda self: pytest.fail("timed"))
    with pytest.raises(work.Wrong, match=f"^wrong: {message}$"):
        work.measured(contender("torch"), job, 8)


def test_what_is_slow_has_no_rate(job, monkeypatch):
    monkeypatch.setattr(work, "build", lambda *_: Given(job, lambda found: None))
    row = work.measured(contender("own"), job, 8)
    assert (row["error"], row["bytes"], row["unclipped_samples_per_second"]) == (0, 1, None)
    assert 100 < row["samples_per_second"] < 8000
    with pytest.raises(work.LeftOut, match=r"^a step takes .* s: 3 of them longer than 0\.001 s$"):
        work.measured(contender("own"), replace(job, most=0.001), 8)


def says(code, tmp_path):
    process = Process([sys.executable, "-c", code], tmp_path / "log", {"SAID": "7"})
    process.start()
    return process


def test_a_process_says_lines_and_waits(tmp_path):
    process = says("import os; print(os.environ['SAID'], flush=True); print([input()])", tmp_path)
    assert process.line(60) == 7
    with pytest.raises(Ended, match=r"^took longer than 0 s$"):
        process.line(0.2)
    process.close()
    process = says("print(1, flush=True); input(); print(2, flush=True); raise SystemExit('no memory')", tmp_path)
    assert process.line(60) == 1
    process.tell()
    assert process.line(60) == 2
    with pytest.raises(Ended, match=r"^ended with status 1: no memory$"):
        process.line(60)
    process.tell()
    process.close()


def test_a_contender_that_dies_is_told(job, monkeypatch):
    """Its process ends before it has compiled; the others' rows stay."""
    (gone,) = (one for one in work.PEERS if one.name == "eager-last")
    monkeypatch.setattr(training, "PEERS", (replace(gone, name="gone-now"),))  # of which its process knows nothing
    words = ["--tiny", "--device", "cpu", "--levels", "none", "--limit", "60", "--batches", "4,8"]
    taken = []
    monkeypatch.setattr(training, "show", taken.append)
    assert training.main(words) == 1
    assert [(line["name"], line["batch"], line["wrong"]) for line in taken] == [
        ("gone-now", 4, False),
        ("gone-now", 8, False),
    ]
    assert all(line["reason"].startswith("ended with status 1: ") for line in taken)


def test_a_run_keeps_other_batches(tmp_path):
    def run(*batches, **more):
        rows = [{"name": "t1", "batch": batch} for batch in batches]
        same = {"config": {"sizes": [7, 3]}, "data": "drawn", "device": "cuda", "steps": 20}
        return {"batches": list(batches), "rows": rows, "left_out": rows[:1], **same, **more}

    file = tmp_path / "gpu.json"
    assert training.earlier(file, run(256)) == []
    file.write_text(json.dumps({"runs": [run(256, 1024), run(4096), run(2048, steps=3)]}))
    assert training.earlier(file, run(256, 4096, config={"sizes": (7, 3)})) == [run(256, 1024) | {
        "batches": [1024], "rows": [{"name": "t1", "batch": 1024}], "left_out": []}]  # fmt: skip


def row(name, batch, rate, *, title="", level=False, unclipped=None, **more):
    return {
        "name": name, "title": title or f"charcnn {name}", "batch": batch, "level": level, "precision": "bf16",
        "samples_per_second": rate, "unclipped_samples_per_second": unclipped, "loss": 1.25, "bytes": 5 * 10**9, **more,
    }  # fmt: skip


def test_the_page(monkeypatch, tmp_path):
    rows = [
        row("t3", 256, 150000.0, level=True),
        row("default-cast", 256, 29000.0, title="torch.compile, cast", unclipped=30000.0),
        row("jax", 256, 50000.0, title="JAX", unclipped=49000.0),
    ]
    machine = {"gpus": ["NVIDIA H200"], "cores": 16, "cpu": None}
    out = {"name": "jax", "batch": 4096, "reason": "no memory", "wrong": False}
    runs = [
        {"rows": rows, "left_out": [], "steps": 20, "machine": machine, "ranks": 1},
        {"rows": [row("t3", 4096, 280000.0, level=True, bytes=None)], "left_out": [out], "steps": 20, "ranks": 1},
    ]
    monkeypatch.setattr(block, "trainings", lambda: {tmp_path / "nvidia-h200.json": runs})
    assert block.training_steps(tmp_path / "page.md").split("\n") == [
        "| NVIDIA H200: samples/s | arithmetic | N=256 | N=4,096 | loss before step 20, least N | GB, greatest N |",
        "| --- | --- | ---: | ---: | ---: | ---: |",
        "| charcnn t3 (`t3`) | bf16 | 150,000 | 280,000 | 1.2500 | – |",
        "| torch.compile, cast (`default-cast`) | bf16 | 30,000 | – | 1.2500 | 5.00 |",
        "| JAX (`jax`) | bf16 | 50,000 | – | 1.2500 | 5.00 |",
        "",
        "| level | N | fastest peer | times it | times torch.compile | goal |",
        "| --- | --- | --- | ---: | ---: | ---: |",
        "| t3 | 256 | `jax` | 3.00 | 5.00 | 4 |",
        "| t3 | 4,096 | – | – | – | 7 |",
        "",
        "Left out: `jax` at N=4,096 (no memory).",
        "",
        "Raw results: [nvidia-h200](nvidia-h200.json).",
        "",
    ]
    monkeypatch.setattr(block, "trainings", dict)
    assert block.training_steps(tmp_path / "page.md") == ""


def test_ranks_on_the_page(monkeypatch, tmp_path):
    kinds = {"weights": (101, 100), "gradients": (4e6, 4e6), "masters": (4e6, 4e6), "moments": (8e6, 8e6),
             "features": (9e6, 9e6), "workspace": (7e6, 0)}  # fmt: skip
    rows = [
        row("t4", 256, 100.0, level=True), row("t5", 256, 190.0, level=True, kinds=kinds),
        row("t6", 256, 200.0, level=True, kinds=kinds),
    ]  # fmt: skip
    machine = {"gpus": ["NVIDIA H200"] * 2, "cores": 32, "cpu": None}
    run = {"rows": rows, "left_out": [], "steps": 20, "machine": machine, "ranks": 2}
    monkeypatch.setattr(block, "trainings", lambda: {tmp_path / "nvidia-h200-2-ranks.json": [run]})
    text = block.training_ranks(tmp_path / "page.md")
    assert "| `t4`, one GPU | 256 | 100.0 | 1.00 | – |" in text
    assert "| `t6` | 256 | 200.0 | 2.00 | 0.950 | 0.0 | 4.0 | 4.0 | 8.0 | 7.0 | 1.00% |" in text
    assert block.training_steps(tmp_path / "page.md") == ""


def test_results_of_the_simulator_are_not_shown(monkeypatch, tmp_path):
    from report import schema

    (tmp_path / "training").mkdir()
    run = {"config": SMALL.to_dict(), "simulated": True}
    (tmp_path / "training" / "here.json").write_text(json.dumps({"schema": "training", "runs": [run]}))
    monkeypatch.setattr(schema, "RESULTS", tmp_path)
    with pytest.raises(schema.ReportError, match=r"^here\.json: was measured in the simulator$"):
        schema.trainings.__wrapped__()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--batches", "256,6"], "--batches 6: need multiples of 4, the rows that are checked"),
        (["--peers", "eager,fast"], "--peers 'fast': need some of eager-first, eager-last,"),
        (["--levels", "t99"], "--levels 't99': need some of t"),
        (["--levels", "none", "--peers", "none"], "--levels none --peers none: nothing is left"),
        (["--windows", "0"], "--windows 0: need a number above 0"),
        (["--budget", "-1"], "--budget -1.0: need a number above 0"),
    ],
)
def test_options_that_do_not_fit(words, message, capsys):
    with pytest.raises(SystemExit) as ended:
        training.main(["--device", "cpu", *words])
    assert ended.value.code == 2
    assert message in capsys.readouterr().err
