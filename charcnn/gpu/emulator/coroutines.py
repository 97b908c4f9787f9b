"""The package greenlet, or what to install where it is missing."""

from __future__ import annotations

from charcnn.gpu import absent

try:
    from greenlet import getcurrent, greenlet
except ModuleNotFoundError:
    absent.refuse()

__all__ = ["getcurrent", "greenlet"]
