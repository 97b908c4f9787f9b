"""The trace of attention by wgmma: what the emulator's run of it says, and that it changes no bit."""

from __future__ import annotations

from collections import Counter

import attention_trace
import numpy as np
import pytest
from conftest import by_turns
from report.pictures.attention_trace import spans
from small_gpu import one_multiprocessor

from charcnn.gpu import device
from charcnn.ops.attention import wgmma_tile


@by_turns
@pytest.mark.skipif(not device.SIMULATED, reason="there is a GPU: nothing to emulate")
def test_each_wait_is_noted_once(monkeypatch):
    one_multiprocessor(monkeypatch)
    monkeypatch.setattr(attention_trace, "microseconds", lambda start: 1.0)
    monkeypatch.setattr(attention_trace, "WAITS", 1 << 14)
    made = attention_trace.trace((1, 1, 384, 64))
    assert made is not None, "the same bits"
    tile = wgmma_tile.choose(64, 384)
    tasks, tiles = 2, 3
    assert (made["warpgroups"], made["keys"]) == (tile.warpgroups, tile.keys) == (3, 128)
    found = Counter((row["part"], row["waits_for"]) for row in made["events"])
    of_math = {
        "q_full": tasks, "k_full": tasks * tiles, "v_full": tasks * tiles, "turn": tasks * (tiles - 1),
        "scores": tasks * (tiles - 1), "values": tasks * (tiles + 1),
    }  # fmt: skip
    want = {(f"warpgroup {i}", kind): count for i in range(3) for kind, count in of_math.items()}
    want |= {("producer", "q_empty"): tasks}
    want |= {("producer", f"{kind}_empty"): tasks * tiles for kind in "kv"}
    want |= {("copies", f"{kind}_full"): tasks * tiles for kind in "kv"}
    assert found == want
    stages = [row["stage"] for row in made["events"] if (row["part"], row["waits_for"]) == ("copies", "k_full")]
    assert stages == [i % tile.stages for i in range(tasks * tiles)]
    assert all(0 <= row["begin"] < row["end"] for row in made["events"])
    for i in range(3):
        drawn = list(spans([row for row in made["events"] if row["part"] == f"warpgroup {i}"]))
        assert [kind for kind, *_ in drawn] == ["turn", "scores", "powers", "values"] * tasks * (tiles - 1)
        (_, _, asked), (_, since, come), (_, begin, end), (_, _, done) = drawn[:4]
        assert asked == since < come == begin < end < done


def test_a_clock_that_begins_anew_and_one_that_is_read_in_another_order():
    words = np.zeros((9, attention_trace.FIELDS), np.uint32)
    top = (1 << 32) - 100
    words[::4] = (50, 60, 64, 0), (top, 10, 128 + 8, 4), (top, top - 5, 512, 1)
    assert attention_trace.decoded(words, 3) == [
        {"part": "copies", "waits_for": "k_full", "stage": 1, "begin": 5, "end": 115},
        {"part": "warpgroup 0", "waits_for": "q_empty", "stage": 0, "begin": 155, "end": 165},
        {"part": "warpgroup 1", "waits_for": "scores", "stage": 0, "begin": 0, "end": 5},
    ]
