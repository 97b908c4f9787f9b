"""The technique `direct_mma`: its kernel, with tensor cores in plain Python where there are none, plans, and errors."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from conftest import quick
from small_gpu import fresh_kernels

from charcnn import ops
from charcnn.gpu import device
from charcnn.layers.windows import Window, window
from charcnn.ops import reference
from charcnn.ops.common.precision import TENSOR_PRECISIONS
from charcnn.ops.conv2d import direct_mma, direct_mma_plan
from charcnn.ops.conv2d.direct_mma_plan import PRECISIONS, candidates, plan, staged_candidates
from charcnn.ops.conv2d.direct_mma_words import LANES, NONE, registers

CASES = {  # x, (C_out, KH, KW), padding
    "even": ((3, 2, 7, 12), (3, 3, 3), 0),
    "odd": ((2, 1, 6, 11), (17, 2, 4), 0),
    "padded": ((2, 3, 5, 9), (9, 3, 2), 1),
    "sides": ((1, 1, 4, 6), (5, 4, 5), (1, 0, 3, 2)),
    "narrow": ((2, 6, 5, 4), (4, 3, 1), 0),
    "course": ((2, 6, 9, 10), (16, 5, 5), 0),
    "broad": ((1, 1, 2, 40), (1, 1, 13), (0, 0, 3, 0)),
    "only padding": ((1, 1, 1, 2), (2, 2, 2), (3, 0, 3, 0)),
}


@pytest.fixture
def machine(monkeypatch):
    """Tensor cores in plain Python where there are none, and shared memory in which nothing lies but NaN."""
    if device.SIMULATED:
        from numba.cuda.simulator import kernelapi

        begin = kernelapi.FakeCUDAShared.__init__

        def filled(self, size):
            begin(self, size)
            self._dynshared.fill(-1)

        monkeypatch.setattr(kernelapi.FakeCUDAShared, "__init__", filled)
        fresh_kernels(monkeypatch)
    elif not device.has_tensor_cores():
        pytest.skip("needs a GPU of compute capability 8.0")


def draw(name):
    x, (c_out, *kernel), padding = CASES[name]
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(shape, np.float32) for shape in (x, (c_out, x[1], *kernel), (c_out,))]
    return arrays, padding


def expected_of(arrays, padding, epilogue=""):
    expected = reference.conv2d(*(array.astype(np.float64) for array in arrays), padding=padding)
    return getattr(reference, epilogue)(expected) if epilogue else expected


def close(out, expected, precision):
    assert np.linalg.norm(out - expected) <= TENSOR_PRECISIONS[precision].tolerance * np.linalg.norm(expected)


def by_turns(name, precision):
    """Whether a GPU, which compiles each, takes a case in a precision."""
    return precision == "fp16x3" or [*CASES].index(name) % len(PRECISIONS) == [*PRECISIONS].index(precision)


@quick(by_turns)
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("name", CASES)
def test_against_the_reference(name, precision, machine):
    arrays, padding = draw(name)
    expected = expected_of(arrays, padding)
    out = np.full(expected.shape, np.nan, np.float32)
    assert ops.conv2d_direct_mma(*arrays, padding=padding, precision=precision, out=out) is out
    close(out, expected, precision)


@quick(lambda name: name == "course")
@pytest.mark.parametrize("name", ["even", "course"])
def test_any_plan_gives_the_same_bits(name, machine, monkeypatch):
    arrays, padding = draw(name)
    found = [*candidates(arrays[0].shape[1:], len(arrays[1]), Window(arrays[1].shape[2:]), "fp16x3")]
    assert len(found) > 2
    results = []
    for one in [*found, replace(found[0], warps=1), replace(found[0], warps=7)]:
        monkeypatch.setattr(direct_mma, "plan", lambda *_, one=one: one)
        results.append(ops.conv2d_direct_mma(*arrays, padding=padding, precision="fp16x3"))
        np.testing.assert_array_equal(results[-1].view(np.uint32), results[0].view(np.uint32))


@quick(lambda name: name == "even")
@pytest.mark.parametrize("name", ["even", "sides"])
def test_images_by_turns(name, machine, monkeypatch):
    (x, weight, bias), padding = draw(name)
    x = np.concatenate([x] * 3) * np.arange(1, 3 * len(x) + 1, dtype=np.float32)[:, None, None, None]
    monkeypatch.setattr(direct_mma_plan.DirectMmaPlan, "grid", lambda self, n: (2, self.map_blocks))
    out = ops.conv2d_direct_mma(x, weight, bias, padding=padding, precision="fp16x3")
    close(out, expected_of((x, weight, bias), padding), "fp16x3")


@quick(lambda name: name == "odd")
@pytest.mark.parametrize("name", ["odd", "course"])
def test_blocks_that_share_an_image(name, machine, monkeypatch):
    arrays, padding = draw(name)
    results = []
    for count in (1, 1000):
        monkeypatch.setattr(device, "multiprocessors", lambda count=count: count)
        results.append(ops.conv2d_direct_mma(*arrays, padding=padding, precision="fp16x3"))
    np.testing.assert_array_equal(*results)
    close(results[0], expected_of(arrays, padding), "fp16x3")


@quick(lambda bytes_off: bytes_off == 4)
@pytest.mark.parametrize("bytes_off", [4, 8])
def test_arrays_that_start_at_no_multiple_of_16_bytes(bytes_off, machine, monkeypatch):
    arrays, padding = draw("even")
    aligned = ops.conv2d_direct_mma(*arrays, padding=padding, precision="fp16x3")
    address = device.address
    monkeypatch.setattr(device, "address", lambda array: address(array) // 16 * 16 + bytes_off)
    np.testing.assert_array_equal(ops.conv2d_direct_mma(*arrays, padding=padding, precision="fp16x3"), aligned)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@quick(lambda name, precision: (name, precision) == ("course", "fp16x3"))
@quick(lambda name, precision: name == "course" or precision == "fp16x3")
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("name", CASES)
def test_what_is_not_finite_stays_where_it_is(name, precision, machine):
    """No window has a pixel of another one, though words hold two, and lanes without a word of their own have one."""
    for value in (np.inf, -np.inf, np.nan) if name == "course" else (np.inf,):
        arrays, padding = draw(name)
        arrays[0].reshape(-1)[arrays[0].size // 2] = value
        expected = expected_of(arrays, padding)
        out, finite = ops.conv2d_direct_mma(*arrays, padding=padding, precision=precision), np.isfinite(expected)
        np.testing.assert_array_equal(out[~finite], expected[~finite])
        close(out[finite], expected[finite], precision)


@quick(lambda power, of: (power, of) == (100, "weight"))
@quick(lambda power: abs(power) == 100)
@pytest.mark.parametrize("of", ["weight", "x"])
@pytest.mark.parametrize("power", [-100, -9, 9, 100])
def test_magnitudes(power, of, machine):
    """Weights of any size, as they are scaled on the GPU; features in the range of two halves."""
    (x, weight, bias), padding = draw("course")
    factor = np.float32(2.0 ** (power if of == "weight" else power // 16))
    x, weight = (x, weight * factor) if of == "weight" else (x * factor, weight)
    arrays = x, weight, bias * factor
    close(ops.conv2d_direct_mma(*arrays, precision="fp16x3"), expected_of(arrays, padding), "fp16x3")
    zeros = np.zeros_like(weight)
    np.testing.assert_array_equal(
        ops.conv2d_direct_mma(x, zeros, bias, precision="fp16x3"), expected_of((x, zeros, bias), padding)
    )


@pytest.mark.parametrize("epilogue", ["relu", "tanh"])
def test_epilogues(epilogue, machine):
    arrays, padding = draw("odd")
    out = getattr(ops, f"conv2d_{epilogue}_direct_mma")(*arrays, padding=padding, precision="fp16x3")
    close(out, expected_of(arrays, padding, epilogue), "fp16x3")


# Results that leave as bulk copies.

STAGED = {  # x, (C_out, KH, KW), padding: whole 16 bytes of results a map
    "even": ((5, 2, 8, 10), (9, 3, 3), 0),
    "odd": ((3, 1, 6, 7), (3, 3, 3), 0),
    "many maps": ((3, 1, 7, 6), (19, 2, 3), (1, 0, 0, 0)),
}


@pytest.fixture
def bulk(machine):
    """A GPU that has bulk copies."""
    if not device.has_capability(direct_mma_plan.BULK_COPIES):
        pytest.skip("needs a GPU of compute capability 9.0")


def staged_plans(arrays, padding, precision):
    """Of results in one place or in groups, of several numbers of bands, and last ones that are shorter."""
    x, weight, _ = arrays
    moved = window(*x.shape[2:], weight.shape[2:], padding=padding)
    first = next(candidates(x.shape[1:], len(weight), moved, precision))
    for rows, groups, warps in ((1, 1, 2), (1, 2, 1), (1, 4, 2), (2, 2, 1), (2, 3, 1), (4, 1, 2), (4, 2, 1)):
        one = replace(first, rows=rows, groups=groups, warps=warps)
        if one.whole_vectors and rows <= one.out[0]:
            yield one


@quick(lambda name, precision, blocks: (name, precision, blocks) == ("even", "fp16x3", 2))
@quick(lambda precision, blocks: (precision == "fp16x3") == (blocks == 2))
@pytest.mark.parametrize("blocks", [2, 100])
@pytest.mark.parametrize("precision", ["fp16x3", "tf32"])
@pytest.mark.parametrize("name", STAGED)
def test_bulk_copies_give_the_same_bits(name, precision, blocks, bulk, monkeypatch):
    monkeypatch.setitem(CASES, name, STAGED[name])
    arrays, padding = draw(name)
    monkeypatch.setattr(direct_mma_plan.DirectMmaPlan, "grid", lambda self, n: (min(n, blocks), self.map_blocks))
    straight = next(staged_plans(arrays, padding, precision))
    found = [replace(straight, groups=0), *staged_plans(arrays, padding, precision)]
    assert len(found) > 2
    results = []
    for one in found:
        out = np.full(expected_of(arrays, padding).shape, np.nan, np.float32)
        monkeypatch.setattr(direct_mma, "plan", lambda *_, one=one: one)
        ops.conv2d_direct_mma(*arrays, padding=padding, precision=precision, out=out)
        results.append(out.view(np.uint32))
        np.testing.assert_array_equal(results[-1], results[0])
    close(out, expected_of(arrays, padding), precision)


@pytest.mark.parametrize(
    ("name", "given", "staged"),
    [
        ("large", {}, True),
        ("large", {"address": lambda array: 16 * (id(array) // 16) + 8}, False),
        pytest.param("larger", {"multiprocessors": lambda: 1000}, False, marks=pytest.mark.exhaustive),
        ("large", {"has_capability": lambda least: least < (9, 0)}, False),
        ("even", {}, False),
        ("course", {}, False),
    ],
    ids=["whole", "y begins anywhere", "blocks share an image", "capability 8.0", "few tiles", "30 results a map"],
)
def test_where_results_leave_as_bulk_copies(name, given, staged, bulk, monkeypatch):
    monkeypatch.setitem(
        CASES,
        name,
        {**CASES, **STAGED, "large": ((3, 1, 18, 18), (2, 3, 3), 0), "larger": ((3, 1, 34, 34), (2, 3, 3), 0)}[name],
    )
    arrays, padding = draw(name)
    monkeypatch.setattr(device, "multiprocessors", lambda: 1)
    for key, value in given.items():
        monkeypatch.setattr(device, key, value)
    seen, make = [], direct_mma.make_kernel
    monkeypatch.setattr(direct_mma, "make_kernel", lambda one, *rest: seen.append(one) or make(one, *rest))
    close(ops.conv2d_direct_mma(*arrays, padding=padding, precision="tf32"), expected_of(arrays, padding), "tf32")
    assert [one.groups > 0 for one in seen] == [staged]


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("layer", [((1, 64, 64), 6), ((6, 30, 30), 16)], ids=["conv1", "conv2"])
def test_plans_of_bulk_copies_fit(layer, precision, monkeypatch):
    monkeypatch.setattr(device, "shared_limit", lambda: device.SHARED_LIMIT)
    monkeypatch.setattr(device, "multiprocessors", lambda: 132)
    found = [*staged_candidates(*layer, Window((5, 5)), precision)]
    assert len(found) >= 3
    for one in found:
        assert one.whole_vectors
        assert one.resident == one.blocks
        assert one.blocks * (one.shared_bytes + direct_mma_plan.RESERVED) <= device.shared_limit() + 1024
        assert one.stage_pitch % 32 == 8
        assert one.stage_begin % 4 == 0
        assert (one.passes - 1) * one.group_bands < one.bands <= one.passes * one.group_bands
    assert plan((10_000, *layer[0]), layer[1], Window((5, 5)), precision, True) == found[0]
    assert plan((1, *layer[0]), layer[1], Window((5, 5)), precision, True).groups == 0


# Plans.


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("taps", range(1, 8))
@pytest.mark.parametrize("c_in", [1, 2, 3, 5, 6])
def test_words_have_each_tap_once(c_in, taps, precision):
    together, shares = (1 if precision == "tf32" else 2), {}
    found = registers(c_in, taps, together)
    for word in (word for register in found for word in register):
        for i, halvings in enumerate(word.halvings):
            if halvings != NONE:
                assert 0 <= word.column + i < taps
                place = word.channel, word.column + i
                shares[place] = shares.get(place, 0) + 0.5**halvings
    assert shares == {(channel, tap): 1 for channel in range(c_in) for tap in range(taps)}
    assert all(len(register) == LANES for register in found)


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("name", CASES)
def test_all_windows_lie_in_shared_memory(name, precision):
    (x, weight, _), padding = draw(name)
    moved = window(*x.shape[2:], weight.shape[2:], padding=padding)
    for one in candidates(x.shape[1:], len(weight), moved, precision):
        patterns, places = one.places
        furthest = max(max(patterns[number]) + behind for number, behind in places) // 4
        last_row = one.plane_rows - 1
        assert furthest + last_row * one.pitch + one.out[1] <= x.shape[1] * one.plane
        assert one.bands * one.rows >= one.out[0]
        assert one.tiles * 8 >= one.bands * one.out[1]
        assert one.plane % 32 == 8
        assert one.plane >= one.plane_rows * one.pitch
        assert one.pitch >= one.word_columns
        assert one.pitch % 2 == one.low % 8 == one.fragments % 4 == one.begin % 4 == 0


def test_the_course_projects_plans():
    many = plan((10_000, 6, 30, 30), 16, Window((5, 5)), "fp16x3")
    assert (many.fragments, len(many.registers)) == (100, 5)
    assert many.resident * many.warps >= 8
    of_a_quarter = -(-many.warps * many.resident // 4)
    assert many.max_registers * 32 * of_a_quarter <= 16_384
    few = plan((1, 1, 64, 64), 6, Window((5, 5)), "fp16x3")
    assert (few.stacked, few.fragments, many.stacked) == (True, 12, False)
    assert (few.rows, many.rows, plan((10_000, 6, 30, 30), 16, Window((5, 5)), "tf32").rows) == (1, 3, 1), "as measured"
    assert many.grid(10_000) == (many.resident * device.multiprocessors(), 1)
    assert device.multiprocessors() // 2 <= np.prod(many.grid(10)) <= 10 * many.tiles


# What does not fit.


def a(*shape):
    return np.ones(shape, np.float32)


@pytest.mark.parametrize(
    ("arrays", "options", "message"),
    [
        ((a(1, 4, 5, 5), a(4, 2, 3, 3), a(4)), {"groups": 2}, "^groups=2: the technique direct_mma needs 1"),
        ((a(1, 1, 5, 5), a(1, 1, 3, 3), a(1)), {"stride": 2}, r"^stride=\(2, 2\): direct_mma needs 1"),
        ((a(1, 1, 5, 5), a(1, 1, 2, 2), a(1)), {"dilation": (1, 2)}, r"^dilation=\(1, 2\): direct_mma needs 1"),
        ((a(1, 1, 5, 5), a(1, 1, 2, 2), a(1)), {"precision": "fp8"}, "^precision='fp8': direct_mma needs one of fp16,"),
        (
            (a(1, 16, 9, 9), a(9, 16, 5, 5), a(9)),
            {"precision": "fp16x3"},
            "^x has 16 channels, weight a kernel of 5 x 5: direct_mma in fp16x3 needs 240 registers of weights, a "
            "thread has 128; the technique direct takes any",
        ),
        (
            (a(1, 3, 227, 227), a(1, 3, 3, 3), a(1)),
            {},
            "^x has 3 channels of 227 x 227: direct_mma needs .* bytes of shared memory for an image, a block has",
        ),
    ],
)
def test_what_does_not_fit(arrays, options, message):
    with pytest.raises(ValueError, match=message):
        ops.conv2d_direct_mma(*arrays, **options)


def test_no_channels_are_refused(machine):
    x, weight, bias = np.zeros((1, 0, 8, 8), np.float32), np.zeros((4, 0, 3, 3), np.float32), np.ones(4, np.float32)
    with pytest.raises(ValueError, match="x has 0 channels: direct_mma needs at least 1"):
        ops.conv2d_direct_mma(x, weight, bias)
