"""Texts that a GPU encodes: the same ids as the CPU's, whatever their lengths."""

from __future__ import annotations

import numpy as np
import pytest

from charcnn.classify import classifier
from charcnn.classify.classifier import Classifier
from charcnn.config import TINY
from charcnn.gpu import device
from charcnn.model import params
from charcnn.text import encodings
from charcnn.text.encode_gpu import Encoder, StringsToEncode
from charcnn.text.strings import PackedStrings

LENGTH = 20
TEXTS = ["", "a", "Abc - d-e", "x" * LENGTH, "y" * 19 + "zz", "é\x00~ 'q'", "0123456789" * 9]


def to_encode(texts, encoding, length=LENGTH):
    return StringsToEncode(*encodings.pack(texts), encodings.ENCODINGS[encoding], length)


def packed(texts, more=0):
    out = np.full(texts.packed_size + more, 0xFF, np.uint8)
    texts.pack(out)
    return out


@pytest.mark.parametrize("encoding", encodings.ENCODINGS)
@pytest.mark.parametrize("part", [slice(None), slice(2, 5), slice(1, 2)], ids=str)
def test_the_gpu_gives_the_ids_of_the_cpu(encoding, part):
    texts = to_encode(TEXTS, encoding)[part]
    assert len(texts) == len(TEXTS[part])
    out = device.to_device(np.full((len(texts), LENGTH), 200, np.uint8))
    Encoder(texts.encoding)(device.to_device(packed(texts, more=5)), out, None)
    expected = encodings.encode(TEXTS[part], encoding, LENGTH)
    np.testing.assert_array_equal(out.copy_to_host(), expected)
    np.testing.assert_array_equal(texts.ids(), expected)


@pytest.mark.parametrize(("encoding", "kept"), [("forward", b"abcdgf"), ("crepe", b"bcdegf")])
def test_what_is_packed(encoding, kept):
    found = packed(to_encode(["abcde", "", "gf"], encoding, 4))
    assert found[:16].view(np.int32).tolist() == [0, 4, 4, 6]
    assert found[16:].tobytes() == kept


@pytest.fixture(scope="module")
def weights():
    given = params.init(TINY)
    given.encoding = encodings.ENCODINGS["crepe"]
    return given


def test_a_classifier_whose_gpu_encodes(weights, monkeypatch):
    monkeypatch.setattr(classifier, "CORES_TO_ENCODE", 0)
    assert Classifier(weights, device="cuda").encode_on == "cpu"
    monkeypatch.setattr(classifier, "CORES_TO_ENCODE", 1 << 20)
    texts = ["z" * TINY.length + "b", "é" * TINY.length, "short"]  # a batch of texts so long that ids are fewer bytes
    on_gpu = Classifier(weights, device="cuda", batch=2)
    assert on_gpu.encode_on == "gpu"
    expected = Classifier(weights, device="cpu").predict_proba(texts)
    np.testing.assert_allclose(on_gpu.predict_proba(texts), expected, atol=1e-5)
    assert on_gpu.leaves_to_gpu(texts)
    assert "encode" in on_gpu.engine.monitor.seconds
    on_gpu.engine.monitor.seconds.clear()
    np.testing.assert_allclose(on_gpu.predict_proba(texts[:1]), expected[:1], atol=1e-5)
    assert "encode" not in on_gpu.engine.monitor.seconds, "one text takes less time on the CPU"
    on_gpu.close()


def test_where_the_gpu_cannot(weights):
    assert Classifier(weights, device="cpu").encode_on == "cpu"
    with pytest.raises(ValueError, match=r"encode_on='gpu': l18 \(CPU, fp32\) takes token ids only"):
        Classifier(weights, device="cpu", encode_on="gpu")
    with pytest.raises(ValueError, match="encode_on='tpu': need one of cpu, gpu"):
        Classifier(weights, device="cpu", encode_on="tpu")
    with pytest.raises(ValueError, match="offsets leave the buffer"):
        Classifier(weights, device="cpu").to_encode(PackedStrings(np.zeros(1, np.uint8), np.array([0, 2])))
