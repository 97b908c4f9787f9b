"""A product of training on Hopper's tensor cores, with its tensor maps, which are encoded once."""

from __future__ import annotations

from charcnn.aliases import Array
from charcnn.gpu import device, tensor_map
from charcnn.ops.conv1d.products import After, Kind, Made, TrainingProduct
from charcnn.ops.conv1d.wgmma.config import K_BLOCK
from charcnn.ops.conv1d.wgmma.matmul import BOX_COLUMNS, BOX_ROWS
from charcnn.ops.conv1d.wgmma.products import BLOCK_M, CLUSTER, SHARE_ROWS, THREADS, ProductTile, make_product_kernel


class WgmmaProduct(TrainingProduct):
    """A product by wgmma, with copies by TMA."""

    block_m, k_block, threads, cluster = BLOCK_M, K_BLOCK, THREADS, CLUSTER

    @staticmethod
    def require() -> None:
        """Raise DeviceError unless the current GPU is Hopper's."""
        device.require_hopper("wgmma")

    def made(
        self, kind: Kind, after: After, ptx_type: str, a: Array, b: Array, out: Array, mask: Array | None, taps: int
    ) -> Made:
        """See `TrainingProduct.made`."""
        tile, (turned_a, turned_b) = ProductTile.of(tuple(out.shape)[-1], after), kind.transposed
        results = BOX_COLUMNS, BOX_ROWS
        map_a = _map(a, (BOX_COLUMNS, K_BLOCK if turned_a else BLOCK_M))
        map_b = _map(b, (BOX_COLUMNS, SHARE_ROWS if turned_b else tile.block_n // CLUSTER))
        map_y = map_a if after.partial else _map(out, results)
        maps = map_a, map_b, map_y, map_y if mask is None else _map(mask, results)
        return Made(make_product_kernel(kind, tile, after, ptx_type), tile.smem_bytes, maps, (b.shape[0] // taps,))


def _map(array: Array, box: tuple[int, int]) -> Array:
    rows, columns = array.shape
    return tensor_map.encode(array, (columns, rows), (2 * columns,), box)
