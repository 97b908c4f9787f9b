"""One kernel of a fused chain: which convolutions it holds, its tiles, and what it costs. Plain numbers, no GPU."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

TAPS = 3
"""Taps that the kernel unrolls at a time."""


@dataclass(frozen=True)
class Step:
    """Convolutions that run one after another in one kernel: a block an input and tile of output positions.

    The kernel's thread holds a register tile of channel_tile x position_tile sums. Its block reads the input's tile
    with its halo, holds every feature map in shared memory, and writes the last one.
    """

    channels: tuple[int, ...]
    """C_in of the first convolution, then C_out of each."""
    kernel_sizes: tuple[int, ...]
    relus: tuple[bool, ...]
    length: int
    """Positions of the step's input."""
    stat: bool
    """Whether the step ends in the mean and variance of its output."""
    tile: int
    """Output positions of a block."""
    channel_tile: int
    position_tile: int
    stage: int
    """Input channels whose weights are staged in shared memory at a time; there are two stages."""
    threads: int
    buffers: int
    """1: every layer's sums stay in registers until its input is no longer read, and overwrite it. 2: ping-pong."""
    resident: int = 1
    """Blocks that a multiprocessor is to hold: the compiler's limit on registers follows from it."""

    @cached_property
    def lengths(self) -> tuple[int, ...]:
        """Positions of the input, and out of each convolution."""
        return _shrink(self.length, self.kernel_sizes)

    @property
    def convolutions(self) -> int:
        """How many it holds."""
        return len(self.kernel_sizes)

    @property
    def length_out(self) -> int:
        """Positions out of the last convolution."""
        return self.lengths[-1]

    @property
    def tiles(self) -> int:
        """Blocks an input."""
        return -(-self.length_out // self.tile)

    @cached_property
    def tile_lengths(self) -> tuple[int, ...]:
        """Positions of the input, and out of each convolution, in one block: the tile and the halo still to come."""
        return _shrink(self.tile + self.length - self.length_out, self.kernel_sizes)

    @property
    def accumulators(self) -> int:
        """Sums that a thread holds."""
        return self.channel_tile * self.position_tile

    @cached_property
    def register_tiles(self) -> tuple[int, ...]:
        """Register tiles of each convolution in one block: one pass where the block has as many threads."""
        return tuple(
            -(-length // self.position_tile) * -(-count // self.channel_tile)
            for length, count in zip(self.tile_lengths[1:], self.channels[1:], strict=True)
        )

    @property
    def fetches(self) -> int:
        """Weights that a thread holds on their way from global to shared memory."""
        return max(
            -(-count // (self.threads // (self.stage * size)))
            for count, size in zip(self.channels[1:], self.kernel_sizes, strict=True)
        )

    @property
    def weight_pitch(self) -> int:
        """Floats from one staged tap to the next: the output channels, padded to whole register tiles.

        A multiple of 4, so that four weights load at once, but not of 8: turning them spreads over the banks.
        """
        padded = max(-(-count // self.channel_tile) * self.channel_tile for count in self.channels[1:])
        return -(-padded // 8) * 8 + 4

    @property
    def stage_size(self) -> int:
        """Floats of one stage; for a stat also the block's scratch."""
        weights = self.stage * max(self.kernel_sizes) * self.weight_pitch
        return max(weights, self.threads) if self.stat else weights

    @cached_property
    def map_sizes(self) -> tuple[int, ...]:
        """Floats of each feature map, and those past its end that a register tile over the edge reads."""
        sizes = []
        for i, (count, length) in enumerate(zip(self.channels, self.tile_lengths, strict=True)):
            slack = 0
            if i < len(self.kernel_sizes):
                columns = -(-self.tile_lengths[i + 1] // self.position_tile)
                taps = -(-self.kernel_sizes[i] // TAPS) * TAPS
                slack = max(0, columns * self.position_tile + taps - 1 - length)
            sizes.append(count * length + slack)
        return tuple(sizes)

    @cached_property
    def offsets(self) -> tuple[int, ...]:
        """Where each feature map starts in shared memory, in floats."""
        first = 2 * self.stage_size
        return tuple(first if self.buffers == 1 or i % 2 == 0 else first + max(self.map_sizes[::2])
                     for i in range(len(self.map_sizes)))  # fmt: skip

    @property
    def shared_bytes(self) -> int:
        """Shared memory of a block: two stages of weights, and one or two feature maps."""
        maps = max(self.map_sizes) if self.buffers == 1 else max(self.map_sizes[::2]) + max(self.map_sizes[1::2])
        return 4 * (2 * self.stage_size + maps)

    @cached_property
    def recomputed(self) -> tuple[int, ...]:
        """Positions of each convolution that a second block computes as well, an input."""
        halos = [length - self.length_out for length in self.lengths[1:]]
        return tuple((self.tiles - 1) * halo for halo in halos)

    @property
    def flops(self) -> tuple[int, ...]:
        """Floating-point operations of each convolution for one position, a multiply-add counted as two."""
        return tuple(
            2 * c_in * c_out * size
            for c_in, c_out, size in zip(self.channels[:-1], self.channels[1:], self.kernel_sizes, strict=True)
        )

    @property
    def busy(self) -> float:
        """Part of the sums in the threads' register tiles that are outputs, recomputed ones included."""
        wanted = issued = 0
        for i, flops in enumerate(self.flops):
            warps = -(-self.register_tiles[i] // 32)
            wanted += flops * (self.lengths[i + 1] + self.recomputed[i])
            issued += flops // self.channels[i + 1] * self.tiles * warps * 32 * self.accumulators
        return wanted / issued


def _shrink(length: int, kernel_sizes: tuple[int, ...]) -> tuple[int, ...]:
    lengths = [length]
    for size in kernel_sizes:
        lengths.append(lengths[-1] - size + 1)
    return tuple(lengths)
