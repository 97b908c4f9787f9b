"""Threads and bounded queues: reading, computing and writing at once."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from queue import Full, Queue
from typing import TypeVar

from charcnn.host.forks import check_not_ending

Item = TypeVar("Item")
Result = TypeVar("Result")


def ordered(items: Iterable[Item], work: Callable[[Item], Result], workers: int) -> Iterator[Result]:
    """work(item) of every item, in order.

    Items are drawn in a thread of their own, `work` runs in as many as `workers`, and the caller has its own. So many
    items are under way at most that each worker has one in work and one in store: memory does not grow with the rest.
    An error of either comes out here, in its place. A caller that stops early leaves nothing running but a read that
    waits for its input.

    Raises:
        RuntimeError: Python ends, and starts no threads.
    """
    check_not_ending("work in several threads")
    under_way: Queue[Future[Result] | None] = Queue(2 * workers)
    stopped = threading.Event()
    pool = ThreadPoolExecutor(workers, thread_name_prefix="block")

    def hand_on(future: Future[Result] | None) -> bool:
        while not stopped.is_set():
            try:
                under_way.put(future, timeout=0.1)
            except Full:
                continue
            return True
        return False

    def draw() -> None:
        try:
            for item in items:
                if not hand_on(pool.submit(work, item)):
                    return
        except BaseException as error:
            failed: Future[Result] = Future()
            failed.set_exception(error)
            hand_on(failed)
        hand_on(None)

    threading.Thread(target=draw, name="read", daemon=True).start()  # daemon: it may wait for standard input for ever
    try:
        while (future := under_way.get()) is not None:
            yield future.result()
    finally:
        stopped.set()
        pool.shutdown(wait=False, cancel_futures=True)
