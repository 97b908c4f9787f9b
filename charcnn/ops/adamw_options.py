"""What AdamW is told: options of neighbouring weights, and by what a loss is scaled."""

from __future__ import annotations

from dataclasses import dataclass


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

    def update(self, finite: bool) -> None:
        """After a step: whether its gradients were finite."""
        self.made = self.made + 1 if finite else 0
        if not finite:
            self.scale *= self.backoff
        elif self.made == self.interval:
            self.scale, self.made = self.scale * self.growth, 0
