"""MPI: what goes to which rank, and comes back.

The root (rank 0) holds all inputs and receives all logits. Token ids travel as one byte a character; the dense
one-hot form that the original program sent is 280 times larger. With `static` each rank has a share of the inputs that
is known before; with `asynchronous` chunks go to whoever returns logits. `farm` gives them to whoever will be done
first, and outlives its workers. All three compute while messages are under way, and every rank has the whole network.
`tensor` and `pipeline` give each a part of it, and send features.
"""

from charcnn.offload.checkpoint import Checkpoint, describe
from charcnn.offload.farm import Farm, farm
from charcnn.offload.farm.worker import RootLost, work
from charcnn.offload.inputs import Encoded, Repeated
from charcnn.offload.messages import survives_deaths
from charcnn.offload.overlap import asynchronous, static
from charcnn.offload.pipeline_parallel import Stage, bubble, bubble_of, pipeline
from charcnn.offload.ranks import LAUNCHED, cuda_aware, gpu_share, local_place, settle_near, shares, world
from charcnn.offload.service import Service
from charcnn.offload.stream import Overlapped, Scattered
from charcnn.offload.tensor_parallel import Step, Steps, tensor
from charcnn.offload.topology import Place, advice, place

MODES = {"static": static, "async": asynchronous, "farm": farm}
"""The ways to offload, by the name that a command's option `--offload` gives them."""

PARTED = {"tensor": tensor, "pipeline": pipeline}
"""Those in which a rank has a part of the network, likewise."""

__all__ = [
    "LAUNCHED",
    "MODES",
    "PARTED",
    "Checkpoint",
    "Encoded",
    "Farm",
    "Overlapped",
    "Place",
    "Repeated",
    "RootLost",
    "Scattered",
    "Service",
    "Stage",
    "Step",
    "Steps",
    "advice",
    "asynchronous",
    "bubble",
    "bubble_of",
    "cuda_aware",
    "describe",
    "farm",
    "gpu_share",
    "local_place",
    "pipeline",
    "place",
    "settle_near",
    "shares",
    "static",
    "survives_deaths",
    "tensor",
    "work",
    "world",
]
