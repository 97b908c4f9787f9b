"""Encoders: layers as data, the reference, each technique, Hugging Face's files, and the command."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numba
import numpy as np
import pytest
from bert_folder import TEXTS, ids_of, of_pytorch, written
from conftest import by_turns
from hypothesis import given, settings
from hypothesis import strategies as st

from charcnn.catalog import ENCODER_TECHNIQUES, encoder_technique
from charcnn.gpu import device
from charcnn.layers import (
    Embedding,
    Gelu,
    Linear,
    MeanPool,
    Normalize,
    Projection,
    Residual,
    RowNorm,
    SelfAttention,
    place,
)
from charcnn.model import params
from charcnn.model.sequences import Exact, features, lengths, run
from charcnn.networks import bert
from charcnn.networks.encoder import EncoderNetwork, files, steps
from charcnn.networks.encoder.cuda import PreparedEncoder
from charcnn.networks.encoder.sizes import SIZES, layers_of
from charcnn.networks.encoder.tokens import TextTokenizer
from charcnn.networks.encoder.workers import sizes_of
from charcnn.networks.runner import encoder as command
from charcnn.networks.runner.encoder import expected
from charcnn.ops.common import cpu_amx, cpu_dot, cpu_dot_gemm
from charcnn.ops.conv1d.double_buffered_layer import DoubleBufferedConv

TOKENS = 12


def network(variant: str = "tiny", tokens: int = TOKENS) -> EncoderNetwork:
    """An encoder."""
    return EncoderNetwork("bert", variant, bert.layers(variant), tokens)


def one_block() -> EncoderNetwork:
    """An encoder of one block, which the simulator computes in half the time."""
    return EncoderNetwork("bert", "odd", layers_of(SIZES["tiny"]._replace(blocks=1)), TOKENS)


def drawn(of: EncoderNetwork, counts: list[int], seed: int = 0) -> np.ndarray:
    """Token ids of texts with so many tokens."""
    ids = np.random.default_rng(seed).integers(0, of.vocabulary, (len(counts), of.tokens), np.int32)
    ids[np.arange(of.tokens) >= np.array(counts)[:, None]] = -1
    return ids


@pytest.mark.parametrize(("variant", "tokens", "gflop"), [("base", 128, 22.347), ("base", 512, 96.637)])
def test_counts_of_bert_base(variant: str, tokens: int, gflop: float) -> None:
    of = network(variant, tokens)
    assert of.flops / 1e9 == pytest.approx(gflop, abs=1e-3)
    assert of.parameters == 108_891_648  # as Hugging Face's BertModel without its pooler
    assert of.length == 4 * tokens
    assert of.classes == 768


@pytest.mark.parametrize(
    ("layers", "shape", "error"),
    [
        ([SelfAttention(3, name="a")], (4, 8), "heads=3: need a divisor of the 8 features"),
        ([Embedding(9, 8, 4, name="e")], (5,), "e reads 5 tokens: need at most 4"),
        ([Residual((Projection(9, name="p"),))], (4, 8), r"layers whose result is \(4, 9\): need that shape"),
        ([Residual(())], (4, 8), "layers whose result is none"),
        ([Projection(8, name="p")], (8,), r"p reads shape \(8,\): need \(S, H\)"),
        ([Projection(8, name="p"), Residual((Projection(8, name="p"),))], (4, 8), "need a name that no other layer"),
        ([Projection(8)], (4, 8), "need a name"),
    ],
)
def test_layers_that_do_not_fit(layers: list[Any], shape: tuple[int, ...], error: str) -> None:
    with pytest.raises(ValueError, match=error):
        place(layers, shape)


@pytest.mark.parametrize(
    "layers",
    [
        [RowNorm(name="n")],
        [Embedding(9, 8, 4, name="e"), RowNorm(name="n"), Gelu()],
        [Embedding(9, 8, 4, name="e"), RowNorm(name="n"), Residual((RowNorm(name="m"),)), RowNorm(name="k")],
        [Embedding(9, 8, 4, name="e"), RowNorm(name="n"), MeanPool(), Normalize(), Normalize()],
        [Embedding(9, 8, 4, name="e"), RowNorm(name="n"), Residual((Projection(8, name="p"),))],
    ],
)
def test_orders_that_have_no_steps(layers: list[Any]) -> None:
    with pytest.raises(ValueError, match="no step for"):
        steps(place(layers, (4,)))


def test_an_encoder_ends_with_a_mean() -> None:
    with pytest.raises(ValueError, match=r"layers end with RowNorm.*: need MeanPool"):
        EncoderNetwork("bert", "odd", bert.layers("tiny")[:-2], 8)


def test_a_token_behind_the_last_one_is_refused() -> None:
    with pytest.raises(ValueError, match=r"ids\[1\] has a token behind an id below 0"):
        lengths(np.array([[1, 2, -1], [1, -1, 2]], np.int32))


def test_the_sizes_of_a_batch() -> None:
    ids = drawn(network(tokens=12), [12, 0, 3])
    assert sizes_of(ids) == (3, 36, 12)
    many = np.zeros((1000, 16), np.int32)
    many[:, 9:] = -1
    inputs, rows, most = sizes_of(many)
    assert (inputs, most) == (1000, 16)
    assert 9000 <= rows <= 9000 * 1.04


@settings(max_examples=15, deadline=None)
@given(st.lists(st.integers(1, TOKENS), min_size=1, max_size=4), st.integers(0, 99))
def test_the_reference_agrees_with_pytorch(counts: list[int], seed: int) -> None:
    of = network()
    held, ids = params.init(of, seed), drawn(of, counts, seed)
    np.testing.assert_allclose(run(of.nodes, ids, held), of_pytorch(of, held, ids), atol=1e-12)


def test_causal_attention_sees_nothing_behind() -> None:
    layer = SelfAttention(2, causal=True, name="a")
    (node,) = place([layer], (6, 8))
    rng = np.random.default_rng(0)
    held = {name: rng.standard_normal(shape) for name, shape in node.parameters.items()}
    x = rng.standard_normal((6, 8))
    whole = features([node], x, held, Exact())
    np.testing.assert_allclose(features([node], x[:4], held, Exact()), whole[:4], atol=1e-12)
    other = place([SelfAttention(2, name="a")], (6, 8))
    assert abs(features(other, x, held, Exact())[:4] - whole[:4]).max() > 1e-3


OTHERS_SHOW = ("mma", "fp16"), ("mma", "tf32"), ("wgmma", "fp16"), ("wgmma", "bf16"), ("persistent", "bf16")
"""Each of these precisions is shown by the other's products, and fp16 with wgmma by fp8's attention."""

BY_TURNS = ("wgmma", "fp16x3"), ("wgmma", "tf32"), ("wgmma", "fp8"), ("cpu_gemm", "bf16"), ("cpu_gemm", "int8")
"""And these by tests of their products."""

PRECISE = [
    pytest.param(
        row.name,
        precision,
        marks=[pytest.mark.exhaustive] * ((row.name, precision) in OTHERS_SHOW)
        + [by_turns] * ((row.name, precision) in BY_TURNS),
    )
    for row in ENCODER_TECHNIQUES
    for precision in row.precisions
]


def emulated(monkeypatch: pytest.MonkeyPatch, precision: str) -> None:
    """Products of bf16 and int8 by emulated tiles, where this processor has none."""
    if precision in cpu_dot.DOT_FORMATS and cpu_dot.missing(precision):
        monkeypatch.setattr(cpu_amx, "form", lambda precision: "emulated")
        monkeypatch.setattr(cpu_dot_gemm, "require", cpu_dot.DOT_FORMATS.get)


@pytest.mark.parametrize(("technique", "precision"), PRECISE)
def test_every_technique(technique: str, precision: str, monkeypatch: pytest.MonkeyPatch) -> None:
    row, of = encoder_technique(technique), network() if precision == "fp32" else one_block()
    if row.device == "cpu":
        emulated(monkeypatch, precision)
    held, ids = params.init(of, 1), drawn(of, [TOKENS, 0, 1])
    run_ = row.build(technique, held, of, batch=3, **row.build_options(precision))
    results = run_(ids.view(np.uint8))
    right, sigma = expected(ids.view(np.uint8), held, of, row.rounding(precision))
    assert results.dtype == np.float32
    assert not results[1].any()
    errors = np.sqrt(np.square((results - right)[sigma > 0] / sigma[sigma > 0]).reshape(2, -1).mean(axis=1))
    assert errors.max() <= row.rounding(precision).bound, errors
    np.testing.assert_allclose(np.linalg.norm(results[[0, 2]], axis=1), 1, atol=1e-3)


def test_a_processor_without_dot_products_is_refused(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(numba.config, "CPU_FEATURES", "+avx2,+fma")
    assert ran(["--variant", "tiny", "--tokens", "8", "--as", "cpu_gemm", "--precision", "int8"]) == 2
    assert "int8': this processor lacks avx512bw, avx512f, avx512vnni; fp32 runs on any" in capfd.readouterr().err


@pytest.mark.parametrize("technique", ["cpu_gemm", "strong"])
def test_a_text_is_embedded_alike_in_any_company(technique: str) -> None:
    row, of = encoder_technique(technique), one_block()
    held, ids = params.init(of, 1), drawn(of, [4, TOKENS, 1])
    run_ = row.build(technique, held, of, batch=4)
    together, alone = run_(ids.view(np.uint8)), [run_(ids[i : i + 1].view(np.uint8))[0] for i in range(3)]
    np.testing.assert_allclose(together, alone, atol=1e-6)


@pytest.mark.parametrize("rows", [1, 40, 300])
def test_there_is_room_for_the_sums_of_parts_of_a_deep_product(rows: int) -> None:
    deep = EncoderNetwork("bert", "odd", layers_of(SIZES["tiny"]._replace(blocks=1, hidden=4096)), 16)
    made = PreparedEncoder(deep, params.init(deep, 0), "strong", "fp32")
    sums, _ = DoubleBufferedConv([Linear(64)], {"weight": np.zeros((4096, 64), np.float32),
                                                "bias": np.zeros(64, np.float32)}).writes((rows, 4096))  # fmt: skip
    assert sums.nbytes > 4 * rows * 64
    assert made.room(rows) >= max(sums.nbytes, 4 * rows * 4096)


@pytest.mark.parametrize("technique", ["cpu_gemm", "naive"])
def test_no_texts_and_gaps(technique: str) -> None:
    row, of = encoder_technique(technique), network()
    run_ = row.build(technique, params.init(of, 1), of, batch=4)
    assert run_(np.empty((0, of.length), np.uint8)).shape == (0, of.classes)
    ids = drawn(of, [3])
    ids[0, 0] = -1
    with pytest.raises(ValueError, match="need all tokens first"):
        run_(ids.view(np.uint8))


@pytest.mark.skipif(device.SIMULATED, reason="the simulator has no graphs")
@pytest.mark.parametrize("technique", ["strong", "mma", "wgmma"])
def test_on_device(technique: str) -> None:
    row, of = encoder_technique(technique), network("minilm", 64)
    if row.hopper and not device.has_tensor_cores(hopper=True):
        pytest.skip("needs Hopper")
    held, ids = params.init(of, 1), drawn(of, [64, 9, 30])
    run_ = row.build(technique, held, of, batch=4)
    there = run_.on_device(device.to_device(ids.view(np.uint8))).copy_to_host()
    np.testing.assert_allclose(there, run_(ids.view(np.uint8)), atol=2e-3)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A small BERT, and texts."""
    return written(tmp_path)


def ran(argv: list[str]) -> int:
    """The exit status of the command."""
    with pytest.raises(SystemExit) as ended:
        command.main("bert", argv)
    return int(ended.value.code or 0)


def test_the_command_embeds_texts(
    folder: Path, tmp_path_factory: pytest.TempPathFactory, capfd: pytest.CaptureFixture[str]
) -> None:
    results = tmp_path_factory.mktemp("results")
    out = results / "e.npy"
    words = ["--params", str(folder), "--text", str(folder / "texts.txt"), "--tokens", "8", "--as", "cpu_gemm"]
    assert ran([*words, "--out", str(out)]) == 0
    printed = capfd.readouterr()
    assert "1 of 4 texts have more than 8 tokens" in printed.err
    assert "a ship sails home | a ship sails" in printed.out
    held, found = files.load(folder, "bert", None, 8), np.load(out)
    np.testing.assert_allclose(found, run(held.config.nodes, ids_of(TEXTS, 8), held), atol=1e-5)
    assert ran([*words, "--out", str(out)]) == 2
    assert "already exists" in capfd.readouterr().err
    assert ran([*words, "--out", str(results / "e.parquet")]) == 0
    parquet = pytest.importorskip("pyarrow.parquet")
    column = parquet.read_table(results / "e.parquet").column("embedding")
    np.testing.assert_array_equal(np.array(column.to_pylist(), np.float32), found)


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["--out", "e.txt"], "need a name that ends in .npy or .parquet"),
        (["--tokenizer", "t.json"], "needs --text"),
        (["--text", "texts.txt"], "needs --params with a tokenizer.json"),
        (["--text", "texts.txt", "--tokenizer", "no.json"], "--tokenizer no.json: there is no such file"),
        (["--tokens", "600"], "tokens=600: need at most 512, the model's positions"),
        (["--offload", "pipeline"], "is not split into stages"),
        (["--offload", "tensor"], "cpu_gemm runs on the CPU"),
        (["--params", "missing"], "--params missing: there is no such file or folder"),
        (["--params", "empty"], "--params empty: there is no model.safetensors in it"),
        (["--params", ".", "--text", "latin.txt"], "latin.txt: texts[1] is not UTF-8, byte 0xFC at 1: need UTF-8"),
        (["--params", ".", "--text", "wide.txt"], "wide.txt: is UTF-16"),
        (["--as", "cpu_gemm", "--profile"], "its report times the stages"),
        (["--precision", "fp16", "--as", "strong"], "strong has fp32; fp16 is in mma, wgmma"),
    ],
)
def test_options_that_do_not_fit(
    folder: Path, words: list[str], error: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(folder)
    Path("empty").mkdir()
    Path("latin.txt").write_bytes("a ship\nMünchen\n".encode("latin-1"))
    Path("wide.txt").write_text("a ship", "utf-16")
    assert ran(words if "--as" in words else [*words, "--as", "cpu_gemm"]) == 2
    assert error in capfd.readouterr().err


@pytest.mark.parametrize(
    ("name", "value", "error"),
    [
        ("model_type", "roberta", "model_type is 'roberta': need 'bert'"),
        ("hidden_act", "relu", "hidden_act is 'relu': need 'gelu'"),
        ("hidden_size", None, "hidden_size is None: need a whole number"),
        ("num_hidden_layers", 3, "missing"),
        ("num_hidden_layers", 0, "need sizes of at least 1"),
        ("num_hidden_layers", 10**9, "num_hidden_layers is 1000000000: need at most 1000"),
        ("num_hidden_layers", 2.5, "num_hidden_layers is 2.5: need a whole number"),
        ("layer_norm_eps", 0, "an eps above 0"),
        ("vocab_size", float("inf"), "vocab_size is inf: need a whole number"),
        ("is_decoder", True, "is_decoder is True: need False"),
    ],
)
def test_another_model_is_refused(folder: Path, name: str, value: Any, error: str) -> None:
    path = folder / files.CONFIG
    path.write_text(json.dumps(json.loads(path.read_text()) | {name: value}))
    with pytest.raises(ValueError, match=error):
        files.load(folder, "bert", None, 8)


def test_fields_are_joined_in_order_and_positions_bound_tokens(
    folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    results = tmp_path_factory.mktemp("fields")
    (results / "f.csv").write_text('1,"a ship","sails home"\n2,"rain","falls"\n')
    (results / "f.txt").write_text("a ship sails home\nrain falls\n")
    for name in ("f.csv", "f.txt"):
        words = ["--params", str(folder), "--text", str(results / name), "--as", "cpu_gemm"]
        assert ran([*words, "--out", str(results / f"{name}.npy")]) == 0
    np.testing.assert_array_equal(np.load(results / "f.csv.npy"), np.load(results / "f.txt.npy"))


def test_labels_may_be_words(folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "l.csv"
    path.write_text("text,label\na ship,sea\nrain,air\n")
    assert ran(["--params", str(folder), "--text", str(path), "--as", "cpu_gemm"]) == 0


def test_tokens_that_hold_no_text_and_tokenizers_of_bytes(folder: Path) -> None:
    with pytest.raises(ValueError, match="tokens=2: need at least 3"):
        TextTokenizer(folder / files.TOKENIZER, network(tokens=2))
    (folder / files.TOKENIZER).write_bytes(b"\xff")
    with pytest.raises(ValueError, match=r"tokenizer\.json: is no tokenizer\.json"):
        TextTokenizer(folder / files.TOKENIZER, network())


def test_a_variant_that_the_file_does_not_have(folder: Path) -> None:
    with pytest.raises(ValueError, match="--variant base has"):
        files.load(folder, "bert", "base", 8)


def test_a_tokenizer_of_a_larger_vocabulary(folder: Path) -> None:
    small = EncoderNetwork("bert", "odd", layers_of(SIZES["tiny"]._replace(vocabulary=5)), 8)
    with pytest.raises(ValueError, match="gives id 6: need ids below 5"):
        TextTokenizer(folder / files.TOKENIZER, small)([b"ship sails"])
