"""The former place of a linear layer of int8 or bf16 on all CPU cores."""

from __future__ import annotations

from charcnn.aliases import Function
from charcnn.ops.common.former import former_on_cpu
from charcnn.ops.conv1d.cpu_dot import CpuDotConv


def __getattr__(name: str) -> Function:
    return former_on_cpu(__name__, name, CpuDotConv)
