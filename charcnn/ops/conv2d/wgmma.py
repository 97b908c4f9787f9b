"""conv2d on Hopper's tensor cores, on float32 arrays: each call lays out weights and features, and gives float32."""

from __future__ import annotations

from charcnn.ops.conv1d import one_shot
from charcnn.ops.conv1d.wgmma.layer import compute

launch = one_shot.launch_conv2d(
    compute,
    """Each call lays out its weights, casts the features and the result; the layer `WgmmaConv` leaves all that out.

    Strides are up to 8, a window spans up to 128 pixels. With more than one group, each has a multiple of 32 output
    channels, and of 16 bytes of input channels.

    Raises:
        ValueError: stride, dilation or groups are others.
    """,
)
