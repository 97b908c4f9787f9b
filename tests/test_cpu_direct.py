"""Few input channels on the CPU: every tile, lines shared out, the same bits for any number of threads, refusals."""

from __future__ import annotations

import numba
import numpy as np
import pytest
from conftest import quick

from charcnn import ops
from charcnn.catalog import FLOAT32
from charcnn.ops import conv2d_cpu_direct, conv2d_relu_cpu_direct, reference
from charcnn.ops.common.cpu_tile import TILES, choose_tile
from charcnn.ops.conv2d import cpu_direct

CASES = (  # (N, C_in, H, W), (C_out, KH, KW), moves
    ((3, 2, 9, 70), (7, 3, 5), {}),
    ((1, 3, 40, 33), (17, 5, 4), {"padding": (2, 1, 3, 0), "dilation": (2, 3)}),
    ((2, 1, 31, 29), (5, 7, 3), {"stride": (3, 2), "padding": "same"}),
    ((1, 12, 8, 9), (3, 8, 7), {"padding": 1}),  # more terms than are summed in one go
)


def draw(x, weight):
    rng = np.random.default_rng(0)
    c_out, *kernel = weight
    return tuple(rng.standard_normal(size, np.float32) for size in (x, (c_out, x[1], *kernel), (c_out,)))


def close(y, arrays, moves):
    expected = reference.conv2d(*(array.astype(np.float64) for array in arrays), **moves)
    assert y.shape == expected.shape
    assert np.linalg.norm(y - expected) <= FLOAT32 * np.linalg.norm(expected)


@quick(lambda name: TILES[name] is choose_tile())  # compiled for seconds each
@pytest.mark.parametrize("name", TILES)
@pytest.mark.parametrize(("x", "weight", "moves"), CASES)
@quick(lambda x: x == CASES[0][0])
def test_every_tile(name, x, weight, moves, monkeypatch):
    try:
        choose_tile(name)
    except ValueError as error:
        pytest.skip(str(error))
    monkeypatch.setenv("CHARCNN_CPU_TILE", name)
    arrays = draw(x, weight)
    close(conv2d_cpu_direct(*arrays, **moves), arrays, moves)


def test_a_tile_has_few_maps_too_many():
    rows = {c_out: cpu_direct.choose(c_out).rows for c_out in (1, 4, 6, 8, 16)}
    assert all(-(-c_out // of) * of - c_out < of for c_out, of in rows.items())
    if "avx512" in {name for name in TILES if choose_tile() == TILES[name]}:
        assert rows == {1: 4, 4: 4, 6: 6, 8: 8, 16: 8}


@pytest.mark.parametrize("lines", [1, 2, 5, 100])
def test_any_lines_of_a_task(lines, monkeypatch):
    x, weight, moves = CASES[1]
    arrays = draw(x, weight)
    whole = conv2d_cpu_direct(*arrays, **moves)
    arranged = cpu_direct._arranged
    monkeypatch.setattr(cpu_direct, "_arranged", lambda *of: (arranged(*of)[0], lines))
    np.testing.assert_array_equal(conv2d_cpu_direct(*arrays, **moves), whole)
    assert (conv2d_relu_cpu_direct(*arrays, **moves) == np.maximum(whole, 0)).all()


def test_the_same_bits_for_any_number_of_threads():
    arrays, before = draw(*CASES[0][:2]), numba.get_num_threads()
    many = conv2d_cpu_direct(*arrays)
    numba.set_num_threads(1)
    try:
        np.testing.assert_array_equal(conv2d_cpu_direct(*arrays), many)
    finally:
        numba.set_num_threads(before)


def test_groups_are_refused():
    x, _, bias = draw((1, 4, 6, 6), (4, 3, 3))
    with pytest.raises(ValueError, match="groups=2: the technique cpu_direct needs 1"):
        conv2d_cpu_direct(x, np.zeros((4, 2, 3, 3), np.float32), bias, groups=2)


@pytest.mark.parametrize("technique", ["cpu_direct", "winograd_rows_cpu"])
def test_no_channels_are_refused(technique):
    x, weight, bias = np.zeros((1, 0, 8, 8), np.float32), np.zeros((4, 0, 3, 3), np.float32), np.ones(4, np.float32)
    with pytest.raises(ValueError, match=f"x has 0 channels: the technique {technique} needs at least 1"):
        getattr(ops, f"conv2d_{technique}")(x, weight, bias)
