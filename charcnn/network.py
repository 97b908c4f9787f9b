"""The whole network from reference operators: what every level's logits are checked against."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from charcnn.config import NORMALISED_BLOCKS, POOL_SIZE, POOLED_BLOCKS, Config
from charcnn.ops import reference


def forward(ids: np.ndarray, params: Mapping[str, np.ndarray], config: Config, dtype: Any = np.float64) -> np.ndarray:
    """Token ids (N, L) uint8 -> logits (N, classes), computed in `dtype` by the plain operators."""
    p = {name: np.asarray(value, dtype) for name, value in params.items()}
    x = reference.one_hot(ids, config.alphabet, dtype=dtype)
    for block in range(1, 7):
        x = reference.conv1d(x, p[f"conv{block}.weight"], p[f"conv{block}.bias"])
        if config.layernorm and block in NORMALISED_BLOCKS:
            x = reference.layernorm(x, p[f"norm{block}.weight"], p[f"norm{block}.bias"])
        x = reference.relu(x)
        if block in POOLED_BLOCKS:
            x = reference.maxpool1d(x, POOL_SIZE)
    x = reference.collapse(x)
    x = reference.linear_relu(x, p["fc1.weight"], p["fc1.bias"])
    x = reference.linear_relu(x, p["fc2.weight"], p["fc2.bias"])
    return reference.linear(x, p["fc3.weight"], p["fc3.bias"])
