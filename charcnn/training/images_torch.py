"""Steps of networks of images in PyTorch."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
import torch.nn.functional as F

from charcnn.layers import BatchNorm2d, Flatten, Network, Softmax
from charcnn.model.pytorch import function
from charcnn.training.images import DECAY, MOMENTUM, ImageSteps


class TorchSteps(ImageSteps):
    """PyTorch's autograd and AdamW; arguments as of `charcnn.training.images.OwnSteps`."""

    engine = "torch"

    def __init__(self, network: Network, params: Mapping[str, np.ndarray]) -> None:
        self._nodes = network.nodes
        self._held = {name: torch.from_numpy(value.copy()) for name, value in params.items()}
        learned = [value.requires_grad_() for name, value in self._held.items() if "running" not in name]
        self._optimiser = torch.optim.AdamW(learned, weight_decay=DECAY)

    def step(self, x: np.ndarray, labels: np.ndarray, rate: float) -> float:
        """See `ImageSteps.step`."""
        self._optimiser.param_groups[0]["lr"] = rate
        logits = self._forward(torch.from_numpy(np.ascontiguousarray(x)))
        loss = F.cross_entropy(logits, torch.from_numpy(labels.astype(np.int64)))
        self._optimiser.zero_grad()
        loss.backward()
        self._optimiser.step()
        return loss.item()

    def weights(self) -> dict[str, np.ndarray]:
        """See `ImageSteps.weights`."""
        return {name: value.detach().numpy().copy() for name, value in self._held.items()}

    def _forward(self, x: torch.Tensor) -> torch.Tensor:
        for node in self._nodes:
            weights = [self._held[name] for name in node.parameters]
            if isinstance(node.layer, BatchNorm2d):
                weight, bias, mean, variance = weights
                x = F.batch_norm(x, mean, variance, weight, bias, True, MOMENTUM, node.layer.eps)
            elif not isinstance(node.layer, Softmax):
                x = function(node.layer, False)(x, *weights)
            assert isinstance(node.layer, Flatten) or x.shape[1:] == node.out_shape
        return x
