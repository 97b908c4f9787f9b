"""Collectives of the GPUs of one host, for messages that are small: their kernels put values into each other's memory.

A `Group` is a rank's side. What it starts is kernels on a stream, nothing of which passes through the host, so that it
can be recorded in a CUDA graph. docs/collectives.md tells how it works.
"""

from charcnn.gpu.collectives.group import Group
from charcnn.gpu.collectives.protocols import PROTOCOLS

__all__ = ["PROTOCOLS", "Group"]
