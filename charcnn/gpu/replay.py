"""What calls start, kept by what decides it: a call like one before starts the same, with addresses of its own.

Checks, plans and grids follow from arrays' kinds, options and the GPU, and so are found once. A call that does not
follow from these alone, or is not known, takes its whole way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np

from charcnn.aliases import Array, DType, KernelArgument, Stream
from charcnn.gpu import device, launch, pool
from charcnn.gpu.described import GpuArray, described
from charcnn.gpu.driver import context
from charcnn.gpu.launch_block import LaunchBlock
from charcnn.layers.layer import Shape

KEPT = 512
"""Calls of one function or layer that are remembered at once."""


class _Start(NamedTuple):
    """A launch that holds its numbers."""

    start: Callable[[int, Sequence[int]], None]
    addresses: tuple[tuple[int, int], ...]
    """Number of the array, and bytes from where that begins."""


class _Known(NamedTuple):
    """What a call starts, the bytes of each array for its own use, and the result that it makes where none is given."""

    starts: tuple[_Start, ...]
    own: tuple[int, ...]
    shape: Shape
    dtype: DType


class Replay:
    """Calls of a function or a layer.

    Args:
        own: bool, default False: whether its kernels may read arrays that are not the call's, as a layer's weights,
            which stay where they are.
        in_place: bool, default False: whether the result may be the first array.
        by_address: int, default 0: how many of the first arrays count by their addresses themselves, as where tensor
            maps hold those.
    """

    paused = 0
    """How many want each call to take its whole way: something is tried or measured meanwhile."""

    _generation = 0
    """How often all that is known was forgotten."""

    def __init__(self, *, own: bool = False, in_place: bool = False, by_address: int = 0) -> None:
        self._own, self._in_place, self._by_address = own, in_place, by_address
        self._more = in_place or by_address > 0
        self._known: dict[tuple[object, ...], _Known] = {}
        self._of = Replay._generation

    @classmethod
    @contextmanager
    def pause(cls) -> Iterator[None]:
        """In this context each call of all threads takes its whole way."""
        with launch.launching:
            cls.paused += 1
        try:
            yield
        finally:
            with launch.launching:
                cls.paused -= 1

    @classmethod
    def forget(cls) -> None:
        """Plans may be others from now on: forget all calls of all functions and layers."""
        with launch.launching:
            cls._generation += 1

    def started(self, arrays: Sequence[Array], options: Sequence[object], out: Array, stream: Stream) -> Array:
        """Start what such a call started before.

        Args:
            arrays: what it reads, or writes besides its result.
            options: what else decides what is started.
            out: where to write; made where None.
            stream: as of `launch.Call`.

        Returns:
            The result; None where such a call is not known, and nothing was started.
        """
        if not self._known or Replay.paused or launch.profiler is not None or self._of != Replay._generation:
            return None
        handle = 0 if stream is None else device.stream_handle(stream)
        written = out is not None
        try:  # Numba's know it already
            views = [array._charcnn for array in arrays]
            if written:
                views.append(out._charcnn)
        except AttributeError:
            views = [*map(described, (*arrays, out) if written else arrays)]
            if not all(view is not None and view.producer in (None, handle) for view in views):
                return None
        aliased = written and self._in_place and views[0].begin == views[-1].begin
        try:
            known = self._known.get(self._key(views, options, aliased))
        except TypeError:  # an option that has no hash
            return None
        if known is None or (known.own and handle):  # memory is kept for the default stream alone
            return None
        if written:
            _, first, last, _ = views[-1]
            for _, begin, end, _ in views[aliased:-1]:
                if begin < last and first < end:
                    return None
        else:
            out = pool.pooled(known.shape, known.dtype, device.as_stream(stream))
            views.append(described(out))
        begins = [view[1] for view in views]
        own = [pool.PooledMemory(nbytes) for nbytes in known.own]  # held until all has been started
        begins += [block.address for block in own]
        with launch.launching:
            launch.count(len(known.starts))
            for start, addresses in known.starts:
                start(handle, [begins[which] + offset for which, offset in addresses])
        return out

    def keep(self, call: launch.Call, arrays: Sequence[Array], options: Sequence[object], out: Array) -> None:
        """Remember what a call started that was made with these, where others like it will start the same."""
        if device.SIMULATED or not call.repeats or Replay.paused:
            return
        result = call.out if out is None or callable(out) else out
        handle = int(call.stream)
        views = [view for view in map(described, (*arrays, result)) if view and view.producer in (None, handle)]
        if len(views) <= len(arrays):
            return
        if any(device.address(one) != view.begin for one, view in zip(call.inputs, views, strict=False)):
            return  # a copy, as another library's reshape may make, lies elsewhere each time
        written = out is not None
        aliased = self._in_place and bool(views[0].begin == views[-1].begin)
        different = views[aliased:]
        for i, one in enumerate(different):
            if any(one.begin < other.end and other.begin < one.end for other in different[:i]):
                return  # which of them an address is of would be a guess
        own = [view for view in map(described, call.own) if view]
        starts: list[_Start] = []
        for block, values in call.started:
            addresses = self._addresses(block, values, [*views, *own])
            if addresses is None:
                return
            places = [place for place, *_ in addresses]
            sources = tuple((which, offset) for _, which, offset in addresses)
            starts.append(_Start(block.holding(values, places).start, sources))
        if len(self._known) >= KEPT or self._of != Replay._generation:
            self._known.clear()
            self._of = Replay._generation
        try:
            key = self._key(views if written else views[:-1], options, written and aliased)
            sizes = tuple(view.end - view.begin for view in own)
            self._known[key] = _Known(tuple(starts), sizes, tuple(call.out.shape), call.out.dtype)
        except TypeError:
            return

    def _key(self, views: Sequence[GpuArray], options: Sequence[object], aliased: bool) -> tuple[object, ...]:
        key: list[object] = [view[0] for view in views]
        if options:
            key += options
            key += map(_type, options)
        if device.gpu_count() > 1:  # of one that is not the arrays', plans are others
            key.append(context())
        if self._more:
            key += aliased, *(view.begin for view in views[: self._by_address])
        return tuple(key)

    def _addresses(
        self, block: LaunchBlock, values: Sequence[KernelArgument], views: Sequence[GpuArray]
    ) -> list[tuple[int, int, int]] | None:
        """Place, array and bytes from its beginning of each value that is an address in one of these arrays; None where
        one lies in none, and must."""
        found: list[tuple[int, int, int]] = []
        for place, value in enumerate(values):
            if place not in block.arrays and not isinstance(value, np.uint64):
                continue
            which = next((i for i, view in enumerate(views) if view.begin <= value < view.end), None)
            if which is not None:
                found.append((place, which, int(value) - views[which].begin))
            elif value and not self._own:
                return None
        return found


def _type(option: object) -> object:
    """What tells 1 from True and 1.0, in a tuple, too."""
    return tuple(map(_type, option)) if type(option) is tuple else type(option)
