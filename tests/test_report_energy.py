"""What tables of rates say of joules where raw results have them, and what docs/energy.md shows; made up here."""

from __future__ import annotations

import pytest
import tensor_energy
from report import attention, bert, energy, fused, gemm, networks, peers, training
from report.pictures import energy as picture
from report.schema import Results

from charcnn.charts.svg import narrow

HERE = {"gpus": ["NVIDIA H200"], "cores": 16, "driver": "580"}


def drawn(joules, *, idle=75.0):
    rounds = [{"joules_per_million": joules * by} for by in (0.98, 1.0, 1.02)]
    said = {"joules_per_million": joules, "watts": 600.0, "per_second": 2e12, "idle_watts": idle, "counter": "NVML"}
    return {"energy": {**said, "rounds": rounds}}


SAID = (
    "Joules are those of a million {}, by NVML. They include the 75.00 W that it draws idle. Each is the mean of 3 "
    "rounds, which lie at most 2.0 % from the middle."
)


def row(name, level=False, **more):
    return {"name": name, "title": name, "precision": "fp16", "timed": "device to device", "level": level, "batch": 32,
            "within_tolerance": True, "inputs_per_second": 100.0, **more}  # fmt: skip


def test_peers_have_a_column_for_each_batch_that_was_counted():
    rows = [row("l19", True, **drawn(550.0)), row("torch"), row("torch", **{"batch": 1})]
    raw = {"peers": rows, "order": ["torch", "l19"], "batches": [1, 32], "left_out": [], "machine": HERE, "threads": 1,
           "environment": {}, "versions": {}, "device": "cuda"}  # fmt: skip
    text = peers.machine_table("file", raw)
    assert "| N=1 | N=32 | J a million, N=32 |\n" in text
    assert "| l19 (`l19`) | fp16 | device to device | – | 100.0 | 550.0 |\n" in text
    assert "| torch (`torch`) | fp16 | device to device | 100.0 | 100.0 | – |\n" in text
    assert SAID.format("inputs") in text
    raw["peers"] = rows[1:]
    assert "J a million" not in (text := peers.machine_table("file", raw))
    assert "oules" not in text


def shown(monkeypatch, tmp_path, block, kind, raw):
    file = tmp_path / f"nvidia-h200-{kind}.json"
    monkeypatch.setattr(block, "results", lambda: Results((file,), **{kind: {file: {"machine": HERE, **raw}}}))
    return tmp_path / "page.md"


def test_networks_say_joules_in_each_cell(monkeypatch, tmp_path):
    rows = [
        {"network": "alexnet", **row("wgmma", True, **drawn(1500.0))},
        {"network": "alexnet", **row("PyTorch eager")},
    ]
    text = networks.networks_beside(shown(monkeypatch, tmp_path, networks, "networks", {"networks": rows}))
    assert "| alexnet, N = 32 | 100.0 (`wgmma`, 1,500 J) | 100.0 (`PyTorch eager`) | 1.00 × |" in text
    assert SAID.format("inputs") in text


def test_attention_and_bert_say_joules_behind_each_rate(monkeypatch, tmp_path):
    rate = {"precision": "fp16", "tflop_per_second": 400.0, "microseconds": 100.0}
    shape = {"n": 2, "heads": 12, "positions": 128, "depth": 64}
    rows = [{"shape": shape, "made": "wgmma", **rate, **drawn(20.0)}, {"shape": shape, "made": "cuDNN", **rate}]
    page = shown(monkeypatch, tmp_path, attention, "attention", {"attention": rows, "ours": "as CUDA graphs"})
    text = attention.attention(page, "fp16")
    assert "| S = 128, N = 2, 12 × 64 | – | 400 | – | – | – | – | – | 400 (20.00 J) | 1.00 |" in text
    assert SAID.format("inputs") in text
    case = {"variant": "base", "n": 2, "tokens": 128, "least": 0}
    rows = [{"case": case, "made": "wgmma", **rate, **drawn(20.0)}, {"case": case, "made": "eager", **rate}]
    text = bert.bert(shown(monkeypatch, tmp_path, bert, "bert", {"bert": rows}), "fp16")
    assert "| base, N = 2, 128 tokens | 20,000 | 20,000 (20.00 J) | 1.00 |" in text
    assert SAID.format("texts") in text
    assert "one text" not in text


@pytest.mark.parametrize("counted", [True, False])
def test_products_say_picojoules(counted, monkeypatch, tmp_path):
    names = ("mma", "wgmma, as a convolution", "wgmma", "cuBLAS, matmul", "cuBLAS, F.linear")
    rows = [
        {"shape": {"m": 100, "n": 100, "k": 50}, "made": name, "precision": "fp16", "tflop_per_second": 500.0 + i,
         **(drawn(0.5 + i) if counted else {})}
        for i, name in enumerate(names)
    ]  # fmt: skip
    page = shown(monkeypatch, tmp_path, gemm, "gemm", {"gemm": rows})
    text = gemm.gemm(page, "fp16")
    assert ("| pJ an operation: cuBLAS | `wgmma` |" in text) is counted
    if counted:
        assert "| 1.00 | 4.500 | 2.500 |" in text
        assert SAID.format("products") in text
    else:
        assert "J" not in text
    assert "| one_warpgroup |" not in gemm.gemm(page, "ladder")


def test_steps_of_training_have_a_column(monkeypatch, tmp_path):
    step = {"batch": 256, "samples_per_second": 10.0, "unclipped_samples_per_second": None, "loss": 1.0, "bytes": None}
    rows = [{**row("t4", True), **step, **drawn(3000.0)}, {**row("torch.compile"), **step}]
    run = {"rows": rows, "left_out": [], "steps": 20, "machine": HERE}
    monkeypatch.setattr(training, "trainings", lambda: {tmp_path / "raw.json": [run]})
    text = training.training_steps(tmp_path / "page.md")
    assert "| N=256 | J a million, N=256 |" in text
    assert "| t4 (`t4`) | fp16 | 10.00 | 3,000 | 1.0000 | – |" in text
    assert SAID.format("samples") in text


def test_microseconds_have_joules_behind_them():
    assert fused._time({"microseconds": 12.0, **drawn(15.0)}) == "12.0 (15.00 J)"
    assert fused._time({"microseconds": 12.0}) == "12.0"
    assert energy.said([{}], "images") == ""


@pytest.fixture
def costs(monkeypatch, tmp_path):
    operations = [
        {**one._asdict(), "TFLOP/s": 800.0, "W": 700.0, "pJ": (1 - tensor_energy.ZEROS[one.features] / 2) * pj,
         "rounds": [{"pJ": 0.99 * pj}, {"pJ": 1.01 * pj}]}
        for one in tensor_energy.with_zeros() for pj in [{"tf32": 1.5, "e4m3": 0.4}.get(one.ptx_type, 0.8)]
    ]  # fmt: skip
    held = {"DRAM": (1 << 31, 110.0), "L2": (1 << 24, 40.0), "shared memory": (1 << 16, 6.0), "registers": (0, 0.8)}
    memories = [{"memory": name, "held": size, **drawn(pj / 1e6)} for name, (size, pj) in held.items()]
    parts = {"operations": {"rows": operations}, "bytes": {"rows": memories}}
    file = tmp_path / "nvidia-h200-costs.json"
    raw = {name: {"machine": HERE, "idle_watts": 75.0, **part} for name, part in parts.items()}
    for module in (energy, picture):
        monkeypatch.setattr(module, "results", lambda: Results((file,), costs={file: raw}))
    return tmp_path / "energy.md"


def test_the_page_says_what_operations_and_bytes_cost(costs):
    text = energy.energy_operations(costs)
    assert "| no zeros | 25 % zeros | 50 % zeros | 75 % zeros | no zeros, less idle | TFLOP/s | W |" in text
    assert "| bf16 | 0.800 | 0.700 | 0.600 | 0.500 | 0.781 | 800.0 | 700.0 |" in text
    assert "| float32 by FMA, no tensor cores | 2400.000 | – | – | – | 2100.000 | 0.25 | 600.0 |" in text
    assert "Idle: 75.00 W. Rounds lie at most 1.0 % from the middle." in text
    assert "what-a-multiplication-costs-tall.svg" in text
    text = energy.energy_bytes(costs)
    assert "| DRAM | 2,147,483,648 bytes | 110.00 | 262.50 | 2.00 | 600.0 |" in text
    assert "| registers | with the FMA | 0.80 |" in text


def test_the_picture_has_a_dot_for_each_number(costs):
    wide = picture.what_a_multiplication_costs()
    with narrow():
        tall = picture.what_a_multiplication_costs()
    assert wide.count("<circle") == tall.count("<circle") == 4 * 4 + 2 * 4
    assert "FP8 (e4m3), 75 % zeros: 0.250 pJ an operation" in wide


def test_what_was_not_measured_is_not_shown(monkeypatch, tmp_path):
    monkeypatch.setattr(energy, "results", lambda: Results(()))
    assert energy.energy_operations(tmp_path / "energy.md").startswith("No GPU has run this yet")
    assert energy.energy_bytes(tmp_path / "energy.md").startswith("No GPU has run this yet")
