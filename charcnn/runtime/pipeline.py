"""Batches through several workers at once."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice, product
from queue import Empty, SimpleQueue
from typing import Any

import numpy as np

from charcnn.aliases import Array
from charcnn.runtime.run import Run

Worker = Callable[[Any, np.ndarray], object]


LONG = 1 << 25
"""Bytes of a batch that a bus needs longer for than a launch takes by far, so that smaller ones end a run."""

MANY = 4
"""Batches of a run that ends so: of few, ever new sizes would be computed."""


def cuts(start: int, stop: int, size: int, length: int) -> Iterator[tuple[int, int]]:
    """Where batches begin and end that have at most `size` inputs of `length` bytes each.

    While one is computed the next is copied, but while the last one is computed nothing is left to copy. Where copies
    take long, a run therefore ends in a half, a quarter and so on of a batch.
    """
    tapers = stop - start >= MANY * size
    while start < stop:
        taken = min(size, stop - start)
        if tapers and stop - start <= size and taken * length > LONG:
            taken = next(part for part in (size >> i for i in range(1, size.bit_length() + 1)) if part < stop - start)
        yield start, start + max(1, taken)
        start += max(1, taken)


class Pipeline:
    """A run over token ids that has several batches under way: as many as workers, each in a thread of its own.

    Call it with all ids for all logits, or `submit` batches one by one. It is the user who bounds how many wait.

    Args:
        workers: each takes token ids (n, L) uint8 and writes logits (n, classes) float32; n is at most `batch`.
            A worker gets one batch at a time, so that it can own buffers and a stream.
        batch: the most inputs of a batch.
        classes: columns of the logits.
        progress: called with the number of inputs whenever a batch is done.
    """

    takes_text = False
    """Whether `submit` takes texts that are not encoded."""

    few = 1
    """Up to so many inputs of a call are one batch, which the caller's thread computes: to hand them to others takes
    longer than that gains."""

    whole = 0
    """Up to so many are one batch, too, unless each worker would get `few` of them or fewer."""

    def __init__(
        self, workers: Sequence[Worker], batch: int, classes: int, progress: Callable[[int], object] | None = None
    ) -> None:
        self.slots, self.batch = len(workers), batch
        self._classes, self._progress = classes, progress
        self._idle: SimpleQueue[Worker] = SimpleQueue()
        for worker in workers:
            self._idle.put(worker)
        self._threads = ThreadPoolExecutor(self.slots, thread_name_prefix="worker")
        self._closed = False

    def landing(self, size: int, length: int) -> tuple[Any, Any]:
        """Where messages land and leave: token ids (size, length) uint8, and logits; `submit` takes both."""
        return np.empty((size, length), np.uint8), np.empty((size, self._classes), np.float32)

    def size(self, inputs: int) -> int:
        """The most inputs of a batch, where so many are computed in one call."""
        return max(1, min(self.batch, inputs if self._one(inputs) else -(-inputs // self.slots)))

    def _one(self, inputs: int) -> bool:
        return 0 < inputs <= self.few or self.few * self.slots < inputs <= self.whole

    def warm(self, ids: np.ndarray, inputs: int) -> None:
        """Each worker computes a batch of every size that a call with so many inputs has: no later one is the first.

        It is the user who calls it alone.

        Args:
            ids: token ids (n, L) uint8, as many as a batch has.
            inputs: of the call.
        """
        sizes = {stop - start for start, stop in cuts(0, inputs, self.size(inputs), ids[:1].nbytes)}
        workers = [self._idle.get() for _ in range(self.slots)]
        try:
            for worker, n in product(workers, sorted(sizes, reverse=True)):
                worker(ids[:n], np.empty((n, self._classes), np.float32))
        finally:
            for worker in workers:
                self._idle.put(worker)

    def submit(self, ids: Array, logits: Array) -> Future[None]:
        """Start on a batch; `ids` must not change, nor `logits` be read, until the future is done."""
        if len(ids) > self.batch:
            raise ValueError(f"ids has {len(ids)} rows: need at most batch={self.batch}")
        return self._threads.submit(self._work, ids, logits)

    def _work(self, ids: Array, logits: np.ndarray) -> None:
        worker = self._idle.get()  # one is idle, or soon: as many threads, but for callers with a few inputs
        try:
            worker(ids, logits)
        finally:
            self._idle.put(worker)
        if self._progress is not None:
            self._progress(len(ids))

    def __call__(self, ids: np.ndarray) -> np.ndarray:
        """Token ids (N, L) uint8 -> logits (N, classes) float32."""
        logits = np.empty((len(ids), self._classes), np.float32)
        if self._one(len(ids)) and len(ids) <= self.batch and not self._closed:
            taken: list[Worker] = []
            try:
                taken.extend(islice(iter(self._idle.get_nowait, None), 1))  # no interrupt comes in between and loses it
                taken[0](ids, logits)
            except Empty:  # others' batches come first
                self.submit(ids, logits).result()
                return logits
            finally:
                for worker in taken:
                    self._idle.put(worker)
            if self._progress is not None:
                self._progress(len(ids))
            return logits
        size = self.size(len(ids))
        under_way: deque[Future[None]] = deque()
        try:
            for start, stop in cuts(0, len(ids), size, ids[:1].nbytes):
                if len(under_way) == 2 * self.slots:
                    under_way.popleft().result()
                under_way.append(self.submit(ids[start:stop], logits[start:stop]))
            while under_way:
                under_way.popleft().result()
        finally:
            for future in under_way:  # after an error
                future.cancel()
        return logits

    def close(self) -> None:
        """Drop what waits, and let the threads end when they have finished their batch."""
        self._closed = True
        self._threads.shutdown(wait=False, cancel_futures=True)


def as_pipeline(compute: Pipeline | Run, batch: int, classes: int) -> Pipeline:
    """The pipeline itself; or one around a function of token ids -> logits, of which one call runs at a time."""
    if isinstance(compute, Pipeline):
        return compute

    def work(ids: np.ndarray, logits: np.ndarray) -> None:
        logits[:] = compute(ids)

    return Pipeline([work], batch, classes)
