"""Networks of images that several GPUs share: emulated ranks, which are processes that share memory."""

from __future__ import annotations

import json

import pytest
from test_mpi import mpiexec, needs_mpi

from charcnn.gpu import device
from charcnn.layers import Conv2d, LocalResponseNorm, MaxPool2d, Relu, place
from charcnn.offload import partition
from charcnn.ops.shared_norm import Reach, sent

EMULATED = {"NUMBA_ENABLE_CUDASIM": "1", "PYTHONPATH": "tests"}


def test_what_norms_need_of_other_ranks():
    owns = range(2), range(2, 3), range(3, 6)
    assert [Reach.of(own, 6, 5) for own in owns] == [(0, 2, 0, 2), (2, 2, 1, 0), (2, 0, 2, 0)]
    # Two before channel 2 of one rank, two after of another; and of the rank between its only one.
    assert [sent(owns, 5, source, 1) for source in (0, 2)] == [(0, 2, 0), (0, 2, 2)]
    assert [sent(owns, 5, source, 2) for source in (0, 1)] == [(1, 1, 0), (0, 1, 1)]
    assert [sent(owns, 5, source, 0) for source in (1, 2)] == [(0, 1, 0), (0, 1, 1)]


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
for name, precision, few in (one.split(":") for one in sys.argv[1:]):
    parts.FEW = int(few)
    row = network_technique(name)
    exact, sigma = expected(images, weights, network, row.rounding(precision))
    build = parts.shared(row, lambda *given, **how: row.build(name, *given, **how))
    how = {"gpus": [0], "batch": 2, **row.build_options(precision)}
    run = build(weights, network, place=(comm.rank, comm.size), monitor=Monitor(), **how)
    for n in (2, 1):
        found = run.steps[0].run(images[:n])
        worst = in_sigmas(found, exact[:n], sigma[:n]).max()
        assert worst < row.rounding(precision).bound, (name, precision, few, n, worst)
        assert in_sigmas(np.roll(found, 1, 1), exact[:n], sigma[:n]).min() > row.rounding(precision).bound
print("all right")
"""

STAGES = (
    ANY[: ANY.index("\nfor name")]
    + """

row = network_technique(sys.argv[1])
images = np.resize(images, (5, network.length))
exact, sigma = expected(images, weights, network, row.rounding())
build = parts.relayed(row, lambda *given, batch=2, **how: row.build(sys.argv[1], *given, batch=batch, **how))
relay = build(weights, network, place=(comm.rank, comm.size), monitor=Monitor(), gpus=[0], batch=2)
assert relay.place(0) % 16 == relay.place(1) % 16 == 0  # vectors are read there
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

WAYS = ["naive:fp32:0", "naive:fp32:9", "winograd:fp32:0", "winograd:fp32:9"]


@needs_mpi
@pytest.mark.parametrize(
    ("ranks", "ways"),
    [
        (2, WAYS),
        (3, WAYS[:1]),
        pytest.param(2, ["mma:fp16:0", "mma:bf16:9", "mma:tf32:0"], marks=pytest.mark.exhaustive),
    ],
)
def test_a_share_of_any_network(ranks, ways):
    """Norms reach over ranks, channels are shared out unevenly; each way of norms, and layouts of either order."""
    done = mpiexec(ranks, "-c", ANY, *ways, **EMULATED)
    assert done.stdout.count("all right") == ranks, done.stderr


@needs_mpi
@pytest.mark.parametrize(
    ("ranks", "technique"),
    [(2, "naive"), *(pytest.param(*of, marks=pytest.mark.exhaustive) for of in ((3, "winograd"), (2, "mma")))],
)
def test_stages_of_any_network(ranks, technique):
    """More micro-batches than places, an uneven last one, and several runs."""
    done = mpiexec(ranks, "-c", STAGES, technique, **EMULATED)
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
