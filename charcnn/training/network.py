"""The network in PyTorch, to be trained: channels last, dropout before each linear layer."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from itertools import pairwise

import numpy as np
import torch
import torch.nn.functional as F

from charcnn.config import Config
from charcnn.layers import Conv1d, LayerNorm, Linear, MaxPool1d, Node, Relu
from charcnn.model.pytorch import attribute, function, inward, outward

_PAD = 8  # one-hot channels are padded to a multiple of it: cuDNN's tensor-core kernels take no 70


def _pooled_first(nodes: Iterable[Node]) -> list[Node]:
    """ReLU behind the pooling that follows it: the same values of a third as many, as neither changes the order."""
    steps = list(nodes)
    for at, (first, second) in enumerate(pairwise(steps)):
        if isinstance(first.layer, Relu) and isinstance(second.layer, MaxPool1d):
            steps[at : at + 2] = second, first
    return steps


def _function(node: Node) -> Callable[..., torch.Tensor]:
    if isinstance(node.layer, MaxPool1d):
        return partial(_maximum, size=node.layer.size)
    return function(node.layer, channels_last=True)


def _maximum(x: torch.Tensor, *, size: int) -> torch.Tensor:
    """Max-pooling that torch.compile fuses with what is around it, as it does not PyTorch's own."""
    end = x.shape[-1] // size * size
    largest = x[..., 0:end:size]
    for start in range(1, size):
        largest = torch.maximum(largest, x[..., start:end:size])
    return largest


class TrainableNetwork(torch.nn.Module):
    """Token ids (N, L) uint8 -> float32 logits (N, classes).

    Features are (N, C, 1, L) and lie as (N, L, C); the parameters lie to fit, and are float32 whatever the arithmetic.

    Args:
        config: the sizes.
        dropout: share of values dropped before each linear layer while training.
        dtype: of the arithmetic: torch.bfloat16, or torch.float32.
        leaky: whether ReLU leaks while training, by `leak`.
    """

    one_hot: torch.Tensor
    leak: torch.Tensor
    """The slope of what ReLU makes 0: a value on the device, which a captured graph reads anew each time."""

    def __init__(self, config: Config, dropout: float, dtype: torch.dtype, *, leaky: bool = False) -> None:
        super().__init__()
        self.config, self.dropout, self.dtype, self.leaky = config, dropout, dtype, leaky
        self._steps = [(node, _function(node)) for node in _pooled_first(config.nodes[1:])]  # less OneHot
        self.register_buffer("leak", torch.zeros(()), persistent=False)
        self._owners = {name: node for node in config.nodes for name in node.parameters}
        for name, node in self._owners.items():
            made = torch.ones if isinstance(node.layer, LayerNorm) and name.endswith("weight") else torch.zeros
            value = inward(node, made(node.parameters[name]))
            self.register_parameter(attribute(name), torch.nn.Parameter(value))
        width = -(-config.alphabet // _PAD) * _PAD
        self.register_buffer("one_hot", torch.eye(config.alphabet + 1, width, dtype=dtype))
        self.one_hot[config.alphabet] = 0  # a blank

    def arrays(self, values: Mapping[str, torch.Tensor] | None = None) -> dict[str, np.ndarray]:
        """The parameters, or other values of theirs by attribute, by the names and in the shapes of `Config`."""
        arrays = {}
        for name, node in self._owners.items():
            value = (self._of(name) if values is None else values[attribute(name)]).detach().float().cpu()
            arrays[name] = np.array(outward(node, name, value).numpy(), order="C")
        return arrays

    def load(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Take the parameters that `arrays` gave."""
        with torch.no_grad():
            for name, node in self._owners.items():
                self._of(name).copy_(inward(node, torch.from_numpy(arrays[name])))

    def laid(self, arrays: Mapping[str, np.ndarray]) -> list[tuple[torch.nn.Parameter, torch.Tensor]]:
        """Some parameters, each with an array's numbers as float32 in the order in which it has its own."""
        return [
            (self._of(name), inward(self._owners[name], torch.from_numpy(array.astype(np.float32))))
            for name, array in arrays.items()
        ]

    @torch.no_grad()
    def firing(self, ids: torch.Tensor) -> dict[str, torch.Tensor]:
        """Which channels and units give more than 0 for any of the ids: by layer with ReLU, bool (channels,)."""
        found: dict[str, torch.Tensor] = {}

        def seen(layer: str, x: torch.Tensor) -> None:
            found[layer] = (x > 0).transpose(0, 1).flatten(1).any(1)

        self._forward(ids, seen=seen)
        return found

    @torch.no_grad()
    def answers(self, ids: np.ndarray, batch: int) -> np.ndarray:
        """The logits float32 (N, classes) of ids uint8 (N, L), `batch` at a time."""
        self.eval()
        return torch.cat([self(part) for part in self._parts(ids, batch)]).cpu().numpy()

    def live(self, ids: np.ndarray, batch: int) -> dict[str, int]:
        """How many channels and units of each layer with ReLU give more than 0 for any of ids uint8 (N, L)."""
        self.eval()
        found: dict[str, torch.Tensor] = {}
        for part in self._parts(ids, batch):
            for name, fires in self.firing(part).items():
                found[name] = found[name] | fires if name in found else fires
        return {name: int(fires.sum()) for name, fires in found.items()}

    def _parts(self, ids: np.ndarray, batch: int) -> Iterator[torch.Tensor]:
        for start in range(0, len(ids), batch):
            yield torch.from_numpy(ids[start : start + batch]).to(self.one_hot.device)

    def forward(
        self, ids: torch.Tensor, partners: torch.Tensor | None = None, share: torch.Tensor | None = None
    ) -> torch.Tensor:
        """The logits; with `partners` (N, L), of the mixture share * ids + (1 - share) * partners, share (N,)."""
        return self._forward(ids, partners, share)

    def _forward(
        self,
        ids: torch.Tensor,
        partners: torch.Tensor | None = None,
        share: torch.Tensor | None = None,
        seen: Callable[[str, torch.Tensor], None] | None = None,
    ) -> torch.Tensor:
        steps, last = self._steps, ""
        if partners is None and self.gathers(ids):
            x, last, steps = self.gathered(ids), steps[0][0].layer.name, steps[1:]
        else:
            x = F.embedding(ids.int(), self.one_hot)
            if partners is not None and share is not None:
                weight = share.to(self.dtype)[:, None, None]
                x = x * weight + F.embedding(partners.int(), self.one_hot) * (1 - weight)
            x = x.transpose(1, 2).unsqueeze(2)
        for node, compute in steps:
            p = [self._of(name).to(self.dtype) for name in node.parameters]
            if isinstance(node.layer, Linear):
                x = F.dropout(x, self.dropout, self.training)
            elif isinstance(node.layer, Conv1d) and (missing := x.shape[1] - node.in_shape[0]):
                p[0] = F.pad(p[0], (0, 0, 0, 0, 0, missing)).contiguous(memory_format=torch.channels_last)
            if isinstance(node.layer, Relu) and self.leaky and self.training:
                x = torch.maximum(x, x * self.leak)
            else:
                x = compute(x, *p)
            if isinstance(node.layer, Conv1d | Linear):
                last = node.layer.name
            elif seen is not None and isinstance(node.layer, Relu):
                seen(last, x)
        return x.float()

    def gathers(self, ids: torch.Tensor) -> bool:
        """Whether `gathered` computes the first convolution of these ids: on a CPU in float32."""
        return ids.device.type == "cpu" and self.dtype == torch.float32

    def gathered(self, ids: torch.Tensor) -> torch.Tensor:
        """The first convolution without products: a sum of as many rows of its weights as the kernel is long."""
        rows = self.rows()
        size, characters, channels = rows.shape
        at = ids.unfold(1, size, 1).int() + torch.arange(0, size * characters, characters, dtype=torch.int32)
        sums = F.embedding_bag(at.reshape(-1, size), rows.flatten(0, 1), mode="sum") + self._of("conv1.bias")
        return sums.reshape(len(ids), -1, channels).transpose(1, 2).unsqueeze(2)

    def rows(self) -> torch.Tensor:
        """Weights of the first convolution (kernel size, alphabet + 1, channels); a blank's, the last ones, are 0."""
        return F.pad(self._of("conv1.weight")[:, :, 0].permute(2, 1, 0), (0, 0, 0, 1))

    def _of(self, name: str) -> torch.nn.Parameter:
        return getattr(self, attribute(name))
