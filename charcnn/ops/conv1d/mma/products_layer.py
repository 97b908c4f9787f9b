"""A product of training on tensor cores of any GPU since compute capability 8.0."""

from __future__ import annotations

from charcnn.aliases import Array
from charcnn.gpu import device
from charcnn.ops.conv1d.mma.products import BLOCK_M, K_BLOCK, THREADS, MmaProductTile, make_product_kernel
from charcnn.ops.conv1d.products import After, Kind, Made, TrainingProduct


class MmaProduct(TrainingProduct):
    """A product by mma.sync, with copies by cp.async."""

    block_m, k_block, threads = BLOCK_M, K_BLOCK, THREADS

    @staticmethod
    def require() -> None:
        """Raise DeviceError unless the current GPU has tensor cores of compute capability 8.0 or later."""
        device.require_tensor_cores("mma")

    def resident(self, block_n: int) -> int:
        """See `TrainingProduct.resident`."""
        return MmaProductTile.of(block_n).resident

    def made(
        self, kind: Kind, after: After, ptx_type: str, a: Array, b: Array, out: Array, mask: Array | None, taps: int
    ) -> Made:
        """See `TrainingProduct.made`."""
        tile, depth = MmaProductTile.of(tuple(out.shape)[-1]), a.shape[0 if kind.by_tap else 1]
        kernel, operands = make_product_kernel(kind, tile, after, ptx_type), (a, b, out, out if mask is None else mask)
        return Made(kernel, tile.smem_bytes, operands, (depth, a.shape[0]))
