"""Compiled kernels on disk: Numba's cache, made safe for processes that compile at once, and told of its misses.

Numba keeps an index a function. Two processes that add to one at once lose an entry, and may give two kernels one file:
whoever loads one then gets the other. Here, one writes at a time.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from numba.cuda import utils
from numba.cuda.dispatcher import CUDACache

LOCK = "charcnn.lock"
"""In each folder of the cache; held while an entry is added."""

_on_miss: Callable[[], None] | None = None


def on_miss(work: Callable[[], None] | None) -> None:
    """Have `work` done, once, when the next kernel is not found, and then look again; None for nothing.

    It is called with Numba's compiler lock held, and must not raise.
    """
    global _on_miss
    _on_miss = work


class KernelCache(CUDACache):  # type: ignore[misc, unused-ignore]
    """The cache of one kernel, in place of numba-cuda's own."""

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """The kernel for these types, or None where it has to be compiled."""
        found = self._load(sig, target_context)
        if found is None and (work := _on_miss) is not None:
            on_miss(None)
            work()
            found = self._load(sig, target_context)
        if found is None:
            target_context.refresh()  # the compiler's tables, a third of a second, which a kernel found does without
        return found

    def _load(self, sig: Any, target_context: Any) -> Any:
        with utils.numba_target_override():
            return self._load_overload(sig, target_context)

    def save_overload(self, sig: Any, data: Any) -> None:
        """Add a compiled kernel."""
        with self._writing():
            super().save_overload(sig, data)

    def key(self, sig: Any, target_context: Any) -> str:
        """What tells a kernel from all others, in every process."""
        return f"{self._impl.filename_base} {self._index_key(sig, target_context.codegen())}"

    def holds(self, sig: Any, target_context: Any) -> bool:
        """Whether the kernel need not be compiled."""
        return self._index_key(sig, target_context.codegen()) in self._cache_file._load_index()

    @contextmanager
    def _writing(self) -> Iterator[None]:
        with open(os.path.join(self._cache_path, LOCK), "a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # until it is closed
            yield
