"""bench/attention.py: every technique is checked and timed beside PyTorch's, and the page has the table of it."""

from __future__ import annotations

import json

import attention
import numpy as np
import pytest
import turns
from conftest import by_turns
from report import attention as block
from report.schema import Results
from small_gpu import one_multiprocessor

from charcnn.gpu import device

torch = pytest.importorskip("torch", reason="it measures beside PyTorch")
pytestmark = pytest.mark.skipif(not device.SIMULATED, reason="there is a GPU, where it measures")


class Called:
    """A graph, where there is none."""

    def __init__(self, start, stream):
        self.launch = lambda: start(stream)


@pytest.fixture
def small(monkeypatch):
    """Small shapes in the emulator, beside the one backend that PyTorch has on every CPU."""
    one_multiprocessor(monkeypatch)
    monkeypatch.setattr(attention, "GPU", "cpu")
    monkeypatch.setattr(attention, "BACKENDS", {"MATH": "cuDNN"})
    monkeypatch.setattr(attention, "SHAPES", (attention.Shape(2, 1, 5, 32), attention.Shape(1, 2, 3, 64)))
    monkeypatch.setattr(attention.graph, "Graph", Called)
    monkeypatch.setattr(turns, "ROUNDS", 1)
    monkeypatch.setattr(device, "require_tensor_cores", lambda *_, **__: None)
    monkeypatch.setattr(device, "has_capability", lambda least: True)


@by_turns
@pytest.mark.parametrize("precisions", ["fp16", pytest.param("fp16,bf16", marks=pytest.mark.exhaustive)])
def test_every_technique_is_checked_timed_and_shown(precisions, small, monkeypatch, tmp_path):
    words = ["--shapes", "1", "--precisions", precisions, "--joules", "0", "--results-dir", str(tmp_path)]
    assert attention.main(words) == 0
    (file,) = tmp_path.iterdir()
    raw = json.loads(file.read_text())
    assert (raw["schema"], raw["ours"]) == ("attention", "as CUDA graphs")
    made = [(row["made"], row["precision"]) for row in raw["attention"]]
    assert made == [
        *((name, "float32") for name in attention.LADDER),
        *((name, precision) for precision in precisions.split(",") for name in ("mma", "wgmma", "cuDNN")),
    ]
    for row in raw["attention"]:
        assert 0 < row["error"] <= attention.TOLERANCES[row["precision"]]
        assert row["tflop_per_second"] == pytest.approx(4 * 2 * 5 * 5 * 32 / row["microseconds"] / 1e6)
    monkeypatch.setattr(block, "results", lambda: Results((file,), attention={file: raw}))
    last = precisions.split(",")[-1]
    text = block.attention(tmp_path / "page.md", last)
    rates = {row["made"]: row["tflop_per_second"] for row in raw["attention"] if row["precision"] in ("float32", last)}
    best, other = max(rates[name] for name in block.OWN), rates["cuDNN"]
    assert "| S = 5, N = 2, 1 × 32 | – | " in text
    assert f"| {best / other:.2f} |" in text
    assert "Ours as CUDA graphs. Raw results: " in text


def test_a_wrong_result_is_not_timed(small, monkeypatch):
    monkeypatch.setattr(attention, "by_turns", lambda ready, **_: pytest.fail("timed"))
    monkeypatch.setattr(attention.mma, "start", lambda call, given, out, *_: out.copy_to_device(np.ones_like(out)))
    with pytest.raises(SystemExit, match="mma fp16, S = 5, N = 2, 1 heads of 32: off by "):
        attention.main(["--shapes", "1"])


@pytest.mark.parametrize(
    ("options", "message"),
    [(["--precisions", "fp16,fp8"], "--precisions 'fp8': need fp16 or bf16"), (["--shapes", "0"], "need 1 to 6")],
)
def test_options_that_do_not_fit(options, message, capsys):
    with pytest.raises(SystemExit) as ended:
        attention.main(options)
    assert ended.value.code == 2
    assert message in capsys.readouterr().err


def test_without_a_gpu_it_says_so(capsys):
    assert attention.main([]) == 2
    assert capsys.readouterr().err.startswith("attention: ")
