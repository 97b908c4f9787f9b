"""FP8 of encoders: scales by texts, what they refuse, and GELU where results are narrow."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bert_folder import written
from numba import cuda
from test_encoder import drawn, network

import charcnn
from charcnn.catalog.encoders import EncoderTechnique
from charcnn.gpu import device
from charcnn.gpu.ptx.simulated import E4M3
from charcnn.model import params
from charcnn.networks.encoder import embedder, files, scales, steps
from charcnn.networks.runner import encoder as command
from charcnn.ops import reference
from charcnn.ops.common.epilogue_functions import inlined
from charcnn.ops.common.precision import TENSOR_PRECISIONS
from charcnn.ops.encoder import rows


def test_units_are_powers_of_two_and_leave_room() -> None:
    of = network()
    held, ids = params.init(of, 1), scales.calibration(of, None)
    found = scales.units(of, steps(of.nodes), held, ids)
    kinds = [step.kind for step in steps(of.nodes)]
    assert kinds[:7] == ["embed", "attend", "project", "add_norm", "project", "project", "add_norm"]
    assert all(math.log2(unit).is_integer() for unit in found)
    assert found[2] == found[4] == found[5] == 1  # a sum, GELU's, a sum
    peak = abs(held["embeddings.LayerNorm.weight"]).max() * 8 + 0.1  # of 64 normalised values none is above 8
    assert found[0] <= 2 * peak * 4 / 448
    grown = {
        name: value * 64 if "LayerNorm" in name and "embeddings" in name else value for name, value in held.items()
    }
    assert scales.units(of, steps(of.nodes), grown, ids)[0] == 64 * found[0]


def test_weights_that_are_too_large() -> None:
    of = network()
    held, ids = params.init(of, 1), drawn(of, [5])
    name = "encoder.layer.1.intermediate.dense.weight"
    with pytest.raises(ValueError, match=r"layer.1.output.dense reads is up to .*: need at most 448"):
        scales.units(of, steps(of.nodes), held | {name: held[name] * 1e4}, ids)
    with pytest.raises(ValueError, match="is not finite: the weights are too large for fp8"):
        scales.units(of, steps(of.nodes), held | {name: held[name] * np.float32(np.inf)}, ids)


def test_the_sample_is_what_calibrates_where_there_is_a_tokenizer(tmp_path: Path) -> None:
    folder = written(tmp_path)
    config = files.load(folder, "bert", None, 8).config
    ids = scales.calibration(config, folder / files.TOKENIZER)
    assert len(ids) == scales.TEXTS
    assert (ids[:, 0] >= 0).all()


@pytest.mark.skipif(not device.SIMULATED, reason="calls a device function")
def test_gelu_of_narrow_results() -> None:
    gelu = inlined("gelu", narrow=True)
    x = np.linspace(-40, 40, 801, dtype=np.float32)
    want = [0.5 * float(one) * math.erfc(-float(one) / math.sqrt(2)) for one in x]
    np.testing.assert_allclose([gelu(one) for one in x], want, atol=3e-5)
    assert np.isnan(gelu(np.float32(np.nan)))
    assert gelu(np.float32(np.inf)) == np.inf


@pytest.mark.parametrize("few", [0, 1024])
def test_rows_are_stored_in_both_formats(few: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "FEW_ROWS", few)
    rng, of = np.random.default_rng(0), TENSOR_PRECISIONS["fp16"]
    x, residual = rng.standard_normal((2, 3, 264)).astype(np.float16)
    gamma, beta = rng.standard_normal((2, 264), np.float32)
    want = reference.add_rownorm(x.astype(np.float64), residual.astype(np.float64), gamma, beta, eps=1e-5)
    held = [device.to_device(one) for one in (x, residual, gamma, beta, np.zeros_like(x), np.zeros(x.shape, np.uint8))]
    rows.launch_add(*held[:5], 1e-5, of, cuda.stream(), rows.Eighths(held[5], 0.25))
    cuda.synchronize()
    np.testing.assert_allclose(held[4].copy_to_host(), want, rtol=2e-3, atol=2e-3)
    np.testing.assert_allclose(E4M3[held[5].copy_to_host()] / 4, want, rtol=2**-4 + 1e-3, atol=2**-11)


def test_who_has_a_tokenizer_calibrates_with_texts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, given = written(tmp_path), list[dict[str, Any]]()
    monkeypatch.setattr(EncoderTechnique, "build", property(lambda _: lambda *_, **options: given.append(options)))
    monkeypatch.setattr(embedder, "check_machine", lambda *_: None)
    for precision in ("fp8", "fp16"):
        charcnn.Embedder(folder, technique="wgmma", precision=precision)
        words = ["--as", "wgmma", "--precision", precision]
        for more in (["--params", str(folder)], []):
            asked = command.EncoderCommand("bert")
            asked.program(asked.parser(quiet=True).parse_args([*words, *more]))[1](precision=precision)
    path = folder / files.TOKENIZER
    assert [options.get("tokenizer") for options in given] == [path, path, None, None, None, None]
