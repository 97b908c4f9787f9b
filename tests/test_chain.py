"""Fused chains: what a plan says against hand-computed numbers, what its kernels compute against references."""

import numpy as np
import pytest
from conftest import quick
from hypothesis import given, settings
from hypothesis import strategies as st

from charcnn import ops
from charcnn.config import SMALL
from charcnn.gpu import device
from charcnn.ops import reference
from charcnn.ops.chain import Conv1d, Relu, Stat, plan

TOLERANCE = 2e-6
BLOCKS = (
    ops.conv1d_relu_conv1d_relu_conv1d_relu_conv1d_stat_whole,
    ops.conv1d_relu_conv1d_relu_conv1d_relu_conv1d_stat_pairs,
)


def small(stat=True):
    """The layers of blocks 3 to 6 of SMALL."""
    layers = [layer for size in SMALL.kernel_sizes[2:] for layer in (Conv1d(SMALL.channels, size), Relu())]
    return [*layers[:-1], Stat()] if stat else layers[:-1]


def draw(made, n, seed=0):
    """Random x, weights and biases for a plan; sums stay near 1."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((n, *made.in_shape), np.float32)
    weights = [
        rng.standard_normal(shape, np.float32) * np.float32((shape[1] * shape[2]) ** -0.5)
        for shape in made.parameter_shapes
    ]
    return x, weights, [rng.standard_normal(len(weight), np.float32) for weight in weights]


def composed(layers, x, weights, biases):
    """The chain as the composition of the references, in float64."""
    parameters = zip(weights, biases, strict=True)
    y, stat = x.astype(np.float64), None
    for layer in layers:
        if isinstance(layer, Conv1d):
            weight, bias = next(parameters)
            y = reference.conv1d(y, weight.astype(np.float64), bias.astype(np.float64))
        elif isinstance(layer, Relu):
            y = reference.relu(y)
        else:
            stat = reference.stat(y)
    return y, stat


def poisoned(made, n):
    """Arrays of NaN to write to."""
    y = np.full((n, *made.out_shape), np.nan, np.float32)
    return (y, np.full((n, 2), np.nan, np.float64)) if made.stat else y


def poisoned_workspace(made, n):
    return tuple(device.to_device(np.full(shape, np.nan, np.float32)) for shape in made.workspace_shapes(n))


def close(got, expected):
    """Of `draw`'s sums, whose terms are near 1: ReLU may leave little of them, beside which their rounding is not."""
    return np.linalg.norm(got - expected) <= TOLERANCE * max(np.linalg.norm(expected), 1)


def check(layers, made, n, seed=0):
    arrays = draw(made, n, seed)
    out = poisoned(made, n)
    result = made.compile()(*arrays, out=out, workspace=poisoned_workspace(made, n))
    y, stat = composed(layers, *arrays)
    if made.stat:
        assert result[0] is out[0]
        assert result[1] is out[1]
        assert close(result[0], y)
        assert np.abs(result[1] - stat).max(initial=0) <= 4e-6 * np.abs(stat).max(initial=1)
    else:
        assert result is out
        assert close(result, y)


@st.composite
def chains(draw):
    sizes = draw(st.lists(st.tuples(st.integers(1, 6), st.integers(1, 4), st.booleans()), min_size=1, max_size=6))
    layers = [
        layer for channels, taps, relu in sizes for layer in (Conv1d(channels, taps), *[Relu()] * relu)
    ] + [Stat()] * draw(st.booleans())  # fmt: skip
    length = 1 + sum(taps - 1 for _, taps, _ in sizes) + draw(st.integers(0, 9))
    method = draw(st.sampled_from(["whole", "pairs", 1, 3]))
    options = {
        "in_channels": draw(st.integers(1, 6)),
        "length": length,
        "method": method,
        "tile": None if method == "whole" else draw(st.none() | st.integers(1, 5)),
        "channel_tile": draw(st.integers(1, 4)),
        "position_tile": draw(st.integers(1, 5)),
        "stage": draw(st.sampled_from([None, 1, 2])),
        "threads": draw(st.sampled_from([8, 13, 24])),
    }
    return layers, options


@quick(lambda: False, everywhere=False)  # each takes a GPU seconds to compile, which has what follows
@pytest.mark.parametrize("examples", [20 if device.SIMULATED else 5])
def test_random_chains_are_the_composition_of_references(examples):
    # A GPU compiles for each: it gets the same ones every time, and finds them compiled the next.
    @settings(max_examples=examples, derandomize=not device.SIMULATED)
    @given(case=chains(), n=st.integers(0, 3), seed=st.integers(0, 99))
    def try_one(case, n, seed):
        layers, options = case
        check(layers, plan(layers, **options), n, seed)

    try_one()


@quick(lambda: False, everywhere=False)  # the simulator sees both, and what follows
@pytest.mark.parametrize("buffers", [1, 2])
def test_both_ways_to_hold_the_maps(buffers):
    layers = [Conv1d(5, 3), Relu(), Conv1d(3, 2), Relu(), Conv1d(6, 5), Stat()]
    made = plan(layers, in_channels=4, length=12, channel_tile=2, position_tile=3, threads=16, buffers=buffers)
    assert made.steps[0].buffers == buffers
    check(layers, made, 2)


@quick(lambda: False, everywhere=False)
def test_more_register_tiles_than_threads_take_several_passes_and_two_buffers():
    layers = [Conv1d(5, 3), Relu(), Conv1d(7, 2), Stat()]
    options = {"in_channels": 3, "length": 9, "channel_tile": 2, "position_tile": 1, "threads": 6}
    made = plan(layers, **options)
    assert made.steps[0].buffers == 2
    assert max(made.steps[0].register_tiles) > 2 * made.steps[0].threads
    check(layers, made, 2)
    with pytest.raises(ValueError, match=r"^buffers=1: convolutions 1 to 2 have 24 register tiles for 6 threads"):
        plan(layers, **options, buffers=1)


@quick(lambda launcher: launcher is BLOCKS[0])
@pytest.mark.parametrize("launcher", BLOCKS)
def test_blocks_3_to_6(launcher):
    layers = [Conv1d(3, 3), Relu(), Conv1d(2, 2), Relu(), Conv1d(2, 3), Relu(), Conv1d(3, 2), Stat()]
    made = plan(layers, in_channels=2, length=10)
    for n in (0, 1, 3):  # by one test: others would wait until its kernels are compiled
        x, weights, biases = draw(made, n)
        arrays = [array for pair in zip(weights, biases, strict=True) for array in pair]
        y, stat = launcher(x, *arrays, out=poisoned(made, n))
        expected, expected_stat = reference.conv1d_relu_conv1d_relu_conv1d_relu_conv1d_stat(
            *(array.astype(np.float64) for array in (x, *arrays))
        )
        assert close(y, expected), n
        assert close(stat, expected_stat), n
        with pytest.raises(ValueError, match=r"^weight2 has shape"):
            launcher(x, arrays[0], arrays[1], arrays[2][:, :2], *arrays[3:])
        with pytest.raises(ValueError, match=r"^x has shape"):
            launcher(x[0] if n else x[None], *arrays)


@quick(lambda method: method == 1)  # of a whole map the next has them
@pytest.mark.parametrize("method", ["whole", 1])
def test_statistics_are_accurate_where_the_mean_is_large(method):
    weight = np.eye(5, dtype=np.float32)[:, :, None]
    tile = None if method == "whole" else 7
    made = plan([Conv1d(5, 1), Stat()], in_channels=5, length=30, method=method, tile=tile, threads=16)
    assert made.merges == (method == 1)
    for mean in (0, 1e2, 1e4):
        rng = np.random.default_rng(5)
        # Values of deviation 1 around the mean; the chain passes them through: only the statistics can be wrong.
        x = (mean + rng.standard_normal((2, 5, 30))).astype(np.float32)
        y, stat = made.compile()(x, [weight], [np.zeros(5, np.float32)], out=poisoned(made, 2))
        assert np.array_equal(y, x)
        exact = reference.stat(x.astype(np.float64))
        assert np.abs(stat[:, 0] - exact[:, 0]).max() <= 1.2e-7 * max(mean, 1)  # half a unit in the last place, twice
        assert np.abs(stat[:, 1] / exact[:, 1] - 1).max() <= 2e-6
        naive = np.square(x, dtype=np.float32).mean(axis=(1, 2)) - np.square(x.mean(axis=(1, 2)))
        if mean == 1e4:  # what a sum of squares would give
            assert np.abs(naive / exact[:, 1] - 1).max() > 0.1


@quick(lambda method: method == "whole")
@pytest.mark.parametrize("method", ["whole", 1])
def test_statistics_of_a_constant_map_have_no_variance(method):
    made = plan([Conv1d(2, 1), Stat()], in_channels=1, length=9, method=method, tile=None if method == "whole" else 4)
    _, stat = made.compile()(
        np.full((1, 1, 9), 0.1, np.float32), [np.ones((2, 1, 1), np.float32)], [np.zeros(2, np.float32)]
    )
    assert stat[0, 0] == np.float32(0.1)
    assert 0 <= stat[0, 1] <= 1e-15


@quick(lambda relu: relu)
@pytest.mark.parametrize(("relu", "least"), [(True, 0), (False, -1)])
def test_relu_keeps_nan_and_the_last_layer_without_relu_keeps_its_sign(relu, least):
    made = plan([Conv1d(1, 1), *[Relu()] * relu], in_channels=1, length=3)
    one, zero = np.ones((1, 1, 1), np.float32), np.zeros(1, np.float32)
    x = np.array([[[np.nan, -1, 2]]], np.float32)
    assert np.array_equal(made.compile()(x, [one], [zero]), [[[np.nan, least, 2]]], equal_nan=True)


@quick(lambda: False, everywhere=False)  # test_chain2d has it
@pytest.mark.parametrize("method", ["whole", "pairs"])
def test_device_arrays_stay_on_the_device_and_a_workspace_serves_smaller_batches(method):
    layers = [Conv1d(2, 2), Relu(), Conv1d(2, 2), Conv1d(3, 1), Stat()]
    made = plan(layers, in_channels=2, length=7, method=method, tile=None if method == "whole" else 3)
    fused = made.compile()
    arrays = draw(made, 2)
    workspace = made.workspace(4)
    assert [array.shape for array in workspace] == list(made.workspace_shapes(4))
    x, *rest = (device.to_device(array) for array in (arrays[0], *arrays[1], *arrays[2]))
    out = tuple(device.to_device(array) for array in poisoned(made, 2))
    y, stat = fused(x, rest[:3], rest[3:], out=out, workspace=workspace)
    assert (y, stat) == out
    made_y, made_stat = fused(x, rest[:3], rest[3:])
    assert device.on_device(made_y)
    assert device.on_device(made_stat)
    expected, expected_stat = composed(layers, *arrays)
    for got, again, wanted in ((y, made_y, expected), (stat, made_stat, expected_stat)):
        assert close(got.copy_to_host(), wanted)
        assert np.array_equal(got.copy_to_host(), again.copy_to_host()), "results vary between runs"


@quick(lambda: False, everywhere=False)  # caches are of Python
def test_a_second_call_and_an_equal_plan_compile_nothing():
    layers, options = [Conv1d(2, 1), Stat()], {"in_channels": 1, "length": 9, "method": "whole"}
    from charcnn.ops.chain import kernel

    plan(layers, **options).compile()(*draw(plan(layers, **options), 1))
    before = kernel.make_kernel.cache_info().misses
    again = plan(layers, **options)
    again.compile()(*draw(again, 2))
    assert kernel.make_kernel.cache_info().misses == before


def test_plan_of_the_small_chain_in_one_kernel():
    made = plan(small(), in_channels=256, length=110, shared_limit=232_448)
    (step,) = made.steps
    assert (made.in_shape, made.out_shape) == ((256, 110), (256, 102))
    assert step.lengths == step.tile_lengths == (110, 108, 106, 104, 102)
    assert (made.launches, made.recomputed, made.recomputed_flops) == (1, 0, 0)
    assert made.flops == 2 * 256 * 256 * 3 * (108 + 106 + 104 + 102) == 165_150_720
    assert made.parameter_bytes == 4 * 4 * (256 * 256 * 3 + 256)
    # One map of 256 x 110 (12 groups of 9 positions and 2 taps read up to position 109, the last); two stages of
    # 8 channels x 3 taps x (256 + 4) weights.
    assert made.shared_bytes == step.shared_bytes == 4 * (256 * 110 + 2 * 8 * 3 * 260) == 162_560
    assert made.dram_bytes == 4 * 256 * (110 + 102) + 16
    convolutions, relus = 110 + 2 * 108 + 2 * 106 + 2 * 104 + 102, 2 * (108 + 106 + 104)
    assert made.unfused_bytes == 4 * 256 * (convolutions + relus + 102) + 16
    text = made.describe()
    for number in (
        "256x110 > 256x108 > 256x106 > 256x104 > 256x102",
        "162,560 of 232,448 bytes",
        "165,150,720 FLOP",
        "0 of 420 positions (0.00%)",
        f"{made.dram_bytes:,} bytes an input, {made.unfused_bytes:,}",
    ):
        assert number in text


def test_plan_of_the_small_chain_with_two_maps():
    made = plan(small(), in_channels=256, length=110, buffers=2, shared_limit=232_448)
    # 110 x 256 and 108 x 256, and what register tiles read past the second: 12 x 9 + 2 - 108 = 2.
    assert made.steps[0].stage == 1
    assert made.shared_bytes == 4 * (256 * (110 + 108) + 2 + 2 * 3 * 260) == 229_480


def test_plan_of_the_small_chain_in_pairs():
    made = plan(small(), in_channels=256, length=110, method="pairs", shared_limit=232_448)
    first, second = made.steps
    assert (first.lengths, second.lengths) == ((110, 108, 106), (106, 104, 102))
    assert (first.tile, first.tiles, second.tile, second.tiles) == (53, 2, 51, 2)
    assert (first.tile_lengths, second.tile_lengths) == ((57, 55, 53), (55, 53, 51))
    assert (first.recomputed, second.recomputed) == ((2, 0), (2, 0))
    assert (made.recomputed, made.positions, made.launches) == (4, 420, 3)
    assert made.recomputed_flops == 4 * 2 * 256 * 256 * 3
    # Both kernels read and write a map; the parts of two tiles are written and read.
    assert made.dram_bytes == 4 * 256 * (110 + 106 + 106 + 102) + 2 * 2 * 12 + 16
    assert made.workspace_shapes(5) == ((5, 256, 106), (10, 3))
    assert "4 of 420 positions (0.95%)" in made.describe()
    assert plan(small(False), in_channels=256, length=110, method="pairs", shared_limit=232_448).launches == 2


@pytest.mark.parametrize("tile", [1, 10, 53, 102])
def test_recomputed_positions_are_those_that_tiles_share(tile):
    made = plan(small(), in_channels=256, length=110, method=4, tile=tile, threads=256, shared_limit=10**9)
    (step,) = made.steps
    computed = [0] * 4
    for start in range(0, 102, tile):
        valid = min(tile, 102 - start)
        for i, halo in enumerate((6, 4, 2, 0)):
            computed[i] += valid + halo
    assert step.recomputed == tuple(count - length for count, length in zip(computed, step.lengths[1:], strict=True))


def test_a_chain_that_does_not_fit_names_the_bytes():
    layers = [Conv1d(1024, 3), Relu()] * 4
    # Maps of 1024 x 110 and 1024 x 108 with 2 floats past them, two stages of one channel: 3 x (1024 + 4).
    with pytest.raises(ValueError, match=r"^convolutions 1 to 4 need 917,608 bytes .*, there are 232,448"):
        plan(layers, in_channels=1024, length=110, shared_limit=232_448)
    with pytest.raises(ValueError, match=r"^convolutions 1 to 2 need .* there are 1,000"):
        plan(small(), in_channels=256, length=110, method="pairs", shared_limit=1000)
    assert plan(layers, in_channels=1024, length=110, method="pairs", tile=8, shared_limit=232_448).launches == 2


def test_without_a_limit_the_plan_is_for_this_gpu():
    assert plan(small(), in_channels=256, length=110, method="pairs").shared_limit == device.shared_limit()
    assert device.shared_limit() >= 48 * 1024


@pytest.mark.parametrize(
    ("layers", "message"),
    [
        ([], "layers has 0 convolutions: need 1 to 6"),
        ([Conv1d(1, 1)] * 7, "layers has 7 convolutions: need 1 to 6"),
        ([Relu(), Conv1d(1, 1)], r"layers\[0\] is Relu\(\): need"),
        ([Conv1d(1, 1), Relu(), Relu()], r"layers\[2\] is Relu\(\): need"),
        ([Stat()], r"layers\[0\] is Stat\(\): need"),
        ([Conv1d(1, 1), Stat(), Relu()], r"layers\[2\] is Relu\(\) after Stat"),
        ([Conv1d(1, 1), "relu"], r"layers\[1\] is 'relu': need"),
        ([Conv1d(1, 3), Conv1d(1, 4)], "convolution 2 gets 3 positions from length=5: need at least its kernel size 4"),
    ],
)
def test_layers_that_are_no_chain(layers, message):
    with pytest.raises(ValueError, match=f"^{message}"):
        plan(layers, in_channels=1, length=5)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"in_channels": 0}, "in_channels=0: need"),
        ({"length": 0}, "length=0: need"),
        ({"method": "halves"}, "method='halves': need"),
        ({"method": 0}, "method=0: need"),
        ({"tile": 2}, "tile=2: method 'whole' has no tiles; 1 as"),
        ({"method": "pairs", "tile": 0}, "tile=0: need"),
        ({"channel_tile": 0}, "channel_tile=0: need"),
        ({"position_tile": 2.5}, "position_tile=2.5: need"),
        ({"threads": 2000}, "threads=2000: need at most 1024"),
        ({"threads": 2}, "threads=2: need at least 3 to stage 1 x 3 taps"),
        ({"threads": 8, "stage": 4}, "threads=8: need at least 12 to stage 4 x 3 taps"),
        ({"precision": "fp16"}, "precision='fp16': a chain over sequences needs fp32; MmaConv and"),
        ({"buffers": 3}, "buffers=3: need 1, 2 or None"),
    ],
)
def test_options_that_do_not_fit(options, message):
    with pytest.raises(ValueError, match=f"^{message}"):
        plan([Conv1d(2, 3)], **{"in_channels": 1, "length": 5, **options})


@pytest.mark.parametrize("size", [{"channels": 0, "kernel_size": 1}, {"channels": 1, "kernel_size": True}])
def test_sizes_of_a_convolution(size):
    with pytest.raises(ValueError, match="need an int of at least 1"):
        Conv1d(**size)


def test_arguments_of_the_call():
    made = plan([Conv1d(2, 2), Relu(), Conv1d(3, 1), Stat()], in_channels=1, length=4, method=1)
    fused = made.compile()
    x, weights, biases = draw(made, 2)
    y, stat = poisoned(made, 2)
    for match, arguments, options in (
        (r"x has shape \(2, 1, 3\): need \(2, 1, 4\)", (x[:, :, :3], weights, biases), {}),
        ("x has shape", (x[0], weights, biases), {}),
        ("x has dtype float64", (x.astype(np.float64), weights, biases), {}),
        ("weights: got 1 arrays, need 2", (x, weights[:1], biases), {}),
        ("biases: got 3 arrays, need 2", (x, weights, [*biases, biases[0]]), {}),
        (r"weight2 has shape \(3, 2\): need \(3, 2, 1\)", (x, [weights[0], weights[1][:, :, 0]], biases), {}),
        (r"bias1 has shape \(3,\): need \(2,\)", (x, weights, biases[::-1]), {}),
        ("out is a ndarray: need a tuple", (x, weights, biases), {"out": y}),
        (r"out has shape \(1, 3, 3\)", (x, weights, biases), {"out": (y[:1], stat)}),
        (r"stat has shape \(1, 2\): need \(2, 2\)", (x, weights, biases), {"out": (y, stat[:1])}),
        ("workspace has 0 arrays: need 1", (x, weights, biases), {"workspace": ()}),
        (r"workspace\[0\] has shape \(1, 2, 3\): need \(2, 2, 3\)", (x, weights, biases),
         {"workspace": made.workspace(1)}),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=f"^{match}"):
            fused(*arguments, **options)
