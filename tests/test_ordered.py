"""The flow of blocks through threads."""

import threading
import time

import pytest

from charcnn.runtime import ordered


def test_flow_keeps_the_order_and_bounds_what_is_under_way():
    drawn, under_way, most = 0, 0, 0
    lock = threading.Lock()

    def items():
        nonlocal drawn, under_way, most
        for n in range(60):
            with lock:
                drawn, under_way = drawn + 1, under_way + 1
                most = max(most, under_way)
            yield n

    def work(n):
        time.sleep(0.002 * (n % 3))
        return n

    found = []
    for n in ordered.ordered(items(), work, 3):
        found.append(n)
        with lock:
            under_way -= 1
    assert found == list(range(60))
    assert most <= 2 * 3 + 3, "a queue of twice the workers, one about to enter and one about to leave"


def test_flow_gives_errors_in_their_place():
    def items():
        yield from range(3)
        raise OSError("torn off")

    results = ordered.ordered(items(), lambda n: n, 2)
    assert [next(results) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(OSError, match="torn off"):
        next(results)
    with pytest.raises(ZeroDivisionError):
        list(ordered.ordered([1, 0, 1], lambda n: 1 / n, 2))


def test_flow_stops_when_its_caller_does():
    drawn, before = [], {*threading.enumerate()}
    for n in ordered.ordered((drawn.append(n) or n for n in range(10_000)), lambda n: n, 2):
        if n == 3:
            break
    for own in {*threading.enumerate()} - before:
        own.join(300)
        assert not own.is_alive()
    assert len(drawn) < 100
