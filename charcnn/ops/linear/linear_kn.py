"""linear with packed weights: the double-buffered matrix product of conv1d_nlc, for inputs of one position."""

from __future__ import annotations

from typing import Any

import numpy as np

from charcnn.gpu.launch import Call
from charcnn.ops.conv1d.k_splits import splits_shape, start


def launch_once(call: Call, x: Any, weight: Any, bias: Any, *, epilogue: str) -> None:
    """Sums of many inputs' values are split, and joined by a second kernel."""
    splits = splits_shape(x.shape[0], *weight.shape)
    start(call, (x, weight, bias), call.scratch(splits, np.float32) if splits else None, epilogue)
