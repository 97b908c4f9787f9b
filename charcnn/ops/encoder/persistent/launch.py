"""All blocks of an encoder on the current GPU, for a few texts: weights packed once, and one launch."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import numpy as np

from charcnn.aliases import Array, Kernel, Stream
from charcnn.gpu import device
from charcnn.gpu.launch import Call, most_clusters
from charcnn.ops.common.moments import LANES
from charcnn.ops.common.precision import NumberFormat
from charcnn.ops.encoder.persistent.kernel import make_kernel
from charcnn.ops.encoder.persistent.plan import CLUSTERS, HEIGHTS, WARPS, BlocksPlan
from charcnn.ops.encoder.persistent.weights import LayerWeights, packed, vectors


class KeysRoom:
    """Memory in which launches of a stream exchange keys and values.

    Args:
        blocks: what is launched.
        rows: of a batch at most.
    """

    def __init__(self, blocks: PersistentBlocks, rows: int) -> None:
        plan, most = blocks.plans[0][0], max(most for _, most in blocks.plans)
        self.rows = max(1, min(rows, most * max(HEIGHTS)))
        self.keys = device.empty((2, self.rows, 2 * plan.width), np.uint16, 0)
        self.flags = device.to_device(np.zeros((most, plan.cluster, plan.meetings), np.uint32))


class PersistentBlocks:
    """An encoder's blocks, weights on the current GPU.

    Args:
        layers: weights, the first block's first.
        heads: of attention.
        eps: added to variances.
        of: fp16 or bf16.
        clusters: blocks of a cluster; the first that has a plan, and that the GPU runs, is taken.

    Raises:
        ValueError: no plan computes such sizes; names what the last one lacks.
        DeviceError: the GPU is not Hopper.
    """

    def __init__(
        self, layers: Sequence[LayerWeights], heads: int, eps: float, of: NumberFormat,
        clusters: Sequence[int] = CLUSTERS
    ) -> None:  # fmt: skip
        device.require_hopper("the persistent kernel")
        (hidden, width), self._of, self._eps = layers[0].up.shape, of, eps
        refused = ValueError("this GPU runs none")
        self.plans: list[tuple[BlocksPlan, int]] = []
        """Those of one size of clusters, the fewest rows first, and how many clusters run at once."""
        for cluster, warps in product(clusters, WARPS):
            for rows in HEIGHTS:
                try:
                    plan = BlocksPlan(width, heads, hidden, len(layers), rows, cluster, warps, device.shared_limit())
                except ValueError as error:
                    refused = error
                    continue
                if most := self._most(plan):
                    self.plans.append((plan, most))
            if self.plans:
                break
        if not self.plans:
            raise ValueError(f"clusters of {clusters} blocks: {refused}")
        plan, _ = self.plans[0]
        self._weights = device.to_device(packed(layers, plan, of))
        self._vectors = device.to_device(vectors(layers, plan))
        self.nbytes = int(self._weights.nbytes + self._vectors.nbytes)

    def _kernel(self, plan: BlocksPlan) -> Kernel:
        return make_kernel(plan, self._of.ptx_type, device.begins_early())

    def _most(self, plan: BlocksPlan) -> int:
        """Clusters that run at once."""
        addresses, offsets = [np.uint64(0)] * 6, device.to_device(np.zeros(1, np.int32))
        args = (*addresses, offsets, *map(np.uint32, (0, 0)), np.float32(0))
        return most_clusters(self._kernel(plan), plan.warps * LANES, args, plan.smem_bytes, plan.cluster)

    def plan(self, rows: int, texts: int) -> tuple[BlocksPlan, int] | None:
        """The plan for so many rows of so many texts, and clusters; None where they are too many to run at once."""
        for plan, most in self.plans:
            clusters = -(-rows // plan.rows) + texts - 1  # each text's last rows may be few
            if clusters <= most:
                return plan, clusters
        return None

    def start(self, x: Array, offsets: Array, out: Array, room: KeysRoom, stream: Stream) -> None:
        """Start all blocks on packed rows; all arrays on the GPU.

        Args:
            x: (T, H) of the format, T and N such that there is a `plan`.
            offsets: int32 (N + 1,).
            out: (T, H) of the format; rows of no text are not written.
            room: of this stream's launches alone, of T rows or more.
            stream: a CUDA stream.
        """
        found = self.plan(len(x), len(offsets) - 1)
        assert found is not None
        assert len(x) <= room.rows
        plan, clusters = found
        call = Call(
            out, stream, x.shape, self._of.dtype, {"x": self._of.dtype, "offsets": np.int32}, x=x, offsets=offsets
        )
        arrays = x, out, room.keys, room.flags, self._weights, self._vectors
        call.launch(
            self._kernel(plan), clusters, plan.warps * LANES, *(np.uint64(device.address(one)) for one in arrays),
            offsets, *map(np.uint32, (len(offsets) - 1, room.rows)), np.float32(self._eps),
            shared=plan.smem_bytes, cluster=plan.cluster, early=device.begins_early(), cooperative=True,
        )  # fmt: skip
