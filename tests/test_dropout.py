"""Dropout: masks by counter, Philox's own numbers, statistics."""

from __future__ import annotations

import numpy as np
import pytest

from charcnn.gpu import device
from charcnn.gpu.launch import jit, start
from charcnn.ops.linear.dropout import dropout, philox


@jit()
def _words_kernel(given, found):
    found[0], found[1], found[2], found[3] = philox(given[0], given[1], given[2], given[3], given[4], given[5])


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ((0,) * 6, (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        ((0xFFFFFFFF,) * 6, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344, 0xA4093822, 0x299F31D0),
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ],
)
def test_philox_has_the_known_answers_of_its_authors(given, expected):
    found = device.to_device(np.zeros(4, np.uint32))
    start(_words_kernel, 1, 1, device.as_stream(None), device.to_device(np.array(given, np.uint32)), found)
    assert tuple(found.copy_to_host()) == expected


def dropped(share=0.25, steps=3, seed=7, layer=1, size=4096):
    ones = device.to_device(np.full(size, 0x3F80, np.uint16))
    dropout(ones, device.to_device(np.array([steps], np.int64)), share, seed=seed, layer=layer)
    return (ones.copy_to_host().astype(np.uint32) << 16).view(np.float32)


def test_a_share_is_dropped_and_the_rest_is_larger():
    found = dropped()
    kept = found != 0
    assert abs(1 - kept.mean() - 0.25) < 4 * np.sqrt(0.25 * 0.75 / found.size)
    np.testing.assert_allclose(found[kept], 1 / 0.75, rtol=2**-8)


def test_the_mask_follows_from_seed_step_and_layer():
    first = dropped()
    np.testing.assert_array_equal(first, dropped())
    for other in ({"steps": 4}, {"seed": 8}, {"layer": 2}):
        agree = ((first == 0) == (dropped(**other) == 0)).mean()
        assert abs(agree - (0.25**2 + 0.75**2)) < 0.05


@pytest.mark.parametrize(("share", "size", "named"), [(1.0, 8, "share=1.0"), (0.5, 12, "x has 12 values")])
def test_what_it_cannot_drop(share, size, named):
    with pytest.raises(ValueError, match=named):
        dropped(share, size=size)
