"""Training by PyTorch: its network is the reference, and what changes texts at random there."""

import numpy as np
import pytest
from test_training import engine, examples, trained

from charcnn.config import TINY, Config
from charcnn.model import network, params
from charcnn.training import start
from charcnn.training.recipe import Recipe

torch = pytest.importorskip("torch", reason="engine torch needs PyTorch")

from charcnn.training import augment, step  # noqa: E402
from charcnn.training.network import TrainableNetwork  # noqa: E402

OTHER = Config(length=130, alphabet=5, channels=3, kernel_sizes=(5, 4, 3, 3, 2, 1), units=6, classes=3, layernorm=False)


@pytest.mark.parametrize("config", [TINY, OTHER])
def test_the_network_is_the_reference(config):
    weights = params.init(config, 1)
    model = TrainableNetwork(config, 0.5, torch.float32).eval()
    model.load(weights)
    back = model.arrays()
    assert all(np.array_equal(back[name], weights[name]) for name in weights)
    ids = np.random.default_rng(0).integers(0, config.alphabet + 1, (5, config.length), np.uint8)
    expected = network.forward(ids, weights, config)
    logits = model(torch.from_numpy(ids)).detach().numpy()
    assert np.linalg.norm(logits - expected) <= 2e-6 * np.linalg.norm(expected)


def test_mixing_with_a_share_of_one_changes_nothing():
    model = TrainableNetwork(TINY, 0.5, torch.float32).eval()
    model.load(start.initialised(TINY, 0))
    ids = torch.randint(0, 71, (4, TINY.length), dtype=torch.uint8)
    mixed = model(ids, ids.flip(0), torch.tensor([1.0, 0.0, 1.0, 0.0]))
    plain = model(ids)
    assert torch.allclose(mixed[0], plain[0], atol=1e-5)
    assert torch.allclose(mixed[1], plain[2], atol=1e-5)


def test_words_are_blanked_whole():
    ids = torch.tensor([[1, 2, 9, 3, 3, 3, 9, 9, 4, 9, 5, 5]] * 400, dtype=torch.uint8)
    torch.manual_seed(0)
    changed = augment.blank_words(ids, 9, 0.5)
    for word in ([0, 1], [3, 4, 5], [8], [10, 11]):
        gone = changed[:, word] == 9
        assert torch.equal(gone.all(1), gone.any(1))
        assert 0.4 < gone[:, 0].float().mean() < 0.6
    assert torch.equal(augment.blank_words(ids, 9, 0.0), ids)
    # As many words as there can be: one at every other position.
    assert augment.blank_words(torch.tensor([[1, 9, 1, 9, 1]], dtype=torch.uint8), 9, 0.5).shape == (1, 5)


def test_characters_are_replaced_where_there_are_some():
    ids = torch.full((50, 100), 9, dtype=torch.uint8)
    ids[:, :60] = 3
    torch.manual_seed(0)
    changed = augment.replace_characters(ids, 9, 0.2)
    assert (changed[:, 60:] == 9).all()
    assert 0.14 < (changed[:, :60] != 3).float().mean() < 0.22
    assert changed.max() == 9
    assert changed.min() == 0


def test_texts_are_shifted_and_cut():
    ids = torch.tensor([[1, 2, 3, 9, 9]], dtype=torch.uint8)
    assert augment.shift(ids, 9, 1, 1).tolist() == [[9, 1, 2, 3, 9]]
    assert augment.shift(ids, 9, 4, 4).tolist() == [[9, 9, 9, 9, 1]]
    assert augment.shift(ids, 9, -2, -2).tolist() == [[3, 9, 9, 9, 9]]
    assert augment.shift(ids, 9, 7, 7).tolist() == [[9, 9, 9, 9, 9]]
    torch.manual_seed(0)
    firsts = (augment.shift(ids.repeat(200, 1), 9, 0, 2) == 1).int().argmax(1)
    assert set(firsts.tolist()) == {0, 1, 2}


# Steps.


def test_rare_classes_weigh_more():
    rare = examples().part(np.r_[0:90:3, 1:30:3, 2:6:3])
    config, how = Config(length=123, channels=4, units=8, classes=3), (torch.device("cpu"), torch.float32, False)
    trainers = [step.Trainer(rare, weights, config, Recipe(), *how) for weights in ([1, 1, 1], [0.5, 1.5, 10])]
    logits, labels = torch.zeros(3, 3), torch.arange(3)
    plain, weighted = (trainer._loss(logits, labels) for trainer in trainers)
    assert (weighted[2] / plain[2]) > 5 * (weighted[0] / plain[0])


def test_of_a_damaged_state_nothing_is_taken():
    config = Config(length=123, channels=4, units=8, classes=3)
    how = config, Recipe(epochs=1, batch=45), torch.device("cpu"), torch.float32, False
    trained, other = (step.Trainer(examples(), [1, 1, 1], *how) for _ in range(2))
    trained.epoch(1)
    good, before = trained.state(), other.weights()
    moments = {**good["optimiser"]["state"], 0: {**good["optimiser"]["state"][0], "exp_avg": torch.zeros(3)}}
    last, bias = list(good["network"].items())[-1]
    network = {**good["network"], last: bias.double()}
    for name, damaged, message in (
        ("network", network, rf"\['network'\]\['{last}'\] is torch.float64 .*: need torch.float32 "),
        ("network", None, r"\['network'\] is a NoneType: need a "),
        ("average", {}, r"\['average'\] has : need "),
        ("optimiser", {**good["optimiser"], "state": moments}, r"\[0\]\['exp_avg'\] is torch.float32 \(3,\): need "),
        ("optimiser", {**good["optimiser"], "param_groups": []}, r"\['param_groups'\] has : need 0$"),
        ("steps", -1, r"\['steps'\] is -1"),
    ):
        with pytest.raises(ValueError, match=rf"^state.*{message}"):
            other.restore({**good, name: damaged})
    assert all(np.array_equal(array, before[name]) for name, array in other.weights().items())
    other.restore(good)
    assert all(np.array_equal(array, trained.weights()[name]) for name, array in other.weights().items())


def test_mixup_trains():
    result = trained(Recipe(epochs=2, batch=16, mixup=0.4), engine=engine("torch"))
    assert np.isfinite(result.history[-1]["train_loss"])
