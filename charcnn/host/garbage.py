"""The garbage collector, kept from what a command makes once."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def uncollected() -> Iterator[None]:
    """The block makes what stays to the end: to look for garbage in that again and again takes a tenth of a start.

    What there is at its end is never looked at again, in this process (`gc.freeze`).
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.freeze()
            gc.enable()
