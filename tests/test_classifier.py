"""The classifier: what it gives, for every kind of texts, from several threads, on the level that fits."""

import copy
import inspect
import pickle
import threading

import numpy as np
import pytest
from conftest import CPU_LEVELS, quick

import charcnn
from charcnn import catalog
from charcnn.classify import engine
from charcnn.classify.classifier import Classifier
from charcnn.config import TINY, Config
from charcnn.gpu import device
from charcnn.model import network, params
from charcnn.ops import reference
from charcnn.runtime import ordered
from charcnn.text import encodings, texts

TEXTS = ["Stocks fell on Monday as oil rose.", "The home side won in extra time.", "z", "é\x00 \U0001f600", "x" * 5000]


@pytest.fixture(scope="module")
def model():
    weights = params.init(TINY, seed=3)
    return params.Params(weights, TINY, encodings.ENCODINGS["crepe"], encodings.CLASSES)


@pytest.fixture(scope="module")
def classifier(model):
    return Classifier(model, device="cpu")


def test_it_is_imported_from_the_package():
    assert charcnn.Classifier is Classifier


def test_probabilities_are_the_networks(classifier, model):
    ids = charcnn.encode(TEXTS, "crepe", TINY.length)
    expected = reference.softmax(network.forward(ids, model, TINY))
    found = classifier.predict_proba(TEXTS)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, expected, atol=2e-6)
    assert classifier.predict(TEXTS).tolist() == [encodings.CLASSES[index] for index in expected.argmax(axis=1)]


def test_one_text(classifier):
    assert classifier.predict(TEXTS[0]) == classifier.predict(TEXTS)[0]
    assert isinstance(classifier.predict(TEXTS[0]), str)
    assert classifier.predict_proba(TEXTS[0]).shape == (4,)
    names, shares = classifier.predict_topk(TEXTS[0], 2)
    assert names.shape == shares.shape == (2,)


def test_a_few_texts_start_no_threads(classifier, monkeypatch):
    expected = classifier.predict_proba(iter(["one", "two", b"three"]))
    monkeypatch.setattr(ordered, "ordered", None)
    np.testing.assert_array_equal(classifier.predict_proba(("one", "two", b"three")), expected)
    with pytest.raises(ValueError, match=r"texts\[1\] is a NoneType: need str or bytes"):
        classifier.predict(["one", None])


def test_no_texts(classifier):
    assert classifier.predict([]).shape == (0,)
    assert classifier.predict_proba([]).shape == (0, 4)
    assert classifier.predict_topk([], 2)[0].shape == (0, 2)


def test_topk(classifier):
    names, shares = classifier.predict_topk(TEXTS, 4)
    assert (np.diff(shares) <= 0).all()
    np.testing.assert_allclose(shares.sum(axis=1), 1, atol=1e-6)
    assert (names[:, 0] == classifier.predict(TEXTS)).all()
    for k in (0, 5, True, "2"):
        with pytest.raises(ValueError, match="need 1 to 4"):
            classifier.predict_topk(TEXTS, k)


def test_many_texts_in_blocks(model):
    classifier = Classifier(model, device="cpu")
    whole = classifier.predict_proba(TEXTS * 5)
    classifier.rows = 4
    np.testing.assert_allclose(classifier.predict_proba(iter(TEXTS * 5)), whole, atol=1e-6)
    classifier.close()


def test_score(classifier):
    labels = classifier.predict(TEXTS)
    assert classifier.score(TEXTS, labels) == 1
    assert classifier.score(TEXTS, [classifier.classes_.tolist().index(label) for label in labels]) == 1
    assert (
        classifier.score(TEXTS, np.roll(classifier.classes_, 1)[[list(encodings.CLASSES).index(v) for v in labels]])
        == 0
    )
    for wrong, message in (
        (["x"] * 5, "labels hold 'x': need World"),
        ([4] * 5, "labels hold 4 to 4: need 0 to 3"),
        (labels[:3], r"labels has shape \(3,\)"),
    ):
        with pytest.raises(ValueError, match=message):
            classifier.score(TEXTS, wrong)
    with pytest.raises(ValueError, match="there is no score"):
        classifier.score([], [])


@pytest.mark.parametrize("encoding", ["crepe", "forward"])
def test_token_ids_are_the_models(encoding):
    model = params.init(TINY, seed=0)
    classifier = Classifier(model, encoding=encoding)
    ids = classifier.encode(TEXTS)
    np.testing.assert_array_equal(ids, charcnn.encode(TEXTS, encoding, TINY.length))
    np.testing.assert_array_equal(classifier.encode(iter(TEXTS)), ids)
    assert classifier.encode([]).shape == (0, TINY.length)
    with pytest.raises(ValueError, match=r"^texts\[1\] is a float: need str or bytes$"):
        classifier.encode(["a", 1.5])


def test_threads_may_share_one(classifier):
    texts = [f"text {n}" for n in range(300)]
    expected, found = classifier.predict_proba(texts), {}

    def predict(n):
        found[n] = classifier.predict_proba(texts)

    threads = [threading.Thread(target=predict, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 4
    for result in found.values():
        np.testing.assert_array_equal(result, expected)


def test_it_says_what_computes(classifier):
    name = CPU_LEVELS[-1].name
    assert repr(classifier) == f"Classifier(World, Sports, Business, Sci/Tech; {name} (CPU, fp32))"
    assert classifier.engine.reasons == ("device 'cpu' was asked for", f"{name} is the fastest level for it")


@pytest.mark.parametrize("row", CPU_LEVELS, ids=lambda row: row.name)
def test_every_level_of_the_cpu_gives_the_same(classifier, model, row):
    other = Classifier(model, level=row.name)
    assert other.engine.choice.level is row
    np.testing.assert_allclose(other.predict_proba(TEXTS), classifier.predict_proba(TEXTS), atol=1e-5)


def test_on_a_gpu_or_in_the_simulator(classifier, model):
    other = Classifier(model, device="cuda")
    # The tiny network has too few channels for tensor cores, and the simulator has none.
    fits = [row for row in catalog.LEVELS if row.device == "cuda" and "fp32" in row.precisions]
    assert other.engine.choice == engine.Choice(fits[-1], "fp32")
    assert any(reason.startswith("l15 cannot run here: ") for reason in other.engine.reasons)
    np.testing.assert_allclose(other.predict_proba(TEXTS[:1]), classifier.predict_proba(TEXTS[:1]), atol=1e-5)
    other.close()


def test_the_simulator_is_for_the_tiny_network():
    if not device.SIMULATED:
        pytest.skip("there is a GPU")
    with pytest.raises(ValueError, match="the simulator would take hours"):
        engine.Engine(params.init(Config(channels=8, units=8)), device="cuda")


def test_choices_are_the_catalogues():
    for name in engine.DEVICES:
        rows = [row for row in catalog.LEVELS if row.device == name and not row.sparse]
        for precision in catalog.PRECISIONS:
            fits = [engine.Choice(row, precision) for row in rows[::-1] if precision in row.precisions]
            fits.sort(key=lambda choice: not choice.level.hopper)  # no other GPU has those
            if fits:
                assert engine.choices(name, precision) == fits
        each = [engine.choices(name, precision) for precision in engine.AUTOMATIC[name]]
        assert engine.choices(name) == [choice for found in each for choice in found]
    tried = [choice.level.name for choice in engine.choices("cuda", "fp16")]
    assert tried == ["l19", "l16", "l15", "l21", "l14"], "Hopper's first: where there is none, level 21"
    assert engine.choices("cuda", "fp16", sparse=True)[0].level.name == "l22"
    for row in catalog.LEVELS:
        assert engine.choices(row.device, level=row.name) == [engine.Choice(row, row.precisions[0])]


def test_precisions_of_the_catalogue():
    for row in catalog.LEVELS:
        assert row.precisions
        assert catalog.PRECISIONS.keys() >= set(row.precisions)
        assert ("precision" in inspect.signature(row.module.build).parameters) == (len(row.precisions) > 1)
    for name, wanted in engine.AUTOMATIC.items():
        assert catalog.PRECISIONS.keys() >= set(wanted)
        assert wanted[-1] == "fp32", name


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"device": "tpu"}, "device='tpu': need one of cpu, cuda"),
        ({"device": "cpu", "precision": "half"}, "precision='half': need one of fp32"),
        ({"device": "cpu", "precision": "fp8"}, "no level computes in fp8 on the CPU; these do: "),
        (
            {"device": "cpu", "level": "l10"},
            "level l10 does not compute on the CPU: it needs a GPU",
        ),
        ({"level": "l99"}, "level='l99': need one of l0"),
        ({"device": "cpu", "gpus": 1}, "gpus=1: the CPU was chosen"),
    ],
)
def test_what_cannot_be_had_is_told(model, options, message):
    with pytest.raises(ValueError, match=message):
        Classifier(model, **options)


def test_a_model_that_does_not_say_its_encoding():
    weights = params.init(TINY)
    with pytest.raises(ValueError, match="pass encoding, one of crepe, forward"):
        Classifier(weights)
    classifier = Classifier(weights, encoding="forward", device="cpu")
    assert classifier.classes_.tolist() == ["class 0", "class 1", "class 2", "class 3"]
    assert Classifier(weights, encoding="forward", classes="abcd", device="cpu").classes_.tolist() == list("abcd")
    for classes, message in (("abc", "need 4 names"), ("aabc", "holds 'a' twice")):
        with pytest.raises(ValueError, match=message):
            Classifier(weights, encoding="forward", classes=classes)


def test_explain(classifier):
    given = "The home side won <b>in</b> extra time & more."
    found = classifier.explain(given)
    assert found.label == classifier.predict(given)
    assert found.probability == pytest.approx(classifier.predict_proba(given).max(), abs=1e-6)
    assert found.scores.shape == (len(given),)
    assert found.scores.any()
    assert {word for word, _ in found.words()} == {"The", "home", "side", "won", "b", "in", "extra", "time", "more"}
    strengths = [abs(score) for _, score in found.words()]
    assert strengths == sorted(strengths, reverse=True)
    stripped = "".join(part.partition("m")[2] for part in ("0m" + found.ansi()).split("\x1b["))
    assert stripped == given
    assert "<b>in" not in found.html()
    assert "&lt;" in found.html()
    assert found._repr_html_() == found.html()
    assert str(found).splitlines()[-1] == given, "no colours where there is no terminal"


def test_explain_is_occlusion(classifier):
    given = "one two three"
    found = classifier.explain(given, label="Sports", width=len(given))
    blanked = np.array([charcnn.encode([value], "crepe", TINY.length)[0] for value in (given, "\x00" * len(given))])
    logits = classifier.engine.logits(blanked)
    margin = logits[:, 1] - logits[:, [0, 2, 3]].mean(axis=1)
    np.testing.assert_allclose(found.scores, (margin[0] - margin[1]) / len(given), rtol=1e-4)
    assert found.label == "Sports"


@pytest.mark.parametrize("blank", ["", " \t\r\n", "\u00a0\u3000"])
def test_a_blank_text_has_no_label(classifier, blank):
    for given, index in (([blank], 0), (["a", blank], 1), (["a"] * 2000 + [blank, "a", blank], 2000)):
        for ask in (classifier.predict, classifier.predict_proba, lambda own: classifier.predict_topk(own, 1)):
            with pytest.raises(ValueError, match=rf"texts\[{index}\] is empty or blank: it has no label"):
                ask(given)


def test_explain_of_what_is_cut_off_is_zero(classifier):
    given = "z" * 50 + "é" * 10 + "a" * 100  # crepe keeps the tail: 123 bytes
    scores = classifier.explain(given).scores
    assert not scores[:47].any()
    assert scores[-100:].any()
    assert classifier.explain("é").scores.size == 1


def test_explain_refuses(classifier):
    for options, message in (
        ({"text": ["a"]}, "text is a list"),
        ({"text": "a", "label": "x"}, "label='x'"),
        ({"text": "a", "width": 0}, "width=0"),
        ({"text": ""}, "text is empty or blank"),
        ({"text": " \t"}, "text is empty or blank"),
    ):
        with pytest.raises(ValueError, match=message):
            classifier.explain(**options)


@pytest.fixture(scope="module")
def overflowing(model):
    """A model that two z side by side are too much for."""
    weights = params.Params({name: array.copy() for name, array in model.items()}, TINY, model.encoding, model.classes)
    weights["conv1.weight"][:, 25] = 3e38
    return weights


@pytest.mark.parametrize("level", ["l0", "l2", "l11", "l18"])
def test_logits_that_are_not_finite_are_an_error(overflowing, level):
    classifier = Classifier(overflowing, level=level)
    classifier.rows = 2
    given = ["a", "b", "c", "zzzz", "e"]
    expected = r"^texts\[3\]: the logits are not finite: a number outgrew fp32; the weights are too large$"
    for ask in (
        lambda: classifier.predict(given),
        lambda: classifier.predict_proba(given),
        lambda: classifier.predict_topk(given, 2),
        lambda: classifier.score(given, ["World"] * 5),
        lambda: classifier.predict(iter(given)),
    ):
        with pytest.raises(ValueError, match=expected):
            ask()
    with pytest.raises(ValueError, match=r"texts\[0\]: the logits are not finite"):
        classifier.predict("zz")
    with pytest.raises(ValueError, match="text: the logits are not finite"):
        classifier.explain("zz")
    del given[3]
    assert np.isfinite(classifier.predict_proba(given)).all()


def test_what_to_do_about_logits_that_are_not_finite(classifier, monkeypatch):
    for precision, message in (
        ("fp16", "a number outgrew fp16; use precision bf16 or fp32"),
        ("fp8", "a number outgrew fp8 and fp16; use precision bf16 or fp32"),
        ("bf16", "a number outgrew bf16; the weights are too large"),
    ):
        monkeypatch.setattr(classifier.engine, "choice", engine.Choice(classifier.engine.choice.level, precision))
        assert classifier.engine.overflow == f"the logits are not finite: {message}"
    logits = np.array([[0, 1], [np.nan, 0], [0, -np.inf], [np.inf, np.inf], [3e38, -3e38]], np.float32)
    assert engine.overflowed(logits).tolist() == [1, 2, 3]


@quick(lambda precision: precision == "fp16")  # with the least range
@pytest.mark.parametrize("precision", ["fp16", "fp16x3", "bf16", "tf32"])  # fp8 takes its greatest value
def test_features_that_outgrow_a_precision_give_no_wrong_label(precision):
    # LayerNorm 6 takes the scale out again: in float32 the labels stay as they are.
    fits = [row for row in catalog.LEVELS if row.device == "cuda" and precision in row.precisions]
    if not any(engine.obstacle(engine.Choice(row, precision)) is None for row in fits) or device.SIMULATED:
        pytest.skip("needs a GPU with tensor cores")
    config = Config(length=300, channels=256, units=256)
    weights = params.Params(params.init(config, 3), config, encodings.ENCODINGS["crepe"], encodings.CLASSES)
    expected = Classifier(weights, device="cpu").predict_proba(TEXTS)
    for layer in ("conv2", "conv4", "conv6"):
        scale = {f"{layer}.{part}": np.float32(1e6) for part in ("weight", "bias")}
        great = {name: array * scale.get(name, np.float32(1)) for name, array in weights.items()}
        great = params.Params(great, config, encodings.ENCODINGS["crepe"], encodings.CLASSES)
        try:
            found = Classifier(great, device="cuda", precision=precision).predict_proba(TEXTS)
        except ValueError as error:
            assert "the logits are not finite" in str(error), layer  # noqa: PT017
        else:
            np.testing.assert_allclose(found, expected, atol=0.1, err_msg=layer)


def test_a_network_of_one_class_explains():
    config = Config(length=123, channels=4, units=8, classes=1)
    found = Classifier(params.init(config), encoding="crepe", classes=["all"], device="cpu").explain("some text")
    assert found.probability == 1
    assert np.isfinite(found.scores).all()


def test_a_closed_one_gives_nothing(model):
    classifier = Classifier(model, device="cpu")
    classifier.predict("a")
    classifier.close()
    for ask in (classifier.predict, classifier.explain):
        with pytest.raises(ValueError, match="the classifier is closed: load it again"):
            ask("a")
    classifier.close()


def test_it_pickles_as_its_model_and_options(model):
    other = Classifier(model, level="l2", batch=3, classes=["a", "b", "c", "d"])
    again = pickle.loads(pickle.dumps(other))
    assert repr(again) == repr(other)
    assert again.engine.batch == 3
    np.testing.assert_array_equal(again.predict_proba(TEXTS), other.predict_proba(TEXTS))
    assert copy.copy(other).predict(TEXTS).tolist() == other.predict(TEXTS).tolist()


def test_the_sizes_are_any(tmp_path):
    config = Config(length=200, channels=8, units=16, classes=7, layernorm=False)
    path = tmp_path / "model.safetensors"
    params.save(path, params.init(config), config, encoding="forward", classes=[f"c{n}" for n in range(7)])
    assert Classifier.load(path, device="cpu").predict_proba(TEXTS).shape == (5, 7)


def test_the_model_that_ships_labels_the_sample():
    classifier = Classifier.load(device="cpu")
    sample = texts.sample(classifier.encoding)
    assert classifier.score(sample.texts, sample.labels) >= 0.8
    assert classifier.predict("The home side won the cup final in extra time.") == "Sports"


def test_load_of_no_file(tmp_path):
    with pytest.raises(FileNotFoundError):
        Classifier.load(tmp_path / "none.safetensors")


def test_token_ids_of_another_length_are_refused(classifier):
    ids = np.zeros((2, TINY.length + 1), np.uint8)
    with pytest.raises(ValueError, match=rf"ids has shape \(2, {TINY.length + 1}\): need \(N, {TINY.length}\)"):
        classifier.engine.logits(ids)
