"""Copies from global to shared memory past the registers. PTX ISA: "Asynchronous copy", cp.async."""

from __future__ import annotations

from functools import cache

from charcnn.aliases import Intrinsic
from charcnn.gpu.device import AMPERE
from charcnn.gpu.ptx.intrinsics import instruction
from charcnn.gpu.ptx.ld_st import VECTOR

_NOTHING = {AMPERE: ""}
"""Before Ampere, where copies are not under way."""


def _copied(width: int) -> str:
    """Assembly of ordinary loads and stores, by which a GPU without cp.async copies so many words."""
    words = [f"w{i}" for i in range(width)]
    loads = [
        f"setp.gt.u32 p, $2, {4 * i};\nmov.b32 {word}, 0;\n@p ld.global.b32 {word}, [$1+{4 * i}];\n"
        for i, word in enumerate(words)
    ]
    store = f"st.shared.v{width}.b32 [$0], {{{', '.join(words)}}};" if width > 1 else "st.shared.b32 [$0], w0;"
    return f"{{.reg .pred p;\n.reg .b32 {', '.join(words)};\n{''.join(loads)}{store}}}"


@cache
def cp_async(width: int) -> Intrinsic:
    """copy(shared, to, offset, array, at, wanted): start to copy `width` float32, 1, 2 or 4, from global to shared.

    Only `wanted` bytes are read, and zeros written for the rest: with 0, the source may lie outside. No register holds
    what is on its way. `cp_async_commit_group` closes a group of copies, `cp_async_wait_group` waits for groups.

    PTX: cp.async.ca.shared.global [to], [from], 4 * width, wanted; (cp.async.cg, past the first-level cache, for
    16 bytes); section "cp.async". Since compute capability 8.0; before, ld.global.b32 of the words wanted, and
    st.shared, which are done at once.
    """

    text = f"cp.async.{'cg' if width == VECTOR else 'ca'}.shared.global [$0], [$1], {4 * width}, $2;"

    @instruction(text, "", "sgr", before={AMPERE: _copied(width)})
    def copy(to, source, wanted):
        """See `cp_async`."""

    return copy


@instruction("cp.async.cg.shared.global [$0], [$1], 16, $2;", "", "rlr", before={AMPERE: _copied(VECTOR)})
def cp_async_16(to, source, wanted):
    """Start to copy 16 bytes by addresses: only `wanted` of them are read, and zeros written for the rest.

    PTX: cp.async.cg.shared.global [to], [source], 16, wanted; section "cp.async". Since compute capability 8.0; before,
    as of `cp_async`.
    """


@instruction("cp.async.commit_group;", before=_NOTHING)
def cp_async_commit_group():
    """Close a group: all of this thread's copies since the last one.

    PTX: cp.async.commit_group; section "cp.async.commit_group". Since compute capability 8.0; before, nothing.
    """


@cache
def cp_async_wait_group(groups: int) -> Intrinsic:
    """wait(): until at most so many of this thread's latest groups of copies are still on their way.

    PTX: cp.async.wait_group groups; section "cp.async.wait_group". Since compute capability 8.0; before, nothing.
    """

    @instruction(f"cp.async.wait_group {groups};", before=_NOTHING)
    def wait():
        """See `cp_async_wait_group`."""

    return wait
