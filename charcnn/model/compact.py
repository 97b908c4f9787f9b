"""A narrower network: channels and units that never fire on given rows are removed, and nothing else changes.

What ReLU makes 0 for every row adds 0 to the next layer's sums, so that removing it leaves each sum the same for these
rows; for others nothing is said. Channels that a LayerNorm reads are kept, all of them: one that never fires still
counts in the mean and the variance, and no weight of another could take its part.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from charcnn.config import NORMALISED_BLOCKS, Config
from charcnn.model import calibrate
from charcnn.model.params import Params
from charcnn.ops.reference import softmax

HIDDEN = (*(f"conv{block}" for block in range(1, 7)), "fc1", "fc2")
"""The layers with ReLU, in the order of `Config.widths`."""


class Watched:
    """The network on the CPU, in float32; it keeps what each channel's largest value was.

    Args:
        params: the weights.
        config: the sizes.
    """

    def __init__(self, params: Mapping[str, np.ndarray], config: Config) -> None:
        self._params, self._config = params, config
        self.peaks = {name: np.full(len(params[f"{name}.weight"]), -np.inf, np.float32) for name in HIDDEN}
        """By layer, float32 (channels,): the largest before ReLU."""

    def __call__(self, ids: np.ndarray) -> np.ndarray:
        """Token ids (N, L) uint8 -> logits (N, classes) float32."""
        parts = (ids[start : start + calibrate.PART] for start in range(0, len(ids), calibrate.PART))
        logits = [calibrate.forward(self._params, self._config, part, before_relu=self._look) for part in parts]
        return np.concatenate([np.empty((0, self._config.classes), np.float32), *logits])

    def _look(self, name: str, x: np.ndarray) -> None:
        np.maximum(self.peaks[name], x.reshape(-1, x.shape[-1]).max(axis=0), out=self.peaks[name])


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
