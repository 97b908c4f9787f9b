"""A narrower network: channels and units that never fire on given rows are removed, and nothing else changes.

What ReLU makes 0 for every row adds 0 to the next layer's sums, so that removing it leaves each sum the same for these
rows; for others nothing is said. Channels that a LayerNorm reads are kept, all of them: one that never fires still
counts in the mean and the variance, and no weight of another could take its part.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from charcnn.config import NORMALISED_BLOCKS, POOL_SIZE, Config
from charcnn.layers import Relu
from charcnn.model.params import Params
from charcnn.ops.common import threads
from charcnn.ops.common.cpu_conv import CpuConv
from charcnn.ops.layernorm.norm_relu_pool import NormReluPool
from charcnn.ops.reference import softmax
from charcnn.ops.token_conv1d.cpu import CpuTokenConvNormReluPool

HIDDEN = (*(f"conv{block}" for block in range(1, 7)), "fc1", "fc2")
"""The layers with ReLU, in the order of `Config.widths`."""


PART = 48
"""Inputs at a time, as level 11 takes them."""


class Watched:
    """The network on the CPU, in float32, as level 11 computes it; it keeps what each channel's largest value was.

    Args:
        params: the weights.
        config: the sizes.
    """

    def __init__(self, params: Mapping[str, np.ndarray], config: Config) -> None:
        threads.layer()
        p, self._config = params, config
        self.peaks = {name: np.full(len(p[f"{name}.weight"]), -np.inf, np.float32) for name in HIDDEN}
        """By layer, float32 (channels,): the largest before ReLU; of what LayerNorm reads, behind it and ReLU."""
        norms = [NormReluPool(None, None, POOL_SIZE)] * 2
        if config.layernorm:
            norms = [NormReluPool(p[f"norm{i}.weight"], p[f"norm{i}.bias"], POOL_SIZE) for i in NORMALISED_BLOCKS]
        self._block1 = CpuTokenConvNormReluPool(p["conv1.weight"], p["conv1.bias"], norms[0], config.length)

        def conv(layer: str, weight: np.ndarray) -> CpuConv:
            kinds = [one for one in config.pattern(layer) if not isinstance(one, Relu)]
            return CpuConv(kinds[: 1 + (layer == "conv2")], {"weight": weight.T, "bias": p[f"{layer}.bias"]})

        self._convs = {block: conv(f"conv{block}", p[f"conv{block}.weight"]) for block in range(2, 7)}
        self._norm6 = norms[1]
        by_channel = p["fc1.weight"].reshape(config.fc_units[0], config.block_channels[5], -1).transpose(0, 2, 1)
        fc1 = conv("fc1", by_channel.reshape(config.fc_units[0], config.features))
        self._fc = [fc1, *(conv(layer, p[f"{layer}.weight"]) for layer in ("fc2", "fc3"))]

    def __call__(self, ids: np.ndarray) -> np.ndarray:
        """Token ids (N, L) uint8 -> logits (N, classes) float32."""
        logits = np.empty((len(ids), self._config.classes), np.float32)
        for start in range(0, len(ids), PART):
            self._forward(ids[start : start + PART], logits[start : start + PART])
        return logits

    def _forward(self, ids: np.ndarray, logits: np.ndarray) -> None:
        config, n = self._config, len(ids)
        channels, lengths, pooled = config.block_channels, config.conv_lengths, config.block_lengths

        def space(*shape: int) -> np.ndarray:
            return np.empty((n, *shape), np.float32)

        x = self._seen("conv1", self._block1(ids, space(pooled[0], channels[0])))
        x = self._convs[2](x, space(pooled[1], channels[1]))
        x = self._seen("conv2", x)
        for block in (3, 4, 5):
            x = self._convs[block](x, space(lengths[block - 1], channels[block - 1]))
            x = self._seen(f"conv{block}", x)
        y = self._convs[6](x, space(lengths[5], channels[5]))
        x = self._seen("conv6", self._norm6(y, space(pooled[5], channels[5])))
        x = x.reshape(n, config.features)
        for at, fc in enumerate(self._fc[:2]):
            x = self._seen(HIDDEN[6 + at], fc(x, space(config.fc_units[at])))
        self._fc[2](x, logits)

    def _seen(self, name: str, x: np.ndarray) -> np.ndarray:
        peaks = self.peaks[name]
        np.maximum(peaks, x.reshape(-1, x.shape[-1]).max(axis=0), out=peaks)
        return np.maximum(x, 0, out=x)


@dataclass(frozen=True)
class Compacted:
    """A narrower network, and what became of each layer."""

    params: Params
    live: dict[str, int]
    """By layer of HIDDEN: how many channels or units fire."""


def compact(params: Params, peaks: Mapping[str, np.ndarray], multiple: int = 32) -> Compacted:
    """Remove what never fires.

    Args:
        params: the network; what it says of itself stays, but for what was measured.
        peaks: what `Watched` saw of rows that stand for all that will come.
        multiple: kernels like widths that are multiples of it, so that some of what never fires is kept, too: what
            came nearest to it.

    Raises:
        ValueError: multiple is no int of at least 1.
    """
    if isinstance(multiple, bool) or not isinstance(multiple, int) or multiple < 1:
        raise ValueError(f"multiple={multiple!r}: need an int of at least 1")
    config: Config = params.config
    live = {name: int((peaks[name] > 0).sum()) for name in HIDDEN}
    kept = {}
    for name in HIDDEN:
        width = len(peaks[name])
        count = min(width, -(-max(live[name], 1) // multiple) * multiple)
        if config.layernorm and name in {f"conv{block}" for block in NORMALISED_BLOCKS}:
            count = width
        kept[name] = np.sort(np.argsort(-peaks[name], kind="stable")[:count])
    narrow = {name: np.array(value) for name, value in params.items()}
    for name, reader in zip(HIDDEN, (*HIDDEN[1:], "fc3"), strict=True):
        at = kept[name]
        for part in ("weight", "bias"):
            narrow[f"{name}.{part}"] = narrow[f"{name}.{part}"][at]
        weight = narrow[f"{reader}.weight"]
        if reader == "fc1":  # its columns are those of a channel, one a position
            weight = weight.reshape(len(weight), len(peaks[name]), -1)[:, at].reshape(len(weight), -1)
        else:
            weight = weight[:, at]
        narrow[f"{reader}.weight"] = weight
    widths = tuple(len(kept[name]) for name in HIDDEN)
    sizes = {name: value for name, value in config.to_dict().items() if name not in ("channels", "units", "widths")}
    config = Config.of_widths(widths, **sizes)
    arrays = {name: np.ascontiguousarray(narrow[name]) for name in config.parameter_shapes}
    says = {name: value for name, value in params.metadata.items() if name not in _MEASURED}
    return Compacted(Params(arrays, config, params.encoding, params.classes, says), live)


_MEASURED = ("accuracy", "validation", "test", "live", "teacher_of")
"""What a model's file says that is of the network as it was."""


def apart(logits: np.ndarray, others: np.ndarray, *, multi_label: bool = False) -> tuple[int, float]:
    """Of how many rows the label differs, or one of several, and the largest change of a probability."""
    if multi_label:
        changed = int(((logits >= 0) != (others >= 0)).any(1).sum())
        shares = [1 / (1 + np.exp(-np.asarray(each, np.float64).clip(-700))) for each in (logits, others)]
        return changed, float(np.abs(shares[0] - shares[1]).max(initial=0))
    changed = int((logits.argmax(1) != others.argmax(1)).sum())
    shares = [softmax(np.asarray(of, np.float64)) for of in (logits, others)]
    return changed, float(np.abs(shares[0] - shares[1]).max(initial=0))
