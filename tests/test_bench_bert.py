"""bench/bert.py: our techniques are checked and timed beside PyTorch's, and the page has the table of them."""

from __future__ import annotations

import json
import sys
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType, SimpleNamespace

import bert
import bert_cpu
import numpy as np
import pytest
from bert_folder import written
from conftest import by_turns
from report import bert as block
from report.schema import Results
from small_gpu import fresh_kernels

from charcnn.gpu import device
from charcnn.model.sequences import run
from charcnn.networks.encoder import files
from charcnn.networks.encoder.sizes import SIZES

torch = pytest.importorskip("torch", reason="it measures beside PyTorch")
pytestmark = pytest.mark.skipif(not device.SIMULATED, reason="there is a GPU, where it measures")

functional, nn = torch.nn.functional, torch.nn


def of(**parts):
    """A module that has these parts by their names."""
    made = nn.Module()
    for name, part in parts.items():
        made.add_module(name, part)
    return made


class Embeddings(nn.Module):
    """The sum of three tables' rows, normalised."""

    def __init__(self, said):
        super().__init__()
        self.word_embeddings = nn.Embedding(said.vocab_size, said.hidden_size)
        self.position_embeddings = nn.Embedding(said.max_position_embeddings, said.hidden_size)
        self.token_type_embeddings = nn.Embedding(2, said.hidden_size)
        self.LayerNorm = nn.LayerNorm(said.hidden_size, 1e-12)

    def forward(self, input_ids):
        places = self.position_embeddings.weight[: input_ids.shape[1]]
        return self.LayerNorm(self.word_embeddings(input_ids) + places + self.token_type_embeddings.weight[0])


class BertModel(nn.Module):
    """What bench/bert.py needs of Hugging Face's, where that is not installed."""

    def __init__(self, said, *, add_pooling_layer):
        super().__init__()
        width, hidden, self.heads = said.hidden_size, said.intermediate_size, said.num_attention_heads

        def summed(depth):
            return of(dense=nn.Linear(depth, width), LayerNorm=nn.LayerNorm(width, 1e-12))

        def layer():
            projections = {name: nn.Linear(width, width) for name in ("query", "key", "value")}
            attention = of(self=of(**projections), output=summed(width))
            return of(
                attention=attention, intermediate=of(dense=nn.Linear(width, hidden)), output=summed(hidden)
            )  # fmt: skip

        self.embeddings = Embeddings(said)
        self.encoder = of(layer=nn.ModuleList([layer() for _ in range(said.num_hidden_layers)]))

    def forward(self, input_ids, attention_mask=None):
        x = self.embeddings(input_ids)
        seen = None if attention_mask is None else attention_mask[:, None, None].bool()
        for layer in self.encoder.layer:
            own, after = layer.attention.self, layer.attention.output
            q, k, v = (
                made(x).unflatten(2, (self.heads, -1)).transpose(1, 2) for made in (own.query, own.key, own.value)
            )
            y = functional.scaled_dot_product_attention(q, k, v, seen).transpose(1, 2).flatten(2)
            x = after.LayerNorm(x + after.dense(y))
            y = layer.output.dense(functional.gelu(layer.intermediate.dense(x)))
            x = layer.output.LayerNorm(x + y)
        return SimpleNamespace(last_hidden_state=x)


@pytest.fixture
def small(monkeypatch):
    """A small BERT of one block in the emulator, beside PyTorch on the CPU."""
    fresh_kernels(monkeypatch)
    monkeypatch.setattr(device, "multiprocessors", lambda: 2)
    monkeypatch.setitem(SIZES, "tiny", SIZES["tiny"]._replace(blocks=1))
    if find_spec("transformers") is None:
        made = ModuleType("transformers")
        vars(made).update(BertConfig=SimpleNamespace, BertModel=BertModel, __version__="none")
        made.__spec__ = ModuleSpec("transformers", None)
        monkeypatch.setitem(sys.modules, "transformers", made)
    monkeypatch.setattr(bert, "GPU", "cpu")
    monkeypatch.setattr(bert, "CASES", (bert.Case("tiny", 2, 6, 3), bert.Case("tiny", 1, 5)))
    monkeypatch.setattr(bert, "serves", lambda row, precision: precision in row.precisions and precision != "fp8")
    monkeypatch.setattr(device, "require_tensor_cores", lambda *_, **__: None)


def timed(ready, **_):
    """Rows as `turns.by_turns` gives them; each call took a microsecond more than the one before."""
    rates = {"tflop_per_second": 1.0, "rounds": [1.0]}
    return [{**one.row, **rates, "microseconds": float(n)} for n, one in enumerate(ready, 1)]


@by_turns
def test_every_technique_is_checked_timed_and_shown(small, monkeypatch, tmp_path):
    monkeypatch.setattr(bert, "by_turns", timed)
    assert bert.main(["--precisions", "fp16", "--modes", "eager", "--results-dir", str(tmp_path)]) == 0
    (file,) = tmp_path.iterdir()
    raw = json.loads(file.read_text())
    assert raw["schema"] == "bert"
    names = ["mma", "wgmma", "BertModel, eager", "nn.TransformerEncoder"]
    assert [(row["made"], row["precision"]) for row in raw["bert"]] == [(name, "fp16") for name in names] * 2
    for row in raw["bert"]:
        assert 0 < row["error"] <= bert.TOLERANCES["fp16"]
        tokens = row["all_tokens"]
        assert tokens == 5 if row["case"]["n"] == 1 else 6 + 3 <= tokens <= 6 + 6
    monkeypatch.setattr(block, "results", lambda: Results((file,), bert={file: raw}))
    text = block.bert(tmp_path / "page.md", "fp16")
    assert "| tiny, N = 2, 3 to 6 tokens | " in text
    assert "| tiny, N = 1, 5 tokens | 3 | 4 | 1 | 2 | 3.00 |" in text


@pytest.mark.parametrize(
    ("name", "value"), [("own", "mma fp16, tiny, N = 1, 5 tokens: off by"), ("reference", "BertModel in float32, tiny")]
)
def test_a_wrong_result_is_not_timed(name, value, small, monkeypatch):
    monkeypatch.setattr(bert, "by_turns", lambda ready, **_: pytest.fail("timed"))
    if name == "own":
        check = bert.Drawn.check
        monkeypatch.setattr(bert.Drawn, "check", lambda self, name, y, precision: check(self, name, -y, precision))
    else:
        right = bert.reference
        monkeypatch.setattr(bert, "reference", lambda *given: -right(*given))
    with pytest.raises(SystemExit, match=value):
        bert.main(["--precisions", "fp16", "--modes", "eager", "--cases", "1"])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--precisions", "fp16,fp8"], "--precisions 'fp8': need fp16 or bf16"),
        (["--cases", "0,99"], "--cases '99': need numbers from 0 to 7"),
        (["--modes", "fast"], "--modes 'fast': need some of eager; compiled"),
    ],
)
def test_options_that_do_not_fit(options, message, capsys):
    with pytest.raises(SystemExit) as ended:
        bert.main(options)
    assert ended.value.code == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("wrong", [False, True])
def test_a_cpu_beside_others(wrong, monkeypatch, tmp_path):
    held, sign = files.load(written(tmp_path), "bert", None, None), -1 if wrong else 1

    def embedded(ids, mask):
        return run(held.config.nodes, np.where(mask, ids, -1).astype(np.int32), held)

    monkeypatch.setattr(bert_cpu, "CASES", (bert_cpu.Case(3, 6, 2),))
    monkeypatch.setattr(bert_cpu, "pytorch", lambda folder: None)
    monkeypatch.setattr(bert_cpu, "inferred", lambda module: embedded)
    monkeypatch.setattr(bert_cpu, "exported", lambda *_: {})
    other = ("OpenVINO", "fp32", lambda **given: sign * embedded(**given), "1")
    monkeypatch.setattr(bert_cpu, "libraries", lambda *_: [other])
    monkeypatch.setattr(bert_cpu, "by_turns", lambda ready, *_: timed(ready))
    words = ["--params", str(tmp_path), "--cpu-time", "--results-dir", str(tmp_path / "to")]
    if wrong:
        with pytest.raises(SystemExit, match=r"bert_cpu: OpenVINO fp32, .*: off by 2"):
            bert_cpu.main(words)
        return
    assert bert_cpu.main(words) == 0
    (file,) = (tmp_path / "to").iterdir()
    said = json.loads(file.read_text())
    assert said["clock"] == "process_time"
    rows = [row for row in said["bert"] if row["precision"] == "fp32"]
    assert [row["made"] for row in rows] == ["cpu_gemm", "BertModel, eager", "OpenVINO"]
    assert all(row["error"] < bert_cpu.TOLERANCES["fp32"] for row in rows)
    monkeypatch.setattr(block, "results", lambda: Results((file,), bert={file: said}))
    text = block.bert(tmp_path / "page.md", "fp32")
    assert "| BertModel, eager | OpenVINO | `cpu_gemm` | best ÷ best other |" in text
    assert "fp16" not in block.bert(tmp_path / "page.md", "fp16")
