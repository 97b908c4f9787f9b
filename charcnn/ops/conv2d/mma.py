"""conv2d on tensor cores by mma.sync, on float32 arrays: each call lays out weights and features, and gives float32."""

from __future__ import annotations

from charcnn.ops.conv1d import one_shot
from charcnn.ops.conv1d.mma.layer import compute

launch = one_shot.launch_conv2d(
    compute,
    """Each call lays out its weights, casts the features and the result; the layer `MmaConv` leaves all that out.

    With more than one group, each has a multiple of 32 output channels, and of 8 input channels, in fp8 of 16.

    Raises:
        ValueError: groups have other channels; in fp8, a GPU of compute capability below 8.9.
    """,
)
