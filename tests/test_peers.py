"""bench/peers.py: the network in other libraries is the same network, and the command tells what it did."""

import dataclasses
import json
import os
import shutil
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path

import cases
import numpy as np
import peers
import pytest
from conftest import quick
from libraries import own
from report.peers import machine_table

from charcnn import catalog
from charcnn.config import SMALL, TINY
from charcnn.gpu import device
from charcnn.host import machine
from charcnn.model import network, params
from charcnn.ops.common.cpu_dot import missing

ROOT = Path(__file__).parent.parent
UNEVEN = dataclasses.replace(TINY, length=140, channels=5, kernel_sizes=(5, 7, 3, 2, 3, 4), layernorm=False)
LOW = {"fp16": 1e-2, "bf16": 5e-2, "int8": 1e-1}
"""Of so few channels, whose roundings do not average out."""


def job(config=TINY, batch=3):
    return peers.Job(params.init(config, seed=0), config, "cpu", 1, batch)


PEERS = [  # a row that is compiled takes g++ ten seconds
    pytest.param(
        peer,
        id=f"{peer.name}-{'-'.join(peer.devices)}",
        marks=pytest.mark.exhaustive if "compile" in peer.name else (),
    )
    for peer in peers.PEERS
]


@quick(lambda peer: "compile" not in peer.name)  # which takes a minute where all cores are busy
@pytest.mark.parametrize("config", [TINY, UNEVEN], ids=["tiny", "uneven"])
@pytest.mark.parametrize("peer", PEERS)
def test_every_peer_is_the_network(peer, config):
    for package in peer.needs:
        pytest.importorskip(package)
    if "compile" in peer.name and (config is UNEVEN or peer.precision != "float32"):
        pytest.skip("compiling takes seconds: eager rows have it")
    if "compile" in peer.name and not shutil.which("g++"):
        pytest.skip("torch.compile needs g++")
    if peer.name == "onnxruntime-int8" and missing("int8"):
        pytest.skip("without dot products of int8 ONNX Runtime adds pairs in 16 bits, which overflow")
    given, ids = job(config), job(config).draw(3)
    try:
        built = peer.build(given)  # on the CPU, also what is measured on a GPU alone
        built.load(ids)
        built.prepare(2)
        built.run(2)
        logits = built.logits()
    except (RuntimeError, NotImplementedError) as error:
        if "cpu" in peer.devices:
            raise
        pytest.skip(f"not on a CPU: {error}")
    error = cases.error(logits, network.forward(ids, given.weights, config))
    assert error <= LOW.get(peer.precision, catalog.FLOAT32)
    built.close()


def test_names_are_unique_and_chosen_up_to_a_dash():
    names = [(peer.name, where) for peer in peers.PEERS for where in peer.devices]
    assert len(names) == len(set(names))
    levels = [one for row in catalog.LEVELS for one in peers.entries(row)]
    assert [row.name for row in peers._choose("--levels", "l1", levels, [])] == ["l1"]
    assert [row.name for row in peers._choose("--levels", "l15", levels, [])] == [
        "l15", "l15-bf16", "l15-tf32", "l15-fp16x3"
    ]  # fmt: skip
    chosen = peers._choose("--peers", "jax,openvino-float32", peers.PEERS, [])
    assert [row.name for row in chosen] == ["jax-tf32", "jax-bf16", "openvino-float32"]


def test_what_is_not_installed_fails_or_takes_too_long_is_named():
    level, given, ids = peers.entries(catalog.level("l2"))[0], job(), job().draw(3)

    def fails(_):
        raise RuntimeError("no such\ndevice")

    def takes_long(_):
        time.sleep(10)

    for change, seconds, reason in (
        ({"needs": ("numpy", "no_such_package")}, 9, "not installed: no_such_package"),
        ({"build": fails}, 9, "RuntimeError: no such device"),
        ({"build": takes_long, "level": None}, 0.1, "took longer than 0.1 s to compile"),
    ):
        with pytest.raises(peers.LeftOut) as left_out:
            peers.ready(dataclasses.replace(level, **change), given, ids, seconds)
        assert str(left_out.value) == reason


def test_a_wrong_network_is_not_timed_and_an_inaccurate_one_is_marked():
    level, given = peers.entries(catalog.level("l2"))[0], job()

    def scaled(by):
        def build(given):
            built = level.build(given)
            right = built.logits
            built.logits = lambda: right() * np.float32(by)
            return built

        return dataclasses.replace(level, name=f"by {by}", build=build)

    rows, left_out = peers.measure(
        [level, scaled(1 + 1e-5), scaled(1.5), scaled(np.nan)], given, seconds=0.01, rounds=5, compile_seconds=9
    )
    assert [(row["name"], row["within_tolerance"]) for row in rows] == [("l2", True), ("by 1.00001", False)]
    assert [(out["name"], out["wrong"]) for out in left_out] == [("by 1.5", True), ("by nan", True)]
    assert all(len(row["rounds"]) == 5 and min(row["rounds"]) > 0 for row in rows)


def test_a_level_may_take_ids_on_the_device():
    if not device.SIMULATED:
        device.choose(1)
    seen = []

    def run(ids):
        raise AssertionError("ids lie on the device")

    def on_device(ids):
        seen.append(ids.shape)
        return device.to_device(np.full((len(ids), 4), len(seen), np.float32))

    run.on_device = on_device
    level = own.DeviceLevel(run)
    level.load(np.zeros((2, 123), np.uint8))
    level.prepare(3)
    level.run(3)
    assert seen == [(2, 123)] * 3
    assert (level.logits() == 3).all()


def test_a_call_of_a_level_is_bounded(monkeypatch):
    monkeypatch.setattr(own, "MOST_INPUTS", 6)
    calls = []

    def run(ids):
        calls.append(len(ids))
        return np.arange(len(ids))

    level = own.HostLevel(run)
    level.load(np.zeros((2, 1), np.uint8))
    level.prepare(7)
    level.run(7)
    assert calls == [6, 6, 2]
    level.run(1)
    assert calls[3:] == [2]
    assert list(level.logits()) == [0, 1]


def command(*arguments):
    environment = {name: value for name, value in os.environ.items() if name != "NUMBA_ENABLE_CUDASIM"}
    return subprocess.run(
        [sys.executable, ROOT / "bench" / "peers.py", *arguments],
        capture_output=True, text=True, check=False, cwd=ROOT, env=environment | {"PYTHONPATH": str(ROOT)},
    )  # fmt: skip


@pytest.mark.exhaustive
def test_the_command_writes_its_result(tmp_path):
    light = "torch-float32,onnxruntime,openvino"
    done = command(
        "--tiny", "--device", "cpu", "--batches", "1,3", "--levels", "l0,l2", "--peers", light, "--seconds", "0.01",
        "--joules", "0", "--results-dir", tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    (file,) = tmp_path.iterdir()
    raw = json.loads(file.read_text())
    assert file.name == f"cpu-{raw['threads']}-cores-peers.json"
    assert set(raw["machine"]) == set(machine.describe())
    assert raw["batches"] == [1, 3]
    told = [(row["name"], row["batch"]) for row in raw["peers"]] + [
        (out["name"], out["batch"]) for out in raw["left_out"]
    ]
    assert sorted(told) == sorted((name, batch) for name in raw["order"] for batch in (1, 3))
    for out in raw["left_out"]:
        assert out["reason"].startswith("not installed: ")
        assert f"{out['name']:<30} left out: {out['reason']}" in done.stdout
    here = {"torch": "torch", "onnxruntime": "onnxruntime", "openvino": "openvino"}
    for name, package in here.items():
        if find_spec(package) and find_spec("onnx"):
            assert package in raw["versions"], name


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--device", "cpu", "--levels", "l10"), "--levels l10: need l0, l1, l2"),
        (("--device", "cpu", "--peers", "jax"), "--peers jax: need torch-float32, "),
        (("--device", "cpu", "--batches", "1,0"), "--batches 0: need positive whole numbers"),
        (("--device", "cpu", "--rounds", "4"), "--rounds 4: need at least 5"),
        (("--device", "cpu", "--peers", "none", "--levels", "none"), "nothing is left"),
        (("--device", "cpu", "--seconds", "nan"), "--seconds nan: need a number above 0"),
    ],
)
def test_options_that_do_not_fit(arguments, message, capsys):
    with pytest.raises(SystemExit) as stopped:
        peers.main(arguments)
    assert stopped.value.code == 2
    assert message in capsys.readouterr().err


def test_the_report_shows_the_result():
    row = {"title": "T", "precision": "bf16", "timed": "device to device", "tolerance": 0.01, "error": 0.02}
    raw = {
        "peers": [
            {**row, "name": "t", "batch": 1, "inputs_per_second": 12.3, "within_tolerance": True},
            {**row, "name": "t", "batch": 32, "inputs_per_second": 4567.8, "within_tolerance": False},
        ],
        "left_out": [{"name": name, "batch": n, "reason": "why"} for name, n in (("u", 1), ("u", 32), ("v", 32))],
        "order": ["t", "u", "v"],
        "batches": [1, 32],
        "threads": 2,
        "environment": {"OMP_NUM_THREADS": "2"},
        "versions": {"torch": "3"},
        "machine": {"gpus": ["GPU"], "cores": 2},
    }
    assert machine_table("x.json", raw).splitlines() == [
        "| GPU: inputs/s | arithmetic | timed | N=1 | N=32 |",
        "| --- | --- | --- | ---: | ---: |",
        "| T (`t`) | bf16 | device to device | 12.30 | 4,568 \\* |",
        "",
        "\\* Off by more than its arithmetic is meant to be: `t` at N=32 2.0e-02, meant 0.01.",
        "",
        "Left out: `u` (why); `v` at N=32 (why).",
        "",
        "[Raw result](x.json): 2 CPU threads, OMP_NUM_THREADS=2, torch 3.",
    ]


def test_a_batch_size_measured_earlier_stays_until_it_is_measured_anew(tmp_path):
    path = tmp_path / "peers.json"

    def run(*batches, device="cpu"):
        rows = [{"name": "t", "batch": batch} for batch in batches]
        one = {"config": SMALL.to_dict(), "data": "d", "device": device, "peers": rows, "left_out": []}
        return {**one, "batches": [*batches]}

    def keep(result):
        result["earlier"] = peers._earlier(path, result)
        path.write_text(json.dumps(result))
        return [one["batches"] for one in (result, *result["earlier"])]

    assert keep(run(1, 32)) == [[1, 32]]
    assert keep(run(4096)) == [[4096], [1, 32]]
    assert keep(run(32)) == [[32], [4096], [1]]
    assert keep(run(1, 32)) == [[1, 32], [4096]]
    assert keep(run(1, 32, 4096)) == [[1, 32, 4096]]
    assert keep(run(8, device="cuda")) == [[8]], "of something else"


def test_the_report_puts_runs_beside_each_other():
    row = {"title": "T", "precision": "bf16", "timed": "device to device", "within_tolerance": True, "name": "t"}
    where = {"left_out": [], "order": ["t"], "environment": {}, "machine": {"gpus": ["GPU"], "cores": 2}}
    first, second, third = (
        {
            **where, "batches": batches, "threads": threads, "versions": {"torch": "3"},
            "peers": [{**row, "batch": batch, "inputs_per_second": 10.0 * batch} for batch in batches],
        }
        for batches, threads in (([1024], 16), ([1], 14), ([32, 8], 16))
    )  # fmt: skip
    assert machine_table("x.json", first | {"earlier": [second, third]}).splitlines() == [
        "| GPU: inputs/s | arithmetic | timed | N=1 | N=8 | N=32 | N=1024 |",
        "| --- | --- | --- | ---: | ---: | ---: | ---: |",
        "| T (`t`) | bf16 | device to device | 10.00 | 80.00 | 320.0 | 10,240 |",
        "",
        "[Raw result](x.json): N=1024 and N=8, 32: 16 CPU threads, torch 3; N=1: 14 CPU threads, torch 3.",
    ]


def test_a_row_that_misses_its_bound_says_so(capsys):
    row = {"batch": 1, "name": "l2", "inputs_per_second": 2.0, "timed": "host to host", "error": 1e-3}
    peers._show([row | {"within_tolerance": False, "sigmas": 12.34, "bound": 9.0}], [])
    assert capsys.readouterr().out.endswith("error 1.0e-03  MISSES: 12 sigma, 9 allowed\n")
