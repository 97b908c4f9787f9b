"""Ranks that serve threads: batches from any of them, computed by a farm or by another way to offload a stream."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future
from typing import Any

import numpy as np

from charcnn.offload.farm.root import Farm
from charcnn.offload.stream import Overlapped, Scattered


class Service:
    """What a `Pipeline` is in one process, over ranks: `submit` batches, from threads at will.

    All messages are sent by one thread, the service's own, from here until `close`.

    Args:
        farm: whose workers are briefed; or another way, whose `run` the other ranks call.
        compute: for the root, as of the farm's `run`.
    """

    lasting = True  # a source of chunks that stay as they are

    def __init__(self, farm: Farm | Overlapped | Scattered, compute: Any) -> None:
        self._farm = farm
        self._lock = threading.Lock()
        self._waiting: deque[tuple[np.ndarray, np.ndarray, Future[None]]] = deque()
        self._under_way: dict[int, tuple[np.ndarray, Future[None]]] = {}
        self._drawn, self._closed = 0, False
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._serve, args=(compute,), name="farm", daemon=True)
        self._thread.start()

    def submit(self, ids: np.ndarray, logits: np.ndarray) -> Future[None]:
        """Start on token ids (n, L) uint8, n at most the farm's size; `logits` (n, classes) is filled when it is done.

        Raises:
            ValueError: too many rows.
            RuntimeError: the service is closed.
        """
        if len(ids) > self._farm.size:
            raise ValueError(f"ids has {len(ids)} rows: need at most size={self._farm.size}")
        future: Future[None] = Future()
        if len(ids) == 0:
            future.set_result(None)
            return future
        with self._lock:
            if self._error is not None:
                future.set_exception(self._error)
                return future
            if self._closed:
                raise RuntimeError("the service is closed")
            self._waiting.append((ids, logits, future))
        self._farm.wake()
        return future

    @property
    def failed(self) -> bool:
        """Whether it ended by an error, which all futures since have told."""
        return self._error is not None

    def close(self) -> None:
        """Finish what was submitted, and let the farm run end."""
        with self._lock:
            self._closed = True
        self._farm.wake()
        self._thread.join()

    def __iter__(self) -> Iterator[np.ndarray | None]:
        """The farm's source."""
        while True:
            with self._lock:
                given = self._waiting.popleft() if self._waiting else None
                closed = self._closed
            if given is None:
                if closed:
                    return
                yield None
                continue
            ids, logits, future = given
            self._under_way[self._drawn] = logits, future
            self._drawn += len(ids)
            yield ids

    def _deliver(self, start: int, logits: np.ndarray) -> None:
        into, future = self._under_way.pop(start)
        np.copyto(into, logits)
        future.set_result(None)

    def _serve(self, compute: Any) -> None:
        try:
            self._farm.run(self, compute, deliver=self._deliver)
        except BaseException as error:  # whoever waits shall hear of it
            with self._lock:
                self._error = error
                left = [future for _, _, future in self._waiting]
            for future in [*left, *(future for _, future in self._under_way.values())]:
                future.set_exception(error)
