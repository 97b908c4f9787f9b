"""The whole network from reference operators: what every level's logits are checked against."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from charcnn.config import NORMALISED_BLOCKS, POOL_SIZE, POOLED_BLOCKS, Config
from charcnn.ops import reference


def forward(ids: np.ndarray, params: Mapping[str, np.ndarray], config: Config, dtype: Any = np.float64) -> np.ndarray:
    """Token ids (N, L) uint8 -> logits (N, classes), computed in `dtype` by the plain operators."""

    def p(name: str) -> tuple[np.ndarray, np.ndarray]:  # converted where used: all at once would take 95 MB
        return np.asarray(params[f"{name}.weight"], dtype), np.asarray(params[f"{name}.bias"], dtype)

    x = reference.one_hot(ids, config.alphabet, dtype=dtype)
    for block in range(1, 7):
        x = reference.conv1d(x, *p(f"conv{block}"))
        if config.layernorm and block in NORMALISED_BLOCKS:
            x = reference.layernorm(x, *p(f"norm{block}"))
        x = reference.relu(x)
        if block in POOLED_BLOCKS:
            x = reference.maxpool1d(x, POOL_SIZE)
    x = reference.collapse(x)
    x = reference.linear_relu(x, *p("fc1"))
    x = reference.linear_relu(x, *p("fc2"))
    return reference.linear(x, *p("fc3"))
