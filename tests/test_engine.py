"""Which level computes: what chooses another one, and which sizes are refused before any is built."""

import inspect
import json
import re
from unittest.mock import Mock

import numpy as np
import pytest
from conftest import CPU_LEVELS

from charcnn import catalog
from charcnn.classify.classifier import Classifier
from charcnn.config import TINY
from charcnn.gpu import device
from charcnn.model import params
from charcnn.text.encodings import ENCODINGS


@pytest.fixture(scope="module")
def model():
    return params.Params(params.init(TINY, seed=3), TINY, ENCODINGS["crepe"])


@pytest.mark.parametrize(
    "error", [ValueError("negative dimensions"), RuntimeError("a bug"), TypeError("no int"), MemoryError("1 GiB")]
)
def test_only_a_device_error_chooses_another_level(model, monkeypatch, error):
    best, next_best = CPU_LEVELS[-1], CPU_LEVELS[-2]
    build = Mock(side_effect=error, __signature__=inspect.signature(best.module.build))
    monkeypatch.setattr(best.module, "build", build)
    with pytest.raises(type(error), match=f"^{error}$"):
        Classifier(model, device="cpu")
    monkeypatch.setattr(build, "side_effect", device.DeviceError("no room"))
    other = Classifier(model, device="cpu")
    assert other.engine.choice.level is next_best
    assert f"{best.name} cannot run here: no room" in other.engine.reasons


def test_a_file_is_no_params():
    with pytest.raises(ValueError, match=r"^params is a str: need Params; Classifier.load reads a model's file"):
        Classifier("m.safetensors")


@pytest.mark.parametrize("batch", [-1, 0, True, 2.5, "2"])
def test_a_batch_that_is_no_positive_int_is_refused(model, batch):
    # Levels that need tensor cores look at the GPU and the sizes first: they hand the batch to `on_gpus`, as l13 does.
    builds = [row.module.build for row in catalog.LEVELS if not row.tensor_cores and row.precisions == ("fp32",)]
    of_images = catalog.network("mnist").architecture("tiny")
    weights = params.init(of_images, 0)
    for row in catalog.NETWORK_TECHNIQUES:
        if not row.tensor_cores:
            builds.append(lambda *_, row=row, **options: row.build(row.name, weights, of_images, **options))
    builds.append(lambda model, config, **options: Classifier(model, **options))
    for build in builds:
        with pytest.raises(ValueError, match=f"^batch={re.escape(repr(batch))}: need an int of at least 1$"):
            build(model, TINY, batch=batch)


def test_numpy_computes_the_first_texts_and_the_level_all_that_follow(model):
    texts = ["Stocks fell.", "The cup final.", "Chips get smaller."]
    with_level = Classifier(model, device="cpu")
    first = Classifier(model, device="cpu", numpy_first=2)
    assert first.engine.by == str(first.engine.choice)
    one = first.predict_proba(texts[:1])
    np.testing.assert_allclose(one, with_level.predict_proba(texts[:1]), atol=1e-5)
    assert (first.engine.by, first.engine.by_numpy) == ("NumPy (CPU, float32)", 1)
    assert not first.engine.waits(1)
    assert first.engine.waits(2)
    np.testing.assert_array_equal(first.predict_proba(texts), with_level.predict_proba(texts))
    np.testing.assert_array_equal(first.predict_proba(texts[:1]), with_level.predict_proba(texts[:1]))
    assert (first.engine.by, first.engine.by_numpy) == (str(first.engine.choice), 1)


@pytest.mark.parametrize("asked", [{"precision": "fp32"}, {"level": CPU_LEVELS[-1].name}])
def test_what_was_asked_for_computes_the_first_texts_too(model, asked):
    classifier = Classifier(model, device="cpu", numpy_first=2, **asked)
    classifier.predict(["a"])
    assert classifier.engine.by_numpy == 0


def test_few_texts_of_a_command_wait_for_no_level(charcnn, classifier, monkeypatch, tmp_path):
    source, report = tmp_path / "in.txt", tmp_path / "report.json"
    source.write_text("Stocks fell.\n")
    build = CPU_LEVELS[-1].module.build
    monkeypatch.setattr(
        CPU_LEVELS[-1].module, "build", Mock(side_effect=AssertionError, __signature__=inspect.signature(build))
    )
    status, _, err = charcnn("classify", source, "--json", report)
    assert status == 0
    assert ", NumPy (CPU, float32): " in err
    assert json.loads(report.read_text())["by_numpy"] == 1
    label = classifier.predict(["Stocks fell."])[0]
    assert (tmp_path / "in.labelled.txt").read_text().startswith(f"{label}\t")


def test_a_negative_number_of_first_texts_is_refused(model):
    with pytest.raises(ValueError, match=r"^numpy_first=-1: need an int of at least 0$"):
        Classifier(model, device="cpu", numpy_first=-1)
