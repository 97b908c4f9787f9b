"""The technique `direct_mma`: its kernel, with tensor cores in plain Python where there are none, plans, and errors."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from conftest import quick
from emulation import emulate

from charcnn import ops
from charcnn.gpu import device
from charcnn.ops import reference
from charcnn.ops.common.precision import TENSOR_PRECISIONS
from charcnn.ops.common.shapes2d import Window, window
from charcnn.ops.conv2d import direct_mma, direct_mma_plan
from charcnn.ops.conv2d.direct_mma_plan import LANES, NONE, PRECISIONS, candidates, plan

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
        emulate(monkeypatch)
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
    monkeypatch.setattr(direct_mma_plan.Plan, "grid", lambda self, n: (2, self.map_blocks))
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
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("name", CASES)
def test_what_is_not_finite_stays_where_it_is(name, precision, machine):
    """No window has a pixel of another one, though words hold two, and lanes without a word of their own have one."""
    for value in (np.inf, -np.inf, np.nan):
        arrays, padding = draw(name)
        arrays[0].reshape(-1)[arrays[0].size // 2] = value
        expected = expected_of(arrays, padding)
        out, finite = ops.conv2d_direct_mma(*arrays, padding=padding, precision=precision), np.isfinite(expected)
        np.testing.assert_array_equal(out[~finite], expected[~finite])
        close(out[finite], expected[finite], precision)


@quick(lambda power, of: (power, of) == (100, "weight"))
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


# Plans.


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("taps", range(1, 8))
@pytest.mark.parametrize("c_in", [1, 2, 3, 5, 6])
def test_words_have_each_tap_once(c_in, taps, precision):
    together, shares = (1 if precision == "tf32" else 2), {}
    registers = direct_mma_plan._registers(c_in, taps, together)
    for word in (word for register in registers for word in register):
        for i, halvings in enumerate(word.halvings):
            if halvings != NONE:
                assert 0 <= word.column + i < taps
                place = word.channel, word.column + i
                shares[place] = shares.get(place, 0) + 0.5**halvings
    assert shares == {(channel, tap): 1 for channel in range(c_in) for tap in range(taps)}
    assert all(len(register) == LANES for register in registers)


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
    assert (few.rows, many.rows, plan((10_000, 6, 30, 30), 16, Window((5, 5)), "tf32").rows) == (1, 3, 2), "as measured"
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
