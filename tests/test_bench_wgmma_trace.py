"""Waits of the wgmma kernel, as its trace tells them."""

from __future__ import annotations

import numpy as np
import wgmma_trace

from charcnn.ops.conv1d.wgmma.config import Barrier, WgmmaTile

CONFIG = WgmmaTile(72, 2, 3, 256, False, 2, math_warpgroups=2, producer=True)
BASE = 4096


def written(*waits):
    """What the kernel leaves: `waits` of (begin, end, mbarrier, warpgroup), and places of others."""
    words = np.zeros((64, wgmma_trace.FIELDS), np.uint32)
    words[: 5 * len(waits) : 5] = waits
    return words


def test_decoded():
    first, last = (2000, 2300, BASE, 0), (2600, 2601, BASE + Barrier.A_FULL + 8, 1)
    middle, asks = (2500, 2700, BASE + 16, 0), (2400, 2450, BASE + Barrier.B_EMPTY + 8, 2)
    found = wgmma_trace.decoded(written(last, middle, first, asks), CONFIG)
    assert found == [
        {"part": "producer", "waits_for": "b_empty", "stage": 1, "begin": 400, "end": 450},
        {"part": "warpgroup 0", "waits_for": "b_full", "stage": 0, "begin": 0, "end": 300},
        {"part": "warpgroup 0", "waits_for": "b_full", "stage": 2, "begin": 500, "end": 700},
        {"part": "warpgroup 1", "waits_for": "a_full", "stage": 1, "begin": 600, "end": 601},
    ]


def test_what_lies_too_far_back_is_left_out():
    found = wgmma_trace.decoded(
        written((10, 20, BASE, 0), (wgmma_trace.SPAN + 11, wgmma_trace.SPAN + 12, BASE, 1)), CONFIG
    )
    assert [(row["part"], row["begin"]) for row in found] == [("warpgroup 1", 0)]


def test_a_clock_that_begins_anew():
    top = (1 << 32) - 100
    found = wgmma_trace.decoded(written((50, 60, BASE, 0), (top, 10, BASE + 8, 0), (top - 5, top, BASE, 0)), CONFIG)
    assert [(row["begin"], row["end"]) for row in found] == [(0, 5), (5, 115), (155, 165)]
