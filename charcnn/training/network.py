"""The network in PyTorch, to be trained: channels last, dropout before each linear layer."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import torch
import torch.nn.functional as F

from charcnn.config import NORMALISED_BLOCKS, POOL_SIZE, POOLED_BLOCKS, Config

_PAD = 8  # one-hot channels are padded to a multiple of it: cuDNN's tensor-core kernels take no 70


class Network(torch.nn.Module):
    """Token ids (N, L) uint8 -> float32 logits (N, classes).

    Features are (N, C, 1, L) and lie as (N, L, C); the parameters lie to fit, and are float32 whatever the arithmetic.

    Args:
        config: the sizes.
        dropout: share of values dropped before each linear layer while training.
        dtype: of the arithmetic: torch.bfloat16, or torch.float32.
    """

    one_hot: torch.Tensor

    def __init__(self, config: Config, dropout: float, dtype: torch.dtype) -> None:
        super().__init__()
        self.config, self.dropout, self.dtype = config, dropout, dtype
        for name, shape in config.parameter_shapes.items():
            value = torch.ones(shape) if name.startswith("norm") and name.endswith("weight") else torch.zeros(shape)
            self.register_parameter(_attribute(name), torch.nn.Parameter(self._inward(name, value)))
        width = -(-config.alphabet // _PAD) * _PAD
        self.register_buffer("one_hot", torch.eye(config.alphabet + 1, width, dtype=dtype))
        self.one_hot[config.alphabet] = 0  # a blank

    def initialise(self, seed: int) -> None:
        """Draw weights and biases as PyTorch's own layers do, uniform within 1 / sqrt(fan-in), alike on every device.

        They are 0.4 of He's (2015, arXiv:1502.01852): logits begin near 0, and the step of AdamW, which is the same for
        large and small weights, turns features sooner. From He's, with texts changed at random, it stayed at chance.
        """
        generator = torch.Generator().manual_seed(seed)
        shapes = self.config.parameter_shapes
        with torch.no_grad():
            for name, shape in shapes.items():
                if name.startswith("norm"):
                    continue
                bound = math.prod(shapes[f"{name.partition('.')[0]}.weight"][1:]) ** -0.5
                value = (2 * torch.rand(shape, generator=generator) - 1) * bound
                self._of(name).copy_(self._inward(name, value))

    def arrays(self, values: Mapping[str, torch.Tensor] | None = None) -> dict[str, np.ndarray]:
        """The parameters, or other values of theirs by attribute, by the names and in the shapes of `Config`."""
        outward = {}
        for name, shape in self.config.parameter_shapes.items():
            value = (self._of(name) if values is None else values[_attribute(name)]).detach().float().cpu()
            if name.startswith("norm"):
                value = value.T
            elif name == "fc1.weight":
                value = value.unflatten(1, (-1, self.config.channels)).transpose(1, 2)
            outward[name] = np.array(value.reshape(shape).numpy(), order="C")
        return outward

    def load(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Take the parameters that `arrays` gave."""
        with torch.no_grad():
            for name in self.config.parameter_shapes:
                self._of(name).copy_(self._inward(name, torch.from_numpy(arrays[name])))

    def forward(
        self, ids: torch.Tensor, partners: torch.Tensor | None = None, share: torch.Tensor | None = None
    ) -> torch.Tensor:
        """The logits; with `partners` (N, L), of the mixture share * ids + (1 - share) * partners, share (N,)."""
        x = F.embedding(ids.int(), self.one_hot)
        if partners is not None and share is not None:
            weight = share.to(self.dtype)[:, None, None]
            x = x * weight + F.embedding(partners.int(), self.one_hot) * (1 - weight)
        x = x.transpose(1, 2).unsqueeze(2)
        for block in range(1, 7):
            weight = self._cast(f"conv{block}.weight")
            if block == 1:
                weight = F.pad(weight, (0, 0, 0, 0, 0, x.shape[1] - self.config.alphabet))
                weight = weight.contiguous(memory_format=torch.channels_last)
            x = F.conv2d(x, weight, self._cast(f"conv{block}.bias"))
            if self.config.layernorm and block in NORMALISED_BLOCKS:
                gamma, beta = self._cast(f"norm{block}.weight"), self._cast(f"norm{block}.bias")
                rows = x.squeeze(2).transpose(1, 2)  # (N, L, C), contiguous
                x = F.layer_norm(rows, gamma.shape, gamma, beta).transpose(1, 2).unsqueeze(2)
            x = F.relu(x)
            if block in POOLED_BLOCKS:
                x = F.max_pool2d(x, (1, POOL_SIZE))
        x = x.squeeze(2).transpose(1, 2).flatten(1)
        for block in (1, 2, 3):
            x = F.dropout(x, self.dropout, self.training)
            x = F.linear(x, self._cast(f"fc{block}.weight"), self._cast(f"fc{block}.bias"))
            x = F.relu(x) if block < 3 else x
        return x.float()

    def _of(self, name: str) -> torch.nn.Parameter:
        return getattr(self, _attribute(name))

    def _cast(self, name: str) -> torch.Tensor:
        return self._of(name).to(self.dtype)

    def _inward(self, name: str, value: torch.Tensor) -> torch.Tensor:
        """A value as `Config` shapes it, as the parameter lies here."""
        if name.startswith("norm"):
            return value.T.contiguous()
        if name == "fc1.weight":
            return value.unflatten(1, (self.config.channels, -1)).transpose(1, 2).flatten(1).contiguous()
        if value.ndim == 3:
            return value.unsqueeze(2).contiguous(memory_format=torch.channels_last)
        return value


def _attribute(name: str) -> str:
    return name.replace(".", "_")  # a parameter's name may hold no dot
