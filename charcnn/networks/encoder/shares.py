"""A rank's share of an encoder: some heads of each attention, and some units between the two products behind it.

The product that reads them then gives a part of its sum, which all ranks add up: two sums a layer (Shoeybi et al. 2019,
Megatron-LM). Embeddings, normalisations and means are every rank's own.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from charcnn.layers import Projection, SelfAttention
from charcnn.networks.encoder import EncoderStep


def check(steps: Sequence[EncoderStep], ranks: int) -> None:
    """Raise ValueError unless so many ranks can share the steps."""
    for step in steps:
        layer = step.layer
        if isinstance(layer, SelfAttention) and layer.heads % ranks:
            raise ValueError(f"{ranks} ranks: need a divisor of the {layer.heads} heads of {layer.label}")
        if isinstance(layer, Projection) and step.epilogue and step.units % (8 * ranks):
            raise ValueError(f"{ranks} ranks: {layer.label} has {step.units} units: need a multiple of {8 * ranks}")


def share(
    step: EncoderStep, weight: np.ndarray, bias: np.ndarray, rank: int, ranks: int
) -> tuple[np.ndarray, np.ndarray]:
    """Of a product's weight (units, values) and bias (units,) this rank's part.

    Of queries, keys and values those of its heads; of what ends in a function its units; of the others, the values that
    it has, and the bias on the first rank alone.
    """
    if step.kind == "attend" or step.epilogue:
        parts = 3 if step.kind == "attend" else 1
        units = len(bias) // parts // ranks
        mine = slice(rank * units, (rank + 1) * units)
        apart = weight.reshape(parts, -1, weight.shape[1])[:, mine]
        return apart.reshape(-1, weight.shape[1]), bias.reshape(parts, -1)[:, mine].reshape(-1)
    values = weight.shape[1] // ranks
    return weight[:, rank * values : (rank + 1) * values], bias if rank == 0 else np.zeros_like(bias)
