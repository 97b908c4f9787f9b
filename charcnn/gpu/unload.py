"""Numba unloads a kernel's library once a GPU; charcnn, once.

numba-cuda (0.30) links a kernel once a compute capability, and the driver's library that holds it (CUlibrary) serves
all contexts of the process. But each GPU's context keeps a module of its own around the same library, and each of
these calls cuLibraryUnload as it ends: at exit a library that two GPUs of a kind have run is unloaded twice, and the
driver frees its memory twice. docs/upstream/numba-cuda-double-unload.md has a minimal program.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

from charcnn.gpu.backend.compiler import driver


def count_users(module_finalizer: Callable[[Any, Any], Callable[[], None]]) -> Callable[[Any, Any], Callable[[], None]]:
    """Numba's maker of what ends a module, changed so that only a library's last module unloads it.

    Args:
        module_finalizer: called with a context and the object code that its new module is of, gives what queues the
            unloading.

    Returns:
        A function of the same form.
    """
    users: Counter[int] = Counter()
    lock = threading.Lock()

    def counted(context: Any, object_code: Any) -> Callable[[], None]:
        unload, library = module_finalizer(context, object_code), int(object_code.handle)
        with lock:
            users[library] += 1

        def end() -> None:
            with lock:
                users[library] -= 1
                last = users[library] == 0
            if last:
                unload()

        return end

    return counted


def mend() -> None:
    """Let Numba's driver count the users of its libraries; a second call changes nothing."""
    if driver._module_finalizer.__module__ != __name__:
        driver._module_finalizer = count_users(driver._module_finalizer)
