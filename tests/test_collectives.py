"""Collectives of GPUs: emulated ranks that are processes, which share memory, and two GPUs where there are."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from conftest import by_turns
from test_mpi import mpiexec, needs_mpi

from charcnn.catalog import encoder
from charcnn.gpu import device
from charcnn.gpu.collectives import Group, pieces, regions
from charcnn.gpu.collectives.protocols import BLOCKS, COUNTERS, HEADER, Mailboxes
from charcnn.networks.encoder import shares, steps
from charcnn.runtime.exchange import Alone

pytestmark = needs_mpi

EMULATED = {"NUMBA_ENABLE_CUDASIM": "1"}

BEGIN = """
import sys
import numpy as np
from mpi4py import MPI
from charcnn.gpu import device
from charcnn.gpu.collectives import Group, group as groups, protocols

if device.SIMULATED:
    groups.BLOCKS = protocols.BLOCKS = 4  # mailboxes of as many are all that these sizes need

comm = MPI.COMM_WORLD
rng = np.random.default_rng(7)

def drawn(shape, dtype):
    x = rng.standard_normal((comm.size, *shape)).astype(np.float32)
    return (x.view(np.uint32) >> 16).astype(np.uint16) if dtype == "uint16" else x.astype(dtype)

def wide(x):
    return (x.astype(np.uint32) << 16).view(np.float32) if x.dtype == np.uint16 else x.astype(np.float32)

def narrow(x, dtype):
    if dtype != "uint16":
        return x.astype(dtype)
    bits = x.view(np.uint32).astype(np.int64)
    return (bits + 0x7FFF + (bits >> 16 & 1) >> 16).astype(np.uint16)

def total(xs):
    found = np.zeros(xs.shape[1:], np.float32)
    for x in xs:
        found += wide(x)
    return narrow(found, xs.dtype.name)

def same(found, right):
    assert found.dtype == right.dtype and np.asarray(found).tobytes() == right.tobytes(), (found, right)
"""

ALL = (
    BEGIN
    + """
group, sizes = Group(comm, deadline=100), [int(size) for size in sys.argv[1:]]
for dtype in ("float32", "float16", "uint16"):
    for size in sizes:
        for protocol in ("lines", "tiles"):
            xs, parts = drawn((size,), dtype), drawn((comm.size, size), dtype)
            mine = xs[comm.rank].copy()
            for shots in (1, 2):
                same(group.all_reduce(mine, protocol=protocol, shots=shots), total(xs))
            same(group.all_reduce(mine, mine), total(xs))  # in place
            same(group.all_gather(xs[comm.rank].copy(), protocol=protocol), xs)
            same(group.reduce_scatter(parts[comm.rank].copy(), protocol=protocol), total(parts)[comm.rank])
            group.check()
group.close()
comm.Barrier()
print("all right")
"""
)


@pytest.mark.parametrize(
    ("ranks", "sizes"),
    [
        (2, (0, 1, 7, 64)),
        pytest.param(3, (5, 260, 333), marks=pytest.mark.exhaustive),
        *(pytest.param(ranks, (0, 1, 3, 65), marks=pytest.mark.exhaustive) for ranks in (4, 5, 6, 7, 8)),
    ],
)
def test_sums_and_copies_are_exact(ranks, sizes):
    done = mpiexec(ranks, "-c", ALL, *sizes, **EMULATED)
    assert done.stdout.count("all right") == ranks, done.stderr


LARGE = (
    BEGIN
    + """
group = Group(comm, deadline=3000)
for size in map(int, sys.argv[1:]):
    xs = drawn((size,), "float16")
    mine, part = xs[comm.rank].copy(), size // comm.size
    same(group.all_reduce(mine), total(xs))
    parts = np.ascontiguousarray(xs[:, : part * comm.size].reshape(comm.size, comm.size, part))
    same(group.reduce_scatter(parts[comm.rank]), total(parts)[comm.rank])
    same(group.all_gather(mine[:part].copy()), xs[:, :part])
print("all right")
"""
)


@pytest.mark.exhaustive
@pytest.mark.parametrize(("ranks", "sizes"), [(2, ((1 << 19) - 1,)), (3, (1 << 16,)), (8, (12_289,))])
def test_large_arrays(ranks, sizes):
    """Up to a megabyte less a number: tiles, and with more ranks two shots; blocks take many steps."""
    done = mpiexec(ranks, "-c", LARGE, *sizes, timeout=3000, **EMULATED)
    assert done.stdout.count("all right") == ranks, done.stderr


STEPS = (
    BEGIN
    + """
from charcnn.gpu.collectives import kernels

protocols.CAPACITIES.update(lines=8, tiles=8)
kernels.THREADS.update(lines=4, tiles=4)
groups.BLOCKS = 2
group = Group(comm, deadline=100)
for turn, size in enumerate((300, 8, 301, 150)):
    for protocol in ("lines", "tiles"):
        xs, parts = drawn((size,), "float16"), drawn((comm.size, size), "float16")
        for shots in (1, 2):
            same(group.all_reduce(xs[comm.rank].copy(), protocol=protocol, shots=shots), total(xs))
        same(group.all_gather(xs[comm.rank].copy(), protocol=protocol), xs)
        same(group.reduce_scatter(parts[comm.rank].copy(), protocol=protocol), total(parts)[comm.rank])
print("all right")
"""
)


@by_turns
@pytest.mark.parametrize("ranks", [pytest.param(2, marks=pytest.mark.exhaustive), 3])
def test_a_block_that_takes_many_steps(ranks):
    """Places of mailboxes are used again and again, by blocks with fewer threads than vectors."""
    done = mpiexec(ranks, "-c", STEPS, **EMULATED)
    assert done.stdout.count("all right") == ranks, done.stderr


LOST = (
    BEGIN
    + """
import time
from charcnn.gpu.device import DeviceError

protocols.LOOKS = 16
for protocol, shots in (one.split() for one in sys.argv[1:]):
    shots = int(shots)
    group, how = Group(comm, deadline=0.5), {"protocol": protocol, "shots": shots}
    old = np.full(40, 1 + 100 * comm.rank, np.float32)
    for _ in range(4):
        group.all_reduce(old, **how)
    comm.Barrier()
    if comm.rank == 1:
        time.sleep(3)
    x = np.full(40, 1 + comm.rank, np.float32)
    y = np.asarray(group.all_reduce(x, **how))
    again = time.perf_counter()
    group.all_reduce(x, **how)  # which does not wait again
    assert time.perf_counter() - again < 0.5
    try:
        group.check()
        same(y, np.full(40, 3, np.float32))
    except DeviceError as error:
        print(protocol, shots, error)
    comm.Barrier()
"""
)


@by_turns
@pytest.mark.parametrize(
    "ways", [("lines 1", "tiles 2"), pytest.param(("tiles 1", "lines 2"), marks=pytest.mark.exhaustive)]
)
def test_a_late_rank_ends_the_wait(ways):
    """The one that waited gives up and tells the late one, which would else take what lies in its mailbox."""
    done = mpiexec(2, "-c", LOST, *ways, **EMULATED)
    assert done.returncode == 0, done.stderr
    for how in ways:
        assert done.stdout.count(f"{how} rank 1 did not come within 0.5 s to where rank ") == 2, done.stdout


ODD = (
    BEGIN
    + """
import platform
group = Group(comm)
for call in (
    lambda: group.all_reduce(np.ones(4)),
    lambda: group.all_reduce(np.ones(4, np.float32), protocol="rings"),
    lambda: group.reduce_scatter(np.ones((3, 4), np.float32)),
    lambda: group.all_gather(np.ones(4, np.float32), np.ones((3, 4), np.float32)),
    lambda: Group(comm, deadline=0),
    lambda: Group(comm, deadline=float("inf")),
    lambda: group.all_reduce(np.ones(4, np.float32), shots=3),
    lambda: group.all_reduce([1.0]),
    lambda: setattr(platform, "node", lambda: str(comm.rank)) or Group(comm),
):
    try:
        call()
    except ValueError as error:
        print(error)
"""
)


def test_arguments_that_do_not_fit():
    said = mpiexec(2, "-c", ODD, **EMULATED).stdout
    for part in (
        "x has dtype float64: need float32, float16, or uint16 for bfloat16",
        "protocol='rings': need one of lines, tiles",
        "x has shape (3, 4): need 2 along the first axis, the ranks",
        "out has shape (3, 4): need (2, 4)",
        "deadline=0: need seconds above 0",
        "deadline=inf: need seconds above 0",
        "shots=3: need 1 or 2",
        "x is a list: need an array",
        "ranks on 2 hosts: need one, whose memory all GPUs reach; start ranks on one",
    ):
        assert said.count(part) == 2, said


def test_mailboxes_lie_apart():
    for ranks in range(1, 9):
        boxes = Mailboxes(ranks)
        assert max(COUNTERS.values()) + 4 * BLOCKS <= HEADER == boxes.flags < boxes.lines < boxes.tiles < boxes.nbytes
        assert boxes.nbytes < 1 << 32  # as kernels count bytes in 32 bits
    with pytest.raises(ValueError, match="9 ranks: a group has 1 to 8"):
        Group(SimpleNamespace(rank=0, size=9))


SHARED = """
import sys
from charcnn.gpu.collectives import group
from charcnn.networks.encoder import cuda, exchange
from charcnn.networks.encoder.sizes import SIZES
from charcnn.networks.runner import encoder

group.BLOCKS = 2  # else a kernel of `exchange` has many that have no row
if sys.argv.pop(1) == "exchange":
    exchange.FROM = cuda.FROM = 1
    exchange.WHOLE = 4
SIZES["tiny"] = SIZES["tiny"]._replace(blocks=1)
encoder.main("bert", sys.argv[1:])
"""


@pytest.mark.parametrize(
    ("way", "technique", "precision"),
    [
        ("sums", "naive", "fp32"),
        pytest.param("sums", "mma", "bf16", marks=pytest.mark.exhaustive),
        pytest.param("exchange", "mma", "fp16", marks=by_turns),
        pytest.param("exchange", "wgmma", "fp16", marks=pytest.mark.exhaustive),
    ],
)
def test_encoders_whose_layers_are_shared(way, technique, precision):
    """Two ranks compute each batch together; results are those of the reference to within rounding."""
    words = f"--variant tiny --inputs 2 --tokens 4 --offload tensor --as {technique} --precision {precision}"
    done = mpiexec(2, "-c", SHARED, way, *words.split(), **EMULATED)
    assert "validated passed: 2 of 2" in done.stdout, done.stdout + done.stderr


def test_more_ranks_than_heads():
    with pytest.raises(ValueError, match="3 ranks: need a divisor of the "):
        shares.check(steps(encoder("bert").architecture("tiny", 4).nodes), 3)


MANY = (
    BEGIN
    + """
from numba import cuda
from charcnn.gpu import device, graph

cuda.select_device(comm.rank)
group, stream = Group(comm), cuda.stream()
assert group.link == "GPU memory"
for size, protocol, shots in ((1000, "lines", 1), (40_000, "tiles", 1), (40_001, "tiles", 2)):
    xs = drawn((size,), "float16")
    x, y = device.to_device(xs[comm.rank]), device.empty((size,), np.float16)

    def calls(on):
        for _ in range(100):
            group.all_reduce(x, y, on, protocol=protocol, shots=shots)

    recorded = graph.Graph(calls, stream)
    for _ in range(int(sys.argv[1])):
        for _ in range(10):
            recorded.launch()
        stream.synchronize()
        same(y.copy_to_host(), total(xs))
    group.check()
print("all right")
"""
)


@pytest.mark.skipif(device.SIMULATED or device.gpu_count() < 2, reason="needs two GPUs")
def test_many_sums_on_two_gpus():
    """10^5 of each kind, in CUDA graphs: all the same bits."""
    done = mpiexec(2, "-c", MANY, 100)
    assert done.stdout.count("all right") == 2, done.stderr


STRUCK = """
import os, signal, sys
from mpi4py import MPI
from charcnn.networks.encoder import cuda
from charcnn.networks.runner import encoder

how, start, calls = sys.argv[1], cuda.launch_reduce_add, []

def struck(*given):
    calls.append(given)
    if MPI.COMM_WORLD.rank == 1 and len(calls) == 2:
        if how == "dies":
            os.kill(os.getpid(), signal.SIGKILL)
        raise MemoryError
    start(*given)

cuda.launch_reduce_add = struck
encoder.main("bert", "--variant tiny --inputs 1 --tokens 4 --offload tensor --as mma".split())
"""


@by_turns
@pytest.mark.parametrize("how", ["dies", pytest.param("raises", marks=pytest.mark.exhaustive)])
def test_a_rank_that_ends_in_a_layer_ends_the_run(how):
    """The other one waits in a kernel."""
    done = mpiexec(2, "-c", STRUCK, how, timeout=120, **EMULATED)
    assert done.returncode
    assert "validated" not in done.stdout
    assert {"raises": "out of host memory", "dies": "signal 9"}[how] in done.stderr, done.stderr


def test_memory_of_the_host_is_unpinned_before_it_goes(monkeypatch):
    held = set[int]()
    monkeypatch.setattr(regions, "pinned", lambda address, nbytes: held.add(address) or address)
    monkeypatch.setattr(regions, "unpin", held.remove)
    region = regions.HostRegion(4096)
    assert region.shared(Alone()) == [*held]
    region.close()
    assert not held


def test_pieces_that_32_bits_do_not_count_are_refused():
    whole = [[pieces.Piece(0, 1 << 32, 0)]]
    with pytest.raises(ValueError, match="need at most 4,294,967,295"):
        pieces.launch_pieces(SimpleNamespace(ranks=1, rank=0), 0, 0, [0], [0], whole, 1, 0)
