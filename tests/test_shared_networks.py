"""Networks of images that several GPUs share: emulated ranks, which are processes that share memory."""

from __future__ import annotations

import json

import numpy as np
import pytest
from conftest import by_turns
from test_mpi import mpiexec, needs_mpi

from charcnn.catalog import network
from charcnn.gpu import device
from charcnn.layers import Conv2d, Linear, LocalResponseNorm, MaxPool2d, Relu, Softmax, place
from charcnn.networks import channels_last
from charcnn.networks.between import GatheredInputs, Summed
from charcnn.networks.lowering import lower
from charcnn.offload import partition
from charcnn.offload.relay import Border
from charcnn.ops.common.layer import ArraySpec
from charcnn.ops.shared_norm import Reach, sent
from charcnn.ops.shared_softmax import CLASSES

EMULATED = {"NUMBA_ENABLE_CUDASIM": "1", "PYTHONPATH": "tests"}


def test_what_norms_need_of_other_ranks():
    owns = range(2), range(2, 3), range(3, 6)
    assert [Reach.of(own, 6, 5) for own in owns] == [(0, 2, 0, 2), (2, 2, 1, 0), (2, 0, 2, 0)]
    # Two before channel 2 of one rank, two after of another; and of the rank between its only one.
    assert [sent(owns, 5, source, 1) for source in (0, 2)] == [(0, 2, 0), (0, 2, 2)]
    assert [sent(owns, 5, source, 2) for source in (0, 1)] == [(1, 1, 0), (0, 1, 1)]
    assert [sent(owns, 5, source, 0) for source in (1, 2)] == [(0, 1, 0), (0, 1, 1)]


def test_inputs_of_each_rank():
    assert [GatheredInputs.own(3, rank, 2) for rank in range(2)] == [slice(0, 2), slice(1, 3)]
    given = [of[0] for of in GatheredInputs.pieces(3, 2, 10)]
    assert given == [(0, 20, 0), (10, 10, 20)], "the second input, which both have, comes from the first rank"
    assert [of[0].size for of in GatheredInputs.pieces(2, 3, 10)] == [10, 10, 0]


@pytest.mark.parametrize(
    ("name", "batch", "layers"),
    [("2012", 1, ["conv3", "softmax1"]), ("2012", 2, ["flatten1", "fc7"]), ("2012", 128, ["flatten1", "softmax1"]),
     ("2012", 1024, []), ("1024", 16, ["pixels1", "fc2"]), ("1024", 4096, [])],
)  # fmt: skip
def test_which_layers_are_shared_by_units(name, batch, layers):
    """Of AlexNet all behind the norms, the linear layers or two of them; of a feed-forward block all; none of many."""
    nodes = network("alexnet" if name == "2012" else "ffn").architecture(name).nodes
    begin, end = partition.by_units(nodes, 2, batch, few=batch <= 64)
    assert [node.layer.name for node in nodes[begin:end]][:: max(1, end - begin - 1)] == layers


def test_a_sum_over_ranks_computes_the_softmax():
    for classes, ops in ((8, ["f", "Summed+Softmax"]), (CLASSES + 1, ["f", "Summed", "Softmax"])):
        nodes = place((Linear(classes, name="f"), Summed(), Softmax()), (8,))
        assert [op.label for op in lower(nodes, [channels_last.ABSORB])] == ops


def test_norms_of_the_outermost_channels_need_no_message_before():
    layers = [Conv2d(8, 1, name="a"), Relu(), LocalResponseNorm(5), MaxPool2d(2), Conv2d(8, 1, groups=2, name="b")]
    layers += [Relu(), LocalResponseNorm(5), Conv2d(4, 1, name="c")]
    nodes = place(layers, (1, 4, 4))
    kinds = {norms: [part.kind for part in partition.tensor(nodes, 2, norms)] for norms in partition.NORMS}
    assert kinds == {
        "neighbours": ["", "exchange", "", "exchange", "exchange", "exchange"],
        "outermost": ["", "exchange", "exchange"],
        "whole": ["", "", "exchange", "exchange"],
    }
    first = partition.tensor(nodes, 2, "whole")[0].layers[0]
    assert first.give == (range(6), range(2, 8)), "the neighbours' channels are computed twice"


ANY = """
import sys
import numpy as np
from charcnn import offload
from charcnn.catalog import network_technique
from charcnn.layers import *
from charcnn.model.validation import in_sigmas
from charcnn.networks import parts
from charcnn.offload import partition
from charcnn.networks.architecture import Architecture
from charcnn.networks.reference import expected
from charcnn.runtime.monitor import Monitor
from test_networks import drawn

comm = offload.world()
strong = {"alpha": 9.0, "beta": 0.75, "k": 0.5}
network = Architecture("any", "tiny", (
    Pixels(1, 4, 4), Conv2d(6, 3, padding=1, name="a"), LocalResponseNorm(5, **strong), MaxPool2d(2),
    Conv2d(6, 1, groups=2, name="b"), Relu(), LocalResponseNorm(3, **strong), Conv2d(4, 1, name="c"), Flatten(),
    Linear(5, name="d"), Relu(), Linear(6, name="e"), Relu(), Linear(3, name="f"), Softmax(),
))
weights, images = drawn(network, 2)
weights = type(weights)({name: 3 * value for name, value in weights.items()}, network)
for name, precision, few, shared in (one.split(":") for one in sys.argv[1:]):
    parts.FEW, parts.BY_CHANNELS, partition.SLOWER = int(few), [precision] if shared == "channels" else [], 1
    row = network_technique(name)
    exact, sigma = expected(images, weights, network, row.rounding(precision))
    build = parts.shared(row, lambda *given, **how: row.build(name, *given, **how))
    how = {"gpus": [0], "batch": 2, **row.build_options(precision)}
    run = build(weights, network, place=(comm.rank, comm.size), monitor=Monitor(), **how)
    for n in (2, 1):
        found = run.steps[0].run(images[:n])
        worst = in_sigmas(found, exact[:n], sigma[:n]).max()
        assert worst < row.rounding(precision).bound, (name, precision, few, shared, n, worst)
        assert in_sigmas(np.roll(found, 1, 1), exact[:n], sigma[:n]).min() > row.rounding(precision).bound
print("all right")
"""

SOFTMAX = """
from types import SimpleNamespace
import numpy as np
from charcnn import offload
from charcnn.gpu import device
from charcnn.gpu.collectives import Group
from charcnn.networks.exchanges import SumSoftmax

comm = offload.world()
parts = np.random.default_rng(0).normal(size=(comm.size, 3, 1, 7)).astype(np.float32)
space = SimpleNamespace(stream=0, device=device.empty)
found = SumSoftmax(SimpleNamespace(group=Group(comm)))(device.to_device(parts[comm.rank]), space).copy_to_host()
right = np.exp(parts.sum(0, dtype=np.float64))
np.testing.assert_allclose(found, right / right.sum(-1, keepdims=True), rtol=1e-5)
print("all right")
"""

STAGES = (
    ANY[: ANY.index("\nfor name")]
    + """

from charcnn.offload import pipeline_parallel, relay as stages

pipeline_parallel.FILLING = stages.TOGETHER = 1
if sys.argv[2] == "shared":  # neighbours share two ops, by halves
    at = lambda i, work, count: i * len(work) // count
    partition.begins = lambda work, count, shared: [
        (at(i, work, count), at(i, work, count) + 2 * (i > 0), 0.5 * (i > 0)) for i in range(count)
    ]
row = network_technique(sys.argv[1])
images = np.resize(images, (5, network.length))
exact, sigma = expected(images, weights, network, row.rounding())
build = parts.relayed(row, lambda *given, batch=2, **how: row.build(sys.argv[1], *given, batch=batch, **how))
relay = build(weights, network, place=(comm.rank, comm.size), monitor=Monitor(), gpus=[0], batch=2)
assert relay.place(0) % 16 == relay.place(1) % 16 == relay.place(1, shared=True) % 16 == 0  # vectors are read there
for n in (5, 0, 3):
    source = images[:n] if comm.rank == 0 else None
    found = offload.pipeline(comm, source, relay, network.length, network.classes, chunk=2)
    assert (found is None) == (comm.rank > 0)
    if found is not None and n:
        worst = in_sigmas(found, exact[:n], sigma[:n]).max()
        assert worst < row.rounding().bound, (n, worst)
did = relay.did()
assert 0 < did["busy"] <= did["elapsed"] and did["link"] == "host memory", did
print("all right")
"""
)

CHANNELS = [f"{name}:fp32:{few}:channels" for name in ("naive", "winograd") for few in (0, 9)]
INPUTS = [f"{name}:fp32:{few}:inputs" for name, few in (("naive", 0), ("winograd", 9))]


@by_turns
@needs_mpi
def test_a_softmax_of_rows_as_a_linear_layer_writes_them():
    done = mpiexec(2, "-c", SOFTMAX, **EMULATED)
    assert done.stdout.count("all right") == 2, done.stderr


@needs_mpi
@pytest.mark.parametrize(
    ("ranks", "ways"),
    [
        (2, [CHANNELS[0]]),
        pytest.param(2, [CHANNELS[3], INPUTS[0]], marks=by_turns),
        pytest.param(2, [*CHANNELS[1:3], INPUTS[1]], marks=pytest.mark.exhaustive),
        pytest.param(3, [CHANNELS[0], INPUTS[0]], marks=pytest.mark.exhaustive),
        pytest.param(
            2, ["mma:fp16:9:channels", "mma:bf16:9:inputs", "mma:tf32:9:channels"], marks=pytest.mark.exhaustive
        ),
    ],
)
def test_a_share_of_any_network(ranks, ways):
    """Norms reach over ranks, channels and inputs are shared unevenly; each way of norms, layouts of either order."""
    done = mpiexec(ranks, "-c", ANY, *ways, **EMULATED)
    assert done.stdout.count("all right") == ranks, done.stderr


def test_where_stages_begin():
    assert partition.begins([1, 6, 2, 1], 2, [0, 1, 3]) == [(0, 0, 0.0), (1, 3, 4 / 8)]
    assert partition.begins([1, 6, 2, 1], 2, []) == [(0, 0, 0.0), (2, 2, 0.0)]
    whole = [(0, 0, 0.0), (1, 1, 0.0), (2, 2, 0.0)]
    assert partition.begins([0, 8, 0], 3, [0, 1, 2]) == whole, "one piece for three stages"
    # Of 20 inputs of 4 or 6 bytes the stage before has computed 8 of about 9.
    border = Border(ArraySpec((1,)), ArraySpec((3,), np.uint16), 0.45)
    assert (border.first(20), border.sent(20), border.room(20)) == (8, 8 * 4 + 12 * 6, (256, 512))


@needs_mpi
@pytest.mark.parametrize(
    ("ranks", "technique", "ops"),
    [
        pytest.param(2, "naive", "shared", marks=by_turns),
        *(
            pytest.param(*of, marks=pytest.mark.exhaustive)
            for of in ((2, "naive", "whole"), (3, "winograd", "shared"), (2, "mma", "whole"))
        ),
    ],
)
def test_stages_of_any_network(ranks, technique, ops):
    """More micro-batches than places, an uneven last one, and several runs; cut between ops, and inside."""
    done = mpiexec(ranks, "-c", STAGES, technique, ops, **EMULATED)
    assert done.stdout.count("all right") == ranks, done.stderr


@needs_mpi
@pytest.mark.parametrize("mode", ["tensor", "pipeline"])
@pytest.mark.exhaustive
def test_commands_on_two_gpus(mode, tmp_path):
    report = tmp_path / "r.json"
    options = ["--as", "naive", "--offload", mode, "--batch", 1, "--json", report]
    done = mpiexec(2, "-m", "charcnn.networks.mnist", "--variant", "tiny", "--inputs", 3, *options, **EMULATED)
    assert "validated passed: 3 of 3" in done.stdout, done.stdout + done.stderr
    assert "features go through host memory" in done.stdout
    assert {did["link"] for did in json.loads(report.read_text())["parts"]} == {"host memory"}


@needs_mpi
@pytest.mark.skipif(device.SIMULATED or device.gpu_count() < 2, reason="needs two GPUs")
@pytest.mark.parametrize("technique", ["winograd", "mma"])
@pytest.mark.parametrize(("mode", "batch"), [("tensor", 2), ("tensor", 100), ("pipeline", 2)])
def test_two_gpus(technique, mode, batch):
    """Both ways of norms, in CUDA graphs; more micro-batches than places."""
    options = ["--as", technique, "--offload", mode, "--batch", batch, "--inputs", 300]
    done = mpiexec(2, "-m", "charcnn.networks.alexnet", "--variant", "tiny", *options)
    assert "validated passed" in done.stdout, done.stdout + done.stderr
    assert "features go through " in done.stdout
