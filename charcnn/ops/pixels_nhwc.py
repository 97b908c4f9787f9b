"""pixels, channels last: bytes of images as features of a convolution, with zeros up to the channels that it takes."""

from __future__ import annotations

from functools import cache

from numba import cuda, float32

from charcnn.aliases import Array, Stream
from charcnn.gpu import device
from charcnn.gpu.device import uint32, uint64
from charcnn.gpu.indices import block_idx_x, extents, grid_dim_x, thread_idx_x
from charcnn.gpu.launch import Call, jit
from charcnn.layers.layer import Shape
from charcnn.ops.common import shapes2d
from charcnn.ops.common.features import STORED, FeatureLayout, channels_of, places, widened, writer
from charcnn.ops.common.precision import choose

THREADS = device.block_size(256)

PIXELS = 16
"""Of a thread, at most: a block copies its tables once."""

CHANNELS = 48
"""Whose tables fit in shared memory."""


@jit()
def _coalesced_kernel(images, tables, y):
    i = cuda.grid(1)
    if i < y.size:
        c, pixel = i % y.shape[2], i // y.shape[2]
        n, p = pixel // y.shape[1], pixel % y.shape[1]
        value = float32(0)
        if c < tables.shape[0]:
            value = tables[c, images[n, c * y.shape[1] + p]]
        y[n, p, c] = value


@cache
def _make_kernel(layout, c_in, c_out):
    place, store, registers = places(layout), writer(layout), layout.width
    entries, vectors, threads = 256 * c_in, c_out // layout.width, THREADS

    @jit()
    def kernel(images, tables, y):
        # A thread a pixel: neighbours read neighbouring bytes of each channel, and write neighbouring vectors.
        table = cuda.shared.array(entries, float32)
        values = cuda.local.array(registers, float32)
        thread = thread_idx_x()
        k = thread
        while k < uint32(entries):
            table[k] = tables.flat[k]
            k += threads
        cuda.syncthreads()
        size, stride = uint32(y.shape[1] * y.shape[2]), grid_dim_x() * threads
        pixel, end = block_idx_x() * threads + thread, extents(y)[0] * size
        while pixel < end:
            n, p = pixel // size, pixel % size
            image = uint64(n) * uint64(uint32(c_in) * size) + uint64(p)
            for v in range(vectors):
                for j in range(registers):
                    values[j] = float32(0)
                    if v * registers + j < c_in:
                        byte = uint32(images.flat[image + uint64((v * registers + j) * size)])
                        values[j] = table[256 * (v * registers + j) + byte]
                at, low = place(uint64(pixel), v * registers, uint32(c_out))
                store(y, at, low, values)
            pixel += stride

    return kernel


def _start(call, y, precision, octets):
    images, tables = call.inputs
    n, height, width, _ = y.shape
    c_in, c_out = int(tables.shape[0]), channels_of("y", y, precision, octets)
    if c_in > CHANNELS:
        raise ValueError(
            f"tables has shape {tuple(tables.shape)}: need at most {CHANNELS} channels; coalesced has more"
        )
    if n * height * width >= 1 << 31:
        raise ValueError(f"images has shape {tuple(images.shape)}: that many pixels need a smaller batch")
    layout = FeatureLayout.of(precision, c_out, y, octets=octets)
    blocks = -(-n * height * width // THREADS)
    blocks = min(blocks, max(-(-blocks // PIXELS), 8 * device.multiprocessors()))
    call.launch(_make_kernel(layout, c_in, c_out), blocks, THREADS, images, tables, layout.seen(y))


def features_shape(
    images: Array, tables: Array, height: int, width: int, channels: int | None, precision: str
) -> Shape:  # fmt: skip
    """The shape of `pixel_features`."""
    *others, c_out = shapes2d.pixels_nhwc(images, tables, height, width, channels)
    return *others, choose(precision, STORED).terms * c_out


def pixel_features(
    images: Array,
    tables: Array,
    height: int,
    width: int,
    *,
    channels: int | None = None,
    precision: str = "fp16",
    octets: bool = False,
    out: Array = None,
    stream: Stream = None,
) -> Array:
    """pixels_nhwc as features in a precision, on the GPU.

    Args:
        images: uint8 (N, C * height * width), tables float32 (C, 256), both on the GPU, of at most 48 channels.
        height, width: of an image.
        channels: of the features, those beyond C zero; C where None.
        precision: one of `features.STORED`; a table's entry is rounded to it.
        octets: with two terms, whether they lie as `mma_layout` has them.
        out: where to write, (N, height, width, terms * channels); made where None.
        stream: a CUDA stream; the default stream where None.

    Raises:
        ValueError: an argument's shape, dtype, layout or side does not fit.
        DeviceError: no usable GPU, or one of compute capability below 8.0.
    """
    form, shape = choose(precision, STORED), features_shape(images, tables, height, width, channels, precision)
    call = Call(out, stream, shape, form.dtype, images=images, tables=tables)
    device.require_capability((8, 0), "vectorized", "use coalesced")
    _start(call, call.out, precision, octets)
    return call.result()


def launch_coalesced(call: Call, images: Array, tables: Array, height: int, width: int, channels: int | None) -> None:
    """Neighbouring threads write neighbouring channels."""
    n, *_, c = call.out.shape
    call.launch_each(_coalesced_kernel, images, tables, call.out.reshape((n, height * width, c)))


def launch_vectorized(
    call: Call, images: Array, tables: Array, height: int, width: int, channels: int | None, *, precision: str
) -> None:
    """One thread a pixel. Features are in the precision, and are cast back; `VectorizedPixels` leaves the cast out.

    Raises:
        ValueError: there are more than 48 channels of images.
    """
    widened(call, precision, lambda y: _start(call, y, precision, False))
