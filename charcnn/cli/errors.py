"""What errors come to: a line that says what to do, and an exit status."""

from __future__ import annotations

import errno
import os
import sys

from charcnn.cli import FAILED, UNUSABLE


def explained(error: Exception) -> tuple[str | None, int]:
    """One line for what the user can act on, and the exit status; None for a bug."""
    if isinstance(error, OSError):
        what = " ".join((error.strerror or str(error)).split())
        named = f"{os.fspath(error.filename)}: {what}" if error.filename else what
        unusable = isinstance(error, (FileNotFoundError, PermissionError, IsADirectoryError, NotADirectoryError))
        unusable = unusable or error.errno == errno.EBADF  # a standard stream that is closed
        return named, UNUSABLE if unusable else FAILED
    if isinstance(error, ValueError):
        return " ".join(str(error).split()), UNUSABLE
    if "numba" not in sys.modules:
        return None, FAILED
    from charcnn.gpu import device

    return device.explain(error), UNUSABLE
