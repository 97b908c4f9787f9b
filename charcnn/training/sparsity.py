"""2:4 sparse weights: which of them a training keeps, so that sparse tensor cores can multiply by the model."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise

import numpy as np

from charcnn.config import Config
from charcnn.layers import Conv1d, Linear
from charcnn.ops.common.sparse import FOUR, SPARSE, largest


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
    layers = [node.layer.name for node in config.nodes if isinstance(node.layer, (Conv1d, Linear))]
    found = {}
    for before, layer in pairwise(layers[:-1]):
        weight, channels = arrays[f"{layer}.weight"], len(arrays[f"{before}.bias"])
        if channels % FOUR:
            raise ValueError(f"sparse={SPARSE!r}: {layer} reads {channels} channels: need a multiple of {FOUR}")
        turned = weight.reshape(len(weight), channels, -1).transpose(0, 2, 1)
        found[f"{layer}.weight"] = largest(turned).transpose(0, 2, 1).reshape(weight.shape)
    return found


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
