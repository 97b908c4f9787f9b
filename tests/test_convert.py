"""The command `charcnn convert`: what it writes, what others read of it, and what it refuses."""

import json
import os

import numpy as np
import pytest
from commands import TEXTS

from charcnn.cli import DONE, FAILED, UNUSABLE
from charcnn.config import TINY
from charcnn.model import params
from charcnn.text import encodings


def test_convert_says_that_logits_are_not_finite(tmp_path, charcnn):
    pytest.importorskip("onnxruntime")
    weights, out = params.init(TINY), tmp_path / "a.onnx"
    for scale, expected in ((0, DONE), (3e38, UNUSABLE)):
        weights["fc3.weight"][:], weights["fc3.bias"][:] = scale, 0
        params.save(tmp_path / "a.safetensors", weights, TINY)
        status, _, err = charcnn("convert", tmp_path / "a.safetensors", out, "--force", model=None)
        assert status == expected, err
    assert "the network's logits are not finite" in err


@pytest.mark.parametrize("suffix", [".safetensors", ".pt", ".bin", ".onnx"])
def test_convert(charcnn, weights, tmp_path, suffix):
    if suffix == ".pt":
        pytest.importorskip("torch")
    if suffix == ".onnx":
        pytest.importorskip("onnx")
        pytest.importorskip("onnxruntime")
    out = tmp_path / f"out{suffix}"
    status, told, err = charcnn("convert", weights, out, model=None)
    assert status == DONE, err
    assert f"{TINY.parameters:,} parameters" in told
    status, _, err = charcnn("convert", weights, out, model=None)
    assert status == UNUSABLE
    assert "already exists" in err
    if suffix != ".onnx":
        again = params.load(out, TINY)
        for name, value in params.load(weights).items():
            np.testing.assert_array_equal(again[name], value)
        back = tmp_path / "back.safetensors"
        sizes = json.dumps(TINY.to_dict())
        words = ("convert", out, back, "--config", sizes, "--encoding", "forward", "--classes", "a,b,c,d")
        assert charcnn(*words, model=None)[0] == DONE
        assert params.load(back).classes == ("a", "b", "c", "d")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="the system has no /dev/full")
@pytest.mark.parametrize("suffix", [".safetensors", ".pt", ".bin"])
def test_a_full_disk_is_one_line(charcnn, weights, tmp_path, suffix):
    if suffix == ".pt":
        pytest.importorskip("torch")
    out = tmp_path / f"out{suffix}"
    out.symlink_to("/dev/full")
    status, _, err = charcnn("convert", weights, out, model=None)
    assert (status, err) == (FAILED, f"charcnn convert: {out}: No space left on device\n")


@pytest.mark.parametrize("suffix", [".safetensors", ".bin", ".onnx"])
@pytest.mark.parametrize(("names", "message"), [("a,b,a,c", "holds 'a' twice"), ("a,b,c", "need 4 names")])
def test_convert_refuses_names_that_do_not_tell_classes_apart(charcnn, weights, tmp_path, suffix, names, message):
    out = tmp_path / f"out{suffix}"
    status, told, err = charcnn("convert", weights, out, "--classes", names, model=None)
    assert (status, told) == (UNUSABLE, "")
    assert message in err
    assert err.count("\n") == 1
    assert not out.exists()


def test_the_onnx_file_takes_any_batch_and_says_its_classes(charcnn, weights, classifier, tmp_path):
    pytest.importorskip("onnx")
    onnxruntime = pytest.importorskip("onnxruntime")
    out = tmp_path / "out.onnx"
    assert charcnn("convert", weights, out, model=None)[0] == DONE
    session = onnxruntime.InferenceSession(str(out), providers=["CPUExecutionProvider"])
    for n in (1, 5):
        text = np.array([text.encode() for text in TEXTS[:n]]).view(np.uint8).reshape(n, -1)  # as docs/onnx.md does
        logits = classifier.engine.logits(classifier.encode(TEXTS[:n]))
        np.testing.assert_allclose(session.run(None, {"text": text})[0], logits, atol=1e-5)
    says = session.get_modelmeta().custom_metadata_map
    assert json.loads(says["classes"]) == list(encodings.CLASSES)
    assert json.loads(says["encoding"])["name"] == "crepe"
