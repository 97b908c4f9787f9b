"""Collectives of GPUs, for messages that are small: their kernels put values into each other's memory.

A `Group` is a rank's side on one host. What it starts is kernels on a stream, nothing of which passes through the host,
so that it can be recorded in a CUDA graph. `Hosts` is that of a rank on one of several hosts, between which there are
messages of MPI. docs/collectives.md tells how both work.
"""

from charcnn.gpu.collectives.group import Group
from charcnn.gpu.collectives.hosts import Hosts
from charcnn.gpu.collectives.protocols import PROTOCOLS

__all__ = ["PROTOCOLS", "Group", "Hosts"]
