"""What a profile says that kernels compute and move, and the peaks that it holds them against."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from charcnn.catalog import level, measured
from charcnn.config import TINY
from charcnn.gpu import profile
from charcnn.levels.runner import peaks, work


def launches_of(*found):
    """Launches of kernels by (title's module, stage, call, bytes read, bytes written)."""
    made = []
    for room, *rest in found:
        kernel = SimpleNamespace(py_func=SimpleNamespace(__module__=room, __qualname__="kernel"))
        made.append(profile.Launch(kernel, None, rest[0], (1,), (1,), 0, None, None, *rest[1:]))
    return made


def test_what_launches_of_a_level_compute():
    """One by one, all by the one that is alone, and nothing where nobody knows whose it is."""
    flop = {node.layer.name: node.flops for node in TINY.nodes}
    held = {node.layer.name: 4 * sum(np.prod(shape) for shape in node.parameters.values()) for node in TINY.nodes}
    stages = ["conv_block_1", "conv_block_2", "conv_block_3 to 6", "fc_blocks"]
    found = work.done(work.products_of_level(TINY, stages), 3, 4)(
        launches_of(
            ("token_conv1d.gather", "conv_block_1", 0, (10, 20), 30),
            ("conv1d.winograd", "conv_block_2", 1, (10,), 30),
            ("conv1d.double_buffered", "conv_block_2", 1, (10,), 30),
            ("chain.kernel", "conv_block_3 to 6", 2, (10, 1), 30),
            ("common.moments", "conv_block_3 to 6", 2, (10, 1), 30),
            ("linear.linear", "fc_blocks", 3, (10, 5), 30),
            ("linear.linear", "fc_blocks", 4, (11, 5), 31),
            ("linear.linear", "fc_blocks", 5, (12, 5), 32),
            ("relu", "", 6, (7,), 8),
        )
    )
    chain = [f"conv{block}" for block in (3, 4, 5, 6)]
    assert found == [
        (None, 60), (None, None), (None, None),
        (3 * sum(flop[name] for name in chain), 40 + sum(held[name] for name in chain)), (None, None),
        (3 * flop["fc1"], 40 + held["fc1"]), (3 * flop["fc2"], 42 + held["fc2"]), (3 * flop["fc3"], 44 + held["fc3"]),
        (None, 15),
    ]  # fmt: skip
    two = launches_of(*[("linear.linear", "fc_blocks", call, (10,), 30) for call in (0, 1)])
    assert work.done(work.products_of_level(TINY, ["fc_blocks"]), 3, 4)(two) == [(None, None)] * 2


def test_stages_of_every_level_have_their_products():
    names = [node.layer.name for node in TINY.nodes if node.flops]
    for stages in (["network"], [f"conv_block_{block}" for block in range(1, 7)] + ["fc_blocks"]):
        found = work.products_of_level(TINY, stages)
        assert [node.layer.name for stage in stages for node in found[stage]] == names
    assert work.products_of_level(TINY, [""]) == {"": []}


def test_peaks_are_those_measured_on_such_a_gpu(monkeypatch):
    monkeypatch.setattr(peaks, "device", SimpleNamespace(gpu_name=lambda: "NVIDIA H200", peaks=lambda: (6e13, 4e12)))
    of, third = (peaks.Peaks.reached(level("l16"), precision) for precision in ("fp16", "fp16x3"))
    assert of.flops == measured.machines()["nvidia-h200"]["peaks"]["fp16"] == pytest.approx(3 * third.flops)
    assert (of.bytes, of.size, third.size) == (4e12, 2, 4)
    assert measured.peak("a GPU of tomorrow", "fp16") is None
