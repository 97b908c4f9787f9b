"""What the emulator finds in a kernel: each mistake once, with the line of the kernel that makes it."""

from __future__ import annotations

import os
from types import FrameType
from typing import NamedTuple

UNINITIALISED = "uninitialised read"
"""The kind that is dropped where no result depends on what was read."""

_HERE = os.path.dirname(__file__)
_PTX = os.path.join(os.path.dirname(_HERE), "ptx", "")


class Finding(NamedTuple):
    """A mistake of a kernel."""

    kind: str
    """One of KINDS."""
    file: str
    line: int
    text: str
    """What happened, and in which thread first."""

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.kind}: {self.text}"


class EmulatorError(RuntimeError):
    """A mistake of a kernel, where nobody collects findings."""

    def __init__(self, kind: str, file: str, line: int, text: str) -> None:
        self.finding = Finding(kind, file, line, text)
        super().__init__(str(self.finding))


class Findings(list[Finding]):
    """Findings in order, of each kind one a line."""

    def add(self, kind: str, file: str, line: int, text: str) -> None:
        """Keep it, unless this line has one of its kind."""
        if not any(one[:3] == (kind, file, line) for one in self):
            self.append(Finding(kind, file, line, text))


def place_of(frame: FrameType) -> tuple[str, int]:
    """File and line of the kernel's code that called what runs in this frame: the first outside of the emulator."""
    while frame.f_back is not None and frame.f_code.co_filename.startswith((_HERE, _PTX)):
        frame = frame.f_back
    return frame.f_code.co_filename, frame.f_lineno
