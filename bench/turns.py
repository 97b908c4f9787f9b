"""What takes turns, so that each finds the clock that the others leave: rates over rounds in drawn order."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import energy
from numba import cuda

ROUNDS = 7

SECONDS = 0.05
"""Of a round of one of them."""


@dataclass
class Ready:
    """Work that passed its check."""

    name: str
    call: Callable[[], Any]
    flop: int
    """Of a call."""
    row: dict[str, Any]
    """What the result says of it beside its rate."""
    stream: Any = None
    """On which it runs, kept as long."""
    items: int = 1
    """Inputs, texts or products of a call."""
    times: int = 1
    """Calls a round."""


def _gpu_seconds() -> float:
    cuda.synchronize()
    return time.perf_counter()


def _seconds(one: Ready, times: int, now: Callable[[], float]) -> float:
    """Of a call, over so many."""
    start = now()
    for _ in range(times):
        one.call()
    return (now() - start) / times


def by_turns(
    every: Sequence[Ready], now: Callable[[], float] = _gpu_seconds, rounds: int | None = None,
    meter: energy.Meter = energy.NONE,
) -> list[dict[str, Any]]:  # fmt: skip
    """The rate of each, a row each: in rounds, in an order drawn for each; then what it draws, where there is a meter.

    `now` gives seconds when work has ended; rounds are ROUNDS where none are given.
    """
    for one in every:
        one.call()
        one.times = max(1, round(SECONDS / _seconds(one, 3, now)))
    seconds: list[list[float]] = [[] for _ in every]
    order = random.Random(0)
    for _ in range(rounds or ROUNDS):
        # Drawn anew, as the clock that one finds is what the power of the one before has left.
        for i in order.sample(range(len(every)), len(every)):
            seconds[i].append(_seconds(every[i], every[i].times, now))
    rows = []
    joules = meter.by_turns([meter.repeated(one.call, one.items) for one in every])
    for one, found, drawn in zip(every, seconds, joules, strict=True):
        rates = [one.flop / each / 1e12 for each in found]
        median = statistics.median(found)
        rows.append(one.row | {"microseconds": 1e6 * median, "tflop_per_second": one.flop / median / 1e12})
        rows[-1] |= {"rounds": rates, **drawn}
        print(f"{one.name:44} {1e6 * median:9.1f} us {one.flop / median / 1e12:8.1f} TFLOP/s", flush=True)
    return rows
