"""The kernel of `plan_strips`: convolution, pooling, convolution, pooling by strips of rows, on tensor cores.

A warp has some sixteens of pixels and some octets of output channels. `ldmatrix` takes a pixel's octets from wherever
they lie, so windows overlap in shared memory. Weights are loaded a product ahead, straight to registers: there is no
barrier between those of a convolution. Between two phases is one.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

from numba import cuda, float32, types

from charcnn.aliases import Kernel
from charcnn.gpu import ptx
from charcnn.gpu.device import uint32
from charcnn.gpu.indices import block_idx_x, extents, grid_dim_x, thread_idx_x
from charcnn.gpu.launch import jit
from charcnn.ops.chain.octets import PIXEL
from charcnn.ops.chain.strip_maps import WORD, make_keep, make_load, make_maxpool2d, make_norm, make_store
from charcnn.ops.chain.strip_sizes import ABOVE, ABREAST, ROWS

if TYPE_CHECKING:
    from charcnn.ops.chain.plan_strips import StripPlan


@cache
def make_strip_kernel(plan: StripPlan, from_bytes: bool) -> Kernel:
    """The kernel (x, weight, bias, pixels, y): blocks take tiles of images by turns.

    x (N, C_in H W) float32, or uint8 where from_bytes, then pixels (2 C_in,) is the factor and offset of each channel;
    weight and bias as of `StripPlan.packed`; y words, (N H_out W_out C / 2,).
    """
    # As in kernel_mma.py: device functions are made for a plan, whose sizes are their constants, and inlined.
    _, pool1, conv2, pool2 = plan.links
    first_half, second_half = _make_half(plan, 0, from_bytes), _make_half(plan, 1, from_bytes)
    threads, space, chunk, zero = map(uint32, (plan.threads, plan.shared_bytes, PIXEL, 0))
    tile, tiles, height, between = map(uint32, (plan.tile, plan.tiles, pool2.out_shape[1], pool1.out_shape[1]))
    first, rows, made, step, taps = map(
        uint32, (plan.first, plan.rows, plan.made, pool2.window.stride[0], pool2.window.kernel[0])
    )
    above, reach = conv2.window.padding[0], conv2.window.kernel[0] - 1
    whole, alignment = plan.method == "whole", ptx.ALIGNMENT

    @jit(launch_bounds=(plan.threads, 1))
    def kernel(x, weight, bias, pixels, y):
        shared = cuda.shared.array(0, types.uint32, alignment=alignment)
        base, thread = ptx.cvta_to_shared(shared), thread_idx_x()
        i = thread * chunk
        while i < space:  # what is padding stays 0
            ptx.st_shared_v4_b32(base + i, zero, zero, zero, zero)
            i += threads * chunk

        def between_until(end):
            """Rows of the map between that the first rows of y need."""
            return between if whole else min((end - 1) * step + taps + reach - above, between)

        block = block_idx_x()
        while block < extents(x)[0] * tiles:
            n, top = block // tiles, block % tiles * tile
            begin, last = top, min(top + tile, height)
            while begin < last:
                fresh = begin == top
                end = min(begin + (first if fresh else rows), last)
                start = max(begin * step, above) - above if fresh else between_until(begin)
                p0, p1 = start, between_until(end)
                while p0 < p1:
                    stop = min(p0 + made, p1)
                    first_half(x, weight, bias, pixels, y, base, thread, n, p0, stop, p0 == start)
                    p0 = stop
                second_half(x, weight, bias, pixels, y, base, thread, n, begin, end, fresh)
                begin = end
            block += grid_dim_x()

    return kernel


@cache
def _make_half(plan: StripPlan, number: int, from_bytes: bool) -> Any:
    """half(..., n, begin, end, fresh): these rows of a pooling, and what they need of the convolution before it.

    Where not `fresh`, the rows that windows share with those before are in the first slots of the convolution's map.
    """
    link, pool, of = plan.links[2 * number], plan.links[2 * number + 1], plan.maps[2 * number + 1]
    load = make_load(plan, from_bytes) if number == 0 else None
    conv2d = _make_conv2d(plan, number)
    normalise, maxpool2d, keep = make_norm(plan, number), make_maxpool2d(plan, number), make_keep(plan, number)
    step, taps, kept = map(uint32, (pool.window.stride[0], pool.window.kernel[0], plan.keeps(number)))
    reads, norms, keeps = number == 0, link.norm is not None, plan.keeps(number) > 0
    shift = plan.products[0].kernel[0] - 1
    assert of.rows >= plan.keeps(number)

    @jit(device=True, forceinline=True)
    def half(x, weight, bias, pixels, y, base, thread, n, begin, end, fresh):
        origin = begin * step
        c0, c1 = origin if fresh else origin + kept, (end - 1) * step + taps
        cuda.syncthreads()
        if reads:
            load(x, pixels, base, thread, n, c0 if fresh else c0 + shift, c1 + shift)
            cuda.syncthreads()
        conv2d(weight, bias, base, thread, c0, c1, origin)
        cuda.syncthreads()
        if norms:
            normalise(base, thread, c0 - origin, c1 - origin)
            cuda.syncthreads()
        maxpool2d(y, base, thread, n, begin, end)
        if keeps:
            cuda.syncthreads()
            keep(base, thread, (end - begin) * step)

    return half


@cache
def _make_products(ptx_type: str, tiles: int, columns: int, i: int, q: int) -> Any:
    """multiply(acc, b, a, at, behind): of sixteens of pixels 0 to i, and octets of channels 0 to q of the last."""
    more, first = i > 0 or q > 0, q == 0
    before = _make_products(ptx_type, tiles, columns, *((i, q - 1) if q else (i - 1, columns - 1))) if more else None
    product, k, j = ptx.mma_sync(ptx_type), 4 * (i * columns + q), 2 * q

    @jit(device=True, forceinline=True)
    def multiply(acc, b, a, at, behind):
        if more:
            before(acc, b, a, at, behind)
        if first:
            a[0], a[1], a[2], a[3] = ptx.ldmatrix_x4(at[i] + behind)
        acc[k], acc[k + 1], acc[k + 2], acc[k + 3] = product(
            a[0], a[1], a[2], a[3], b[j], b[j + 1], acc[k], acc[k + 1], acc[k + 2], acc[k + 3]
        )

    return multiply


@cache
def _make_steps(plan: StripPlan, number: int, tiles: int, s: int) -> Any:
    """multiply(acc, b, ahead, a, at, weight, words): products 0 to s of a tap's channels; loads weights one ahead."""
    of, more = plan.products[number], s > 0
    before = _make_steps(plan, number, tiles, s - 1) if more else None
    products = _make_products(plan.precision.ptx_type, tiles, of.columns, tiles - 1, of.columns - 1)
    behind, fours = uint32(2 * s * plan.maps[2 * number].plane), of.columns // 2
    further, block = (s + 1) * _step_words(plan, number), 128
    count = 2 * of.columns

    @jit(device=True, forceinline=True)
    def multiply(acc, b, ahead, a, at, weight, words):
        if more:
            before(acc, b, ahead, a, at, weight, words)
        for k in range(fours):
            w0, w1, w2, w3 = ptx.ld_global_v4_b32(weight, words + further + k * block)
            ahead[4 * k], ahead[4 * k + 1], ahead[4 * k + 2], ahead[4 * k + 3] = w0, w1, w2, w3
        products(acc, b, a, at, behind)
        for k in range(count):
            b[k] = ahead[k]

    return multiply


def _step_words(plan: StripPlan, number: int) -> int:
    """Words of weights from a product of depth 16 to the next."""
    of = plan.products[number]
    return of.words // (of.parts * of.steps)


@cache
def _make_conv2d(plan: StripPlan, number: int) -> Any:
    """conv2d(weight, bias, base, thread, c0, c1, origin): these rows, by as few sixteens a warp as it takes."""
    sizes = {plan.products[number].passes(pixels)[1] for pixels in plan.counted["pixels"][number]}
    return _make_sized(plan, number, tuple(sorted(sizes)))


@cache
def _make_sized(plan: StripPlan, number: int, sizes: tuple[int, ...]) -> Any:
    """Passes by the least of these numbers of sixteens that takes as few passes as the most that a warp may have."""
    own, more = _make_passes(plan, number, sizes[0]), len(sizes) > 1
    larger = _make_sized(plan, number, sizes[1:]) if more else None
    of, width = plan.products[number], plan.links[2 * number].out_shape[2]
    at_most, at_once = (uint32(ROWS * ABOVE * tiles) for tiles in (of.most, sizes[0]))

    @jit(device=True, forceinline=True)
    def sized(weight, bias, base, thread, c0, c1, origin):
        pixels = (c1 - c0) * width
        passes = (pixels + at_most - 1) // at_most
        if more and passes * at_once < pixels:
            larger(weight, bias, base, thread, c0, c1, origin)
        else:
            own(weight, bias, base, thread, c0, c1, origin)

    return sized


@cache
def _make_passes(plan: StripPlan, number: int, tiles: int) -> Any:
    """Passes over a strip by so many sixteens of pixels a warp."""
    link, source, of = plan.links[2 * number], plan.maps[2 * number], plan.products[number]
    steps, alignment = of.octets_in // 2, ptx.ALIGNMENT
    multiply, store = _make_steps(plan, number, tiles, steps - 1), make_store(plan, number)
    columns, fours, sums, held = of.columns, of.columns // 2, 4 * tiles * of.columns, 2 * of.columns
    top, bottom, *_ = (0, 0, 0, 0) if number == 0 else link.window.padding
    in_rows = plan.lattice.counts[0] if number == 0 else link.in_shape[1]
    beyond, taps, kernel_rows = top + bottom > 0, of.kernel[1], of.kernel[0]
    first_words = 0 if number == 0 else plan.products[0].words
    first_bias = 0 if number == 0 else plan.products[0].outputs
    width, place, ring, row_bytes, plane, height, above, word = map(
        uint32,
        (link.out_shape[2], plan.places[2 * number], source.rows, source.row_bytes, source.plane, in_rows, top, WORD),
    )
    zeros = plan.places[2 * number] + source.rows * source.row_bytes
    own_left = PIXEL * (source.left - (0 if number == 0 else link.window.padding[2]))
    parts, together, in_bytes = map(uint32, (of.parts, of.parts // of.groups, of.octets_in * source.plane))
    tap_words, part_words, lane_words, begin_words = map(
        uint32, (steps * _step_words(plan, number), of.words // of.parts, fours * 128, first_words)
    )
    begin_bias, part_octets, warp_octets, wide = map(
        uint32, (first_bias, ABREAST * of.columns, of.columns, ROWS * tiles)
    )
    stride, two, three, four, five, eight, fifteen, lanes, pixel, one, zero, sixteen, abreast = map(
        uint32, (ROWS * ABOVE * tiles, 2, 3, 4, 5, 8, 15, 31, PIXEL, 1, 0, ROWS, ABREAST)
    )

    @jit(device=True, forceinline=True)
    def passes(weight, bias, base, thread, c0, c1, origin):
        acc, at = cuda.local.array(sums, float32), cuda.local.array(tiles, types.uint32)
        b, ahead = cuda.local.array(held, types.uint32), cuda.local.array(held, types.uint32)
        a = cuda.local.array(4, types.uint32)
        rows, begins = cuda.local.array(tiles, types.uint32), cuda.local.array(tiles, types.uint32)
        shared = cuda.shared.array(0, types.uint32, alignment=alignment)
        lane, warp = thread & lanes, thread >> five
        group, member, upper = lane >> two, lane & three, lane >> four
        column, pixels = warp % abreast, (c1 - c0) * width
        part = zero
        while part < parts:
            reads = part // together * in_bytes + upper * plane
            octet = part * part_octets + column * warp_octets
            first = warp // abreast * wide
            while first < pixels:
                words = begin_words + part * part_words + column * lane_words + lane * four
                for k in range(fours):
                    w0, w1, w2, w3 = ptx.ld_global_v4_b32(weight, words + k * 128)
                    b[4 * k], b[4 * k + 1], b[4 * k + 2], b[4 * k + 3] = w0, w1, w2, w3
                for i in range(tiles):
                    p = min(first + i * sixteen + (lane & fifteen), pixels - one)
                    rows[i] = c0 + p // width - above & word
                    begins[i] = base + reads + own_left + p % width * pixel
                for q in range(columns):  # read anew each time: no register is left to keep them
                    number_of = begin_bias + (octet + q) * eight + member * two
                    even, odd = bias[number_of], bias[number_of + one]
                    for i in range(tiles):
                        k = 4 * (i * columns + q)
                        acc[k], acc[k + 1], acc[k + 2], acc[k + 3] = even, odd, even, odd
                row = zero
                while row < kernel_rows:
                    for i in range(tiles):
                        line = rows[i] + row & word
                        outside = beyond and line >= height
                        at[i] = begins[i] + (zeros if outside else place + line % ring * row_bytes)
                    tap = zero
                    while tap < taps:
                        multiply(acc, b, ahead, a, at, weight, words)
                        words += tap_words
                        for i in range(tiles):
                            at[i] = at[i] + pixel
                        tap += one
                    row += one
                for i in range(tiles):
                    for half in range(2):
                        p = first + i * sixteen + group + half * eight
                        if p < pixels:
                            line = p // width
                            slot, across = c0 + line - origin, p - line * width
                            for q in range(columns):
                                k = 4 * (i * columns + q) + 2 * half
                                store(shared, slot, across, octet + q, member, acc[k], acc[k + 1])
                first += stride
            part += one

    return passes
