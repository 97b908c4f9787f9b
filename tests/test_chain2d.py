"""Fused chains over images: plans against counts one by one, kernels against the network's reference."""

import json
import math
from contextlib import suppress
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from conftest import by_turns, quick, sampled
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from charcnn.gpu import device
from charcnn.layers import LeakyRelu, LocalResponseNorm, Sigmoid, place
from charcnn.model.network import run
from charcnn.networks import alexnet, fused4
from charcnn.ops.chain import Conv1d, Conv2d, MaxPool2d, Relu, Roofline, Stat, Tanh, kernel2d, plan, pyramid

TOLERANCE, HALF = 2e-6, 2e-3
H200 = 232_448
METHODS = ("whole", "tiles", "rolling")
RESULTS = Path(__file__).parent.parent / "bench" / "results"

ALEXNET = tuple(layer for layer in alexnet.layers("2012")[1:9] if not isinstance(layer, LocalResponseNorm))
FOUR = fused4.layers("28")[1:9]
KERNELS = [(4,), (1, 3), (2, 2), (3, 1), (1, 1, 2), (1, 2, 1), (2, 1, 1), (1, 1, 1, 1)]


def first_two(**options):
    return plan(ALEXNET, in_shape=(3, 227, 227), **{"shared_limit": H200, **options})


def four(**options):
    return plan(FOUR, in_shape=(1, 28, 28), **{"shared_limit": H200, **options})


def arguments(layers, made, n, seed=0):
    """Random x, weights and biases, and what the network's reference makes of them in float64."""
    rng = np.random.default_rng(seed)
    nodes = place([replace(layer, name=f"layer{i}") for i, layer in enumerate(layers)], made.in_shape)
    params = {
        name: rng.standard_normal(shape, np.float32) * np.float32(max(1, math.prod(shape[1:])) ** -0.5)
        for node in nodes
        for name, shape in node.parameters.items()
    }
    x = rng.standard_normal((n, *made.in_shape), np.float32)
    convs = [node.layer.name for node in nodes if isinstance(node.layer, Conv2d)]
    weights, biases = [params[f"{name}.weight"] for name in convs], [params.get(f"{name}.bias") for name in convs]
    return (x, weights, biases), run(nodes, x.astype(np.float64), params)


def close(got, expected, tolerance=TOLERANCE):
    return np.linalg.norm(got - expected) <= tolerance * max(np.linalg.norm(expected), 1)  # ReLU may leave little


def check(layers, made, n=2, seed=0, tolerance=TOLERANCE):
    given_arrays, expected = arguments(layers, made, n, seed)
    out = np.full((n, *made.out_shape), np.nan, np.float32)
    workspace = [device.to_device(np.full(shape, np.nan, np.float32)) for shape in made.workspace_shapes(n)]
    assert made.compile()(*given_arrays, out=out, workspace=workspace) is out
    assert close(out, expected, tolerance)


@st.composite
def chains(draw):
    """Layers that fit their image, of up to three convolutions."""
    pair = lambda most: st.tuples(st.integers(1, most), st.integers(1, most))  # noqa: E731
    shape = in_shape = draw(st.tuples(st.integers(1, 4), st.integers(1, 12), st.integers(1, 12)))
    layers = []
    for _ in range(draw(st.integers(1, 3))):
        groups = draw(st.sampled_from([size for size in (1, 2, 3) if shape[0] % size == 0]))
        sides = tuple(draw(st.tuples(*[st.integers(0, 3)] * 4)))
        windows = [
            Conv2d(groups * draw(st.integers(1, 3)), draw(pair(4)), draw(pair(3)), sides, draw(pair(2)), groups,
                   draw(st.booleans())),
            *(MaxPool2d(size, draw(pair(3)), tuple(draw(st.integers(0, size[i // 2] // 2)) for i in range(4)))
              for size in draw(st.lists(pair(3), max_size=2))),
        ]  # fmt: skip
        for layer in windows:
            try:
                after = layer.out_shape(shape)
            except ValueError:  # does not fit
                continue
            if layers or isinstance(layer, Conv2d):
                layers += [layer, *draw(st.sampled_from([[], *([of()] for of in (Relu, Tanh, Sigmoid, LeakyRelu))]))]
                shape = after
    return (layers, in_shape) if layers else draw(chains())


@st.composite
def methods(draw):
    method = draw(st.sampled_from(METHODS))
    tile = {} if method == "whole" else {"tile": draw(st.tuples(st.integers(1, 5), st.integers(1, 5)))}
    limit = draw(st.sampled_from([10**6, 2500, 1000]))  # so that weights are staged, and strips are low
    return {"method": method, **tile, "shared_limit": limit, "precision": draw(st.sampled_from(["fp32", "fp16"]))}


def planned(layers, in_shape, options):
    """The plan; with all the memory in the world, where there is too little."""
    made = plan(layers, in_shape=in_shape, threads=32, **{**options, "shared_limit": 10**6})
    with suppress(ValueError):
        made = plan(layers, in_shape=in_shape, threads=32, **options)
        assert made.shared_bytes <= options["shared_limit"]
    return made


@pytest.mark.parametrize("examples", [30] if device.SIMULATED else sampled(3, 8))
def test_random_chains_are_the_networks_reference(examples):
    # A GPU compiles for each: it gets the same ones every time, and finds them compiled the next.
    @settings(max_examples=examples, derandomize=not device.SIMULATED)
    @given(chains(), methods(), st.integers(0, 2), st.integers(0, 99))
    def try_one(chain, options, n, seed):
        made = planned(*chain, options)
        check(chain[0], made, n, seed, HALF * 2 if options["precision"] == "fp16" else TOLERANCE)

    try_one()


# What blocks make and hold, one row and column after another.


def read(link, axis, outputs):
    """Rows or columns of the image that windows of these outputs reach, from the first to the last."""
    window, size = link.window, link.in_shape[1 + axis]
    first = [at * window.stride[axis] - window.padding[2 * axis] for at in outputs]
    found = [at for start in first for at in range(start, start + window.span[axis]) if 0 <= at < size]
    return range(min(found), max(found) + 1) if found else range(0)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.filter_too_much])
@given(chains(), methods())
def test_tilings_are_what_windows_read(chain, options):
    (step,) = planned(*chain, options).steps
    windows = [link.window for link in step.links]  # of one that lies in padding alone, more is made than is read
    assume(all(side < window.span[i // 2] for window in windows for i, side in enumerate(window.padding)))
    tiling, maps = step.tiling, len(step.links) + 1
    made = [[0, 0] for _ in range(maps)]
    for index in range(tiling.grid[1]):
        columns = range(index * tiling.tile[1], min((index + 1) * tiling.tile[1], tiling.shapes[-1][2]))
        for i in range(maps - 1, -1, -1):
            made[i][1] += len(columns)
            if i:
                wanted = read(step.links[i - 1], 1, columns)
                if columns:  # each window's columns, padding too, lie between a row's begin and the next
                    last = (columns[-1] - columns[0]) * step.links[i - 1].window.stride[1]
                    assert last + step.links[i - 1].window.span[1] <= tiling.pitches[i - 1]
                columns = wanted
    ends = list(pairwise((0, *tiling.ends)))
    for index in range(tiling.grid[0]):
        in_memory = [{} for _ in range(maps)]
        for strip in tiling.strips(index):
            first = next(first for first, end in ends if end == max(strip))
            for i in sorted(strip):
                (begin, end), _ = strip[i]
                if i > first:  # all that it reads is there
                    wanted = read(step.links[i - 1], 0, range(begin, end))
                    assert {in_memory[i - 1].get(row % tiling.rings[i - 1]) for row in wanted} == set(wanted)
                made[i][0] += end - begin
                for row in range(begin, end):
                    in_memory[i][row % (tiling.rings[i] or 10**6)] = row
        rows = set(in_memory[-1].values())
        last = range(index * tiling.tile[0], min((index + 1) * tiling.tile[0], tiling.shapes[-1][1]))
        assert rows == set(last)
    counted = tuple(shape[0] * rows * columns for shape, (rows, columns) in zip(tiling.shapes, made, strict=True))
    assert tiling.made == counted
    assert tiling.computed_flops == sum(
        2 * link.depth * size for link, size in zip(step.links, counted[1:], strict=True)
    )
    if options["method"] == "whole":
        assert (tiling.grid, tiling.recomputed_flops) == ((1, 1), 0)
    assert step.shared_bytes <= 10**6


@pytest.mark.parametrize(
    ("tile", "blocks", "alike", "clipped", "held"),
    [(1, 169, 5.44, 5.12, 9_408), (2, 49, 3.01, 2.56, 15_552), (4, 16, 2.44, 1.66, 32_448), (7, 4, 1.48, 1.19, 69_312),
     (13, 1, 1.00, 1.00, 139_968)],
)  # fmt: skip
def test_pyramid_of_alexnets_first_two_layers(tile, blocks, alike, clipped, held):
    (row,) = pyramid(ALEXNET, (3, 227, 227), [tile])
    assert (math.prod(row.grid), 2 * row.held) == (blocks, held)
    assert (round(row.alike, 2), round(row.clipped, 2)) == (alike, clipped)
    # By hand: rows of pool1 are those of 2 t + 1 of conv2 and 4 more, of conv1 twice these and 1; none has more than
    # the map. Multiplications of a conv1 output: 3 x 11 x 11; of conv2: 48 x 5 x 5.
    conv2 = min(2 * tile + 1, 27)
    conv1 = min(2 * min(conv2 + 4, 27) + 1, 55)
    unfused = 96 * 363 * 55**2 + 256 * 1200 * 27**2
    assert row.flops == 2 * unfused
    assert row.alike == pytest.approx(blocks * (96 * 363 * conv1**2 + 256 * 1200 * conv2**2) / unfused, rel=1e-12)
    text = first_two(method="tiles", tile=tile, precision="fp16").describe()
    assert f"multiplications  {clipped:.2f}x the layers' own; {alike:.2f}x if blocks at borders" in text
    assert f"blocks an image  {blocks} of {tile}x{tile} pixels" in text


def test_alexnets_first_two_layers_whole_fit_in_half_precision():
    made = first_two(method="whole", precision="fp16")
    (step,) = made.steps
    assert (step.tiles, made.launches, made.recomputed_flops, made.out_shape) == (1, 1, 0, (256, 13, 13))
    assert step.tiling.rings[2] == 27  # all of pool1's map; of the image, conv1 and conv2 some rows
    assert max(step.tiling.rings[i] for i in (0, 1, 3)) < 27
    assert made.computed_flops == made.flops == 2 * 329_364_000
    assert made.dram_bytes == 4 * (3 * 227 * 227 + 256 * 13 * 13)
    assert made.weakly_fused_bytes == made.dram_bytes + 2 * 4 * 96 * 27 * 27
    maps = [3 * 227**2, *[96 * 55**2] * 4, *[96 * 27**2] * 2, *[256 * 27**2] * 4, 256 * 13**2]
    assert made.unfused_bytes == 4 * sum(maps)
    assert made.parameter_bytes == 4 * (96 * 364 + 256 * 1201)
    assert made.shared_bytes <= H200
    with pytest.raises(ValueError, match=r"^convolutions 1 to 2 need .* by method 'whole', there are 232,448: try"):
        first_two(method="whole")
    for method in ("tiles", "rolling"):  # with tiles or strips that do
        assert (first_two(method=method).launches, first_two(method=method).shared_bytes <= H200) == (1, True)


def test_four_convolutions_are_planned_in_all_partitions():
    for turn, kernels in enumerate(KERNELS):
        made = four(kernels=kernels, tile=1 + turn % 5)
        assert tuple(step.convolutions for step in made.steps) == kernels
        assert {step.method for step in made.steps} == {"tiles"}
        assert made.shared_bytes <= H200
        assert made.launches == len(kernels) == len(made.workspace_shapes(3)) + 1
    assert four().out_shape == (4, 11, 11)
    assert four().flops == 1_223_120 - 2 * 10 * 4 * 11 * 11  # less the linear layer behind them
    whole = four(method="whole")
    assert (whole.recomputed_flops, whole.computed_flops) == (0, whole.flops)
    assert four(kernels=(4,), tile=1).computed_flops > 10 * whole.flops


@quick(lambda kernels, tile: (kernels, tile) == ((1, 2, 1), 2))  # of one, two and one convolution
@pytest.mark.parametrize(("kernels", "tile"), [*((some, 2) for some in KERNELS), *(((2, 2), i) for i in (1, 3, 4, 5))])
def test_four_convolutions_run_in_all_partitions(kernels, tile):
    made = plan(FOUR, in_shape=(1, 10, 11), kernels=kernels, tile=tile, threads=32)
    check(FOUR, made, 1)


SMALL = (Conv2d(4, 5, 2), Relu(), MaxPool2d(3, 2), Conv2d(6, 3, 1, 1, groups=2, bias=False), Tanh(), MaxPool2d(3, 2, 1))


@quick(lambda options, precision: options.get("tile") == (1 if precision == "fp16" else (1, 2)) or len(options) == 1)
@pytest.mark.parametrize("precision", ["fp32", "fp16"])
@pytest.mark.parametrize("options", [
    {"method": "whole"}, {"method": "whole", "shared_limit": 8000}, {"method": "tiles", "tile": 2},
    {"method": "tiles", "tile": (1, 3)}, {"method": "rolling", "tile": 1}, {"method": "rolling", "tile": (1, 2)},
    {"method": "rolling", "tile": 2, "shared_limit": 11_500}], ids=str)  # fmt: skip
def test_methods(options, precision):
    made = plan(SMALL, in_shape=(3, 27, 25), threads=32, precision=precision, **options)
    assert made.steps[0].method == options["method"]
    check(SMALL, made, 2, tolerance=HALF if precision == "fp16" else TOLERANCE)


@by_turns
def test_staged_weights_and_several_passes():
    layers = [Conv2d(100, 3), Relu(), Conv2d(5, 3, padding=1)]
    made = plan(layers, in_shape=(3, 12, 9), method="whole", threads=32, shared_limit=44_000)
    (step,) = made.steps
    assert step.stage > 0
    assert step.staged_lines(0) < step.links[0].lines
    assert step.waiting(0)[0] > 1
    check(layers, made, 2)


def test_nan_wins_and_borders_do_not():
    layers = [Conv2d(1, 1, bias=False), Relu(), MaxPool2d(3, 1, 1)]
    made = plan(layers, in_shape=(1, 3, 4), method="tiles", tile=2, threads=32)
    x = np.full((1, 1, 3, 4), -2, np.float32)
    x[0, 0, 0, 0] = np.nan
    x[0, 0, 2, 3] = 5
    one = np.ones((1, 1, 1, 1), np.float32)
    assert np.array_equal(
        made.compile()(x, [one], [None])[0, 0],
        [[np.nan, np.nan, 0, 0], [np.nan, np.nan, 5, 5], [0, 0, 5, 5]],
        equal_nan=True,
    )
    bare = plan([layers[0], layers[2]], in_shape=(1, 3, 4), method="whole", threads=32).compile()
    assert bare(x, [one], [None])[0, 0, 1, 2] == 5
    assert bare(-abs(x), [one], [None])[0, 0, 2, 3] == -2  # padding is not 0


def test_device_arrays_and_a_workspace():
    layers = [Conv2d(2, 2), Relu(), Conv2d(3, 1, bias=False)]
    made = plan(layers, in_shape=(2, 5, 4), kernels=(1, 1), method="whole", threads=32)
    (x, weights, biases), expected = arguments(layers, made, 2)
    workspace = made.workspace(4)
    assert [array.shape for array in workspace] == [(4, 2, 4, 3)]
    x, *weights = (device.to_device(array) for array in (x, *weights))
    biases = [device.to_device(biases[0]), None]
    out = device.to_device(np.full((2, *made.out_shape), np.nan, np.float32))
    assert made.compile()(x, weights, biases, out=out, workspace=workspace) is out
    assert close(out.copy_to_host(), expected)
    before = kernel2d.make_kernel.cache_info().misses
    assert close(replace(made).compile()(x, weights, biases).copy_to_host(), expected)
    assert kernel2d.make_kernel.cache_info().misses == before  # an equal plan compiles nothing


@pytest.mark.parametrize("batch", [pytest.param(batch, marks=by_turns) for batch in (1, 10_000)])
def test_no_method_takes_the_least_forecast(batch):
    best = four(batch=batch).seconds
    for kernels in ((4,), (1, 1, 1, 1)):
        apart = [four(batch=batch, kernels=kernels, method=method).seconds for method in METHODS]
        assert best <= four(batch=batch, kernels=kernels).seconds <= min(apart)


def test_forecast_follows_the_roofline():
    slow = Roofline(flops=1e9, bytes=1e15, launch=0)
    made = four(method="whole", batch=132, roofline=slow)
    (step,) = made.steps
    assert made.seconds == pytest.approx(132 * 2 * step.cost(8) / 1e9)  # a block a multiprocessor, that waits alone
    assert four(method="whole", batch=133, roofline=slow).seconds == pytest.approx(2 * made.seconds, rel=0.3)
    memory = Roofline(flops=1e18, bytes=1e9, launch=0.25)
    moved = 7 * made.dram_bytes + made.parameter_bytes
    assert four(method="whole", batch=7, roofline=memory).seconds == pytest.approx(0.25 + moved / 1e9)
    assert "us for a batch of 7: 1e+06 TFLOP/s, 0.001 TB/s, 132 multiprocessors, 250000 us a launch" in four(
        method="whole", batch=7, roofline=memory).describe()  # fmt: skip
    raw = json.loads((RESULTS / "nvidia-h200-layers.json").read_text())
    (peak,) = [row for row in raw["layers"] if (row["layer"], row["precision"]) == ("peak", "fp32")]
    assert Roofline().flops == pytest.approx(1e12 * peak["tflop_per_second"], rel=0.02)  # as hosts differ


def test_description():
    text = four(method="tiles", tile=4, kernels=(2, 2), batch=100).describe()
    for line in (
        "kernel           1, tiles",
        "layers           conv2d 5x5/1 relu, conv2d 4x4/2 relu",
        "feature maps     1x28x28 > 6x28x28 > 16x13x13",
        "blocks an image  16 of 4x4 pixels",
        "with halos       14x14 > 10x10 > 4x4",
        "launches         2",
        f"maps in DRAM     {4 * (784 + 2 * 16 * 169 + 4 * 121):,} bytes an image, "
        f"{4 * (784 + 2 * (6 * 784 + 16 * 169 + 8 * 169) + 484):,} with a kernel a convolution",
        "parameters       12,640 bytes a launch",
    ):
        assert line in text, text
    assert plan([Conv2d(1, (1, 2), (2, 3)), MaxPool2d(2)], in_shape=(1, 9, 9)).describe().count("conv2d 1x2/2x3,") == 1


@pytest.mark.parametrize(
    ("layers", "message"),
    [
        ([], "layers has 0 convolutions: need 1 to 6"),
        ([Conv2d(1, 1)] * 7, "layers has 7 convolutions: need 1 to 6"),
        ([MaxPool2d(2), Conv2d(1, 1)], r"layers\[0\] is MaxPool2d.*: need Conv2d, or behind one"),
        ([Conv2d(1, 1), Relu(), Tanh()], r"layers\[2\] is Tanh\(\): need"),
        ([Conv2d(1, 1), Stat()], r"layers\[1\] is Stat\(\): need"),
        ([Conv2d(1, 1), Conv1d(1, 1)], r"layers\[1\] is Conv1d.*: need"),
        ([Conv2d(1, 7)], "Conv2d: x has 5 x 6 pixels"),
        ([Conv2d(4, 1), Conv2d(4, 1, groups=3)], "Conv2d: groups=3: need a divisor of 4 and 4 channels"),
        ([Conv2d(1, 1), MaxPool2d(2, 1, (0, 2))], r"layers\[1\] is .*: need padding of at most half of kernel_size"),
    ],
)
def test_layers_that_are_no_chain(layers, message):
    with pytest.raises(ValueError, match=f"^{message}"):
        plan(layers, in_shape=(1, 5, 6))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"in_shape": (1, 5)}, r"in_shape=\(1, 5\): need \(C_in, H, W\)"),
        ({"in_shape": (0, 5, 5)}, "in_shape=0: need an int of at least 1"),
        ({"method": "pairs"}, "method='pairs': need one of whole, tiles, rolling, mma, or None"),
        ({"method": "whole", "tile": 2}, "tile=2: method 'whole' has no tiles"),
        ({"tile": 0}, "tile=0: need an int of at least 1"),
        ({"tile": (1, 2, 3)}, r"tile=\(1, 2, 3\): need"),
        ({"kernels": (1, 1)}, r"kernels=\(1, 1\): need 1 convolutions together"),
        ({"kernels": (0, 1)}, "kernels=0: need an int of at least 1"),
        ({"precision": "bf16"}, "precision='bf16': need one of fp32, fp16"),
        ({"batch": 0}, "batch=0: need"),
        ({"threads": 48}, "threads=48: need a multiple of 32, at most 384"),
        ({"shared_limit": 0}, "shared_limit=0: need"),
        ({"shared_limit": 100}, "convolutions 1 to 1 need [0-9,]+ bytes of shared memory a block by method"),
    ],
)
def test_options_that_do_not_fit(options, message):
    with pytest.raises(ValueError, match=f"^{message}"):
        plan([Conv2d(2, 3)], **{"in_shape": (1, 5, 6), **options})


def test_arguments_of_the_call():
    layers = [Conv2d(2, 2), Relu(), Conv2d(3, 1, groups=2, bias=False)]
    with pytest.raises(ValueError, match=r"^Conv2d: groups=2"):
        plan(layers, in_shape=(1, 4, 4))
    layers[2] = Conv2d(4, 1, groups=2, bias=False)
    made = plan(layers, in_shape=(1, 4, 4), kernels=(1, 1), method="whole", threads=32)
    fused, ((x, weights, biases), _) = made.compile(), arguments(layers, made, 2)
    for match, given_arrays, options in (
        (r"x has shape \(2, 1, 3, 4\): need \(2, 1, 4, 4\)", (x[:, :, :3], weights, biases), {}),
        (r"x has shape \(1, 4, 4\): need \(N, C_in, H, W\)", (x[0], weights, biases), {}),
        ("x has dtype float64", (x.astype(np.float64), weights, biases), {}),
        ("weights: got 1 arrays, need 2", (x, weights[:1], biases), {}),
        (r"weight2 has shape \(1, 4, 1, 1\): need \(4, 1, 1, 1\)", (x, [weights[0], weights[1].swapaxes(0, 1)], biases),
         {}),
        ("bias2 is a ndarray: need None, as the layer has no bias", (x, weights, [biases[0]] * 2), {}),
        ("bias1", (x, weights, [None, None]), {}),
        (r"out has shape \(1, 4, 3, 3\)", (x, weights, biases), {"out": np.empty((1, 4, 3, 3), np.float32)}),
        ("workspace has 0 arrays: need 1", (x, weights, biases), {"workspace": ()}),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=f"^{match}"):
            fused(*given_arrays, **options)
