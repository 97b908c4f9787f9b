"""Training without PyTorch: what changes texts at random, what a batch is to learn, which engine trains."""

import subprocess
import sys
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import numba
import numpy as np
import pytest
from test_training import ENGINES, FORWARD, QUICK, command, engine, examples, run, trained, write_rows

from charcnn.config import TINY, Config
from charcnn.host.install import module_environment
from charcnn.model import network, params, sparsity
from charcnn.text.encodings import encode
from charcnn.training import changes, data, engines, ngrams, start
from charcnn.training.engines import choose
from charcnn.training.plan import plan
from charcnn.training.recipe import Recipe
from charcnn.training.steps import OwnTrainer

STILL = Recipe(blank_words=0, replace_characters=0, shift_left=0, shift_right=0, smoothing=0)
SMALLEST = Config(length=123, channels=8, units=16, classes=3)


def changed(ids, blank=9, made=1.0, seeds=(0,), **fields):
    ids = np.asarray(ids, np.uint8)
    return changes.changed(ids, np.arange(len(ids)), blank, replace(STILL, **fields), made, seeds)


# What is changed at random.


def test_words_are_blanked_whole():
    ids = [[1, 2, 9, 3, 3, 3, 9, 9, 4, 9, 5, 5]] * 400
    found, _ = changed(ids, blank_words=0.5)
    for word in ([0, 1], [3, 4, 5], [8], [10, 11]):
        gone = found[:, word] == 9
        assert np.array_equal(gone.all(1), gone.any(1))
        assert 0.4 < gone[:, 0].mean() < 0.6
    assert np.array_equal(changed(ids)[0], ids)


def test_characters_are_replaced_where_there_are_some():
    ids = np.full((50, 100), 9)
    ids[:, :60] = 3
    found, _ = changed(ids, replace_characters=0.2)
    assert (found[:, 60:] == 9).all()
    assert 0.14 < (found[:, :60] != 3).mean() < 0.22
    assert set(np.unique(found)) == set(range(10))


def test_texts_are_shifted_and_cut():
    ids = [[1, 2, 3, 9, 9]] * 300
    found, _ = changed(ids, shift_left=2, shift_right=1)
    kinds, counts = np.unique(found, axis=0, return_counts=True)
    assert kinds.tolist() == [[1, 2, 3, 9, 9], [2, 3, 9, 9, 9], [3, 9, 9, 9, 9], [9, 1, 2, 3, 9]]
    assert counts.min() > 45
    assert (changed(ids, shift_left=0, shift_right=9)[0] != 9).sum(1).min() == 0


def test_joined_texts_say_how_much_is_their_own():
    ids = np.tile([[1] * 20 + [9] * 20, [2] * 30 + [9] * 10], (250, 1))
    joined, share = changed(ids, cut=0.6)
    joined, share = joined[::2], share[::2]  # of the others, what stands behind may be blank
    assert 0.3 < (share == 1).mean() < 0.5
    assert np.array_equal(joined[share == 1], ids[::2][share == 1])
    for row, part in zip(joined, share, strict=True):
        if part < 1:
            begin = int((row == 1).sum())
            assert begin < 20
            assert (row[begin:30] == 2).all()
            assert (row[30:] == 9).all()
            assert part == pytest.approx(begin / 30)
    assert changed(np.full((3, 40), 9), cut=1.0)[1].tolist() == [1, 1, 1]
    assert changed(ids)[1] is None


def test_changes_fade_and_follow_from_the_seeds_alone():
    ids = np.random.default_rng(0).integers(0, 10, (40, 60))
    all_of_them = {"blank_words": 0.3, "replace_characters": 0.1, "shift_left": 5, "shift_right": 8, "cut": 0.5}
    assert np.array_equal(changed(ids, made=0.0, **all_of_them)[0], ids)
    first, share = changed(ids, **all_of_them)
    threads = numba.get_num_threads()
    numba.set_num_threads(1)
    same, same_share = changed(ids, **all_of_them)
    numba.set_num_threads(threads)
    assert np.array_equal(first, same)
    assert np.array_equal(share, same_share)
    assert not np.array_equal(first, changed(ids, seeds=(1,), **all_of_them)[0])


# What a batch is to learn.


def test_initial_weights_follow_from_the_seed_and_keep_the_scale():
    config = Config(length=300, channels=48, units=256)
    first, same, other = (start.initialised(config, seed) for seed in (1, 1, 2))
    assert all(np.array_equal(first[name], same[name]) for name in first)
    assert not np.array_equal(first["fc1.weight"], other["fc1.weight"])
    params.check(first, config)
    ids = np.random.default_rng(0).integers(0, 70, (8, 300), np.uint8)
    assert 0.001 < network.forward(ids, first, config).std() < 0.1  # quiet logits, not silent ones
    bound = (config.channels * 7) ** -0.5
    for value in (first["conv2.weight"], first["conv2.bias"]):
        assert 0.9 * bound < np.abs(value).max() <= np.float32(bound)
        assert abs(value.mean()) < 0.1 * bound


def targets_of(recipe, *, multi_label=False, taught=None, weights=(0.5, 1.5, 10)):
    """What a first batch is to learn, its texts and shares, and its rows."""
    rng, config = np.random.default_rng(1), replace(SMALLEST, multi_label=multi_label)
    labels = rng.integers(0, 2, (8, 3), np.uint8) if multi_label else np.arange(8) % 3
    part = data.Examples(rng.integers(0, 70, (8, 123), np.uint8), labels, taught=taught)
    trainer = engine().trainer(part, np.ones(3) if multi_label else np.array(weights), config, recipe, [], None)
    trainer._begin(1)
    ids, share = trainer._next()
    rows = trainer._order[trainer._part(0)]
    return trainer._targets(rows, ids, share), share, labels[rows]


@pytest.mark.parametrize("cut", [0.0, 0.9])
@pytest.mark.parametrize("multi_label", [False, True])
def test_targets_are_what_pytorch_computes_its_losses_with(cut, multi_label):
    torch = pytest.importorskip("torch", reason="compares with PyTorch")
    from charcnn.training.step import Trainer

    recipe = replace(STILL, batch=8, smoothing=0.1, cut=cut, settle=0.0)
    found, share, labels = targets_of(recipe, multi_label=multi_label)
    logits = np.random.default_rng(2).standard_normal((8, 3)).astype(np.float32)
    part = data.Examples(np.zeros((8, 123), np.uint8), labels)
    weights = np.ones(3) if multi_label else np.array([0.5, 1.5, 10])
    config = replace(SMALLEST, multi_label=multi_label)
    theirs = Trainer(part, weights, config, recipe, torch.device("cpu"), torch.float32, False)
    both = [theirs._loss(*map(torch.from_numpy, (logits, of))).numpy() for of in (labels, np.roll(labels, 1, 0))]
    share = np.ones(8, np.float32) if share is None else share
    expected = share * both[0] + (1 - share) * both[1]
    if multi_label:
        losses = (np.logaddexp(0, logits) - found * logits).mean(1)
    else:
        losses = -(found * (logits - np.log(np.exp(logits).sum(1, keepdims=True)))).sum(1)
    np.testing.assert_allclose(losses, expected, rtol=1e-5, atol=1e-6)
    assert (share.min() < 1) == bool(cut)


@pytest.mark.parametrize("cut", [0.0, 0.9])
def test_targets_mix_labels_and_teacher(cut):
    answers = np.random.default_rng(0).dirichlet(np.ones(3), 8).astype(np.float32)
    recipe = replace(STILL, batch=8, cut=cut, settle=0.0)
    plain, _, labels = targets_of(recipe, weights=np.ones(3))
    mixed, taught = (
        targets_of(replace(recipe, teaching=share), weights=np.ones(3), taught=answers)[0] for share in (0.6, 1.0)
    )
    np.testing.assert_allclose(mixed, 0.4 * plain + 0.6 * taught, rtol=1e-5)
    np.testing.assert_allclose(taught.sum(1), 1, rtol=1e-5)
    if not cut:
        assert np.array_equal(plain, np.eye(3, dtype=np.float32)[labels])


def test_what_weighs_nothing_teaches_nothing():
    recipe, part = Recipe(epochs=1, batch=16), examples()
    rest = replace(part, weights=(part.labels != 2).astype(np.float32))
    found = engine().trainer(rest, np.ones(3), SMALLEST, replace(recipe, smoothing=0.0), [], None)
    found.epoch(1)
    assert found.weights()["fc3.bias"][2] < min(found.weights()["fc3.bias"][:2])


# N-grams.


def test_a_convex_function_is_brought_to_its_least():
    rng = np.random.default_rng(0)
    matrix, wanted = rng.standard_normal((30, 20)).astype(np.float32), rng.standard_normal((30, 2)).astype(np.float32)

    def loss(found):
        apart = matrix @ found - wanted
        return float((apart**2).sum(dtype=np.float64)) / 2, matrix.T @ apart

    found = ngrams._least(loss, np.zeros((20, 2), np.float32))
    np.testing.assert_allclose(found, np.linalg.lstsq(matrix, wanted, rcond=None)[0], atol=2e-3)


def test_the_largest_evidence_is_that_of_the_network():
    texts = [f"the {word} of today and {word}" for word in ["goal", "match", "bank", "profit", "orbit", "rocket"]] * 3
    sizes = plan("laptop", [60] * 18, FORWARD, 3).config
    part = data.Examples(encode(texts, FORWARD, sizes.length), np.arange(18) % 6 // 2)
    arrays, *_ = ngrams.weights(part, sizes, balance=True, teaching=0.7, seed=0)
    bias = float(arrays["conv2.bias"].max())
    arrays["conv2.bias"][:] = 0
    largest = network.run(sizes.nodes[:7], part.ids, arrays, np.float32).max()
    assert bias == pytest.approx(ngrams.HEADROOM * largest, rel=1e-5)


# Which engine trains.


def chosen(monkeypatch, *asked, gpu=None, torch=True, cuda_build=True, capability=(8, 0), **options):
    monkeypatch.setattr(engines.device_of, "capability", lambda: capability)
    monkeypatch.setattr(engines, "gpu", lambda: gpu)
    monkeypatch.setattr(engines, "find_spec", lambda name: torch or None)
    monkeypatch.setattr(engines, "_torch", lambda *how: SimpleNamespace(name="torch", device=how[0], precision=how[1]))
    monkeypatch.setattr(engines, "_torch_sees_gpu", lambda: cuda_build)
    said = []
    found = choose(*asked, say=said.append, warn=lambda line: said.append(f"warning: {line}"), **options)
    return (found.name, found.device, found.precision), said


OLD = "An old GPU has compute capability 7.5, below 8.0"
HOPPER = {"gpu": "", "capability": (9, 0)}


@pytest.mark.parametrize(
    ("asked", "machine", "found", "said"),
    [
        ((), {}, ("own", "cpu", "float32"), None),
        ((), {"gpu": ""}, ("torch", "auto", "auto"), "engine torch trains: such a GPU is there, and so is PyTorch"),
        ((), HOPPER, ("own", "cuda", "bf16"), None),
        ((), HOPPER | {"config": TINY}, ("torch", "auto", "auto"), "engine torch trains: channels and units that"),
        ((), {"gpu": "", "torch": False}, ("own", "cuda", "bf16"), None),
        ((), {"gpu": "", "cuda_build": False}, ("own", "cuda", "bf16"), None),
        (("own",), {"gpu": ""}, ("own", "cuda", "bf16"), None),
        (("auto", "auto", "fp16"), {"gpu": ""}, ("own", "cuda", "fp16"), None),
        (("own", "cpu", "float32"), {"gpu": ""}, ("own", "cpu", "float32"), None),
        (("auto", "cpu"), {"gpu": OLD}, ("own", "cpu", "float32"), None),
        ((), {"gpu": OLD}, ("torch", "auto", "auto"), f"engine torch trains: {OLD}, and own kernels train on"),
        ((), {"gpu": OLD, "torch": False}, ("own", "cpu", "float32"), f"warning: the CPU trains: {OLD}, and own"),
        (("own",), {"gpu": OLD}, ("own", "cpu", "float32"), f"warning: the CPU trains: {OLD}, and own kernels"),
        ((), {"mixup": 0.2}, ("torch", "auto", "auto"), "engine torch trains: mixup=0.2, which own kernels lack"),
        ((), {"compiled": True}, ("torch", "auto", "auto"), "engine torch trains: compile: own kernels have no"),
        (("auto", "cpu", "bf16"), {}, ("torch", "cpu", "bf16"), "engine torch trains: precision bf16, and own kernels"),
        (("torch",), {}, ("torch", "auto", "auto"), None),
    ],
)
def test_the_engine_that_trains(monkeypatch, asked, machine, found, said):
    engine, lines = chosen(monkeypatch, *asked, **machine)
    assert engine == found
    assert len(lines) == (said is not None)
    assert all(line.startswith(said) for line in lines)


@pytest.mark.parametrize(
    ("asked", "machine", "message"),
    [
        (("jax",), {}, "engine='jax': need one of auto, own, torch"),
        (("auto", "tpu"), {}, "device='tpu': need one of"),
        (("auto", "cuda"), {}, "device cuda: this machine shows no GPU"),
        (
            ("auto", "cuda"),
            {"gpu": OLD, "torch": False},
            rf"{OLD}.*: need device cpu, or engine torch \(.*pip.*\[torch\]",
        ),
        (("own", "cuda"), {"gpu": OLD}, f"{OLD}.*: need device cpu, or engine torch$"),
        (("own",), {"mixup": 0.2}, "mixup=0.2, which own kernels lack: need engine torch$"),
        ((), {"mixup": 0.2, "torch": False}, r"mixup=0.2, which own kernels lack: need engine torch \(.*pip"),
        (
            ("own", "cuda", "float32"),
            {"gpu": ""},
            "precision float32, and own kernels have bf16 and fp16 on cuda: need device cpu, or",
        ),
    ],
)
def test_what_no_engine_does_is_named(monkeypatch, asked, machine, message):
    with pytest.raises(ValueError, match=message):
        chosen(monkeypatch, *asked, **machine)


# Without PyTorch.


def test_a_training_goes_on_to_the_same_weights(tmp_path):
    recipe, states = Recipe(epochs=4, batch=16, cut=0.5), []
    whole, part = (engine().trainer(examples(), np.ones(3), SMALLEST, recipe, [], None) for _ in range(2))
    for number in (1, 2, 3):
        whole.epoch(number)
        states.append(engine().packed({"trainer": whole.state()}))
    (tmp_path / "a").write_bytes(states[0])
    with open(tmp_path / "a", "rb") as file:
        part.restore(engine().unpacked(file)["trainer"])
    for number in (2, 3):
        part.epoch(number)
    assert bytes(engine().packed({"trainer": part.state()})) == bytes(states[2])


def test_a_thread_that_changes_texts_ahead_changes_no_bits():
    given, states = (examples(), np.ones(3), SMALLEST, Recipe(epochs=2, batch=16, cut=0.5), engine()._make), []
    for ahead in (False, True):
        trainer = OwnTrainer(*given, ahead=ahead)
        trainer.epoch(1)
        states.append(bytes(engine().packed(trainer.state())))
    assert states[0] == states[1]


def test_without_matplotlib_a_model_has_no_curve(tmp_path, monkeypatch, capsys):
    write_rows(tmp_path / "a.csv")
    monkeypatch.setattr(command, "find_spec", lambda name: None if name == "matplotlib" else True)
    assert run("--data", tmp_path / "a.csv", "--out", tmp_path / "m.safetensors", *QUICK[:4], *QUICK[5:]) == 0
    assert "no curve is drawn: a curve needs Matplotlib" in capsys.readouterr().err
    assert sorted(path.suffix for path in tmp_path.iterdir()) == [".csv", ".csv", ".safetensors"]


CODE = """
import sys
import without
without.hide("torch")
import charcnn
texts = [f"the {word} of today" for word in ("goal", "bank", "orbit")] * 10
labels = ["sport", "money", "space"] * 10
found = charcnn.train(texts, labels, config=charcnn.TINY, epochs=2, batch=16)
print(found.metadata["training"]["engine"], found.predict(texts[:1]).shape)
found = charcnn.train(texts, labels, preset="laptop", epochs=1)
print(found.metadata["training"]["start"], found.predict(texts[:3]).tolist())
if len(sys.argv) > 1:
    from charcnn.sklearn import CharCNNClassifier
    model = CharCNNClassifier(config=charcnn.TINY, recipe={"epochs": 1, "batch": 16}, random_state=0).fit(texts, labels)
    print(model.predict(texts[:1]).shape)
"""


def test_python_trains_without_pytorch():
    words = ["-W", "ignore", "-c", CODE, *["sklearn"] * bool(find_spec("sklearn"))]
    done = subprocess.run(
        [sys.executable, *words],
        capture_output=True, text=True, env=module_environment(), cwd=Path(__file__).parent, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    said = done.stdout.splitlines()
    assert said[:2] == ["own (1,)", "n-grams ['sport', 'money', 'space']"]
    assert said[2:] == ["(1,)"] * bool(find_spec("sklearn"))


# 2:4 sparse weights.


def fours(arrays):
    """The weights of pruned layers, (output, four, 4): of neighbouring input channels."""
    for layer, channels in (("conv2", 16), ("conv6", 16), ("fc1", 16), ("fc2", 32)):
        weight = arrays[f"{layer}.weight"]
        yield weight.reshape(len(weight), channels, -1).transpose(0, 2, 1).reshape(len(weight), -1, 4)


@pytest.mark.parametrize("name", ENGINES)
def test_pruned_weights_stay_zero_and_the_others_learn(name):
    config = Config(length=123, channels=16, units=32, classes=3)
    first, recipe = start.initialised(config, 1), Recipe(epochs=2, batch=16, rate=1e-2, sparse="2:4")
    result = trained(recipe, engine=engine(name), first=first)
    assert result.epoch > 0
    for before, after in zip(fours(first), fours(result.arrays), strict=True):
        kept = after != 0
        assert (kept.sum(2) == 2).all()
        least, most = np.where(kept, abs(before), np.inf).min(2), np.where(kept, 0, abs(before)).max(2)
        assert (least >= most).all()
        assert (before[kept] != after[kept]).mean() > 0.9
    for layer in ("conv1", "fc3"):
        assert (result.arrays[f"{layer}.weight"] != 0).mean() > 0.99


def test_a_layer_of_three_channels_is_not_pruned():
    config = Config(length=123, channels=6, units=32, classes=3)
    with pytest.raises(ValueError, match="conv2 reads 6 channels: need a multiple of 4"):
        sparsity.masks(start.initialised(config, 0), config)


def test_a_model_is_pruned_by_the_command(tmp_path):
    write_rows(tmp_path / "rows.csv")
    given = ["--data", tmp_path / "rows.csv", "--classes", "a,b,c"]
    assert run(*given, "--out", tmp_path / "dense.safetensors", *QUICK, "--epochs", "1") == 0
    again = ["--out", tmp_path / "sparse.safetensors", "--sparse", "2:4", *QUICK[2:], "--epochs", "1"]
    assert run(*given, *again, "--init", tmp_path / "dense.safetensors") == 0
    model = params.load(tmp_path / "sparse.safetensors")
    assert model.metadata["training"]["recipe"]["sparse"] == "2:4"
    assert set(model.metadata["training"]["start"]) == {"model", "digest"}
    masks = sparsity.masks(model, model.config)
    assert len(masks) == 7
    assert all(not model[name][~mask].any() for name, mask in masks.items())


@pytest.mark.parametrize(
    ("more", "said"),
    [([], "sparse 2:4 prunes a trained model: need init"), (["--init", "fast"], "has the classes")],
)
def test_what_cannot_be_pruned(tmp_path, capsys, more, said):
    write_rows(tmp_path / "rows.csv")
    given = ["--data", tmp_path / "rows.csv", "--classes", "a,b,c", "--out", tmp_path / "sparse.safetensors"]
    assert run(*given, "--sparse", "2:4", *QUICK[2:], *more) == 2
    assert said in capsys.readouterr().err


def test_own_kernels_do_not_prune_on_a_gpu(monkeypatch):
    monkeypatch.setattr(engines, "gpu", lambda: "")
    with pytest.raises(
        ValueError, match="sparse=2:4, which own kernels lack on a GPU: need device cpu, or engine torch"
    ):
        choose("own", sparse="2:4", say=print, warn=print)
