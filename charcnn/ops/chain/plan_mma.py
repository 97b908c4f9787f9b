"""A chain over images on tensor cores: where a block's maps lie, what a product multiplies, its weights on a GPU.

A block has an image: every map of the chain lies whole in its shared memory, channels in *octets*, an octet of a pixel
16 bytes. A product's rows are 16 pixels of a map, its columns 8 output channels, its depth two *octets*: of two taps,
or of two octets of channels. The first convolution reads few channels, so its octets are of taps: a pixel has the
window's row that begins there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from math import prod
from typing import Any

import numpy as np

from charcnn.gpu import device
from charcnn.ops.chain.kernel_mma import ROWS, make_mma_kernel
from charcnn.ops.chain.links import Layer2d, linked
from charcnn.ops.chain.octets import OCTET, PIXEL, REACH, rounded
from charcnn.ops.chain.planned import limited, tabulated
from charcnn.ops.chain.tensor_plan import TensorPlan, half_precision

COLUMNS = 2
"""Octets of output channels that a warp computes at once; of more it goes over the map again."""

WARPS, ENOUGH = (4, 8, 16), 16
"""Of a block, where none are asked for: the fewest by which a multiprocessor has enough, so that some compute while
others wait."""

FRAGMENTS = 128
"""Words of weights that a lane has room for in registers."""

OTHERS = 26
"""Registers of a thread beside weights and sums: features, addresses, biases."""

REGISTERS, RESERVED, MOST_BLOCKS = 65_536, 1024, 16
"""Of a multiprocessor; bytes of shared memory that each block takes beside its own; blocks that are ever planned."""

MOST_THREADS = 1536
"""Of a multiprocessor: some have more."""


@dataclass(frozen=True)
class Map:
    """A map in shared memory, with its padding.

    Columns that a window's step takes together lie together: column c is number c // step of phase c % step.
    """

    octets: int
    rows: int
    columns: int
    top: int = 0
    left: int = 0
    """Padding."""
    border: bool = False
    """Whether it has padding: zeros that nothing else may write over."""
    step: int = 1

    @property
    def phase(self) -> int:
        """Pixels of a phase's row."""
        return -(-self.columns // self.step)

    @property
    def pitch(self) -> int:
        """Pixels from a row to the next."""
        return self.phase * self.step

    @property
    def plane(self) -> int:
        """Bytes of an octet."""
        return PIXEL * self.rows * self.pitch

    @property
    def nbytes(self) -> int:
        """Of all octets."""
        return self.octets * self.plane

    def at(self, octet: int, row: int, column: int) -> int:
        """Bytes to a pixel, padding counted."""
        return octet * self.plane + PIXEL * (row * self.pitch + column % self.step * self.phase + column // self.step)


@dataclass(frozen=True)
class MmaPlan(TensorPlan):
    """A chain over images of which a block computes an image at a time, by mma.sync: one kernel, whatever its length.

    `describe()` tells what it does; `prepare(weights, biases)` gives the function.
    """

    warps: int
    """Of a block."""

    @property
    def threads(self) -> int:
        """Of a block."""
        return 32 * self.warps

    @cached_property
    def maps(self) -> tuple[Map, ...]:
        """What each link reads: of the first one the rows of its windows, an octet a channel."""
        (channels, height, _), first = self.links[0].in_shape, self.links[0]
        rows, _ = first.window.padded(height, 0)
        found = [Map(channels, rows, first.out_shape[2])]
        for link in self.links[1:]:
            (channels, *size), (top, bottom, left, right) = link.in_shape, link.window.padding
            rows, columns = link.window.padded(size[0], size[1])
            border = top + bottom + left + right > 0
            found.append(Map(-(-channels // OCTET), rows, columns, top, left, border, link.window.stride[1]))
        return tuple(found)

    @cached_property
    def places(self) -> tuple[int, ...]:
        """Where each map begins in shared memory, in bytes, and at last where they end.

        A map without padding may have the place of one that is not read any more, or not written yet.
        """
        taken: list[tuple[int, int]] = []
        for i, one in enumerate(self.maps):
            beside = [
                place
                for j, place in enumerate(taken)
                if i - j == 1 or one.border or self.maps[j].border  # link i - 1 reads map i - 1 and writes map i
            ]
            begin = min(
                at
                for at in (0, *(end for _, end in taken))
                if all(at + one.nbytes <= first or at >= end for first, end in beside)
            )
            taken.append((begin, begin + one.nbytes))
        return (*(begin for begin, _ in taken), max(end for _, end in taken))

    @property
    def shared_bytes(self) -> int:
        """Shared memory of a block."""
        return self.places[-1]

    def octets(self, i: int) -> tuple[tuple[int, tuple[int, int, int]], ...]:
        """Of a convolution's depth each octet: its place in the map, and (octet of channels, row, column) of the tap.

        Of the first convolution (channel, row, -1): the octet is a row of taps.
        """
        link, held = self.links[i], self.maps[i]
        (rows, columns), (down, across) = link.window.kernel, link.window.dilation
        if i == 0:
            return tuple((held.at(c, down * row, 0), (c, row, -1)) for c in range(held.octets) for row in range(rows))
        taps = product(range(rows), range(columns), range(held.octets))
        return tuple((held.at(c, down * row, across * column), (c, row, column)) for row, column, c in taps)

    def steps(self, i: int) -> tuple[tuple[int, int], ...]:
        """Of a convolution, products of depth 16: numbers of two octets. An odd one is there twice, halved."""
        places = [place for place, _ in self.octets(i)]
        pairs = ((k, min(k + 1, len(places) - 1)) for k in range(0, len(places), 2))
        return tuple(pair if places[pair[0]] <= places[pair[1]] else pair[::-1] for pair in pairs)

    def parts(self, i: int) -> int:
        """Times that a convolution goes over its map, for some octets of output channels each."""
        return -(-self.links[i].out_shape[0] // (OCTET * COLUMNS))

    def columns(self, i: int) -> int:
        """Octets of output channels that it computes at a time."""
        return min(COLUMNS, -(-self.links[i].out_shape[0] // OCTET))

    def fragments(self, i: int) -> int:
        """Words of weights of a lane for a part of convolution i, a multiple of four."""
        return -(-2 * self.columns(i) * len(self.steps(i)) // 4) * 4

    @property
    def resident(self) -> int:
        """Blocks that a multiprocessor is to hold: the compiler's limit on registers follows from it. 0: none fits."""
        most = max(self.fragments(i) + 6 * self.columns(i) for i in self.convolutions)
        by_registers = REGISTERS // (self.threads * min(255, -(-(most + OTHERS) // 8) * 8))
        by_shared = (self.shared_limit + RESERVED) // (self.shared_bytes + RESERVED)
        return min(by_registers, by_shared, MOST_BLOCKS, MOST_THREADS // self.threads)

    @property
    def products(self) -> int:
        """Products of 16 x 8 x 16 that tensor cores compute an image."""
        return sum(
            -(-prod(self.links[i].out_shape[1:]) // ROWS) * len(self.steps(i)) * self.parts(i) * self.columns(i)
            for i in self.convolutions
        )

    def describe(self) -> str:
        """Maps, shared memory and work as a table, before anything is compiled."""
        kernel = {
            "kernel": f"1, a block an image, products of 16 x 8 x 16 in {self.precision.name}",
            **self.described(),
            "threads a block": f"{self.threads}",
            "shared memory": f"{self.shared_bytes:,} of {self.shared_limit:,} bytes a block, {self.resident} blocks",
        }
        chain = {
            "work": f"{self.flops:,} FLOP an image, {4096 * self.products:,} in whole products",
            "maps in DRAM": f"{4 * (prod(self.in_shape) + prod(self.out_shape)):,} bytes an image in float32",
        }
        return tabulated((kernel, chain))

    @property
    def outputs(self) -> tuple[int, ...]:
        """Output channels of each convolution as the kernel reads biases, some perhaps of zeros."""
        return tuple(self.parts(i) * self.columns(i) * OCTET for i in self.convolutions)

    def blocks(self, n: int) -> int:
        """Blocks that share n images."""
        return min(n, self.resident * device.multiprocessors())

    def kernel(self, from_bytes: bool) -> Any:
        """The kernel of images as float32 or as bytes."""
        return make_mma_kernel(self, from_bytes)

    def packed(self, weights: Sequence[np.ndarray]) -> np.ndarray:
        """Weights (C_out, C_in, KH, KW) as lanes read them: words, by convolution and part one after another.

        Of a part words by four, lane, and the four; a word is `mma.sync`'s B of m16n8k16, by step, octet of columns,
        half.
        """
        found = []
        for i, weight in zip(self.convolutions, weights, strict=True):
            columns, steps, octets = self.columns(i), self.steps(i), self.octets(i)
            c_out, c_in, _, taps = weight.shape
            padded = np.zeros(
                (self.parts(i) * columns * OCTET, -(-c_in // OCTET) * OCTET, *weight.shape[2:]), np.float32
            )
            padded[:c_out, :c_in] = weight
            depth = np.zeros((len(padded), len(steps), 2, OCTET), np.float32)
            for s, step in enumerate(steps):
                for half, number in enumerate(step):
                    channel, row, column = octets[number][1]
                    if column < 0:
                        depth[:, s, half, :taps] = padded[:, channel, row]
                    else:
                        depth[:, s, half] = padded[:, channel * OCTET : (channel + 1) * OCTET, row, column]
                if step[0] == step[1]:
                    depth[:, s] *= np.float32(0.5)  # of what becomes subnormal a bit may be lost, 2^-25
            lanes = depth.reshape(self.parts(i), columns, OCTET, len(steps), 2, 4, 2).transpose(0, 3, 1, 4, 2, 5, 6)
            words = rounded(np.ascontiguousarray(lanes), self.precision).view(np.uint32).reshape(self.parts(i), -1, 32)
            words = np.pad(words, ((0, 0), (0, self.fragments(i) - words.shape[1]), (0, 0)))
            found.append(words.reshape(self.parts(i), -1, 4, 32).transpose(0, 1, 3, 2).ravel())
        return np.concatenate(found)


def make_mma_plan(
    layers: Sequence[Layer2d],
    *,
    in_shape: Sequence[int],
    precision: str = "fp16",
    threads: int | None = None,
    shared_limit: int | None = None,
) -> MmaPlan:
    """Plan a chain of convolutions over images as one kernel on tensor cores.

    Args:
        layers, in_shape: as of `plan2d`.
        precision: of maps and weights, fp16 or bf16; sums, images and results are float32.
        threads: a block, a multiple of 32; chosen where None.
        shared_limit: bytes of shared memory a block may use; the current GPU's where None.

    Raises:
        ValueError: the kernel does not take such a chain, or a block has too little shared memory; says why.
    """
    links = linked(layers, in_shape)
    number_format, limit = half_precision(precision), limited(shared_limit)
    if threads is not None and (not isinstance(threads, int) or threads not in range(32, 1025, 32)):
        raise ValueError(f"{threads=}: method 'mma' needs a multiple of 32, at most 1,024")
    warps = WARPS if threads is None else (threads // 32,)
    every = [MmaPlan(links, number_format, limit, count) for count in warps]
    plan = next((one for one in every if one.resident * one.warps >= ENOUGH), None)
    plan = plan or max(every, key=lambda one: one.resident * one.warps)
    for link in links:
        if link.groups > 1:
            raise ValueError(f"{link.named} has {link.groups} groups: method 'mma' needs 1")
        if not link.groups and any(link.window.padding):
            raise ValueError(f"{link.named} has padding: method 'mma' needs a pooling without")
        if link.norm and (link is links[-1] or link.norm.size > REACH):
            raise ValueError(f"{link.named}: method 'mma' needs at most {REACH} channels, and a layer behind it")
    if (taps := links[0].window.kernel[1]) > OCTET:
        raise ValueError(f"{links[0].named}: method 'mma' needs at most {OCTET} columns of taps, the first has {taps}")
    for i in plan.convolutions:
        if (needed := plan.fragments(i)) > FRAGMENTS:
            raise ValueError(
                f"{links[i].named} of {links[i].in_shape[0]} channels: method 'mma' needs {needed} registers of "
                f"weights, a thread has {FRAGMENTS}"
            )
    if plan.shared_bytes > limit:
        raise ValueError(
            f"an image's maps take {plan.shared_bytes:,} bytes of shared memory by method 'mma', a block has "
            f"{limit:,}: try another method"
        )
    if not plan.resident:
        raise ValueError(f"threads={plan.threads}: a thread would have too few registers for this chain")
    return plan
