"""The kernel of the technique `direct`: strips of images in shared memory, tiles of positions and maps in registers."""

from __future__ import annotations

from functools import cache

from numba import cuda, float32, types

from charcnn.aliases import Kernel
from charcnn.gpu import ptx
from charcnn.gpu.device import uint32, uint64
from charcnn.gpu.indices import block_dim_x, block_idx_x, block_idx_y, extents, grid_dim_x, thread_idx_x
from charcnn.gpu.launch import jit
from charcnn.ops.common.epilogue_functions import epilogue
from charcnn.ops.conv2d.direct_plan import OWN, DirectTile

# Constants are uint32, as in the other kernels with register tiles. Loops over a tile have constant ranges, so that
# they unroll and local arrays become registers; the functions inside the kernel are inlined.


@cache
def make_kernel(tile: DirectTile, name: str, width: int, store: int, exact: bool) -> Kernel:
    """The kernel (x, weight, bias, y, sizes): blocks side by side take images by turns, those above others other parts.

    Args:
        tile: what a thread computes.
        name: the epilogue's, of `common.epilogues`.
        width: floats that a copy from x takes: 4, 2 or 1.
        store: floats that a store to y takes, likewise; rows of y begin at multiples of it.
        exact: whether every tile lies in y with all its outputs and maps.

    Of the kernel's arguments x is (N, C_in, H, W), y (N, C_out, H_out, W_out), and `sizes` a `direct_plan.Sizes`.
    """
    rows, columns, maps, taps, together = tile.conv_rows, tile.conv_columns, tile.maps, tile.taps, tile.together
    accumulators, held, read, weights = tile.accumulators, tile.conv_rows * tile.read, tile.read, tile.weights
    quads, weight_quads, vector = tile.read // ptx.VECTOR, tile.weights // ptx.VECTOR, tile.vector
    stride, dilation, stride_rows = tile.stride[1], tile.dilation, uint32(tile.stride[0])
    out_rows, out_columns = tile.rows, tile.columns
    (pool_rows, pool_columns), (pool_down, pool_right) = tile.pool.kernel, tile.pool.stride
    tap_step, tap_bytes, taps_bytes = (uint32(tile.weights * count) for count in (1, 4, 4 * tile.taps))
    down, right, map_count, words = tile.down, tile.right, tile.maps, OWN
    copied, copy_bytes = uint32(width), uint32(4 * width)
    word, alignment = uint32(0xFFFFFFFF), ptx.ALIGNMENT
    copy, wait, finished = ptx.cp_async(width), ptx.cp_async_wait_group(1), epilogue(name)

    @jit(max_registers=tile.registers)
    def kernel(x, weight, bias, y, sizes):
        shared = cuda.shared.array(0, float32, alignment=alignment)  # weights, biases, own words, buffers of features
        own = cuda.shared.array(0, types.uint32, alignment=alignment)  # the same memory
        acc = cuda.local.array(accumulators, float32)
        values = cuda.local.array(held, float32)
        factors = cuda.local.array(weights, float32)
        inputs, c_in, height, line = extents(x)[0], extents(x)[1], extents(x)[2], extents(x)[3]
        c_out, height_out, width_out = extents(y)[1], extents(y)[2], extents(y)[3]
        thread, threads, part = thread_idx_x(), block_dim_x(), block_idx_y()
        strip, first_map = part % sizes.strips, part // sizes.strips * sizes.groups * map_count
        strip_row, strip_column = strip // sizes.strips_across, strip % sizes.strips_across
        depth, pitch, plane_rows, base = sizes.depth, sizes.pitch, sizes.rows, ptx.cvta_to_shared(shared)
        row_bytes = 4 * stride_rows * sizes.pitch
        begin_row = strip_row * sizes.tiles_down * down - sizes.top
        begin_column = strip_column * sizes.tiles_across * right - sizes.left

        # Weights: (map, tap) to (group, tap, map of the group), read as they lie; biases as one more tap.
        i = thread
        while i < sizes.groups * map_count * depth:
            place, tap, value = i // depth, i % depth, float32(0)
            if first_map + place < c_out:
                value = weight.flat[uint64(first_map + place) * uint64(depth) + uint64(tap)]
            shared[(place // map_count * depth + tap) * tap_step + place % map_count] = value
            i += threads
        i = thread
        while i < sizes.groups * map_count:
            value = float32(0)
            if first_map + i < c_out:
                value = bias[first_map + i]
            shared[sizes.biases + i // map_count * tap_step + i % map_count] = value
            i += threads

        # What a thread copies of each plane, and which tile is its: it waits in shared memory, as registers are for
        # sums.
        tiles = sizes.tiles_down * sizes.tiles_across
        mine, rest = thread % tiles, thread // tiles
        tile_row, tile_column = mine // sizes.tiles_across, mine % sizes.tiles_across
        group, image = rest % sizes.groups, rest // sizes.groups
        mine = sizes.own + thread * words
        own[mine], own[mine + 1] = thread % sizes.pieces, thread // sizes.pieces
        own[mine + 2], own[mine + 3] = image, group
        own[mine + 4] = (strip_row * sizes.tiles_down + tile_row) * uint32(out_rows)
        own[mine + 5] = (strip_column * sizes.tiles_across + tile_column) * uint32(out_columns)
        own[mine + 6] = image * c_in * sizes.plane + tile_row * down * pitch + tile_column * right

        def fetch(to, item):
            """Start to copy the strip of an item's images; zeros for what lies outside."""
            at = sizes.own + thread * words
            piece, first = uint32(own[at]), uint32(own[at + 1])  # Python integers in the simulator
            n = item * sizes.images
            source = uint64(n) * uint64(c_in * height) * uint64(line)
            end = min(sizes.images, inputs - n) * c_in * plane_rows
            while piece < sizes.pieces and first < sizes.copy_rows:
                column, row = (begin_column + piece * copied) & word, first
                offset = (begin_row + first) * line + column
                target, i = to + first * pitch + piece * copied, first
                while i < end:
                    inside = (begin_row + row) & word < height and column < line
                    copy(
                        shared,
                        target,
                        uint32(0),
                        x,
                        source + uint64(offset & word),
                        copy_bytes if inside else uint32(0),
                    )
                    offset, target = offset + sizes.copy_rows * line, target + sizes.copy_rows * pitch
                    i, row = i + sizes.copy_rows, row + sizes.copy_rows
                    if row >= plane_rows:
                        row, offset = row - plane_rows, offset + (height - plane_rows) * line
                piece += threads
            ptx.cp_async_commit_group()

        def load_factors(at, offset):
            """Weights of a tap, or biases, from an address on."""
            for q in range(weight_quads):
                a, b, c, d = ptx.ld_shared_v4_f32_at(shared, at, offset + uint32(q) * 16)
                factors[4 * q], factors[4 * q + 1], factors[4 * q + 2], factors[4 * q + 3] = a, b, c, d

        def multiply_taps(weight_at, first):
            """Some taps of what is in `values`: so many that the compiler writes their loop out."""
            for j in range(first, min(first + together, taps)):
                load_factors(weight_at, uint32(j) * tap_bytes)
                for m in range(maps):
                    for r in range(rows):
                        for p in range(columns):
                            value = values[r * read + p * stride + j * dilation]
                            acc[(m * rows + r) * columns + p] += factors[m] * value

        def multiply(at, weight_at):
            """A row of taps of a channel, whose features and weights begin at these addresses."""
            for r in range(rows):
                row_at = at + uint32(r) * row_bytes
                if vector:
                    for k in range(quads):
                        a, b, c, d = ptx.ld_shared_v4_f32_at(shared, row_at, uint32(k) * 16)
                        values[r * read + 4 * k], values[r * read + 4 * k + 1] = a, b
                        values[r * read + 4 * k + 2], values[r * read + 4 * k + 3] = c, d
                else:
                    for k in range(read):
                        values[r * read + k] = shared[(row_at - base) // 4 + uint32(k)]
            multiply_taps(weight_at, 0)
            if taps > together:
                multiply_taps(weight_at, together)
            if taps > 2 * together:
                multiply_taps(weight_at, 2 * together)
            if taps > 3 * together:
                multiply_taps(weight_at, 3 * together)
            if taps > 4 * together:
                multiply_taps(weight_at, 4 * together)
            if taps > 5 * together:
                multiply_taps(weight_at, 5 * together)

        def convolve(at, group):
            """The tile's sums."""
            load_factors(base + 4 * uint32(sizes.biases + group * tap_step), uint32(0))
            for m in range(maps):
                for r in range(rows * columns):
                    acc[m * rows * columns + r] = factors[m]
            at, weight_at = base + 4 * at, base + group * depth * tap_bytes
            c = uint32(0)
            while c < c_in:
                row_at = at
                for _ in range(sizes.kernel_rows):
                    multiply(row_at, weight_at)
                    weight_at, row_at = weight_at + taps_bytes, row_at + 4 * sizes.line_step
                at, c = at + 4 * sizes.plane, c + 1

        def output(m, r, p):
            """One of the tile's, pooled."""
            first = (m * rows + r * pool_down) * columns + p * pool_right
            best = acc[first]
            for i in range(pool_rows):
                for j in range(pool_columns):
                    if i + j > 0:
                        best = ptx.max_nan_f32(best, acc[first + i * columns + j])
            return finished(best)  # of a maximum once: no epilogue makes less of more

        def write(n, own_map, p_first, q_first):
            """The tile's outputs, as far as there are such."""
            plane = height_out * width_out
            first = uint64(uint32(n * c_out + own_map)) * uint64(plane) + uint64(uint32(p_first * width_out + q_first))
            for m in range(maps):
                for r in range(out_rows):
                    at = first + uint64(uint32(uint32(m) * plane + uint32(r) * width_out))
                    there = exact or (uint32(own_map + uint32(m)) < c_out and uint32(p_first + uint32(r)) < height_out)
                    for p in range(0, out_columns, store):
                        a = output(m, r, p)
                        if store == 1:
                            if there and (exact or uint32(q_first + uint32(p)) < width_out):
                                y.flat[at + uint64(p)] = a
                        elif store == 2:
                            b = output(m, r, p + 1)
                            if there and (exact or uint32(q_first + uint32(p)) < width_out):
                                ptx.st_global_v2_f32(y, at + uint64(p), a, b)
                        else:
                            b, c, d = output(m, r, p + 1), output(m, r, p + 2), output(m, r, p + 3)
                            if there and (exact or uint32(q_first + uint32(p)) < width_out):
                                ptx.st_global_v4_f32(y, at + uint64(p), a, b, c, d)

        item, slot, other = block_idx_x(), sizes.features, sizes.features + sizes.buffer
        fetch(slot, item)
        while item < sizes.items:
            following = item + grid_dim_x()
            if following < sizes.items:
                fetch(other, following)
            else:
                ptx.cp_async_commit_group()  # an empty one, so that all but one are always there
            wait()
            cuda.syncthreads()
            mine = sizes.own + thread * words
            image, group = own[mine + 2], own[mine + 3]
            n = item * sizes.images + image
            if image < sizes.images and n < inputs:
                convolve(slot + own[mine + 6], group)
                mine = sizes.own + thread * words
                own_map = first_map + own[mine + 3] * map_count
                write(n, own_map, own[mine + 4], own[mine + 5])
            cuda.syncthreads()  # nobody reads the buffer any more that is filled next
            slot, other, item = other, slot, following

    return kernel
