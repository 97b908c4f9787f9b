"""From a list of layers to the kernels of a fused chain: what each holds, needs, recomputes and saves."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, Literal, overload

from charcnn.gpu import device
from charcnn.layers import Conv1d, Relu
from charcnn.layers.layer import Shape
from charcnn.layers.windows import at_least
from charcnn.ops.chain.links import LONGEST, Layer2d
from charcnn.ops.chain.plan2d import Plan2d, plan2d
from charcnn.ops.chain.plan_mma import MmaPlan, make_mma_plan
from charcnn.ops.chain.plan_strips import StripPlan, make_strip_plan
from charcnn.ops.chain.planned import Planned, limited, tabulated
from charcnn.ops.chain.step import Step

STAT_BYTES = 16
"""Bytes of an input's mean and variance, in float64."""


@dataclass(frozen=True)
class Stat:
    """Each input's mean and biased variance over all channels and positions, for a LayerNorm: the last layer."""


Layer = Conv1d | Relu | Stat


@dataclass(frozen=True)
class Plan(Planned):
    """What a fused chain does, from the shapes alone. `describe()` tells it, `compile()` gives the function.

    Bytes of feature maps are those that must cross DRAM, each map counted once a kernel that reads or writes it.
    """

    layers: tuple[Layer, ...]
    method: str
    shared_limit: int
    """Bytes of shared memory that a block may use."""
    steps: tuple[Step, ...]
    """The kernels, in order."""

    @property
    def in_shape(self) -> tuple[int, int]:
        """(C_in, L)"""
        return self.steps[0].channels[0], self.steps[0].length

    @property
    def out_shape(self) -> tuple[int, int]:
        """(C_out, L_out)"""
        return self.steps[-1].channels[-1], self.steps[-1].length_out

    @property
    def stat(self) -> bool:
        """Whether the chain ends in Stat."""
        return self.steps[-1].stat

    @property
    def parameter_shapes(self) -> tuple[tuple[int, int, int], ...]:
        """(C_out, C_in, K) of each convolution's weight."""
        return tuple(
            (c_out, c_in, size)
            for step in self.steps
            for c_in, c_out, size in zip(step.channels[:-1], step.channels[1:], step.kernel_sizes, strict=True)
        )

    @property
    def merges(self) -> bool:
        """Whether one more, small kernel joins the statistics of an input's tiles."""
        return self.stat and self.steps[-1].tiles > 1

    @cached_property
    def flops(self) -> int:
        """Floating-point operations an input, each output computed once, a multiply-add counted as two."""
        return sum(
            flops * length for step in self.steps for flops, length in zip(step.flops, step.lengths[1:], strict=True)
        )

    @cached_property
    def recomputed_flops(self) -> int:
        """Floating-point operations an input that compute what another block computes as well."""
        return sum(
            flops * positions
            for step in self.steps
            for flops, positions in zip(step.flops, step.recomputed, strict=True)
        )

    @cached_property
    def recomputed(self) -> int:
        """Positions, of all convolutions together, that more than one block computes, an input."""
        return sum(sum(step.recomputed) for step in self.steps)

    @cached_property
    def positions(self) -> int:
        """Positions out of all convolutions together, an input."""
        return sum(sum(step.lengths[1:]) for step in self.steps)

    @cached_property
    def dram_bytes(self) -> int:
        """Bytes of feature maps and statistics an input that the kernels read and write."""
        total = 0
        for step in self.steps:
            total += 4 * (step.channels[0] * step.length + step.channels[-1] * step.length_out)
        if self.merges:
            total += 2 * 12 * self.steps[-1].tiles  # written, then read by the kernel that joins them
        return total + STAT_BYTES * self.stat

    @cached_property
    def unfused_bytes(self) -> int:
        """`dram_bytes` if each layer of the list were a kernel: ReLU reads and writes, Stat reads its map."""
        channels, length = self.in_shape
        total = 0
        for layer in self.layers:
            before = 4 * channels * length
            if isinstance(layer, Conv1d):
                channels, length = layer.channels, length - layer.kernel_size + 1
            total += before + (STAT_BYTES if isinstance(layer, Stat) else 4 * channels * length)
        return total

    def describe(self) -> str:
        """Kernels, shared memory, tiles, recomputation and bytes as a table, before anything is compiled."""
        first, kernels = 1, []
        for number, step in enumerate(self.steps, 1):
            relus = zip(step.kernel_sizes, step.relus, strict=True)
            layers = [f"conv1d{i} k{size}{' relu' * relu}" for i, (size, relu) in enumerate(relus, first)]
            maps = zip(step.channels, step.lengths, strict=True)
            kernels.append(
                {
                    "kernel": f"{number}",
                    "layers": ", ".join(layers + ["stat"] * step.stat),
                    "feature maps": " > ".join(f"{channels}x{length}" for channels, length in maps),
                    "blocks an input": f"{step.tiles} of {step.tile} positions",
                    "recomputed": f"{sum(step.recomputed)} of {sum(step.lengths[1:])} positions",
                    "threads a block": f"{step.threads}",
                    "sums a thread": f"{step.channel_tile} channels x {step.position_tile} positions",
                    "sums in use": f"{step.busy:.1%}",
                    "maps held": f"{step.buffers}",
                    "weights staged": f"2 x {step.stage} input channels",
                    "shared memory": f"{step.shared_bytes:,} of {self.shared_limit:,} bytes a block",
                }
            )
            first += len(layers)
        saved = 1 - self.dram_bytes / self.unfused_bytes
        chain = {
            "launches": f"{self.launches}" + ", the last joins the statistics of an input's tiles" * self.merges,
            "recomputed": f"{self.recomputed} of {self.positions} positions ({self.recomputed / self.positions:.2%})",
            "work": f"{self.flops:,} FLOP an input, {self.flops + self.recomputed_flops:,} with recomputation",
            "maps in DRAM": f"{self.dram_bytes:,} bytes an input, {self.unfused_bytes:,} with a kernel a layer: "
            f"{saved:.1%} saved",
            "parameters": f"{self.parameter_bytes:,} bytes a launch",
        }
        return tabulated((*kernels, chain))

    def workspace_shapes(self, n: int) -> tuple[Shape, ...]:
        """Shapes of the float32 arrays that pass between the kernels at n inputs: none where there is one kernel."""
        shapes: list[Shape] = [(n, step.channels[-1], step.length_out) for step in self.steps[:-1]]
        if self.merges:
            shapes.append((n * self.steps[-1].tiles, 3))
        return tuple(shapes)


@overload
def plan(layers: Sequence[Layer], *, in_channels: int, length: int, **options: Any) -> Plan: ...
@overload
def plan(
    layers: Sequence[Layer2d], *, in_shape: Sequence[int], method: Literal["mma"], walk: str | None, **options: Any
) -> StripPlan: ...
@overload
def plan(layers: Sequence[Layer2d], *, in_shape: Sequence[int], method: Literal["mma"], **options: Any) -> MmaPlan: ...
@overload
def plan(layers: Sequence[Layer2d], *, in_shape: Sequence[int], **options: Any) -> Plan2d: ...
def plan(layers: Sequence[Any], **options: Any) -> Any:
    """Plan the fusion of a chain: over sequences as `plan1d` says, over images, which have an `in_shape`, as `plan2d`,
    or, with method="mma", on tensor cores as `make_mma_plan`; with a `walk`, too, as `make_strip_plan`.

    Raises:
        ValueError: the layers are no such chain, or need more shared memory than there is.
    """
    if "in_shape" not in options:
        return plan1d(layers, **options)
    if options.get("method") == "mma":
        rest = {name: value for name, value in options.items() if name != "method"}
        walks = "walk" in rest
        known = {"walk", "tile", "batch"} if walks else {"threads"}
        if others := {*rest} - {"in_shape", "precision", "shared_limit", *known}:
            raise ValueError(f"{min(others)}={rest[min(others)]!r}: method 'mma' takes no such option")
        return make_strip_plan(layers, **rest) if walks else make_mma_plan(layers, **rest)
    return plan2d(layers, **options)


def plan1d(
    layers: Sequence[Layer],
    *,
    in_channels: int,
    length: int,
    method: str | int = "whole",
    tile: int | None = None,
    channel_tile: int = 8,
    position_tile: int = 9,
    stage: int | None = None,
    threads: int | None = None,
    buffers: int | None = None,
    shared_limit: int | None = None,
    precision: str = "fp32",
) -> Plan:
    """Plan the fusion of a chain of one to six convolutions, each with or without Relu, perhaps closed by Stat.

    Args:
        layers: Conv1d, Relu and Stat in order.
        in_channels: C_in of the first convolution.
        length: positions of an input.
        method: "whole": one kernel, a block an input, every feature map in shared memory, nothing recomputed.
            "pairs": two convolutions a kernel, a block a tile of positions; neighbouring tiles recompute the halo,
            and the maps between the kernels go through global memory. An int: so many convolutions a kernel.
        tile: output positions of a block, not for "whole"; chosen so that one pass does, where None.
        channel_tile: output channels of a thread's register tile; multiples of 4 load weights four at a time.
        position_tile: positions of a thread's register tile; odd ones read shared memory without bank conflicts.
        stage: input channels whose weights are staged at a time; chosen where None.
        threads: threads a block, a multiple of 32; chosen where None.
        buffers: feature maps held: 1 (results wait in registers and overwrite their input) or 2 (ping-pong); 1 where
            None and the registers of a block hold a whole map.
        shared_limit: bytes of shared memory a block may use; the current GPU's where None.
        precision: "fp32".

    Raises:
        ValueError: the layers are no such chain, run out of positions, or need more shared memory than there is.
    """
    convs, relus, stat = _chain(layers)
    at_least("in_channels", in_channels, 1)
    at_least("length", length, 1)
    at_least("channel_tile", channel_tile, 1)
    at_least("position_tile", position_tile, 1)
    for name, value in (("tile", tile), ("stage", stage), ("threads", threads)):
        if value is not None:
            at_least(name, value, 1)
    if threads is not None and threads > 1024:
        raise ValueError(f"threads={threads}: need at most 1024, as a block may have")
    if buffers not in (None, 1, 2):
        raise ValueError(f"buffers={buffers!r}: need 1, 2 or None")
    if method == "whole":
        if tile is not None:
            raise ValueError(f"tile={tile}: method 'whole' has no tiles; {len(convs)} as method fuses all in tiles")
        group = len(convs)
    elif method == "pairs":
        group = 2
    elif isinstance(method, int) and method >= 1:
        group = method
    else:
        raise ValueError(f"method={method!r}: need 'whole', 'pairs', or the number of convolutions a kernel")
    if precision != "fp32":
        raise ValueError(f"{precision=}: a chain over sequences needs fp32; MmaConv and WgmmaConv take one a layer")
    limit = limited(shared_limit)
    for i, conv in enumerate(convs):
        rest = length - sum(before.kernel_size - 1 for before in convs[:i])
        if rest < conv.kernel_size:
            raise ValueError(
                f"convolution {i + 1} gets {rest} positions from length={length}: "
                f"need at least its kernel size {conv.kernel_size}"
            )
    steps = []
    channels = in_channels
    for first in range(0, len(convs), group):
        part = convs[first : first + group]
        shape = partial(
            Step,
            channels=(channels, *(conv.channels for conv in part)),
            kernel_sizes=tuple(conv.kernel_size for conv in part),
            relus=relus[first : first + group],
            length=length,
            stat=stat and first + group >= len(convs),
            channel_tile=channel_tile,
            position_tile=position_tile,
        )
        names = f"convolutions {first + 1} to {first + len(part)}"
        steps.append(_step(shape, method == "whole", tile, stage, threads, buffers, limit, names))
        channels = part[-1].channels
        length = steps[-1].length_out
    return Plan(tuple(layers), str(method), limit, tuple(steps))


def _chain(layers: Sequence[Layer]) -> tuple[list[Conv1d], tuple[bool, ...], bool]:
    convs: list[Conv1d] = []
    relus: list[bool] = []
    stat = False
    for i, layer in enumerate(layers):
        if stat:
            raise ValueError(f"layers[{i}] is {layer} after Stat(): need Stat as the last layer")
        if isinstance(layer, Conv1d):
            convs.append(layer)
            relus.append(False)
        elif isinstance(layer, Relu) and convs and isinstance(layers[i - 1], Conv1d):
            relus[-1] = True
        elif isinstance(layer, Stat) and convs:
            stat = True
        else:
            raise ValueError(f"layers[{i}] is {layer!r}: need Conv1d, Relu after a Conv1d, or Stat at the end")
    if not 1 <= len(convs) <= LONGEST:
        raise ValueError(f"layers has {len(convs)} convolutions: need 1 to {LONGEST}")
    return convs, tuple(relus), stat


def _step(
    shape: Callable[..., Step], whole: bool, tile: int | None, stage: int | None, threads: int | None,
    buffers: int | None, limit: int, names: str,
) -> Step:  # fmt: skip
    """Choose what was left open: threads that hold a map in registers, then the largest weight stage that fits."""
    outline = shape(tile=1, stage=1, threads=1024, buffers=1)
    most = 1 << (65536 // (outline.accumulators + 36)).bit_length() - 1  # 36: registers of a thread beside its sums
    most = min(1024, most)
    budget = threads or (most if whole else max(32, most // 2))  # half: so that two blocks take turns to wait
    positions = outline.length_out if whole or tile is None else min(tile, outline.length_out)
    if not whole and tile is None:
        channel_tiles = -(-max(outline.channels[1:]) // outline.channel_tile)
        halo = sum(size - 1 for size in outline.kernel_sizes[1:])
        most_positions = max(1, budget // channel_tiles * outline.position_tile - halo)
        positions = -(-positions // -(-positions // most_positions))  # as many tiles, of equal length
    wanted = max(shape(tile=positions, stage=1, threads=1024, buffers=1).register_tiles)
    taps = max(outline.kernel_sizes)
    if threads is None:
        threads = max(min(budget, -(-wanted // 32) * 32), -(-taps // 32) * 32)
    if buffers == 1 and wanted > threads:
        raise ValueError(f"buffers=1: {names} have {wanted} register tiles for {threads} threads; need 2")
    stages = [size for size in ((8, 4, 2, 1) if stage is None else (stage,)) if size * taps <= threads]
    if not stages:
        raise ValueError(f"threads={threads}: need at least {taps * (stage or 1)} to stage {stage or 1} x {taps} taps")
    steps = [
        shape(tile=positions, stage=size, threads=threads, buffers=buffers or (1 if wanted <= threads else 2))
        for size in stages
    ]
    fitting = [step for step in steps if step.shared_bytes <= limit]
    if not fitting:
        raise device.SizeError(
            f"{names} need {steps[-1].shared_bytes:,} bytes of shared memory a block for {positions} positions, "
            f"there are {limit:,}: try "
            + ("method='pairs'" if whole else "a smaller tile, or fewer convolutions a kernel")
        )
    # Weights under way take registers beside the sums and some 48 more; a block gets them by four warps at a time.
    blocks = max(1, most // threads) * -(-threads // 128) * 128
    room = max(8, min(16, 65536 // blocks - outline.accumulators - 48))
    step = next((step for step in fitting if step.fetches <= room), fitting[-1])
    resident = min(most // threads, (limit + 1024) // (step.shared_bytes + 1024))  # 1 KB a block is the system's
    return replace(step, resident=max(1, resident))
