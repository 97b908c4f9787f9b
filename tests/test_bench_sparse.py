"""Energy of products and of sparse weights: counted from one change of the counter to another, and what is measured."""

from __future__ import annotations

import json

import energy
import numpy as np
import pytest
import raw
import sparse_weights
import tensor_energy
from conftest import by_turns
from report import sparse as report_sparse

from charcnn.model import params


class Machine:
    """Each call takes 10 ms and 5 J; the counter shows it only every 40 ms, and is read while the next one runs."""

    def __init__(self):
        self.started = self.calls = 0

    def start(self):
        self.started += 1
        return self.end

    def end(self):
        self.calls += 1

    def now(self):
        return self.calls / 100

    def millijoules(self):
        assert self.started == self.calls + 1
        return self.calls // 4 * 20_000

    def mhz(self):
        return 1500


def test_joules_are_of_whole_changes_of_the_counter():
    machine = Machine()
    found = energy.drawn(machine.start, machine, warm=0.1, seconds=0.5, now=machine.now)
    assert found.calls % 4 == 0
    assert found.seconds == pytest.approx(found.calls / 100)
    assert found.joules == pytest.approx(5 * found.calls)
    assert 0.5 <= found.seconds < 0.6
    assert found.mhz == 1500
    assert machine.started == machine.calls


def test_a_sparse_product_has_half_the_operations():
    dense, sparse = (tensor_energy.Product("f16", weights, "relu", 256, 2) for weights in ("dense", "sparse"))
    assert dense.operations == 2 * 128 * 256 * 4 * 64 == 2 * sparse.operations


def test_every_place_has_all_six_pairs():
    rng = np.random.default_rng(0)
    turns = np.stack([tensor_energy.paired((64, 64), turn, rng) != 0 for turn in range(6)])
    assert (turns.reshape(6, 64, 16, 4).sum(3) == 2).all()
    pairs = turns.reshape(6, 64, 16, 4) @ [1, 2, 4, 8]
    assert (np.sort(pairs, 0) == np.array([3, 5, 6, 9, 10, 12])[:, None, None]).all()


def test_parts_of_a_result_come_one_by_one(tmp_path):
    raw.add(tmp_path / "a.json", "sparse", {"products": 1})
    raw.add(tmp_path / "a.json", "sparse", {"weights": 2})
    raw.add(tmp_path / "a.json", "sparse", {"products": 3})
    assert json.loads((tmp_path / "a.json").read_text()) == {"schema": "sparse", "products": 3, "weights": 2}


@by_turns
def test_models_are_sparse(tmp_path):
    found = sparse_weights.models([])
    name = "conv3.weight"
    assert (found["pruned"][name] != 0).sum() == found["dense"][name].size // 2
    dense = found["dense"]
    params.save(tmp_path / "dense.safetensors", dense, dense.config, dtype="float16")
    with pytest.raises(ValueError, match=r"dense.safetensors: conv2.weight has more than two of four"):
        sparse_weights.models([str(tmp_path / "dense.safetensors")])


HERE = {"gpus": ["NVIDIA H200"], "driver": "580"}


def written(tmp_path, monkeypatch, **parts):
    monkeypatch.setattr(report_sparse, "FILE", tmp_path / "nvidia-h200-sparse.json")
    raw.write(report_sparse.FILE, "sparse", {name: {"machine": HERE, "rows": rows} for name, rows in parts.items()})
    return tmp_path / "sparse.md"


@pytest.mark.parametrize(("pj", "said"), [(1.0, "**Gate 2 is passed**"), (1.2, "not passed, so the plan ends here")])
def test_the_page_says_what_the_second_gate_says(tmp_path, monkeypatch, pj, said):
    rows = []
    for one in tensor_energy.products():
        rate = {"TFLOP/s": 600.0, "dense TFLOP/s": 1200.0, "W": 700.0, "MHz": 1500.0}
        cost = pj if one.weights == "sparse" else 0.8
        rows.append({**one._asdict(), **rate, "pJ": cost, "rounds": [{"pJ": cost}, {"pJ": 1.01 * cost}]})
    text = report_sparse.sparse_products(written(tmp_path, monkeypatch, products=rows))
    assert said in text
    assert text.count("\n| ") == len(rows) + 2
    assert f"| f16, 256, 2, relu | sparse | 600.0 | 1,200 | 700.0 | 1,500 | {pj:.3f} " in text
    assert "No GPU has run this yet" in report_sparse.sparse_weights(tmp_path / "sparse.md")


def test_texts_a_joule(tmp_path, monkeypatch):
    rows = [
        {"level": level, "precision": of, "model": model, "J/million": joules}
        for level, model, joules in (("l19", "dense", 500.0), ("l19", "pruned", 400.0), ("l22", "pruned", 250.0))
        for of in ("fp16", "fp8")
    ]
    text = report_sparse.texts_a_joule(written(tmp_path, monkeypatch, level=rows))
    assert "labels 2,000 texts** by l19 in fp16, 4,000 by l22 in fp8." in text
    assert text.index("| [l19](levels/l19.md) | 2,000 | 2,000 |") < text.index(
        "| [l22](levels/l22.md) | 4,000 | 4,000 |"
    )


@pytest.mark.parametrize(("right", "said"), [(0.913, "**Gate 1 is passed**: "), (0.909, "91.2 % are asked for")])
def test_the_page_says_what_the_first_gate_says(tmp_path, monkeypatch, right, said):
    rows = [
        {"model": name, "precision": "fp16", "accuracy": accuracy, "interval": [0.9, 0.92], "command": command,
         "inputs/s": rate, "J/million": 0.5, "rounds": [{"J/million": 0.49}, {"J/million": 0.51}]}
        for name, accuracy, command, rate in (
            ("dense", 0.9147, "charcnn train", 1e6), ("pruned", 0.906, None, 1.05e6), ("trained", right, "x", 1.1e6))
    ]  # fmt: skip
    text = report_sparse.sparse_weights(written(tmp_path, monkeypatch, weights=rows))
    assert said in text
    assert "| fp16, trained | " in text
    assert "| 1.100 |" in text


@pytest.mark.parametrize(("rate", "said"), [(900.0, "**Gate 3 is passed**"), (700.0, "1.17 × as fast")])
def test_the_page_says_what_the_third_gate_says(tmp_path, monkeypatch, rate, said):
    rows = [
        {"features": features, "weights": weights, "tflop_per_second": rate if weights == "sparse" else 600.0,
         "rounds": [{"mJ": 190.0, "W": 690.0}, {"mJ": 192.0, "W": 700.0}]}
        for features in tensor_energy.FEATURES for weights in tensor_energy.WEIGHTS
    ]  # fmt: skip
    text = report_sparse.sparse_conv3(written(tmp_path, monkeypatch, conv3=rows))
    assert said in text
    assert "| relu, sparse | " in text
    assert "190.0 to 192.0 | 695.0 |" in text
