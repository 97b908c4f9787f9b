"""MPI: what goes to which rank, and comes back.

The root (rank 0) holds all inputs and receives all logits. Token ids travel as one byte a character; the dense
one-hot form that the original program sent is 280 times larger. `static` scatters, computes and gathers;
`asynchronous` overlaps the three.
"""

from charcnn.offload.overlap import asynchronous
from charcnn.offload.ranks import LAUNCHED, gpu_share, local_place, shares, world
from charcnn.offload.scatter import static
from charcnn.offload.source import Encoded, Repeated

__all__ = [
    "LAUNCHED",
    "Encoded",
    "Repeated",
    "asynchronous",
    "gpu_share",
    "local_place",
    "shares",
    "static",
    "world",
]
