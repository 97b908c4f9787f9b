"""Benchmarks of networks of images run, check, and say what they found: at sizes that measure nothing."""

from __future__ import annotations

import json

import fused_layers
import networks
import op_times
import pytest

from charcnn.gpu import device


def test_networks_beside_other_libraries(tmp_path, capsys):
    words = ["--networks", "mnist-stride2", "--batches", "2", "--as", "loops,cpu_gemm", "--peers", "torch-float32"]
    assert networks.main([*words, "--device", "cpu", "--seconds", "0.01", "--results-dir", str(tmp_path)]) == 0
    (file,) = tmp_path.glob("*-networks.json")
    rows = json.loads(file.read_text())["networks"]
    assert {"loops-float32", "cpu_gemm-float32"} <= {row["name"] for row in rows}
    assert all(row["within_tolerance"] and row["network"] == "mnist-stride2" for row in rows)
    with pytest.raises(SystemExit):
        networks.main(["--networks", "lenet"])
    assert "--networks lenet: need mnist-stride1, " in capsys.readouterr().err


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
