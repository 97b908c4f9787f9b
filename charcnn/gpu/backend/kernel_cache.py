"""Compiled kernels on disk: Numba's cache, told of its misses, and shared by processes that compile at once.

A kernel that one process compiles, the others wait for: they would take as long.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
from collections.abc import Callable
from contextlib import suppress
from typing import IO

from charcnn.aliases import NumbaType, Value
from charcnn.gpu.backend import compiler

CLAIMS = "charcnn.compiling"
"""In each folder of the cache; a byte for each kernel, held while it is compiled."""

_claimed: IO[bytes] | None = None
"""Holds what this process compiles: one kernel, as Numba lets no second one begin."""

_on_miss: Callable[[], None] | None = None


def on_miss(work: Callable[[], None] | None) -> None:
    """Have `work` done, once, when the next kernel is not found, and then look again; None for nothing.

    It is called with Numba's compiler lock held, and must not raise.
    """
    global _on_miss
    _on_miss = work


class KernelCache(compiler.dispatcher.CUDACache):  # type: ignore[misc, unused-ignore]
    """The cache of one kernel, in place of numba-cuda's own."""

    def __init__(self, function: Callable[..., None], before_compiling: Callable[[], None]) -> None:
        super().__init__(function)
        self.before_compiling = before_compiling

    def load_overload(self, sig: NumbaType, target_context: Value) -> Value:
        """The kernel for these types, or None where it has to be compiled."""
        found = self._load(sig, target_context)
        if found is None and (work := _on_miss) is not None:
            on_miss(None)
            work()
            found = self._load(sig, target_context)
        if found is None:
            self._claim(sig, target_context)
            found = self._load(sig, target_context)  # another process may have compiled it meanwhile
        if found is not None:
            _release()
        else:
            target_context.refresh()  # the compiler's tables, a third of a second, which a kernel found does without
            self.before_compiling()
        return found

    def _load(self, sig: NumbaType, target_context: Value) -> Value:
        with compiler.utils.numba_target_override():
            return self._load_overload(sig, target_context)

    def save_overload(self, sig: NumbaType, data: Value) -> None:
        """Add a compiled kernel."""
        try:
            super().save_overload(sig, data)
        finally:
            _release()

    def key(self, sig: NumbaType, target_context: Value) -> str:
        """What tells a kernel from all others, in every process."""
        return f"{self._impl.filename_base} {self._index_key(sig, target_context.codegen())}"

    def holds(self, sig: NumbaType, target_context: Value) -> bool:
        """Whether the kernel need not be compiled."""
        return self._index_key(sig, target_context.codegen()) in self._cache_file._load_index()

    def _claim(self, sig: NumbaType, target_context: Value) -> None:
        """Wait until no other process compiles this kernel, and then keep others from it; where locks work."""
        global _claimed
        _release()  # of a kernel that did not compile
        place = int.from_bytes(hashlib.sha256(self.key(sig, target_context).encode()).digest()[:7], "little")
        with suppress(OSError):
            _claimed = open(os.path.join(self._cache_path, CLAIMS), "ab")  # noqa: SIM115 : closed by `_release`
            fcntl.lockf(_claimed, fcntl.LOCK_EX, 1, place)


def _release() -> None:
    global _claimed
    if _claimed is not None:
        _claimed.close()
        _claimed = None
