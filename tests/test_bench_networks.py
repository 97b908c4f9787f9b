"""Benchmarks of networks of images run, check, and say what they found: at sizes that measure nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import direct_plans
import fused_alexnet
import fused_layers
import host_bytes
import networks
import numpy as np
import op_times
import pytest
from conftest import by_turns, compiler_installed
from small_gpu import fresh_kernels

from charcnn import catalog, layers
from charcnn.gpu import device, graph
from charcnn.layers import place
from charcnn.model import network as forms
from charcnn.model import params
from charcnn.networks import ece408
from charcnn.networks.architecture import Architecture


def test_networks_beside_other_libraries(tmp_path, capsys):
    words = ["--networks", "mnist-stride2", "--batches", "2", "--as", "loops,cpu_gemm", "--peers", "torch-float32"]
    words += ["--device", "cpu", "--seconds", "0.01", "--joules", "0", "--results-dir", str(tmp_path)]
    assert networks.main(words) == 0
    (file,) = tmp_path.glob("*-networks.json")
    rows = json.loads(file.read_text())["networks"]
    assert {"loops-float32", "cpu_gemm-float32"} <= {row["name"] for row in rows}
    assert all(row["within_tolerance"] and row["network"] == "mnist-stride2" for row in rows)
    with pytest.raises(SystemExit):
        networks.main(["--networks", "lenet"])
    assert "--networks lenet: need mnist-stride1, " in capsys.readouterr().err


def test_networks_from_the_hosts_memory(tmp_path, capsys):
    words = ["--networks", "mnist-stride1", "--as", "naive", "--precision", "fp32", "--rounds", "1"]
    if device.SIMULATED:
        with pytest.raises(SystemExit):
            host_bytes.main(words)
        assert "there is no GPU" in capsys.readouterr().err
    words += ["--tiny", "--batch", "2", "--inputs", "3", "--results-dir", str(tmp_path)]
    assert host_bytes.main(words) == 0
    (file,) = tmp_path.glob("*-host-bytes.json")
    (row,) = json.loads(file.read_text())["networks"]
    assert row["inputs_per_second"]["staged"] > 0
    assert not any(row["different"].values())
    assert {"copy up", "copy down"} <= {span[0] for span in row["spans"]}
    with pytest.raises(SystemExit):
        host_bytes.main(["--tiny", "--networks", "lenet"])
    assert "--networks lenet: need mnist-stride1, " in capsys.readouterr().err


ODD = Architecture(
    "odd",
    "",
    (
        layers.Pixels(3, 9, 8, (0.4, 0.5, 0.6), (0.2, 0.3, 0.25)),
        layers.Conv2d(4, (3, 2), 2, (1, 2, 0, 1), bias=False, name="conv"),
        layers.BatchNorm2d(name="norm"),
        layers.Gelu(),
        layers.AvgPool2d(2, 1),
        layers.LocalResponseNorm(4, 0.5),
        layers.GlobalAvgPool2d(),
        layers.Linear(3, name="fc"),
    ),
)
"""Layers that no network of ours has, or has otherwise."""


@pytest.mark.parametrize("name", ["odd", *(row.name for row in catalog.NETWORKS)])
def test_networks_in_jax(name):
    pytest.importorskip("jax")
    from libraries import xla

    network = ODD if name == "odd" else catalog.network(name).architecture("tiny")
    held = params.init(network, 0)
    rows = np.random.default_rng(0).integers(0, 256, (3, *network.in_shape), np.uint8)
    built = xla.build(held, network, device="cpu", precision="tf32")
    built.load(rows)
    built.run(1)
    np.testing.assert_allclose(built.logits(), forms.run(network.nodes, rows, held), rtol=1e-4, atol=1e-5)
    built.close()


def test_op_times(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(op_times, "SECONDS", 0.001)
    assert op_times.main(["--images", "2", "--device", "cpu", "--results-dir", str(tmp_path)]) == 0
    (file,) = tmp_path.glob("*-op-times.json")
    rows = json.loads(file.read_text())["op_times"]
    assert {row["layer"] for row in rows} == {"conv1", "conv2"}
    assert {"loops", "cpu_gemm"} <= {row["technique"] for row in rows}
    assert [row["flops"] for row in rows if row["technique"] == "loops"] == [2 * 1_080_000, 2 * 3_244_800]
    monkeypatch.setattr(op_times, "tolerance", lambda row: 0.0)
    with pytest.raises(SystemExit, match="loops is wrong: conv1, 1 images"):
        op_times.main(["--images", "1", "--device", "cpu"])


@pytest.mark.skipif(not device.SIMULATED, reason="there is a GPU: python bench/op_times.py --pools 2/2,3/2")
@pytest.mark.parametrize("pool", [(2, 2), (3, 2)], ids=["2 by 2", "3 by 2"])
def test_pooling_in_one_kernel_and_in_two(pool, monkeypatch):
    seen = []

    def by_turns(ready):
        seen.extend(one.name for one in ready)
        return [{"rounds": [1.0]} for _ in ready]

    monkeypatch.setattr(graph, "Graph", lambda start, stream: SimpleNamespace(launch=lambda: start(stream)))
    monkeypatch.setattr(op_times, "by_turns", by_turns)
    conv1 = place(ece408.layers("tiny"), (16 * 16,))[1]
    rows = op_times.measure("conv1", conv1, 2, "cuda", pool)
    ways = [f"{technique}, {kernels}" for technique in ("naive", "direct") for kernels in ("one kernel", "two kernels")]
    assert [row["technique"] for row in rows] == ways
    assert seen == [f"conv1 {pool[0]}/{pool[1]}      2 {way}" for way in ways]
    assert all(row["pool"] == list(pool) and row["flops"] == 2 * conv1.flops for row in rows)
    monkeypatch.setattr(op_times, "tolerance", lambda row: -1.0)
    with pytest.raises(SystemExit, match="naive, one kernel is wrong: conv1, 1 images"):
        op_times.measure("conv1", conv1, 1, "cuda", pool)


@pytest.mark.exhaustive
@pytest.mark.skipif(not device.SIMULATED, reason="there is a GPU: python bench/direct_plans.py")
def test_plans_of_few_channels(monkeypatch):
    fresh_kernels(monkeypatch)
    monkeypatch.setattr(graph, "Graph", lambda start, stream: SimpleNamespace(launch=lambda: start(stream)))
    names = []

    def by_turns(ready):
        for one in ready:
            one.call()
            names.append(one.name)
        return [{"microseconds": 1.0, "tflop_per_second": 1.0} for _ in ready]

    monkeypatch.setattr(direct_plans, "by_turns", by_turns)
    monkeypatch.setattr(direct_plans, "LAYERS", {"conv1": place(ece408.layers("tiny"), (16 * 16,))[1]})
    options = SimpleNamespace(
        precisions=["fp16x3", "tf32"], rows=[1], warps=[1], blocks=[0], direct=1,
        staged=direct_plans.choices("2/1/4/1"),
    )  # fmt: skip
    rows = direct_plans.measure("conv1", 2, options)
    assert [row["technique"] for row in rows] == ["direct", *["direct_mma_fp16x3"] * 2, *["direct_mma_tf32"] * 2]
    assert [row.get("rows") for row in rows] == [None, 1, 2, 1, 2]
    assert [row["groups"] for row in rows[1:]] == [0, 1, 0, 1]
    assert all(row["microseconds"] == 1 and row["images"] == 2 for row in rows)
    assert len(names) == len(rows)
    staged, asked = direct_plans.planned, []

    def wrong(module, plan, launcher, arrays, out, stream=None):
        staged(module, plan, launcher, arrays, out, stream)
        asked.append(plan)
        if getattr(plan, "groups", 0) and len(asked) < 4:
            out[1:2].copy_to_device(np.nextafter(out[1:2].copy_to_host(), np.float32(9)))
        return out

    monkeypatch.setattr(direct_plans, "planned", wrong)
    with pytest.raises(SystemExit, match=r"conv1, direct_mma_fp16x3 2 1 1 .* has other bits than the first plan"):
        direct_plans.measure("conv1", 2, options)
    monkeypatch.setattr(direct_plans.reference, "conv2d", lambda x, *_: np.ones((2, 6, 12, 12)))
    with pytest.raises(SystemExit, match=r"conv1, direct .*: is wrong"):
        direct_plans.measure("conv1", 2, options)


@pytest.mark.skipif(not device.SIMULATED, reason="there is a GPU")
def test_direct_plans_needs_a_gpu(capsys):
    with pytest.raises(SystemExit):
        direct_plans.main(["--layers", "conv1"])
    assert "there is no GPU" in capsys.readouterr().err


@pytest.mark.exhaustive
@pytest.mark.skipif(not compiler_installed(), reason="the CUDA compiler is not installed: pip install -e '.[cuda]'")
def test_direct_plans_are_compiled_without_a_gpu(tmp_path):
    words = "--compile 2 --images 300 --layers conv2 --precisions tf32 --rows 2 --staged 3/8/2/1 --direct 1"
    done = subprocess.run(
        [sys.executable, direct_plans.__file__, *words.split()],
        capture_output=True, text=True, timeout=300, check=False,
        env={**os.environ, "NUMBA_ENABLE_CUDASIM": "0", "CUDA_VISIBLE_DEVICES": "", "NUMBA_CACHE_DIR": str(tmp_path),
             "PYTHONPATH": str(Path(__file__).parents[1])},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout == "3 kernels compiled\n"
    assert [*tmp_path.rglob("*.nbc")]


def test_plans_that_are_none(capsys):
    for given in ("3/8/2", "3/8/0/1", "a/2/2/1"):
        with pytest.raises(SystemExit):
            direct_plans.main(["--staged", given])
        assert f"argument --staged: invalid choices value: '{given}'" in capsys.readouterr().err
    assert direct_plans.choices("") == []


def test_poolings_that_are_none(capsys):
    for given in ("3", "3/0", "2/2,a/2"):
        with pytest.raises(SystemExit):
            op_times.main(["--pools", given])
        assert f"argument --pools: invalid pools value: '{given}'" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        op_times.main(["--pools", "2/2", "--device", "cpu"])
    assert "--pools: needs a GPU" in capsys.readouterr().err


@pytest.mark.exhaustive
@pytest.mark.skipif(not device.SIMULATED, reason="there is a GPU: python bench/fused_layers.py")
def test_fused_layers(capsys, monkeypatch):
    monkeypatch.setattr(fused_layers, "PARTITIONS", ((2, 2),))
    assert fused_layers.main(["--tiny", "--batches", "1", "--tiles", "2", "--precisions", "fp32"]) == 0
    monkeypatch.setitem(fused_layers.ALLOWED, "fp32", 0.0)
    with pytest.raises(SystemExit, match=r"2\+2 .* is wrong"):
        fused_layers.main(["--tiny", "--batches", "1", "--tiles", "2", "--precisions", "fp32"])
    with pytest.raises(SystemExit):
        fused_layers.main([])
    assert "there is no GPU" in capsys.readouterr().err


@pytest.mark.exhaustive
@pytest.mark.skipif(not device.SIMULATED, reason="there is a GPU: python bench/fused_alexnet.py")
def test_fused_alexnet(capsys, monkeypatch):
    monkeypatch.setattr(fused_alexnet, "METHODS", ("whole",))
    assert fused_alexnet.main(["--tiny"]) == 0
    said = capsys.readouterr().out
    assert "tiny/fp32/1/whole/front: an error of " in said
    assert "tiny/fp32/1/layer by layer/front: an error of " in said
    monkeypatch.setitem(fused_alexnet.ALLOWED, "fp32", 0.0)
    with pytest.raises(SystemExit, match=r"tiny/fp32/1/whole/front is wrong"):
        fused_alexnet.main(["--tiny"])
    with pytest.raises(SystemExit):
        fused_alexnet.main([])
    assert "there is no GPU" in capsys.readouterr().err


@by_turns
def test_the_front_of_alexnet_is_its_first_two_layers():
    for variant, count in (("2012", 9), ("torchvision", 7)):
        nodes = fused_alexnet.front_nodes(fused_alexnet.given(variant)[0])
        assert len(nodes) == count
        assert nodes[-1].out_shape[1:] == (13, 13)
    spec = fused_alexnet.Spec("2012", "fp16", 32, "layer by layer", "front")
    assert fused_alexnet.Spec.of(spec.text()) == spec


def test_a_result_grows_cell_by_cell(tmp_path):
    row = {"variant": "2012", "precision": "fp16", "batch": 1, "way": "whole", "microseconds": 2.0}
    for one in (row, {**row, "batch": 32}, {**row, "microseconds": 1.0}):
        fused_alexnet.grown(tmp_path / "made.json", {"gpus": []}, "ways", [one])
    fused_alexnet.grown(tmp_path / "made.json", {"gpus": []}, "counted", [row])
    made = json.loads((tmp_path / "made.json").read_text())
    assert (made["schema"], made["counted"]) == ("fused_alexnet", [row])
    assert [(one["batch"], one["microseconds"]) for one in made["ways"]] == [(1, 1.0), (32, 2.0)]
