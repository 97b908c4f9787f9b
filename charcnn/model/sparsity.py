"""2:4 sparse weights: which of them are kept, so that sparse tensor cores can multiply by the model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import pairwise

import numpy as np

from charcnn.config import Config
from charcnn.layers import Conv1d, Linear
from charcnn.model.params import Params
from charcnn.ops.common.sparse import FOUR, KEPT, SPARSE, largest


def masks(arrays: Mapping[str, np.ndarray], config: Config) -> dict[str, np.ndarray]:
    """Which weights of each layer are kept, bool in their shapes, by their names.

    Of each four neighbouring input channels at a tap or position, an output keeps the two largest weights. The first
    layer, which is read by token ids, and the last, which has few outputs, stay dense, and are left out.

    Args:
        arrays: the weights by name, in the shapes of `Config`.
        config: the sizes.

    Raises:
        ValueError: a layer's input channels are not a multiple of 4; names it.
    """
    found = {}
    for layer, turned in _turned(arrays, config):
        shape = arrays[f"{layer}.weight"].shape
        found[f"{layer}.weight"] = largest(turned).transpose(0, 2, 1).reshape(shape)
    return found


def _turned(arrays: Mapping[str, np.ndarray], config: Config) -> Iterator[tuple[str, np.ndarray]]:
    """Layers that have sparse weights, and those weights as (outputs, taps or positions, input channels)."""
    layers = [node.layer.name for node in config.nodes if isinstance(node.layer, (Conv1d, Linear))]
    for before, layer in pairwise(layers[:-1]):
        weight, channels = arrays[f"{layer}.weight"], len(arrays[f"{before}.bias"])
        if channels % FOUR:
            raise ValueError(f"sparse={SPARSE!r}: {layer} reads {channels} channels: need a multiple of {FOUR}")
        yield layer, weight.reshape(len(weight), channels, -1).transpose(0, 2, 1)


def begun(
    arrays: Mapping[str, np.ndarray], config: Config, sparse: str
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """What a training begins with, and the masks that it keeps.

    Args:
        arrays, config: as of `masks`.
        sparse: the recipe's; where "", the arrays are as they were, and there are no masks.

    Raises:
        ValueError: as of `masks`.
    """
    kept = masks(arrays, config) if sparse else {}
    zeroed = {name: np.where(mask, arrays[name], np.float32(0)) for name, mask in kept.items()}
    return {**arrays, **zeroed}, kept


def pruned(params: Params) -> Params:
    """The weights with all but the two largest of each four 0, where `masks` says so.

    Args:
        params: those of a CharCNN.

    Raises:
        ValueError: as of `masks`.
    """
    arrays, _ = begun(params, params.config, SPARSE)
    return Params(arrays, params.config, params.encoding, params.classes, params.metadata)


def fits(params: Params) -> bool:
    """Whether `check` accepts the weights."""
    try:
        check(params, params.config)
    except ValueError:
        return False
    return True


def check(arrays: Mapping[str, np.ndarray], config: Config) -> None:
    """Raise ValueError where more than two of four weights count, or as of `masks`; names the layer."""
    for layer, weight in _turned(arrays, config):
        if (np.count_nonzero(weight.reshape(-1, FOUR), 1) > KEPT).any():
            raise ValueError(
                f"{layer}.weight has more than two of four weights that are not 0: "
                f"need {SPARSE} sparse ones, as charcnn train --sparse {SPARSE} writes them"
            )
