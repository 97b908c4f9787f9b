"""Names of release 1.0 for prepared convolutions over images."""

from __future__ import annotations

from typing import Any

from charcnn.ops.common.former import former
from charcnn.ops.conv1d.double_buffered_layer import DoubleBufferedConv
from charcnn.ops.conv1d.mma.layer import MmaConv
from charcnn.ops.conv1d.small_batch import SmallBatchConv
from charcnn.ops.conv1d.wgmma.layer import WgmmaConv
from charcnn.ops.conv1d.winograd import WinogradConv


def __getattr__(name: str) -> Any:
    return former(__name__, name, WgmmaConv, MmaConv, SmallBatchConv, WinogradConv, DoubleBufferedConv)
