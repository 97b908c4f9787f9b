"""The operators of the wgmma kernel for given weights: laid out once, and applied to features in a format."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from charcnn.gpu import device, tensor_map
from charcnn.gpu.launch import Call, pair
from charcnn.layers.layer import Shape
from charcnn.ops.common import epilogues, shapes, tile_choice
from charcnn.ops.common.moments import PART_VALUES, launch_merge
from charcnn.ops.common.precision import FP32, NumberFormat, choose
from charcnn.ops.conv1d.wgmma import few_rows, split_k
from charcnn.ops.conv1d.wgmma.config import BLOCK_N, K_BLOCK, POOL, TileConfig
from charcnn.ops.conv1d.wgmma.kernel import make_kernel
from charcnn.ops.conv1d.wgmma.pack import packed
from charcnn.ops.conv1d.wgmma.split_k import make_split_k_kernel


class WgmmaWeights:
    """The weights of one convolution for Hopper's tensor cores, on the current GPU: the operators, less `weight, bias`.

    In 16 bits they take 2 K C_in C_out bytes, C_in in whole 64s and C_out in whole 256s; of fp16x3, twice as much. A
    linear layer is a convolution of one position: weight (1, C_in, C_out), x (N, 1, C_in).

    Args:
        weight: float32 (K, C_in, C_out), as `arrays.pack` gives it, C-contiguous; bias (C_out,) likewise; both NumPy
            arrays, or both device arrays.
        precision: of weights and features, one of `precision.TENSOR_PRECISIONS`; sums are float32.
        results: of what is given, one of them or "float32"; `precision` where None.
        x_unit, y_unit: what 1 stands for in x and in results, for fp8, whose range is short.
        promoted: whether products of 128 bytes of depth are added up in float32 outside of tensor cores, where the
            precision does not ask for that anyway: of fp8, tensor cores keep some 14 bits of a sum.
        stream: a CUDA stream; the default stream where None.

    Raises:
        ValueError: an argument's shape, dtype, layout or side does not fit, or shared memory does not hold what so many
            taps read.
        DeviceError: no usable GPU, or none with these tensor cores (compute capability 9.0).

    The methods take x (N, L, C_in) in the precision's dtype, on the GPU, with rows of a multiple of 16 bytes, and give
    such; with two terms, (N, L, 2 C_in). `out` is where to write, made where None. Of fp8, C_out is a multiple of 8.
    """

    def __init__(
        self,
        weight: Any,
        bias: Any,
        *,
        precision: str = "fp16",
        results: str | None = None,
        x_unit: float = 1.0,
        y_unit: float = 1.0,
        promoted: bool = False,
        stream: Any = None,
    ) -> None:
        device.require_hopper("wgmma")
        of = choose(precision)
        self.precision = of = replace(of, promoted=of.promoted or promoted)
        self.results = FP32 if results == FP32.name else choose(results or precision)
        kernel_size, c_in, c_out = shapes.ranked("weight", weight, "K, C_in, C_out")
        shapes.conv1d_nlc(np.empty((0, max(1, kernel_size), c_in)), weight, bias)  # checks what can be of both
        if self.results.ptx_type == "e4m3" and c_out % 8:
            raise ValueError(f"weight has C_out={c_out}: need a multiple of 8 for results in {self.results.name}")
        self.kernel_size, self.c_in, self.c_out = kernel_size, c_in, c_out
        together = 16 // of.itemsize
        self.width = -(-c_in // together) * together  # of a row of features, or of each of its terms
        self._block_n = BLOCK_N[of.promoted]
        self._usual = TileConfig.of(kernel_size, False, of)
        if self._usual.smem_bytes > device.shared_limit():
            raise device.SizeError(
                f"weight has {kernel_size} taps: shared memory does not hold what so many read of a tile"
            )
        laid = packed(weight, bias, of, self._block_n, stream, x_unit=x_unit)
        self._weight, self._bias, self._k_blocks, self.nbytes = laid.weight, laid.bias, laid.k_blocks, laid.nbytes
        self._scale = np.float32(laid.unit * x_unit / y_unit)
        self._y_unit = y_unit
        self._maps: dict[tuple[Any, ...], Any] = {}
        self._candidates: dict[str, tuple[TileConfig, ...]] = {}

    def conv1d(self, x: Any, *, epilogue: str = "", out: Any = None, stream: Any = None) -> Any:
        """conv1d_nlc: (N, L - K + 1, C_out).

        Args:
            epilogue: applied to each value, a row of `common.epilogues`, or "".
        """
        return self._apply(epilogues.check(epilogue, self._y_unit) or "store", x, self._shape(x), out, stream)

    def conv1d_relu(self, x: Any, *, length: int | None = None, out: Any = None, stream: Any = None) -> Any:
        """conv1d_relu_nlc: (N, L - K + 1, C_out).

        Args:
            length: positions of the result, up to L, where more are wanted; those beyond L - K + 1 mean nothing.
        """
        n, valid, channels = self._shape(x)
        length = valid if length is None else length
        if not valid <= length <= x.shape[1]:
            raise ValueError(f"{length=}: need {valid} to {x.shape[1]}, the positions of x")
        return self._apply("relu", x, (n, length, channels), out, stream)

    def conv1d_relu_maxpool1d(
        self, x: Any, pool_size: int = POOL, *, length: int | None = None, out: Any = None, stream: Any = None
    ) -> Any:
        """conv1d_relu_maxpool1d_nlc: (N, (L - K + 1) // 3, C_out).

        Args:
            pool_size: 3.
            length: positions of x that count, where there are more, so that all are a multiple of 3.
        """
        n, valid, channels = self._shape(x)
        if pool_size != POOL:
            raise ValueError(f"{pool_size=}: need {POOL}, the warpgroups that share a window")
        if TileConfig.of(self.kernel_size, True, self.precision).smem_bytes > device.shared_limit():
            raise ValueError(f"weight has {self.kernel_size} taps: shared memory does not hold a tile of every third")
        if x.shape[1] % POOL:
            raise ValueError(f"x has {x.shape[1]} positions: need a multiple of {POOL}, of which `length` count")
        kept = valid if length is None else length - self.kernel_size + 1
        if not POOL <= kept <= valid:
            raise ValueError(f"{length=}: need {POOL + self.kernel_size - 1} to {x.shape[1]}, the positions of x")
        return self._apply("pool", x, (n, kept // POOL, channels), out, stream)

    def conv1d_stat(self, x: Any, *, out: Any = None, stream: Any = None, partial_moments: Any = None) -> Any:
        """conv1d_stat_nlc: y (N, L - K + 1, C_out), and stat float64 (N, 2) of y before it was rounded.

        Args:
            partial_moments: scratch, float32 of `partial_moments_shape(N, L)` on the GPU; made where None, which waits
                for the GPU.
        """
        n, length, _ = shape = self._shape(x)
        y, stat = pair(out)
        call = self._call(x, shape, y, stream, {} if stat is None else {"stat": stat})
        if stat is not None:
            shapes.expect("stat", stat, (n, 2))
        statistics = call.scratch((n, 2), np.float64) if stat is None else call.inputs[1]
        if partial_moments is None:
            partial_moments = call.scratch(self.partial_moments_shape(*x.shape[:2]), np.float32)
        self._launch("stat", call, partial_moments)
        launch_merge(call, partial_moments, length * self.c_out, statistics, part=self._block_n, row=self.c_out)
        return call.result(), call.second(statistics, stat)

    def conv1d_partial_moments(self, x: Any, partial_moments: Any, *, out: Any = None, stream: Any = None) -> Any:
        """conv1d_nlc, and moments of parts of each row, `part` values each, into `conv1d_stat`'s scratch."""
        shapes.expect("partial_moments", partial_moments, self.partial_moments_shape(*x.shape[:2]))
        call = self._call(x, self._shape(x), out, stream, {"partial_moments": partial_moments})
        self._launch("stat", call, call.inputs[1])
        return call.result()

    @property
    def part(self) -> int:
        """Values of a part of a row, of which `conv1d_partial_moments` gives moments; the last one may have fewer."""
        return self._block_n

    def results_of(self, **_: Any) -> NumberFormat:
        """What the methods give."""
        return self.results

    def partial_moments_shape(self, n: int, length: int) -> Shape:
        """Of `conv1d_stat`'s scratch for x (n, length, C_in)."""
        return n, (length - self.kernel_size + 1) * -(-self.c_out // self._block_n), PART_VALUES

    def _shape(self, x):
        n, length, channels = shapes.ranked("x", x, "N, L, C_in")
        if channels != self.precision.terms * self.width:
            more = " and as many for low terms" if self.precision.terms == 2 else ""
            raise ValueError(f"x has shape {tuple(x.shape)}: need C_in={self.width}, whole pieces of 16 bytes{more}")
        if length < self.kernel_size:
            raise ValueError(f"x has {length} positions: need at least {self.kernel_size} for K={self.kernel_size}")
        return n, length - self.kernel_size + 1, self.results.terms * self.c_out

    def _call(self, x, shape, out, stream, more):
        if not device.on_device(x):
            raise ValueError(f"x is a {type(x).__name__}: need an array on the GPU")
        return Call(out, stream, shape, self.results.dtype, dtypes={"x": self.precision.dtype}, x=x, **more)

    def _apply(self, epilogue, x, shape, out, stream):
        call = self._call(x, shape, out, stream, {})
        self._launch(epilogue, call)
        return call.result()

    def _launch(self, epilogue, call, partial_moments=None):
        x, y = call.inputs[0], call.out
        n, length, channels = x.shape
        window = POOL if epilogue == "pool" else 1
        length //= window
        rows = n * length
        if n == 0 or y.shape[1] == 0:
            return
        if self.results.ptx_type == "e4m3" and (beyond := device.address(y) % 8):
            raise ValueError(f"out begins {beyond} bytes behind a multiple of 8: need one, as threads store 8 at once")
        length_magic = -(-(1 << 32) // length) % (1 << 32)  # row * length_magic >> 32 is row // length
        if rows * (length - 1) >= 1 << 32 or rows * channels >= 1 << 40:
            raise ValueError(f"x has shape {tuple(x.shape)}: that many positions in all need a smaller batch")
        together = 16 if self.results.ptx_type == "e4m3" else 8
        vector_store = self.c_out % together == 0 and device.address(y) % 16 == 0
        if self.kernel_size == 1 and epilogue not in ("pool", "stat"):
            split = split_k.offered(self._usual, rows, self._k_blocks, self.c_out, self.precision)
            if split is not None:
                self._launch_split(split, epilogue, call, rows, vector_store)
                return
        config = self._config(epilogue, rows, window)
        cluster = config.cluster_m
        tiles = -(-rows // (config.block_m * cluster)) * -(-self.c_out // config.block_n)
        bias_in_smem = config.smem_bytes + self._bias.nbytes <= device.shared_limit() and not self.precision.promoted
        full_n_tiles = self.c_out % config.block_n == 0
        kernel = make_kernel(self.precision, self.results, config, epilogue, vector_store, full_n_tiles, bias_in_smem)
        maps = len(self._maps)
        addresses = (
            self._map(x, config),
            self._weight,
            self._bias,
            y,
            y if partial_moments is None else partial_moments,
        )
        numbers = self.kernel_size, self._k_blocks, self.c_out, tiles, length, y.shape[1], rows, length_magic
        arguments = *(np.uint64(device.address(a)) for a in addresses), self._scale, *map(np.uint32, numbers)
        clusters = min(tiles, device.multiprocessors() // cluster)
        shared = config.smem_bytes + (self._bias.nbytes if bias_in_smem else 0)
        # Weights and map are read while the kernel before may still run: a launch that is the first to read them waits.
        call.launch(
            kernel, clusters, config.threads, *arguments, shared=shared, cluster=cluster, early=maps == len(self._maps)
        )

    def _launch_split(self, tile, epilogue, call, rows, vector_store):
        x, y = call.inputs[0], call.out
        kernel = make_split_k_kernel(self.precision, self.results, tile, epilogue, vector_store)
        maps = len(self._maps)
        addresses = self._map(x, tile), self._weight, self._bias, y
        numbers = map(np.uint32, (self._k_blocks, self.c_out, rows))
        arguments = *(np.uint64(device.address(a)) for a in addresses), self._scale, *numbers
        grid = -(-self.c_out // tile.block_n), -(-rows // tile.block_m)
        call.launch(
            kernel, grid, tile.threads, *arguments, shared=tile.smem_bytes, cluster=tile.splits,
            early=maps == len(self._maps),
        )  # fmt: skip

    def _config(self, epilogue, rows, window):
        """The tile for so many rows of the product, with pooling windows."""
        of, taps, measured = self.precision, self.kernel_size, epilogue == "stat"
        if epilogue not in self._candidates:
            self._candidates[epilogue] = TileConfig.candidates(taps, epilogue == "pool", of, measured=measured)
        found, shape = self._candidates[epilogue], (taps, self.c_in, self.c_out)
        few = few_rows.offered(found[0], rows, taps, self._k_blocks, self.c_out, of, measured)
        return tile_choice.choose(f"wgmma {epilogue}", of.name, shape, rows * window, (*few, *found))

    def _map(self, x, config):
        """The tensor map of x, kept: a level's arrays lie where they lay before."""
        key = device.address(x), tuple(x.shape), config
        if key not in self._maps:
            n, length, channels = x.shape
            terms, window = self.precision.terms, POOL if config.pooled else 1
            row = self.precision.itemsize * channels // terms  # of a term
            shape = row // 2, terms * window, n * length // window  # as the map counts channels: in 16 bits
            strides, box = (row, terms * window * row), (K_BLOCK, 1, config.a_rows // window)
            if shape[1] == 1:
                shape, strides, box = shape[::2], strides[1:], box[::2]
            self._maps[key] = tensor_map.encode(x, shape, strides, box)
        return self._maps[key]
