"""A convolution of seven taps with ReLU and max-pooling of 3, by Toom-Cook's products: prepared once, then applied."""

from __future__ import annotations

from typing import Any

import numpy as np

from charcnn.gpu import device, tensor_map
from charcnn.gpu.launch import Call
from charcnn.ops.common import arrays, shapes
from charcnn.ops.conv1d.toom_cook import planes as plane_kernels
from charcnn.ops.conv1d.toom_cook.config import A_ROWS, BLOCK_M, THREADS, TileConfig
from charcnn.ops.conv1d.toom_cook.kernel import make_kernel
from charcnn.ops.conv1d.toom_cook.pack import packed_bias, packed_weights
from charcnn.ops.conv1d.toom_cook.transforms import POINTS, TAPS, WINDOW, plane_rows
from charcnn.ops.conv1d.wgmma.config import K_BLOCK


class ToomCookWeights:
    """conv1d_relu_maxpool1d_nlc of seven taps in fp16 with float32 sums, on Hopper's tensor cores.

    Its planes are the features' values at six points, twice as many numbers as features. In 16 bits the weights take 11
    / 7 of what they take elsewhere. A feature that is not finite makes NaN of the windows around it.

    Args:
        weight: float32 (7, C_in, C_out), as `arrays.pack` gives it, NumPy, C-contiguous: C_in in whole 64s, C_out in
            whole 8s.
        bias: float32 (C_out,), NumPy.
        tile: a block's.

    Raises:
        ValueError: an argument's shape, dtype or layout does not fit, or the tile does not.
        DeviceError: no usable GPU, or none with these tensor cores (compute capability 9.0).
    """

    def __init__(self, weight: np.ndarray, bias: np.ndarray, *, tile: TileConfig | None = None) -> None:
        device.require_hopper("toom_cook")
        taps, self.c_in, self.c_out = shapes.ranked("weight", weight, "K, C_in, C_out")
        shapes.conv1d_nlc(np.empty((0, max(1, taps), self.c_in)), weight, bias)  # checks what can be of both
        for name, array in (("weight", weight), ("bias", bias)):
            if not isinstance(array, np.ndarray):
                raise ValueError(f"{name} is a {type(array).__name__}: need a NumPy array")
            arrays.check(name, array)
        if taps != TAPS or self.c_in % K_BLOCK or self.c_out % 8:
            shape = tuple(weight.shape)
            raise ValueError(f"weight has {shape=}: need {TAPS} taps, C_in in whole {K_BLOCK}s, C_out in whole 8s")
        self.kernel_size, self._k_blocks = taps, self.c_in // K_BLOCK
        self.tile = tile = TileConfig() if tile is None else tile
        if not tile.fits(self._k_blocks):
            raise ValueError(f"{tile=}: need no more stages than C_in // {K_BLOCK} + 1, or not staggered")
        self._shared = tile.smem_bytes(self.c_out)
        if self._shared > (limit := device.shared_limit()):
            raise ValueError(f"{tile=}: needs {self._shared:,} bytes of shared memory, a block has {limit:,}")
        self._weight = device.to_device(packed_weights(weight, tile))
        self._bias = device.to_device(packed_bias(bias, tile))
        self.nbytes = int(self._weight.nbytes + self._bias.nbytes)
        self._kernel = make_kernel(tile)
        self._maps: dict[tuple[Any, ...], Any] = {}

    def planes_shape(self, n: int, length: int) -> shapes.Shape:
        """Of the planes of features (n, length, C_in): (n, windows + 1, 6, C_in)."""
        return n, plane_rows(length), POINTS, self.c_in

    def planes(self, x: Any, *, out: Any = None, stream: Any = None) -> Any:
        """The planes of features, float16 of `planes_shape`.

        Args:
            x: float16 or float32 (N, L, C_in) on the GPU, C-contiguous, L from 9 on.
            out: where to write, on the GPU; made where None.
            stream: a CUDA stream; the default stream where None.

        Raises:
            ValueError: an argument's shape, dtype, layout or side does not fit.
        """
        n, length, channels = shapes.ranked("x", x, "N, L, C_in")
        self._check("x", x, channels)
        if length < TAPS + WINDOW - 1:
            raise ValueError(f"x has {length} positions: need at least {TAPS + WINDOW - 1}")
        wide = x.dtype == np.float32
        dtypes = {"x": np.float32 if wide else np.float16}
        call = Call(out, stream, self.planes_shape(n, length), np.float16, dtypes=dtypes, x=x)
        (x,), z = call.inputs, call.out
        self._aligned(x=x, out=z)
        size = z.size // POINTS // plane_kernels.CHANNELS
        if n * length >= 1 << 31 or size >= 1 << 31:
            raise ValueError(f"x has shape {tuple(x.shape)}: that many positions in all need a smaller batch")
        addresses = (np.uint64(device.address(array)) for array in (x, z))
        numbers = map(np.uint32, (size, channels, length, plane_rows(length)))
        blocks = min(-(-size // plane_kernels.THREADS), 32 * device.multiprocessors())
        call.launch(plane_kernels.make_kernel(wide), blocks, plane_kernels.THREADS, *addresses, *numbers)
        return call.result()

    def of_planes(self, planes: Any, *, out: Any = None, stream: Any = None) -> Any:
        """conv1d_relu_maxpool1d_nlc of the features that these are planes of: float16 (N, windows, C_out).

        Args:
            planes: float16 (N, windows + 1, 6, C_in) on the GPU, C-contiguous.
            out: where to write, on the GPU; made where None.
            stream: a CUDA stream; the default stream where None.

        Raises:
            ValueError: an argument's shape, dtype, layout or side does not fit.
        """
        n, length, points, channels = shapes.ranked("planes", planes, "N, windows + 1, 6, C_in")
        self._check("planes", planes, channels)
        if points != POINTS or length < 2:
            raise ValueError(f"planes has shape {tuple(planes.shape)}: need {POINTS} planes of at least 2 rows")
        if (rows := n * length) >= 1 << 31:
            raise ValueError(f"planes has shape {tuple(planes.shape)}: need fewer than {1 << 31} rows in all")
        shape = n, length - 1, self.c_out
        call = Call(out, stream, shape, np.float16, dtypes={"planes": np.float16}, planes=planes)
        (planes,), y = call.inputs, call.out
        if n == 0:
            return call.result()
        self._aligned(planes=planes, out=y)
        addresses = (np.uint64(device.address(one)) for one in (self._map(planes, rows), self._weight, self._bias, y))
        numbers = map(np.uint32, (self._k_blocks, self.c_out, rows, length, length - 1))
        cluster = self.tile.cluster_m
        tiles = -(-rows // (BLOCK_M * cluster)) * self.tile.n_tiles(self.c_out)
        clusters = min(tiles, self.tile.clusters(device.multiprocessors()))
        call.launch(self._kernel, clusters, THREADS, *addresses, *numbers, shared=self._shared, cluster=cluster)
        return call.result()

    def conv1d_relu_maxpool1d(self, x: Any, *, out: Any = None, stream: Any = None) -> Any:
        """conv1d_relu_maxpool1d_nlc: (N, (L - 6) // 3, C_out) of x as `planes` takes it; planes are made each time."""
        return self.of_planes(self.planes(x, stream=stream), out=out, stream=stream)

    def _check(self, name: str, array: Any, channels: int) -> None:
        if not device.on_device(array):
            raise ValueError(f"{name} is a {type(array).__name__}: need an array on the GPU")
        if channels != self.c_in:
            raise ValueError(f"{name} has shape {tuple(array.shape)}: need C_in={self.c_in}, as weight has")

    def _aligned(self, **given: Any) -> None:
        for name, array in given.items():
            if beyond := device.address(array) % 16:
                raise ValueError(f"{name} begins {beyond} bytes behind a multiple of 16: need one, for 16-byte copies")

    def _map(self, planes: Any, rows: int) -> Any:
        """The tensor map of planes, kept: channels, planes, rows."""
        key = device.address(planes), tuple(planes.shape)
        if key not in self._maps:
            shape, row = (self.c_in, POINTS, rows), 2 * self.c_in
            self._maps[key] = tensor_map.encode(planes, shape, (row, POINTS * row), (K_BLOCK, 1, A_ROWS))
        return self._maps[key]
