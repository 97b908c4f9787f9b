"""The operators of `SparseConv` on float32 arrays: each packs weights and lays out features, and gives float32."""

from __future__ import annotations

from charcnn.ops.conv1d import one_shot
from charcnn.ops.conv1d.wgmma import variants
from charcnn.ops.conv1d.wgmma_sparse.layer import SparseConv


class _Kept(variants.WgmmaKept):
    """A `one_shot.Kept`."""

    made, whole = SparseConv, False


launch, launch_pooled, _, launch_linear, *_ = one_shot.launches(
    _Kept,
    """For weights of which two of each four neighbouring input channels are 0: other weights are refused.

    Each call packs them, casts the features and the result; `SparseConv` leaves that out. A pooling takes the maximum
    of 3.

    Raises:
        ValueError: more than two of four weights count, or shared memory does not hold what so many taps read.
    """,
)
