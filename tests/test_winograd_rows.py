"""Rows filtered on the CPU, channels first: every tile and kernel, lines shared out, bits, what is read, refusals."""

from __future__ import annotations

import numba
import numpy as np
import pytest
from conftest import quick
from hypothesis import given, settings
from hypothesis import strategies as st

from charcnn.catalog import FLOAT32
from charcnn.ops import conv2d_relu_winograd_rows_cpu, conv2d_winograd_rows_cpu, reference
from charcnn.ops.common.cpu_tile import TILES, choose_tile
from charcnn.ops.conv1d.winograd_transforms import SPAN
from charcnn.ops.conv2d import winograd_rows

CASES = (  # (N, C_in, H, W), (C_out, KH, KW), padding
    ((3, 6, 30, 30), (16, 5, 5), 0),
    ((2, 1, 64, 64), (6, 5, 5), 0),
    ((3, 2, 9, 71), (7, 3, 5), (2, 1, 3, 0)),
    ((1, 3, 40, 33), (17, 5, 4), "same"),
    ((2, 5, 7, 5), (4, 1, 5), 0),  # a column, of one tile
    ((1, 64, 12, 9), (3, 8, 3), 1),  # more terms than are summed in one go
    ((2, 3, 5, 6), (1, 2, 2), 4),  # rows and tiles of nothing but padding
)


def draw(x, weight, seed=0):
    rng = np.random.default_rng(seed)
    c_out, *kernel = weight
    return tuple(rng.standard_normal(size, np.float32) for size in (x, (c_out, x[1], *kernel), (c_out,)))


def close(y, arrays, padding):
    expected = reference.conv2d(*(array.astype(np.float64) for array in arrays), padding=padding)
    assert y.shape == expected.shape
    assert np.linalg.norm(y - expected) <= FLOAT32 * np.linalg.norm(expected)


@pytest.fixture(params=TILES)
def tile(request, monkeypatch):
    try:
        choose_tile(request.param)
    except ValueError as error:
        pytest.skip(str(error))
    monkeypatch.setenv("CHARCNN_CPU_TILE", request.param)


@quick(lambda tile, case: TILES[tile] is choose_tile() and case in (2, 4))  # compiled for seconds
@pytest.mark.parametrize("case", range(len(CASES)))
def test_every_tile(tile, case):
    x, weight, padding = CASES[case]
    arrays = draw(x, weight)
    whole = conv2d_winograd_rows_cpu(*arrays, padding=padding)
    close(whole, arrays, padding)
    np.testing.assert_array_equal(conv2d_relu_winograd_rows_cpu(*arrays, padding=padding), np.maximum(whole, 0))


@settings(max_examples=60)
@given(
    st.tuples(*(st.integers(1, most) for most in (3, 9, 12, 75))),
    st.tuples(st.sampled_from((5, 6, 9, 17)), st.integers(1, 6), st.integers(2, 5)),
    st.tuples(*[st.integers(0, 5)] * 4), st.integers(0, 2**32 - 1),
)  # fmt: skip
@pytest.mark.exhaustive
def test_any_sizes_of_one_tile(x, weight, padding, seed):
    n, c_in, *sides = x
    sides = [max(side, taps) for side, taps in zip(sides, weight[1:], strict=True)]
    arrays = draw((n, c_in, *sides), weight, seed)
    close(conv2d_winograd_rows_cpu(*arrays, padding=padding), arrays, padding)


def test_errors_do_not_grow_with_the_depth():
    arrays = draw((1, 512, 9, 20), (4, 5, 5))
    close(conv2d_winograd_rows_cpu(*arrays), arrays, 0)


@pytest.mark.usefixtures("tile")
@pytest.mark.parametrize("lines", [1, 2, 5, 100])
@quick(lambda lines, tile: lines in (2, 100) and tile != "plain")
def test_any_lines_of_a_task(lines, monkeypatch):
    x, weight, padding = CASES[2]
    arrays = draw(x, weight)
    whole = conv2d_winograd_rows_cpu(*arrays, padding=padding)
    winograd_rows._arranged.cache_clear()
    monkeypatch.setattr(winograd_rows, "_lines", lambda *_: min(lines, whole.shape[2]))
    out = np.full((whole.shape[0] + 2, *whole.shape[1:]), np.nan, np.float32)
    conv2d_winograd_rows_cpu(*arrays, padding=padding, out=out[1:-1])
    winograd_rows._arranged.cache_clear()
    np.testing.assert_array_equal(out[1:-1], whole)
    assert np.isnan(out[[0, -1]]).all()  # no row of tiles goes beyond


def test_the_same_bits_for_any_number_of_threads():
    arrays, before = draw(*CASES[0][:2]), numba.get_num_threads()
    many = conv2d_winograd_rows_cpu(*arrays)
    numba.set_num_threads(1)
    try:
        np.testing.assert_array_equal(conv2d_winograd_rows_cpu(*arrays), many)
    finally:
        numba.set_num_threads(before)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # NumPy's, of the reference
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_what_is_not_finite_stays_in_its_tiles(value):
    x, weight, bias = draw((2, 2, 9, 30), (3, 3, 5))
    clean = conv2d_winograd_rows_cpu(x, weight, bias)
    x[0, 1, 4, 0], x[1, 0, 8, 29] = value, value
    out = conv2d_winograd_rows_cpu(x, weight, bias)
    expected = reference.conv2d(*(array.astype(np.float64) for array in (x, weight, bias)))
    assert not np.isfinite(out[~np.isfinite(expected)]).any()
    spoiled = ~np.isfinite(out).all(axis=1)
    rows, columns = np.nonzero(spoiled[0])
    assert (set(rows), set(columns // SPAN)) == ({2, 3, 4}, {0})
    rows, columns = np.nonzero(spoiled[1])  # the last row: none other reads it
    assert (set(rows), set(columns // SPAN)) == ({6}, {6})
    kept = np.broadcast_to(~spoiled[:, None], out.shape)
    np.testing.assert_array_equal(out[kept], clean[kept])


def test_relu_keeps_what_is_not_a_number():
    x, weight, bias = draw((1, 1, 5, 8), (2, 3, 5))
    x[:] = np.nan
    assert np.isnan(conv2d_relu_winograd_rows_cpu(x, weight, bias)).all()


@pytest.mark.parametrize("options", [{"stride": 2}, {"stride": (1, 2)}, {"dilation": (2, 1)}, {"groups": 2}])
def test_windows_that_do_not_move_by_one_are_refused(options):
    x, _, bias = draw((1, 4, 8, 8), (4, 3, 3))
    weight = np.zeros((4, 4 // options.get("groups", 1), 3, 3), np.float32)
    words = ", ".join(f"{name}={value}".replace("(", r"\(").replace(")", r"\)") for name, value in options.items())
    with pytest.raises(ValueError, match=rf"{words}.*: the technique winograd_rows_cpu needs 1; .*cpu_direct takes"):
        conv2d_winograd_rows_cpu(x, weight, bias, **options)


@pytest.mark.parametrize("columns", [1, 6])
def test_other_columns_are_refused(columns):
    x, weight, bias = draw((1, 2, 8, 8), (4, 3, columns))
    with pytest.raises(ValueError, match=f"weight has {columns} columns: .* needs 2 to 5; conv2d's cpu_direct takes"):
        conv2d_winograd_rows_cpu(x, weight, bias)
