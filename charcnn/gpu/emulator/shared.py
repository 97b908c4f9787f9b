"""Accesses of the running thread to shared memory, its own block's or another one's of the cluster.

Where a launch collects findings, each is held against the accesses before it (`order`). That finds what a GPU shows
only by luck: data that is read before it came, or overwritten while it is still read.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

import numpy as np

from charcnn.gpu.emulator.findings import UNINITIALISED, place_of
from charcnn.gpu.emulator.memory import BASE, RANK
from charcnn.gpu.emulator.order import WORD, Actor, Knowledge, Mistake, Shadow
from charcnn.gpu.emulator.swizzle import ROW
from charcnn.gpu.emulator.threads import LANDING, PhaseBarrier, Thread, ThreadBlock, current

_WIDEST = 16
"""Bytes that a thread loads or stores at once, at a multiple of their number."""


def remote(address: int) -> tuple[ThreadBlock, int]:
    """The block of the cluster that an address of `mapa` lies in, and the address in that block."""
    rank, at = divmod(int(address), RANK)
    blocks = current().block.cluster.blocks
    if rank >= len(blocks):
        current().report("out of bounds", f"shared memory of block {rank} of a cluster of {len(blocks)}")
        rank = 0
    return blocks[rank], at


def place(address: int, size: int, alignment: int, block: ThreadBlock, what: str) -> int | None:
    """Where in the block's memory these bytes lie; None where they do not, which is a finding."""
    rank, at = divmod(int(address), RANK)
    at -= BASE if rank in (0, block.rank) else RANK  # of a block's own memory, or as `remote` and a multicast give it
    if at % alignment:
        current().report("misaligned address", f"{what} {size} bytes of shared memory at {at}: need {alignment}s")
        at -= at % alignment
    if block.memory.holds(at, size):
        return at
    current().report("out of bounds", f"{what} bytes {at} to {at + size} of shared memory: it has {block.memory.size}")
    return None


def read(address: int, size: int, block: ThreadBlock | None = None, *, whole: bool = True) -> np.ndarray:
    """Bytes of a load; zeros where there are none. Of a matrix or a vector, not `whole`, some may be unwritten."""
    block = block or current().block
    at = place(address, size, min(size, _WIDEST), block, "reads")
    if at is None:
        return np.zeros(size, np.uint8)
    if block.shadow:
        loaded(block, Shadow.span(at, size), whole=whole)
    return block.memory.bytes[at : at + size]


def read_rows(addresses: Sequence[int], size: int) -> np.ndarray:
    """Rows of so many bytes, a multiple of a word, that a warp's lanes load at once; each may be unwritten in part."""
    block, at = current().block, np.array(addresses, np.int64) % RANK - BASE
    if block.memory.holds_all(at, size) and not (at % size).any():
        words = at[:, None] // WORD + np.arange(size // WORD)
        if block.shadow is None or not _wrong(block.shadow, words):
            return np.asarray(block.memory.bytes.view(np.uint32)[words].view(np.uint8))
    return np.stack([read(address, size, whole=False) for address in addresses])  # which says what is wrong


def _wrong(shadow: Shadow, words: np.ndarray) -> bool:
    actor = current().actor
    return shadow.read(words.reshape(-1), actor, actor, place_of(sys._getframe(1))) is not None


def write(address: int, data: np.ndarray, block: ThreadBlock | None = None) -> None:
    """Store bytes."""
    block = block or current().block
    at = place(address, len(data), min(len(data), _WIDEST), block, "writes")
    if at is not None:
        if block.shadow:
            stored(block, Shadow.span(at, len(data)))
        block.memory.bytes[at : at + len(data)] = data


def loaded(block: ThreadBlock, words: np.ndarray, *, whole: bool = True) -> None:
    """Check a load of these words by the running thread."""
    thread = current()
    if block.shadow and not thread.atomic:
        where = place_of(sys._getframe(1))
        report(block.shadow.read(words, thread.actor, thread.actor, where, whole=whole), where)


def stored(block: ThreadBlock, words: np.ndarray) -> None:
    """Check a store to these words by the running thread."""
    thread = current()
    if block.shadow and block.pieces:
        block.pieces.forget(words)
        where = place_of(sys._getframe(1))
        if thread.atomic:
            block.shadow.land(words, thread.actor, where)
        else:
            report(block.shadow.written(words, thread.actor, thread.actor.knows, where), where)


def beside(block: ThreadBlock, words: np.ndarray, by: Actor, *, whole: bool = True) -> None:
    """Check what wgmma or a bulk store reads, which the running thread starts."""
    if block.shadow:
        where, knowledge = place_of(sys._getframe(1)), known(block, by)
        by.tick()
        report(block.shadow.read(words, by, knowledge, where, beside=True, whole=whole), where)


def known(block: ThreadBlock, by: Actor) -> Knowledge:
    """To whom starts it: the warp, or all warps of the warpgroup."""
    if by.kind != "product":
        return current().actor
    found, first = Knowledge(), current().number // 128 * 4
    for warp in block.warps[first : first + 4]:
        found.join(warp)
    return found


def helper(block: ThreadBlock, kind: str, number: int) -> Actor:
    """What counts for the products of a warpgroup, or the bulk stores of a warp."""
    actors = block.cluster.actors
    assert actors is not None
    if (kind, number) not in block.helpers:
        block.helpers[kind, number] = Actor(actors, "product" if kind == "product" else "store")
    return block.helpers[kind, number]


def report(found: Mistake | None, where: tuple[str, int], *, copies: bool = False) -> None:
    """A mistake of an access in this line, by the name of what was forgotten."""
    if found is None:
        return
    thread, before = current(), f"{found.where[0]}:{found.where[1]}"
    if found.kind == "unwritten":
        thread.report(UNINITIALISED, "reads shared memory that nobody wrote", where)
    elif found.kind == "unfenced":
        thread.report("missing proxy fence", f"reads what {before} wrote with no fence_proxy_async between", where)
    elif found.kind == "under way":
        kind = "copy before wait" if found.waited else "read before full"
        thread.report(kind, f"the copy of {before} is still under way", where)
    elif found.kind == "read after write" and found.other and found.other.kind == "copy":
        _before_full(found.other, where, before)
    elif found.kind == "read after write":
        thread.report("race", f"reads what {before} wrote, and no barrier is between", where)
    elif not copies and found.other and found.other.kind == "warp":
        thread.report("race", f"writes what {before} read or wrote, and no barrier is between", where)
    else:
        thread.report("write before empty", f"writes what {before} may still read or write", where)


def _before_full(copies: Actor, where: tuple[str, int], copied: str) -> None:
    thread = current()
    barriers = [barrier for block in thread.block.cluster.blocks for barrier in block.barriers.values()]
    barrier = next((one for one in barriers if one.copies is copies), None)
    if barrier is not None and barrier.bytes < 0:
        thread.report("missing expect_tx", f"reads what {copied} copies, whose mbarrier expects no bytes", where)
    elif barrier is not None and thread.passed.get((barrier, barrier.phases), 0) > (barrier.phases > 0):
        thread.report("wrong parity", f"does not wait for the copy of {copied}", thread.waited[barrier])
    else:
        thread.report("read before full", f"reads what {copied} copies, and did not wait for it", where)


def copy_in(
    block: ThreadBlock, bytes_at: np.ndarray, data: np.ndarray, barrier: PhaseBarrier, *, tiled: bool = False
) -> None:
    """TMA's: bytes to these places, swizzled rows if `tiled`, counted by the mbarrier; when, the seed decides."""
    where, words, shadow = place_of(sys._getframe(1)), Shadow.words(bytes_at), block.shadow
    thread = current()
    if shadow:
        report(shadow.begin(words, thread.actor.knows, where), where, copies=True)

    def land() -> None:
        block.memory.bytes[bytes_at] = data
        if shadow and barrier.copies:
            barrier.copies.tick()
            shadow.land(words, barrier.copies, where)
        if block.pieces:
            block.pieces.forget(words)
            if tiled:
                block.pieces.tiled(bytes_at)
        barrier.land(data.size, thread, where)

    _start(land)


def copy_later(thread: Thread, at: int, data: np.ndarray, source: int | None) -> Callable[[], None]:
    """cp.async's: what puts the bytes there, once the thread waits for them; a piece has a source."""
    block, where, words = thread.block, place_of(sys._getframe(1)), Shadow.span(at, len(data))
    shadow = block.shadow
    if shadow:
        report(shadow.begin(words, thread.actor.knows, where, waited=True), where, copies=True)

    def land() -> None:
        block.memory.bytes[at : at + len(data)] = data
        if shadow and block.pieces:
            shadow.land(words, thread.actor, where)
            block.pieces.forget(words)
            if source is not None:
                block.pieces.copied(at, source)

    return land


def _start(land: Callable[[], None]) -> None:
    cluster = current().block.cluster
    if LANDING[cluster.launch.seed % len(LANDING)] == "at once":
        land()
    else:
        cluster.under_way.append(land)


def read_matrix(address: int, rows: int, row_bytes: int = ROW) -> np.ndarray:
    """Rows of 128 or 64 bytes, as many swizzled, from a row that begins at this address on, as TMA lays them."""
    block = current().block
    at = place(address, rows * row_bytes, row_bytes, block, "a descriptor of")
    if at is None:
        return np.zeros((rows, row_bytes), np.uint8)
    places = swizzled(at, rows, row_bytes)
    if block.shadow:
        beside(block, Shadow.words(places), helper(block, "product", current().number // 128), whole=False)
    if row_bytes == ROW and block.pieces and not block.pieces.is_swizzled(at // ROW, rows):
        current().report(
            "wrong swizzle", "reads rows whose pieces of 16 bytes do not lie as the 128-byte swizzle has them"
        )
    return np.asarray(block.memory.bytes[places])


def swizzled(at: int, rows: int, row_bytes: int = ROW) -> np.ndarray:
    """Where the bytes of rows lie that begin at this place: its bits 4 to 6 are turned by bits 7 to 9.

    Of rows of 64 bytes, bits 4 and 5 by bits 7 and 8. CUDA C++ Programming Guide, "The Shared Memory Swizzle Modes";
    PTX ISA, "Tensor: Swizzling Modes".
    """
    places = (at + BASE) + np.arange(rows * row_bytes).reshape(rows, row_bytes)
    return np.asarray((places ^ (places >> 7 & row_bytes // 16 - 1) << 4) - BASE)
