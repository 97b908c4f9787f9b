"""What the command of a network of images says of techniques, pictures and weights."""

import re

import numpy as np
import pytest
from test_networks import architecture

from charcnn.gpu import device
from charcnn.networks import weights
from charcnn.networks.runner import command


@pytest.mark.parametrize("words", [[], ["--plan"], ["--compare"]])
def test_a_technique_that_a_network_lacks(words, ended):
    done = ended(command.main, "alexnet", ["--as", "strong_mma", *words])
    assert done.returncode == 2
    assert "argument --as: strong_mma: alexnet has no such technique: need one of loops, " in done.stderr
    done = ended(command.main, "ffn", ["--as", "naive", "--variant", "tiny", "--precision", "fp16"])
    assert done.stderr == "ffn: precision='fp16': naive has fp32; fp16 is in mma, wgmma\n"


@pytest.mark.skipif(not device.SIMULATED, reason="there is a GPU")
def test_a_precision_that_nothing_has_on_a_gpu_says_to_leave_it_out(ended, monkeypatch):
    monkeypatch.setattr(device, "SIMULATED", False)
    monkeypatch.setattr(device, "capability", lambda: (7, 5))
    done = ended(command.main, "alexnet", ["--as", "strong", "--fuse", "2", "--precision", "fp16"])
    assert done.returncode == 2
    said = "; nothing runs in fp16 here; without --precision this machine runs loops, cpu_gemm, winograd_cpu, naive"
    assert said in done.stderr
    assert ", strong" in done.stderr.partition(said)[2]


def test_pictures_on_white_are_told_and_inverted(tmp_path, ended):
    picture, found = tmp_path / "dark.npy", []
    np.save(picture, np.pad(np.full((1, 12, 12), 20, np.uint8), ((0, 0), (8, 8), (8, 8)), constant_values=250))
    for words in ([], ["--invert"]):
        done = ended(command.main, "mnist", ["--as", "cpu_gemm", "--images", str(picture), *words])
        assert done.returncode == 0
        found.append(done)
    assert found[0].stderr == (
        "mnist: warning: 1 of 1 images have a light border, but networks of grey images learn from bright on black: "
        "try --invert\n"
    )
    assert found[1].stderr == ""
    assert found[0].stdout != found[1].stdout


def test_the_first_inputs_have_probabilities(ended):
    for name in ("mnist", "fused4"):
        done = ended(command.main, name, ["--as", "cpu_gemm", "--random"])
        shares = re.findall(r"^ +class \d+ ([01]\.\d{4}): \d$", done.stdout, re.M)
        assert len(shares) == 3, done.stdout
        assert all(0.1 <= float(share) <= 1 for share in shares)


def test_digits_are_those_that_the_weights_were_not_fitted_to(ended):
    pytest.importorskip("sklearn.datasets")
    right = weights.load(weights.shipped(architecture("mnist", "stride1")), architecture("mnist", "stride1"), {}, "")
    accuracy = right.metadata["accuracy"]
    done = ended(command.main, "mnist", ["--as", "cpu_gemm", "--images", "digits"])
    held_out = (
        f"{accuracy['of']} from the {accuracy['of']} of scikit-learn's digits that the weights were not fitted to"
    )
    assert held_out in done.stdout
    assert f"accuracy {accuracy['right'] / accuracy['of']:.2%} against" in done.stdout
    every = ended(command.main, "mnist", ["--as", "cpu_gemm", "--images", "digits", "--random"])
    assert "1797 from scikit-learn's digits" in every.stdout
