"""What AdamW is told: options of neighbouring weights, and by what a loss is scaled."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from charcnn.aliases import Record
from charcnn.gpu.arrays import check, expect

MOMENTS, ARRAYS = ("first", "second"), ("weights", "average", "first", "second")
"""What the saved state of AdamW has, and that of a training."""


@dataclass(frozen=True)
class ParameterGroup:
    """Neighbouring values of the buffer that a step treats alike.

    Args:
        size: values.
        lr: the learning rate.
        betas: what the means of gradients and of their squares keep at a step.
        eps: added to the root of the latter.
        weight_decay: share of a weight that a step takes away, times lr.
    """

    size: int
    lr: float = 1e-3
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 1e-2


CHANGING = ("scale", "made", "left_out")
"""What steps change of a LossScale, and its saved state has."""


@dataclass
class LossScale:
    """By what the loss is multiplied, so that gradients in fp16 do not vanish, as PyTorch's GradScaler has it.

    A step whose gradients are not finite is left out, and `scale` falls to `backoff` of it; after `interval` steps in a
    row that were made, it grows `growth` times.
    """

    scale: float = 2.0**16
    growth: float = 2.0
    backoff: float = 0.5
    interval: int = 2000
    made: int = 0
    """Steps in a row."""
    left_out: int = 0
    """Steps in all."""

    @property
    def saved(self) -> Record:
        """What steps change, as `check_scale` takes it."""
        return {name: getattr(self, name) for name in CHANGING}

    def update(self, finite: bool) -> None:
        """After a step: whether its gradients were finite."""
        self.made = self.made + 1 if finite else 0
        if not finite:
            self.scale, self.left_out = self.scale * self.backoff, self.left_out + 1
        elif self.made == self.interval:
            self.scale, self.made = self.scale * self.growth, 0


def check_scale(saved: object) -> None:
    """Raise ValueError unless it is the saved state of a LossScale."""
    if isinstance(saved, dict) and saved.keys() == set(CHANGING):
        scale, *counts = (saved[name] for name in CHANGING)
        if type(scale) is float and 0 < scale < math.inf and all(type(n) is int and n >= 0 for n in counts):
            return
    raise ValueError(f"state['loss_scale'] is {saved!r}: need {', '.join(CHANGING)} of a LossScale")


def check_state(state: Record, size: int, arrays: Sequence[str], numbers: Sequence[str] = ("steps",)) -> None:
    """Look at all that a saved state has, before anything of it is taken.

    Args:
        state: what `state` of AdamW or of a training gave.
        size: values of each array.
        arrays: that it must have, NumPy's float32.
        numbers: that it must have, whole and 0 or more.

    Raises:
        ValueError: it is of another network, or damaged; names what does not fit.
    """
    for name in arrays:
        expect(f"state[{name!r}]", state.get(name), (size,))
        check(f"state[{name!r}]", state[name])
    for name in numbers:
        if type(state.get(name)) is not int or state[name] < 0:
            raise ValueError(f"state[{name!r}] is {state.get(name)!r}: need a whole number, 0 or more")
