"""A rank of the farm, as the root knows it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

Part = tuple[int, np.ndarray]
"""A chunk: its first input, and token ids."""


@dataclass
class Member:
    """A rank, as the root knows it."""

    rank: int
    host: str = "?"
    state: str = "starting"
    """starting, ready, closed; or lost: left (it said why), dead (MPI said so), hung (a deadline passed)."""
    why: str = ""
    inputs: int = 0
    seconds: float = 0.0
    """From the first chunk it was given in each run to its last logits."""
    closing: Any = None
    """What it sent in the end."""
    pid: int = 0
    heard: float = 0.0
    """When it last gave a sign of life, before it was ready."""
    beats: bool = True
    """Whether it gives any while it builds."""
    lag: float = 0.0
    slots: int = 0
    slowest: float = 0.0
    killed: bool = False
    began: float | None = None
    last: float = 0.0
    returned: int = 0
    """Of this run: when its first chunk left, when its last logits came, and of how many inputs."""
    away: dict[int, Part] = field(default_factory=dict)

    @property
    def lost(self) -> bool:
        """Whether it works no more."""
        return self.state in ("left", "dead", "hung")

    def count(self, inputs: int, first: float, now: float) -> None:
        """Logits came."""
        self.inputs += inputs
        self.returned += inputs
        self.seconds += now - (first if self.began is None else self.last)
        self.began, self.last = first if self.began is None else self.began, now

    def rate(self) -> float:
        """Inputs a second in this run; 0 where nothing has come yet."""
        return self.returned / (self.last - self.began) if self.began is not None else 0.0
