"""A convolution of seven taps with ReLU and max-pooling of 3, by Toom-Cook's products: prepared once, then applied."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from charcnn.aliases import Array, Stream
from charcnn.gpu import device, tensor_map
from charcnn.gpu.launch import Call
from charcnn.layers import Conv1d
from charcnn.layers.layer import Shape
from charcnn.ops.common import arrays, shapes
from charcnn.ops.common.conv import POOL, PreparedConv
from charcnn.ops.common.epilogues import Epilogue, Pattern, Product
from charcnn.ops.common.layer import ArraySpec, Space
from charcnn.ops.common.precision import TENSOR_PRECISIONS, choose
from charcnn.ops.conv1d.toom_cook import planes as plane_kernels
from charcnn.ops.conv1d.toom_cook.config import A_ROWS, BLOCK_M, THREADS, ToomCookTile
from charcnn.ops.conv1d.toom_cook.kernel import make_kernel
from charcnn.ops.conv1d.toom_cook.pack import packed_bias, packed_weights, unit
from charcnn.ops.conv1d.toom_cook.transforms import POINTS, TAPS, WINDOW, plane_rows, transformed_weights
from charcnn.ops.conv1d.wgmma.config import K_BLOCK, ROW_BYTES

PRECISIONS = {name: of for name, of in TENSOR_PRECISIONS.items() if name != "bf16"}
"""By name: in bf16, which has 8 bits, planes and weights would come too near its tolerance."""


class ToomCookConv(PreparedConv):
    """A convolution of seven taps with ReLU and max-pooling of 3 on Hopper's tensor cores: 11 products of 21.

    It is called with planes, the features' values at six points, twice as many numbers, that block 1 wrote. The weights
    take 11 / 7 of what they take elsewhere. A feature that is not finite makes NaN of the windows around it.

    Args:
        pattern: `Conv1d` of 7 taps, ReLU, `MaxPool1d` of 3.
        weights: "weight", float32 (7, C_in, C_out), as `arrays.pack` gives it, NumPy, C-contiguous: C_in in whole 128
            bytes of the precision, C_out in whole 8s; "bias", float32 (C_out,), NumPy.
        precision: of weights, features, planes and results: one of PRECISIONS.
        x_unit, y_unit: what 1 stands for in x and in results, for fp8, whose range is short.
        tile: a block's; the precision's own where None.

    Raises:
        ValueError: an argument's shape, dtype or layout does not fit, or the tile does not.
        DeviceError: no usable GPU, or none with these tensor cores (compute capability 9.0).
    """

    products, precisions, hopper = (Conv1d,), tuple(PRECISIONS), True

    def __init__(
        self, pattern: Pattern, weights: Mapping[str, np.ndarray], *, precision: str = "fp16", x_unit: float = 1.0,
        y_unit: float = 1.0, tile: ToomCookTile | None = None,
    ) -> None:  # fmt: skip
        device.require_hopper("toom_cook")
        of = choose(precision, PRECISIONS)
        for name, array in weights.items():
            if not isinstance(array, np.ndarray):
                raise ValueError(f"{name} is a {type(array).__name__}: need a NumPy array")
            arrays.check(name, array)
        depth = ROW_BYTES // of.itemsize
        weight, bias = self._read(pattern, weights, of, of, depth)
        if self.c_in % depth or self.c_out % 8:
            shape = tuple(weight.shape)
            raise device.SizeError(f"weight has {shape=}: need {TAPS} taps, C_in in whole {depth}s, C_out in whole 8s")
        self._k_blocks = self.c_in // depth
        self.tile = tile = ToomCookTile.of(of, self._k_blocks) if tile is None else tile
        if tile.terms != of.terms or not tile.fits(self._k_blocks):
            stages, c_in = tile.staggered_stages(self._k_blocks), self.c_in
            raise ValueError(f"{tile=}: need terms={of.terms}, and if staggered stages in {stages} for {c_in=}")
        self._shared = tile.smem_bytes(self.c_out)
        if self._shared > (limit := device.shared_limit()):
            raise device.SizeError(f"{tile=}: needs {self._shared:,} bytes of shared memory, a block has {limit:,}")
        transformed = transformed_weights(weight)
        w_unit = unit(transformed, of)
        self._scale = np.float32(w_unit * x_unit * plane_kernels.unit(of) / y_unit)
        self._weight = device.to_device(packed_weights(transformed / w_unit, of, tile))
        self._bias = device.to_device(packed_bias(bias / np.float32(y_unit), tile))
        self.nbytes = int(self._weight.nbytes + self._bias.nbytes)
        self._kernel = make_kernel(of, of, tile)
        self._maps: dict[tuple[Any, ...], Any] = {}

    @classmethod
    def check_pool(cls, product: Product, epilogue: Epilogue) -> None:
        """Windows of 3 behind ReLU, and seven taps."""
        if not isinstance(product, Conv1d) or product.kernel_size != TAPS or epilogue.pool is None:
            taps = getattr(product, "kernel_size", 1)
            raise device.SizeError(f"weight has {taps} taps: need {TAPS} taps, ReLU and max-pooling of {POOL}")
        super().check_pool(product, epilogue)

    def writes(self, x: Shape) -> list[ArraySpec]:
        """The result, of planes (N, windows + 1, 6, C_in)."""
        return [ArraySpec((x[0], x[1] - 1, self.results.terms * self.c_out), self.results.dtype)]

    def __call__(self, x: Array, space: Space) -> Array:
        """Start on planes; the result."""
        (y,) = self.writes(x.shape)
        return self.of_planes(x, out=space.device(*y), stream=space.stream)

    def planes_shape(self, n: int, length: int) -> Shape:
        """Of the planes of features (n, length, C_in): (n, windows + 1, 6, C_in), of two terms with 2 C_in."""
        return n, plane_rows(length), POINTS, self.precision.terms * self.c_in

    def planes(self, x: Array, *, out: Array = None, stream: Stream = None) -> Array:
        """The planes of features, of the precision's dtype and `planes_shape`.

        Args:
            x: (N, L, C_in) in the precision's dtype on the GPU, C-contiguous, L from 9 on; of two terms, 2 C_in.
            out: where to write, on the GPU; made where None.
            stream: a CUDA stream; the default stream where None.

        Raises:
            ValueError: an argument's shape, dtype, layout or side does not fit.
        """
        of = self.precision
        n, length, channels = shapes.ranked("x", x, "N, L, C_in")
        self._check_channels("x", x, channels)
        if length < TAPS + WINDOW - 1:
            raise ValueError(f"x has {length} positions: need at least {TAPS + WINDOW - 1}")
        call = Call(out, stream, self.planes_shape(n, length), of.dtype, dtypes={"x": of.dtype}, x=x)
        (x,), z = call.inputs, call.out
        self._aligned(x=x, out=z)
        size = z.size // POINTS // of.terms // plane_kernels.CHANNELS
        if n * length >= 1 << 31 or size >= 1 << 31:
            raise ValueError(f"x has shape {tuple(x.shape)}: that many positions in all need a smaller batch")
        addresses = (np.uint64(device.address(array)) for array in (x, z))
        numbers = map(np.uint32, (size, self.c_in, length, plane_rows(length)))
        blocks = min(-(-size // plane_kernels.THREADS), 32 * device.multiprocessors())
        call.launch(plane_kernels.make_kernel(of, of), blocks, plane_kernels.THREADS, *addresses, *numbers)
        return call.result()

    def of_planes(self, planes: Array, *, out: Array = None, stream: Stream = None) -> Array:
        """conv1d_relu_maxpool1d_nlc of what these are planes of: (N, windows, C_out), of two terms with 2 C_out.

        Args:
            planes: of the precision's dtype and `planes_shape` on the GPU, C-contiguous.
            out: where to write, on the GPU; made where None.
            stream: a CUDA stream; the default stream where None.

        Raises:
            ValueError: an argument's shape, dtype, layout or side does not fit.
        """
        n, length, points, channels = shapes.ranked("planes", planes, "N, windows + 1, 6, C_in")
        self._check_channels("planes", planes, channels)
        if points != POINTS or length < 2:
            raise ValueError(f"planes has shape {tuple(planes.shape)}: need {POINTS} planes of at least 2 rows")
        if (rows := n * length) >= 1 << 31:
            raise ValueError(f"planes has shape {tuple(planes.shape)}: need fewer than {1 << 31} rows in all")
        of = self.precision
        shape = n, length - 1, of.terms * self.c_out
        call = Call(out, stream, shape, of.dtype, dtypes={"planes": of.dtype}, planes=planes)
        (planes,), y = call.inputs, call.out
        if n == 0:
            return call.result()
        self._aligned(planes=planes, out=y)
        addresses = (np.uint64(device.address(one)) for one in (self._map(planes, rows), self._weight, self._bias, y))
        numbers = map(np.uint32, (self._k_blocks, self.c_out, rows, length, length - 1))
        cluster = self.tile.cluster_m
        tiles = -(-rows // (BLOCK_M * cluster)) * self.tile.n_tiles(self.c_out)
        clusters = min(tiles, self.tile.clusters(device.multiprocessors()))
        arguments = *addresses, self._scale, *numbers
        call.launch(self._kernel, clusters, THREADS, *arguments, shared=self._shared, cluster=cluster)
        return call.result()

    def apply(self, x: Array, *, out: Array = None, stream: Stream = None) -> Array:
        """Start on features as `planes` takes them: (N, (L - 6) // 3, C_out); planes are made each time."""
        return self.of_planes(self.planes(x, stream=stream), out=out, stream=stream)

    def _check_channels(self, name: str, array: Array, channels: int) -> None:
        if not device.on_device(array):
            raise ValueError(f"{name} is a {type(array).__name__}: need an array on the GPU")
        if channels != self.precision.terms * self.c_in:
            more = " and as many for low terms" if self.precision.terms == 2 else ""
            raise ValueError(f"{name} has shape {tuple(array.shape)}: need C_in={self.c_in}, as weight has{more}")

    def _aligned(self, **given: Any) -> None:
        for name, array in given.items():
            if beyond := device.address(array) % 16:
                raise ValueError(f"{name} begins {beyond} bytes past a multiple of 16: need one, for 16-byte copies")

    def _map(self, planes: Array, rows: int) -> Any:
        """The tensor map of planes, kept: channels, planes with their terms, rows."""
        key = device.address(planes), tuple(planes.shape)
        if key not in self._maps:
            row, boxes = self.precision.itemsize * self.c_in, POINTS * self.precision.terms
            shape = row // 2, boxes, rows  # as the map counts channels: in 16 bits
            self._maps[key] = tensor_map.encode(planes, shape, (row, boxes * row), (K_BLOCK, 1, A_ROWS))
        return self._maps[key]
