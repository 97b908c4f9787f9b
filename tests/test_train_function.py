"""`charcnn.train`: texts and labels in memory in, a classifier out, by the same steps as the command's."""

import argparse
import csv
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from test_training import engine, examples

import charcnn
from charcnn.cli import train as command
from charcnn.config import Config
from charcnn.model import params
from charcnn.training import engines, own, with_torch
from charcnn.training.recipe import Recipe

WORDS = ("goal match team", "bank profit market", "orbit probe rocket")
SMALLEST = Config(length=123, channels=8, units=16)
QUICK = {"config": SMALLEST, "device": "cpu", "epochs": 2, "batch": 16}


def rows(count=60, classes=3):
    rng = np.random.default_rng(0)
    names = ("sport", "money", "space")
    drawn = [(names[n % classes], rng.choice(WORDS[n % classes].split())) for n in range(count)]
    return [f"the {word} of today" for _, word in drawn], [name for name, _ in drawn]


def test_a_classifier_that_predicts_and_is_saved(tmp_path):
    texts, labels = rows()
    said = []
    classifier = charcnn.train(texts, labels, say=said.append, **QUICK)
    assert classifier.classes_.tolist() == ["money", "space", "sport"]
    assert classifier.predict_proba(texts[:2]).shape == (2, 3)
    assert classifier.metadata["training"]["recipe"]["epochs"] == 2
    assert classifier.metadata["validation"]["rows"] == 6
    assert any(line.startswith("epoch 2/2: ") for line in said)
    classifier.save(tmp_path / "m.safetensors", dtype="float16")
    again = charcnn.Classifier.load(tmp_path / "m.safetensors", device="cpu")
    assert np.array_equal(again.predict_proba(texts), classifier.predict_proba(texts))
    assert again.metadata == classifier.metadata


def test_the_command_trains_the_same_weights(tmp_path):
    texts, labels = rows()
    with open(tmp_path / "a.csv", "w", newline="") as file:
        csv.writer(file).writerows([("label", "text"), *zip(labels, texts, strict=True)])
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    sizes = '{"length": 123, "channels": 8, "units": 16}'
    words = ["--data", str(tmp_path / "a.csv"), "--out", str(tmp_path / "m.safetensors"), "--config", sizes]
    words += ["--device", "cpu", "--epochs", "2", "--batch", "16", "--no-curve"]
    assert command.run(parser.parse_args(words)) == 0
    model, classifier = params.load(tmp_path / "m.safetensors"), charcnn.train(texts, labels, **QUICK)
    assert all(np.array_equal(model[name], classifier.params[name]) for name in model)
    assert model.metadata["validation"] == classifier.metadata["validation"]


def test_texts_of_every_kind_and_labels_that_are_numbers():
    texts, labels = rows(30)
    numbers = [("money", "space", "sport").index(label) for label in labels]
    first = charcnn.train(np.array(texts), np.array(numbers), valid=0, **QUICK)
    other = charcnn.train((text.encode() for text in texts), numbers, valid=0, **QUICK)
    assert first.classes_.tolist() == ["0", "1", "2"]
    assert np.array_equal(first.params["fc3.weight"], other.params["fc3.weight"])


def test_weights_of_texts_count_in_the_loss():
    texts, labels = rows(30)
    plain, same, other = (
        charcnn.train(texts, labels, valid=0, sample_weight=weights, **QUICK).params["fc3.bias"]
        for weights in (None, np.full(30, 2.0), [5.0] * 3 + [1.0] * 27)
    )
    assert np.array_equal(plain, same)
    assert not np.array_equal(plain, other)


def test_several_labels_a_text():
    texts, labels = rows(40)
    several = [[label, "seen"] if n % 2 else [label] for n, label in enumerate(labels)]
    found = charcnn.train(texts, several, multi_label=True, **QUICK)
    assert found.classes_.tolist() == ["money", "seen", "space", "sport"]
    assert found.config.multi_label


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"labels": ["a"]}, r"labels holds 1: need 60, one a text"),
        ({"labels": ["a"] * 60}, "holds one class, a: need at least two"),
        ({"labels": [None] * 60}, r"labels\[0\]=None: need a str or a whole number"),
        ({"labels": [" a"] * 60}, r"labels\[0\]=' a' begins or ends with a blank"),
        ({"texts": [" "] * 60}, r"texts\[0\] is empty or blank"),
        ({"texts": [None] * 60}, r"texts\[0\] is a NoneType"),
        ({"texts": "one"}, "texts is a str: need a list of texts"),
        ({"valid": 1.0}, "valid=1.0: need at least 0 and less than 1"),
        ({"valid": (["a"], ["other"])}, r"labels\[0\]: label 'other' is not a class of the model"),
        ({"sample_weight": [1.0]}, r"sample_weight has shape \(1,\): need \(60,\)"),
        ({"sample_weight": [-1.0] * 60}, "need 0 or more"),
        ({"store": "int8"}, "store='int8'"),
        ({"device": "tpu"}, "device='tpu': need one of auto, cuda, cpu"),
        ({"engine": "jax"}, "engine='jax': need one of auto, own, torch"),
        ({"engine": "own", "mixup": 0.2}, "mixup=0.2, which own kernels lack: need engine torch"),
        (
            {"engine": "own", "precision": "bf16"},
            "own kernels have float32 on cpu: need engine torch",
        ),
        ({"precision": "fp16"}, "precision fp16: on a CPU, and own kernels have it on a GPU since 8.0 alone"),
        ({"engine": "torch", "precision": "fp16"}, "precision fp16: engine torch has bf16 and float32"),
        ({"epochs": 0}, "epochs=0"),
        ({"encoding": "latin"}, "encoding='latin'"),
        ({"labels": [["a"]] * 60}, r"labels\[0\]=\['a'\]: need a str"),
        ({"multi_label": True}, r"labels\[0\]='sport': need a list of labels"),
    ],
)
def test_what_does_not_fit_is_named(change, message):
    texts, labels = rows()
    with pytest.raises(ValueError, match=message):
        charcnn.train(**{"texts": texts, "labels": labels, **QUICK, **change})


def test_a_missing_package_is_named(monkeypatch):
    for module in (engines, with_torch):
        monkeypatch.setattr(module, "find_spec", lambda name: None)
    for asked in ({"engine": "torch"}, {"mixup": 0.2}):
        with pytest.raises(ValueError, match=r"engine torch.*install.*\[torch\]"):
            charcnn.train(*rows(), **{**QUICK, **asked})


THREE = Config(length=123, channels=8, units=16, classes=3)


def test_an_engine_on_a_gpu_hands_over_its_precision_and_counts_what_was_left_out(monkeypatch):
    made = SimpleNamespace(left_out=3)
    monkeypatch.setattr(own, "MixedTraining", lambda *_, **options: vars(made).update(options) or made)
    monkeypatch.setattr(own.device, "has_tensor_cores", lambda **_: True)
    trainer = own.OwnEngine("cuda", "fp16").trainer(examples(), np.ones(3), THREE, Recipe(), [], None)
    assert (made.precision, made.recorded, trainer.left_out) == ("fp16", True, 3)
    assert engine().trainer(examples(), np.ones(3), THREE, Recipe(), [], None).left_out == 0


def test_importing_the_package_imports_no_torch():
    code = "import sys, charcnn; charcnn.Classifier; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parent.parent, check=False).returncode == 0
