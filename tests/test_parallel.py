"""A network over ranks: plans against brute force, parts of every technique, and real ranks."""

import itertools
import json
import math
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
from conftest import by_turns, quick
from test_farm import ULFM, needs_ulfm
from test_mpi import mpiexec, needs_mpi
from test_networks import TITLES, architecture, drawn
from test_watch import ended

from charcnn import offload
from charcnn.catalog import NETWORK_TECHNIQUES, network_technique
from charcnn.layers import (
    AvgPool2d,
    BatchNorm2d,
    Conv2d,
    Flatten,
    Linear,
    LocalResponseNorm,
    MaxPool2d,
    Pixels,
    Relu,
    place,
)
from charcnn.model.rounding import ROUNDINGS
from charcnn.model.validation import in_sigmas
from charcnn.networks import cpu, parts
from charcnn.networks.architecture import Architecture
from charcnn.networks.reference import expected
from charcnn.offload import partition
from charcnn.offload.modes import MODES
from charcnn.runtime.monitor import Monitor


def nodes_of(flops):
    """Linear layers of so many FLOP, each with a ReLU behind."""
    layers = [one for i, units in enumerate(flops) for one in (Linear(units, name=f"fc{i}"), Relu())]
    nodes = place(layers, (1,))
    work = iter(flops)
    return tuple(
        replace(node, layer=Linear(next(work), name=node.layer.name), in_shape=(1,)) if node.flops else node
        for node in nodes
    )


def test_stages_are_the_best_of_all():
    rng = np.random.default_rng(0)
    for count in (1, 2, 5, 8):
        for ranks in range(1, count + 1):
            flops = [int(x) for x in rng.integers(1, 100, count)]
            found = [sum(node.flops for node in stage) for stage in partition.stages(nodes_of(flops), ranks)]
            assert len(found) == ranks
            assert sum(found) == 2 * sum(flops)
            cuts = itertools.combinations(range(1, count), ranks - 1)
            bounds = ([0, *cut, count] for cut in cuts)
            best = min(max(sum(flops[a:b]) for a, b in itertools.pairwise(each)) for each in bounds)
            assert max(found) == 2 * best


def test_stages_begin_with_a_product_and_keep_every_layer():
    network = architecture("alexnet", "2012")
    found = partition.stages(network.nodes, 8)
    assert [stage[0].layer.label for stage in found] == [
        "pixels1", "conv2", "conv3", "conv4", "conv5", "flatten1", "fc7", "fc8"
    ]  # fmt: skip
    assert tuple(node for stage in found for node in stage) == network.nodes
    with pytest.raises(ValueError, match="9 ranks: need 1 to 8"):
        partition.stages(network.nodes, 9)


@pytest.mark.parametrize(
    ("count", "groups", "ranks", "sizes"),
    [(10, 1, 3, [4, 3, 3]), (256, 2, 2, [128, 128]), (10, 2, 3, [3, 2, 5]), (6, 6, 4, [2, 2, 1, 1])],
)
def test_channels_are_whole_groups_or_parts_of_one(count, groups, ranks, sizes):
    found = partition.channels(count, groups, ranks, "conv")
    assert [len(of) for of in found] == sizes
    assert [i for of in found for i in of] == list(range(count))
    with pytest.raises(ValueError, match=f"{count + 1} ranks: conv has {count} channels"):
        partition.channels(count, groups, count + 1, "conv")


def test_alexnet_of_2012_is_split_as_on_its_two_gpus():
    """Only conv3 reads what the other has, but for the two neighbours of a channel in each normalisation."""
    found = partition.tensor(architecture("alexnet", "2012").nodes, 2)
    sent = {part.layers[0].node.layer.label: (part.kind, part.values) for part in found if part.kind}
    assert sent == {
        "localresponsenorm1": ("exchange", 2 * 55 * 55),
        "localresponsenorm2": ("exchange", 2 * 27 * 27),
        "conv3": ("exchange", 128 * 13 * 13),
        "relu6": ("sum", 4096),
        "softmax1": ("sum", 1000),
    }
    labels = [[placed.node.layer.label for placed in part.layers] for part in found]
    assert ["conv2", "relu2"] in labels
    assert ["conv3", "relu3", "conv4", "relu4", "conv5", "relu5", "maxpool2d3", "flatten1", "fc6"] in labels
    assert parts.flops(architecture("alexnet", "2012"), "tensor", 2) == [1_448_813_632 // 2] * 2


def test_ffn_has_one_sum():
    found = partition.tensor(architecture("ffn", "768").nodes, 4)
    assert [(part.kind, part.values) for part in found] == [("", 0), ("sum", 2 * 3 * 768 // 4)]
    last, first = found[0].layers[-1], found[0].layers[2]
    assert last.sums
    assert last.take == first.give
    assert not first.sums


def together(steps, ranks, rows):
    """What the ranks compute, in one process: of each message, what comes of it."""
    x = [rows] * ranks
    for each in zip(*(of.steps for of in steps), strict=True):
        of = each[0].of
        if x[0].dtype != np.uint8:
            inner = math.prod(of.shape[1:])
            x = [values.reshape(len(rows), -1, inner) for values in x]
            whole = np.full((len(rows), of.shape[0], inner), np.nan, np.float32)
            for rank, (has, own) in enumerate(zip(of.has, of.owns, strict=True)):
                whole[:, own.start : own.stop] = x[rank][:, own.start - has.start : own.stop - has.start]
            if of.kind == "sum":
                whole = sum(x)
            elif not of.kind:  # what others have is not there
                assert all(partition.overlap(*both) == both[1] for both in zip(of.owns, of.need, strict=True))
            x = [np.ascontiguousarray(whole[:, need.start : need.stop]).reshape(len(rows), -1) for need in of.need]
        x = [
            values if step.run is None else step.run(values.view(np.uint8))
            for step, values in zip(each, x, strict=True)
        ]
    return x[0]


@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("technique", [row.name for row in NETWORK_TECHNIQUES if row.device == "cpu"])
@pytest.mark.parametrize("name", TITLES)
def test_parts_of_every_technique(name, technique, ranks):
    """Of a CPU; GPUs share layers in test_shared_networks."""
    row, network = network_technique(technique), architecture(name)
    weights, images = drawn(network)
    exact, sigma = expected(images, weights, network, row.rounding())

    def build(*arguments, **options):
        return row.build(technique, *arguments, batch=2, **options)

    steps = [parts.parted("tensor", build)(weights, network, place=(r, ranks), monitor=Monitor()) for r in range(ranks)]
    for each in steps:
        each(images)
    assert in_sigmas(together(steps, ranks, images), exact, sigma).max() < row.rounding().bound
    if ranks > len(partition.products(network.nodes)):
        return
    x = images
    for rank in range(ranks):
        stage = parts.parted("pipeline", build)(weights, network, place=(rank, ranks), monitor=Monitor())
        assert x.view(np.uint8).shape[1] == stage.length
        x = stage(x.view(np.uint8))
        assert x.shape[1] == stage.width
    assert in_sigmas(x, exact, sigma).max() < row.rounding().bound


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_any_order_of_layers(ranks):
    layers = (
        Pixels(1, 10, 10), Conv2d(4, 3, name="a"), LocalResponseNorm(5), AvgPool2d(2), BatchNorm2d(name="n"),
        Conv2d(12, 3, padding=1, groups=2, name="b"), Relu(), Conv2d(8, 2, groups=4, name="c"), LocalResponseNorm(3),
        Flatten(), Linear(5, name="d"), Linear(6, name="e"), Linear(4, name="f"), Linear(7, name="g"),
    )  # fmt: skip
    network = Architecture("any", "tiny", layers)
    weights, images = drawn(network, 2)
    exact, sigma = expected(images, weights, network, ROUNDINGS["fp32"])
    build = parts.parted("tensor", partial(cpu.build, "loops"))
    steps = [build(weights, network, place=(rank, ranks), monitor=Monitor()) for rank in range(ranks)]
    for each in steps:  # alone, as before a run
        each(images)
    assert in_sigmas(together(steps, ranks, images), exact, sigma).max() < ROUNDINGS["fp32"].bound
    assert sum(parts.flops(network, "tensor", ranks)) == network.flops


def test_what_neighbours_add_to_a_normalisation_reaches_over_several_ranks():
    nodes = place(
        [Conv2d(4, 1, name="a"), LocalResponseNorm(5), MaxPool2d(2), Conv2d(4, 1, groups=2, name="b")], (2, 4, 4)
    )
    found = partition.tensor(nodes, 4)
    assert [part.kind for part in found] == ["", "exchange", "exchange", "exchange"]
    assert found[1].need == (range(3), range(4), range(4), range(1, 4))
    assert found[1].values == 3 * 16
    assert found[2].owns == tuple(range(i, i + 1) for i in range(4))
    assert found[2].need == (range(2), range(2), range(2, 4), range(2, 4))
    assert found[3].need == (range(4), range(0), range(0), range(0))


def test_bubbles():
    assert offload.bubble(1, 5) == 0
    assert offload.bubble(4, 1) == 3 / 4
    assert offload.bubble(4, 12) == pytest.approx(3 / 15)
    assert offload.bubble_of([2, 2, 2, 2], 12) == pytest.approx(3 / 15)
    assert offload.bubble_of([1, 3], 2) == pytest.approx(1 - 2 * 4 / (2 * (4 + 3)))


@pytest.mark.parametrize("mode", offload.PARTED)
def test_ranks_let_go_of_what_they_share_at_the_end(mode, monkeypatch):
    closed = []
    monkeypatch.setattr(MODES[mode], "function", lambda *_, **__: None)
    of = MODES[mode](None, mode)
    of.begin((None, 2, 0), SimpleNamespace(length=1, classes=1), 2, Monitor(), None)
    of.run(None, SimpleNamespace(did=dict, close=lambda: closed.append("closed")))
    assert not closed
    assert of.close({}, traced=False) == ([{}], None)
    assert closed == ["closed"]


RANKS = """
import sys
import charcnn.networks
charcnn.networks.prepare()
import numpy as np
from charcnn import offload
comm = offload.world()
from test_networks import TITLES, architecture, drawn
from charcnn.model.rounding import ROUNDINGS
from charcnn.model.validation import in_sigmas
from charcnn.networks import cpu, parts
from charcnn.networks.reference import expected
from charcnn.offload import partition, pipeline_parallel, tensor_parallel, watch
from charcnn.runtime.monitor import Monitor
def build(*arguments, **options):
    return cpu.build("cpu_gemm", *arguments, batch=2, **options)
watch.follow(comm, "tensor")
for turn, name in enumerate(sys.argv[1:]):
    if turn % 2:  # as between hosts
        tensor_parallel.local_place = pipeline_parallel.local_place = lambda comm: (0, 1)
    else:
        tensor_parallel.local_place = pipeline_parallel.local_place = offload.local_place
    network = architecture(name)
    weights, images = drawn(network, 7)
    if comm.rank == 0:
        exact, sigma = expected(images, weights, network, ROUNDINGS["fp32"])
    for mode, function in offload.PARTED.items():
        if mode == "pipeline" and comm.size > len(partition.products(network.nodes)):
            continue
        run = parts.parted(mode, build)(weights, network, place=(comm.rank, comm.size), monitor=Monitor())
        for n in (0, 1, 7):
            source = images[:n] if comm.rank == 0 else None
            found = function(comm, source, run, network.length, network.classes, chunk=2)
            assert (found is None) == (comm.rank > 0)
            if found is not None and n:
                worst = in_sigmas(found, exact[:n], sigma[:n]).max()
                assert worst < ROUNDINGS["fp32"].bound, (name, mode, n, worst)
        assert 0 <= run.busy <= run.elapsed
        assert run.link == ("messages" if turn % 2 else "host memory"), (name, mode, run.link)
    print(name, "done", comm.rank)
"""


@needs_mpi
@by_turns
@pytest.mark.parametrize("names", [TITLES[:2], TITLES[2:]])
def test_three_ranks_give_what_one_gives(names):
    done = mpiexec(3, "-c", RANKS, *names, PYTHONPATH="tests:bench")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("done") == 3 * len(names)


@by_turns
@needs_mpi
@pytest.mark.parametrize("mode", offload.PARTED)
@quick(lambda mode: mode == "tensor")
def test_commands_on_two_ranks(mode, tmp_path):
    report, trace = tmp_path / "r.json", tmp_path / "t.json"
    options = ["--as", "cpu_gemm", "--offload", mode, "--batch", 2, "--json", report, "--trace", trace]
    done = mpiexec(2, "-m", "charcnn.networks.alexnet", "--variant", "tiny", "--inputs", 9, *options)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(report.read_text())
    assert (found["offload"], found["ranks"], len(found["parts"])) == (mode, 2, 2)
    assert 0 < found["idle"] < 1
    names = {event["name"] for event in json.loads(trace.read_text()) if event.get("cat") == "network"}
    assert names == ({"inputs", "exchange", "sum"} if mode == "tensor" else {"receive", "send"})
    if mode == "pipeline":
        assert found["parts"][0]["chunk"] == 2
        assert "5 micro-batches of 2; stages begin at pixels1, conv" in done.stdout
        assert "16.7% of equal stages" in done.stdout
    else:
        assert [did["sent"] for did in found["parts"]] == [found["parts"][0]["sent"]] * 2
        assert "of the ranks' time went to messages and waiting" in done.stdout


KINDS = """
import sys
import charcnn.networks
charcnn.networks.prepare()
from charcnn import offload
from charcnn.networks.runner import command
rank = offload.world().rank
for mode in (*offload.PARTED, *sorted(offload.MODES, key="farm".__eq__)):  # a farm ends its processes
    try:
        command.main("alexnet", [*sys.argv[1:], "--offload", mode])
    except SystemExit as done:
        assert not done.code, mode
"""


@needs_mpi
@pytest.mark.parametrize(("ranks", "inputs"), [(3, 2), (4, 9)])
@pytest.mark.exhaustive
def test_commands_of_all_kinds_on_uneven_shares(ranks, inputs):
    """Neither inputs nor channels are shared out evenly, and of two inputs one of three ranks has none."""
    options = ["--variant", "tiny", "--as", "cpu_gemm", "--inputs", inputs, "--batch", 4]
    done = mpiexec(ranks, "-c", KINDS, *options)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count(f"validated passed: {inputs} of {inputs}") == len({*offload.PARTED, *offload.MODES})


@needs_mpi
@pytest.mark.exhaustive
def test_too_many_ranks_are_told_once():
    done = mpiexec(3, "-m", "charcnn.networks.ffn", "--variant", "tiny", "--as", "cpu_gemm", "--offload", "pipeline")
    assert done.returncode == 2
    said = "ffn: rank 0: 3 ranks: need 1 to 2, a convolution or linear layer for each stage"
    assert [line for line in done.stderr.splitlines() if line.startswith("ffn")] == [said]


@pytest.mark.parametrize(
    ("module", "words", "message"),
    [
        ("levels.l1", ["--offload", "tensor"], "--offload tensor: l1 is not split into parts; image networks are"),
        ("networks.mnist", ["--offload", "pipeline", "--layers"], "--layers: with --offload pipeline no rank has all"),
        ("networks.mnist", ["--offload", "tensor", "--checkpoint", "c"], "--checkpoint: needs --offload farm"),
    ],
)
@pytest.mark.filterwarnings("ignore:.* found in sys.modules:RuntimeWarning")  # as the module is imported, too
def test_what_does_not_fit_is_told(module, words, message, as_module):
    done = as_module(*f"charcnn.{module}".rsplit(".", 1), *words)
    assert done.returncode == 2
    assert message in done.stderr
    assert len(done.stderr.splitlines()) == 1


STRUCK = """
import os, signal, sys
import charcnn.networks
charcnn.networks.prepare()
from charcnn import offload
from charcnn.networks import cpu
from charcnn.networks.runner import command
rank, whole = offload.world().rank, cpu.build
def build(*arguments, **options):
    run, calls = whole(*arguments, **options), []
    def struck(rows):
        calls.append(1)
        if rank == 1 and len(calls) > 3:
            os.kill(os.getpid(), signal.SIGKILL)
        return run(rows)
    return struck
cpu.build = build
options = ["--variant", "tiny", "--as", "cpu_gemm", "--inputs", "60", "--batch", "2", "--offload", sys.argv[1]]
command.main("ece408", options)
"""


@by_turns
@needs_mpi
@needs_ulfm
@pytest.mark.parametrize("mode", offload.PARTED)
def test_a_death_ends_all_ranks(mode):
    done = mpiexec(2, "-c", STRUCK, mode, options=ULFM, timeout=300)
    ended(done)
    assert f"rank 0: rank 1 has died, and ends this run: --offload {mode} needs all" in done.stderr
    assert "validated" not in done.stdout
