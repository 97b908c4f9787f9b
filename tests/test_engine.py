"""Which level computes: what chooses another one, and which sizes are refused before any is built."""

import inspect
import re
from unittest.mock import Mock

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
