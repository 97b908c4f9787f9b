"""From a list of layers over images to the kernels of a fused chain: their tiles, what they recompute and save."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from itertools import accumulate, pairwise, product

from charcnn.gpu import device
from charcnn.layers.layer import Shape
from charcnn.layers.windows import Pair, at_least, pair
from charcnn.ops.chain.links import Layer2d, Link, Linked, arrows, linked
from charcnn.ops.chain.planned import Planned, limited, tabulated
from charcnn.ops.chain.step2d import Step2d
from charcnn.ops.chain.tiling2d import Tiling
from charcnn.ops.common.precision import FP32, TENSOR_PRECISIONS

METHODS = ("whole", "tiles", "rolling")
"""In this order where forecasts are equal."""

PRECISIONS = {"fp32": FP32, "fp16": TENSOR_PRECISIONS["fp16"]}
"""What maps are held as in shared memory."""

REGISTERS, TILE = 168, 80
"""Of a thread, at which blocks are counted that fit a multiprocessor; and what sums and a row's features may take."""

WARPS = 8
"""Of a multiprocessor, so many that some compute while others wait."""

THREADS = (32, 64, 128, 256, 384)
"""Of a block, to choose from."""

HELD, STAGE = 64 << 10, 4096
"""Bytes of weights that a block holds at most, and else floats of a stage of them."""


@dataclass(frozen=True)
class Roofline:
    """What a forecast of time takes a GPU to be: rates that no kernel passes, and that few reach."""

    flops: float = 51.06e12
    """Floating-point operations a second in float32: of an H200 what cuBLAS reaches on matrices of 8,192 rows and
    columns, in bench/results/nvidia-h200-layers.json."""
    bytes: float = 4.8e12
    """Of DRAM a second: an H200's by its data sheet."""
    multiprocessors: int = device.MULTIPROCESSORS
    launch: float = 0.5e-6
    """Seconds from a kernel to the next in a graph, as docs/levels/l16.md takes it."""

    def seconds(self, step: Step2d, n: int) -> float:
        """What the roofline allows a kernel at n images, if each of its instructions takes as long as a multiply-add.

        A block has a multiprocessor's share of `flops`, whether or not its threads all have outputs to compute.
        """
        waves = -(-n * step.tiles // self.multiprocessors)
        issued = 2 * step.cost(self.least(step, n)) * waves * self.multiprocessors / step.tiles
        return max(issued / self.flops, moved(step.links, n) / self.bytes) + self.launch

    def least(self, step: Step2d, n: int) -> int:
        """Warps of a block below which a multiprocessor waits: the fewer, the more blocks it has."""
        return -(-WARPS // max(1, min(step.resident, n * step.tiles // self.multiprocessors)))


@dataclass(frozen=True)
class Plan2d(Linked, Planned):
    """What a fused chain over images does, from the shapes alone. `describe()` tells it, `compile()` is the function.

    Bytes of feature maps are those that must cross DRAM, each map counted once a kernel that reads or writes it.
    """

    layers: tuple[Layer2d, ...]
    shared_limit: int
    """Bytes of shared memory that a block may use."""
    steps: tuple[Step2d, ...]
    """The kernels, in order."""
    batch: int
    """Images of a call that forecasts are for."""
    roofline: Roofline

    @cached_property
    def links(self) -> tuple[Link, ...]:  # type: ignore[override]
        """Of all kernels."""
        return tuple(link for step in self.steps for link in step.links)

    @property
    def computed_flops(self) -> int:
        """What the kernels compute: some outputs in several blocks, and none that no later layer needs."""
        return sum(step.tiling.computed_flops for step in self.steps)

    @property
    def recomputed_flops(self) -> int:
        """Of these, what another block computes as well."""
        return sum(step.tiling.recomputed_flops for step in self.steps)

    @property
    def dram_bytes(self) -> int:
        """Bytes of feature maps an image that the kernels read and write."""
        return sum(moved(step.links) for step in self.steps)

    @property
    def weakly_fused_bytes(self) -> int:
        """`dram_bytes` of a kernel a convolution, with what follows that in it."""
        return sum(map(moved, _with_pooling(self.links)))

    @property
    def unfused_bytes(self) -> int:
        """`dram_bytes` if each layer of the list were a kernel."""
        total, shape = 0, tuple(self.in_shape)
        for layer in self.layers:
            total += 4 * (math.prod(shape) + math.prod(layer.out_shape(shape)))
            shape = layer.out_shape(shape)
        return total

    @property
    def seconds(self) -> float:
        """The forecast for a call of `batch` images."""
        return sum(self.roofline.seconds(step, self.batch) for step in self.steps)

    def describe(self) -> str:
        """Kernels, tiles, halos, recomputation, shared memory, bytes and forecast as a table: nothing is compiled."""
        kernels, line = [], self.roofline
        for number, step in enumerate(self.steps, 1):
            tiling = step.tiling
            sums = (f"{tm}x{tn}" for (tm, tn), link in zip(step.sums, step.links, strict=True) if link.groups)
            kernels.append(
                {
                    "kernel": f"{number}, {step.method}",
                    **tiling.described(),
                    "blocks an image": f"{step.tiles} of {tiling.tile[0]}x{tiling.tile[1]} pixels",
                    "with halos": arrows(tiling.pyramid),
                    "rows a strip": ", ".join(f"{rows}" for _, rows in tiling.walks),
                    "rows held": ", ".join(f"{rows}" for rows in tiling.rings[:-1]),
                    "multiplications": f"{tiling.clipped:.2f}x the layers' own; {tiling.alike:.2f}x if blocks at "
                    "borders computed as much as others",
                    "recomputed": f"{tiling.recomputed_flops:,} of {tiling.computed_flops:,} FLOP an image",
                    "threads a block": f"{step.threads}",
                    "sums a thread": ", ".join(sums) + " (channels x columns)",
                    "sums in use": f"{step.busy:.1%}",
                    "weights": f"staged, 2 x {4 * step.stage:,} bytes" if step.stage else "held",
                    "shared memory": f"{step.shared_bytes:,} of {self.shared_limit:,} bytes a block",
                    "forecast": f"{1e6 * line.seconds(step, self.batch):,.1f} us",
                }
            )
        chain = {
            "launches": f"{self.launches}",
            "work": f"{self.flops:,} FLOP an image, {self.computed_flops:,} computed: "
            f"{self.computed_flops / self.flops:.2f}x",
            "maps in DRAM": f"{self.dram_bytes:,} bytes an image, {self.weakly_fused_bytes:,} with a kernel a "
            f"convolution, {self.unfused_bytes:,} with a kernel a layer",
            "parameters": f"{self.parameter_bytes:,} bytes a launch",
            "forecast": f"{1e6 * self.seconds:,.1f} us for a batch of {self.batch:,}: {line.flops / 1e12:g} TFLOP/s, "
            f"{line.bytes / 1e12:g} TB/s, {line.multiprocessors} multiprocessors, {1e6 * line.launch:g} us a launch",
        }
        return tabulated((*kernels, chain))

    def workspace_shapes(self, n: int) -> tuple[Shape, ...]:
        """Shapes of the float32 arrays that pass between the kernels at n images: none where there is one kernel."""
        return tuple((n, *step.tiling.shapes[-1]) for step in self.steps[:-1])


def plan2d(
    layers: Sequence[Layer2d],
    *,
    in_shape: Sequence[int],
    method: str | None = None,
    tile: Pair | None = None,
    kernels: Sequence[int] | None = None,
    precision: str = "fp32",
    batch: int = 1,
    roofline: Roofline | None = None,
    threads: int | None = None,
    shared_limit: int | None = None,
) -> Plan2d:
    """Plan the fusion of a chain of one to six convolutions over images, with what is pointwise or pools behind each.

    Args:
        layers: Conv2d, then MaxPool2d, Relu and Tanh in any order, but one function between two windows; behind that
            one LocalResponseNorm.
        in_shape: (C_in, H, W) of an image.
        method: "whole": a block an image, nothing recomputed; of maps that only pooling reads, and of the image, a
            strip of rows is held where more does not fit. "tiles": a block a tile of the last map; neighbours
            recompute the halo. "rolling": a block walks down the image a strip of rows at a time, and holds of each map
            the rows that windows share: nothing is recomputed vertically. None: what has the least forecast; "tiles"
            where there is a tile.
        tile: rows and columns of the last map, or an int for both. Of "rolling" a strip's; an int: rows as wide as the
            map. What has the least forecast where None.
        kernels: how many convolutions each kernel has. None: all in one, or with neither method nor tile what has the
            least forecast.
        precision: how maps are held in shared memory: "fp32", or "fp16", where values from 65,520 on are infinite. Sums
            and arrays are float32.
        batch: images of a call that the forecast is for.
        roofline: what the forecast takes the GPU to be; an H200 where None.
        threads: threads a block, a multiple of 32; chosen where None.
        shared_limit: bytes of shared memory a block may use; the current GPU's where None.

    Raises:
        ValueError: the layers are no such chain, do not fit the image, or need more shared memory than there is.
    """
    links = linked(layers, in_shape)
    if method not in (None, *METHODS):
        raise ValueError(f"method={method!r}: need one of {', '.join(METHODS)}, mma, or None")
    if tile is not None:
        pair("tile", tile)
        if method == "whole":
            raise ValueError(f"tile={tile!r}: method 'whole' has no tiles")
    if precision not in PRECISIONS:
        raise ValueError(f"{precision=}: need one of {', '.join(PRECISIONS)}")
    at_least("batch", batch, 1)
    if threads is not None and threads not in range(32, 385, 32):
        raise ValueError(f"threads={threads}: need a multiple of 32, at most 384")
    parts = _with_pooling(links)
    for count in kernels or ():
        at_least("kernels", count, 1)
    if kernels is not None and sum(kernels) != len(parts):
        raise ValueError(f"kernels={kernels!r}: need {len(parts)} convolutions together")
    line, limit = roofline or Roofline(), limited(shared_limit)
    itemsize, counts = PRECISIONS[precision].itemsize, (threads,) if threads else THREADS
    methods = (method,) if method else METHODS if tile is None else ("tiles",)

    @cache
    def best(first: int, last: int) -> tuple[bool, float, Step2d]:
        """Of the kernels for these convolutions the one of least forecast; of least memory, where none fits."""
        part_links, found = tuple(link for part in parts[first:last] for link in part), []
        for one in methods:
            for sizes in _tiles(part_links[-1].out_shape, one, tile):
                for tiling in _tilings(part_links, one, sizes):
                    steps = [_step(one, tiling, itemsize, count, limit, line, batch) for count in counts]
                    rated = [(step.shared_bytes > limit, line.seconds(step, batch), step) for step in steps]
                    found.append(min(rated, key=lambda one: one[:2]))
                    if not found[-1][0]:
                        break
        return min(found, key=lambda one: (one[0], one[2].shared_bytes if one[0] else one[1]))

    every = kernels is None and method is None and tile is None
    ends = _partitions(len(parts)) if every else [(0, *accumulate(kernels or (len(parts),)))]
    cuts = min(ends, key=lambda cuts: (any(best(*pair)[0] for pair in pairwise(cuts)),
                                       sum(best(*pair)[1] for pair in pairwise(cuts))))  # fmt: skip
    for first, last in pairwise(cuts):
        large, _, step = best(first, last)
        if large:
            raise ValueError(
                f"convolutions {first + 1} to {last} need {step.shared_bytes:,} bytes of shared memory a block by "
                f"method {step.method!r}, there are {limit:,}: try another method, a smaller tile, precision='fp16', "
                "or fewer convolutions a kernel"
            )
    return Plan2d(tuple(layers), limit, tuple(best(*pair)[2] for pair in pairwise(cuts)), batch, line)


def pyramid(layers: Sequence[Layer2d], in_shape: Sequence[int], tiles: Sequence[Pair]) -> tuple[Tiling, ...]:
    """How tiles of a chain's last map share out those below, whether or not that fits a GPU; arguments as of `plan2d`.

    A tiling's `alike` and `clipped` are the multiplications over those unfused, `held` a block's largest map between
    convolutions. Source: Alwani et al., Fused-layer CNN accelerators, MICRO 2016.
    """
    links = linked(layers, in_shape)
    return tuple(next(_tilings(links, "tiles", pair("tile", tile))) for tile in tiles)


def moved(links: Sequence[Link], n: int = 0) -> int:
    """Bytes that a kernel of these links moves through DRAM: of maps an image; of n images with parameters."""
    maps = 4 * (math.prod(links[0].in_shape) + math.prod(links[-1].out_shape))
    weights = sum(4 * (math.prod(link.weight_shape) + link.bias * link.out_shape[0]) for link in links if link.groups)
    return n * maps + weights if n else maps


def _with_pooling(links: Sequence[Link]) -> list[tuple[Link, ...]]:
    """Each convolution, with the poolings that follow it."""
    starts = [i for i, link in enumerate(links) if link.groups]
    return [tuple(links[i:j]) for i, j in pairwise((*starts, len(links)))]


def _partitions(count: int) -> list[tuple[int, ...]]:
    """All ways to cut so many convolutions into kernels: where each begins, and where the last ends."""
    cuts = product((False, True), repeat=count - 1)
    return [(0, *(i for i, cut in enumerate(cut_after, 1) if cut), count) for cut_after in cuts]


def _tiles(shape: tuple[int, int, int], method: str, tile: Pair | None) -> list[tuple[int, int]]:
    """The tiles to try: the given one, or some."""
    _, height, width = shape
    if method == "whole":
        return [(height, width)]
    if tile is not None:
        rows, columns = pair("tile", tile)
        return [(rows, columns if method == "tiles" or isinstance(tile, Sequence) else width)]
    if method == "rolling":
        return [(rows, -(-width // parts)) for parts in (1, 2, 4, 8) for rows in (8, 4, 2, 1)]
    most = max(height, width)
    sides = sorted({-(-most // parts) for parts in range(2, min(most, 16) + 1)} | {1})
    return [(side, side) for side in sides]


def _tilings(links: tuple[Link, ...], method: str, tile: tuple[int, int]) -> Iterator[Tiling]:
    """A kernel's walks and tiles, with ever lower strips."""
    _, height, width = links[-1].out_shape
    rows, columns = min(tile[0], height), min(tile[1], width)
    if method == "rolling":
        yield Tiling(links, ((len(links), rows),), (height, columns))
        return
    counts = [len(part) for part in _with_pooling(links)]
    whole = Tiling(links, tuple((count, links[0].in_shape[1]) for count in counts), (rows, columns))
    heights = [whole.pyramid[end][0] for end in whole.ends]
    for parts in (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 64, 128):
        yield replace(whole, walks=tuple(
            (count, -(-size // parts) if count > 1 or i == 0 else size)
            for i, (count, size) in enumerate(zip(counts, heights, strict=True))
        ))  # fmt: skip
        if parts >= max(heights):
            return


def _step(method: str, tiling: Tiling, itemsize: int, threads: int, limit: int, line: Roofline, batch: int) -> Step2d:
    """Choose register tiles, how weights come, and how many blocks a multiprocessor is to hold."""
    links = tiling.links
    convs = tiling.convolutions
    step = _with_weights(Step2d(method, tiling, itemsize, threads, ((1, 1),) * len(links)), limit, convs)
    least, sums = line.least(step, batch), list(step.sums)
    for i in convs:
        tiles = ((tm, tn) for tm, tn in product((1, 2, 4, 8), range(1, 9)) if tm * tn + links[i].row(tn) <= TILE)
        trials = (replace(step, sums=(*sums[:i], tile, *sums[i + 1 :])) for tile in tiles)
        sums[i] = min((trial.instructions(i, least), trial.sums[i]) for trial in trials)[1]
    return _with_weights(replace(step, sums=tuple(sums), stage=0), limit, convs)


def _with_weights(step: Step2d, limit: int, convs: Sequence[int]) -> Step2d:
    """All weights held where there is room, else staged; and as many blocks as fit."""
    if step.shared_bytes > limit or 4 * step.weight_offsets[-1] > HELD:
        step = replace(step, stage=max(map(step.line_size, convs)))
        room = (limit - step.shared_bytes) // 8 // 4 * 4
        step = replace(step, stage=max(step.stage, min(STAGE, step.stage + room)))
    fit = (limit + 1024) // (step.shared_bytes + 1024)  # 1 KB a block is the system's
    return replace(step, resident=max(1, min(65_536 // (REGISTERS * step.threads), fit)))
