"""Ranks that share a training on tensor cores: what each holds, the same bits at every stage, and between hosts."""

from __future__ import annotations

from unittest import mock

import numpy as np
import pytest
from test_mpi import mpiexec, needs_mpi

from charcnn import SMALL, TINY
from charcnn.gpu import device
from charcnn.model import params
from charcnn.runtime.filed_training import FiledTraining
from charcnn.runtime.mixed_plan import FlatParams, counted, plain_of
from charcnn.runtime.pushed_exchange import PushedExchange
from charcnn.runtime.sharding import STAGES

RANKS = """
import os
import platform
import sys
import numpy as np
from charcnn import layers, offload
from charcnn.layers import place
from charcnn.runtime.mixed_training import MixedTraining
from charcnn.runtime.shared_mixed_training import SharedMixedTraining

nodes = place(
    (layers.OneHot(9), layers.Conv1d(64, 3, name="conv1"), layers.Relu(), layers.MaxPool1d(3),
     layers.Conv1d(64, 3, name="conv2"), layers.Relu(), layers.MaxPool1d(3), layers.Flatten(),
     layers.Linear(64, name="fc1"), layers.Relu(), layers.Linear(64, name="fc2"), layers.Relu(),
     layers.Linear(4, name="fc3")), (20,))
rng, comm = np.random.default_rng(0), offload.world()
os.chdir(sys.argv[1])
weights = {name: (rng.standard_normal(shape) / 8).astype(np.float32)
           for node in nodes for name, shape in node.parameters.items()}
ids, targets = rng.integers(0, 10, (5, 20), np.uint8), np.eye(4, dtype=np.float32)[[0, 1, 2, 3, 1]]
own, found = slice(comm.rank, None, comm.size), []
its_loss, expected = MixedTraining(nodes, weights, 5).loss_and_gradients(ids, targets)
for stage in map(int, sys.argv[2:]):
    training = SharedMixedTraining(nodes, weights, 3, comm, stage=stage)
    assert training._pushed is not None
    loss, gradients = training.loss_and_gradients(ids[own], targets[own])
    assert abs(loss - its_loss) < 1e-5
    for name in expected:
        apart = np.linalg.norm(gradients[name] - expected[name]) / np.linalg.norm(expected[name])
        assert apart < 0.01, (name, apart)  # bf16's gradients of features are by 1 / 5 in both
    for kind in ("weights", "gradients", "masters", "moments"):
        assert training.counted[kind] <= training.memory[kind] <= 1.03 * training.counted[kind], (stage, kind)
    training.step(ids[own], targets[own])
    training.save(f"{stage}.safetensors")
    first = training.digest()
    training.close()
    again = SharedMixedTraining(nodes, {name: 0 * array for name, array in weights.items()}, 3, comm, stage=stage)
    again.resume(f"{sys.argv[2]}.safetensors")
    assert again.steps == 1
    losses = again.step(ids[own], targets[own])
    found.append((first, again.mean(losses), again.digest()))
    again.close()
assert len({bits for one in comm.allgather(found) for bits in one}) == 1
platform.node = lambda: str(comm.rank)
training = SharedMixedTraining(nodes, weights, 3, comm)
assert training._pushed is training._group is None
training.step(ids[own], targets[own])
with open(f"{sys.argv[2]}.safetensors", "rb") as file:
    kept = file.read()
training.save("hosts.safetensors")
comm.Barrier()
with open("hosts.safetensors", "rb") as file:
    hosts = file.read()
begin = 8 + int.from_bytes(kept[:8], "little")
assert hosts[:begin] == kept[:begin]
one, other = (np.frombuffer(read[begin:], np.float32) for read in (kept, hosts))
assert np.linalg.norm(one - other) < 1e-5 * np.linalg.norm(one)  # the norm that clips is added up in another order
try:
    SharedMixedTraining(nodes, weights, 3, comm, stage=1)
except ValueError as error:
    assert "stage=1: needs ranks of one host, up to 8" in str(error)
    print("all right")
"""


@needs_mpi
@pytest.mark.exhaustive
@pytest.mark.parametrize("stages", [(0, 1), (2, 3)])
def test_all_stages_have_the_same_bits(stages, tmp_path):
    """Emulated: the gradients of one GPU that has all rows, the bytes that are counted, and steps of a checkpoint."""
    done = mpiexec(2, "-c", RANKS, tmp_path, *stages, NUMBA_ENABLE_CUDASIM="1", timeout=900)
    assert done.stdout.startswith("all right"), done.stderr


def test_other_ranks_are_told_once_all_weights_are_moved():
    """Copies run beside the stream: what tells them waits for AdamW, also of a piece that nobody was sent."""
    started = mock.MagicMock(**{"_others.return_value": [1], "_layout.buckets": [None]})
    PushedExchange.moved(started, 0)
    calls = [name for name, *_ in started.method_calls if name != "_others"]
    assert calls == ["_fork", "_flag", "join", "_start"]


@pytest.mark.skipif(not device.SIMULATED, reason="a GPU has one rank")
def test_what_is_behind_a_bucket_is_zeros():
    """Three ranks' parts are longer than a bucket, in memory where another bucket's gradients were."""
    ranks, layout = 3, FlatParams(TINY.nodes, 3)
    regions = []

    def share(nbytes):
        regions.extend(np.zeros(nbytes, np.uint8) for _ in range(ranks))
        return [region.ctypes.data for region in regions]

    exchange = PushedExchange(mock.Mock(rank=0, ranks=ranks, share=share), layout, 2)
    _, *buckets = layout.buckets
    assert any(ranks * bucket.part > bucket.length for bucket in buckets)
    for bucket in buckets:
        source = exchange._sources[bucket]
        source.copy_to_device(np.where(np.arange(source.size) < bucket.length, 1, np.nan).astype(np.float32))
        exchange._push(bucket, 0)
    for region in regions:
        assert np.isfinite(region[: region.size // 4 * 4].view(np.float32)).all()
    assert np.isfinite(exchange.gradients.copy_to_host()).all()


OFFLOADED = """
import sys
import numpy as np
from charcnn import layers, offload
from charcnn.layers import place
from charcnn.runtime.mixed_training import MixedTraining
from charcnn.runtime.filed_training import FiledTraining
from charcnn.runtime.offloaded_training import OffloadedTraining
from charcnn.runtime.sharding import LEAST_MEMORY

nodes = place(
    (layers.OneHot(9), layers.Conv1d(64, 3, name="conv1"), layers.Relu(), layers.MaxPool1d(3),
     layers.Flatten(), layers.Linear(64, name="fc1"), layers.Relu(), layers.Linear(4, name="fc2")), (9,))
rng, comm = np.random.default_rng(0), offload.world()
weights = {name: (rng.standard_normal(shape) / 8).astype(np.float32)
           for node in nodes for name, shape in node.parameters.items()}
ids, targets = rng.integers(0, 10, (4, 9), np.uint8), np.eye(4, dtype=np.float32)
alone = MixedTraining(nodes, weights, 4, clip=0.1)
own = slice(None) if comm is None else slice(comm.rank, None, comm.size)
shared = OffloadedTraining(nodes, weights, 4, comm, stage=2, clip=0.1)
for _ in range(2):
    loss = alone.step(ids, targets).copy_to_host().mean()
    assert abs(shared.mean(shared.step(ids[own], targets[own])) - loss) < 1e-4
found, expected = shared.params, alone.params
for name, array in expected.items():
    assert np.linalg.norm(found[name] - array) < 0.02 * np.linalg.norm(array - weights[name]), name
assert shared.steps == 2 and shared.memory["moments"] == shared.counted["masters"] == 0
assert comm is None or len(set(comm.allgather(shared.digest()))) == 1
halves, plain = shared._pushed.reads(shared._exchange, shared._stream)
masters = shared._layout.flat(found)
assert np.array_equal(plain, masters[: plain.size])
nearest = (halves.astype(np.uint32) << 16).view(np.float32)
assert np.all(abs(nearest - masters[plain.size :]) <= abs(masters[plain.size :]) / 256)
filed = FiledTraining(nodes, weights, 4, comm, directory=sys.argv[1], memory=LEAST_MEMORY, clip=0.1)
assert filed.files >= 4 * filed._states.windows <= 4 * LEAST_MEMORY
for _ in range(2):
    filed.step(ids[own], targets[own])
assert filed.digest() == shared.digest() and filed.steps == 2
assert filed.memory["moments"] == filed.memory["masters"] == 0
file = f"{sys.argv[1]}/kept.safetensors"
filed.save(file)
again = FiledTraining(nodes, weights, 4, comm, directory=sys.argv[1], memory=LEAST_MEMORY, clip=0.1)
again.resume(file)
for training in (again, shared):
    training.step(ids[own], targets[own])
assert again.digest() == shared.digest() and again.steps == 3
for training in (shared, filed, again):
    training.close()
if comm is None or comm.rank == 0:
    print("all right")
"""


@needs_mpi
@pytest.mark.exhaustive
@pytest.mark.parametrize("ranks", [1, 2])
def test_the_host_moves_the_weights(ranks, tmp_path):
    """Emulated: nearly those of a GPU that does all; float32's operations are contracted otherwise there.

    Masters and moments in files, four times as large as the memory that they are allowed, have the same bits.
    """
    done = mpiexec(ranks, "-c", OFFLOADED, tmp_path, NUMBA_ENABLE_CUDASIM="1", timeout=600)
    assert done.stdout.startswith("all right"), done.stderr


IN_FP16 = """
import sys
import numpy as np
sys.path.insert(0, "tests")
from test_mixed_training import PlainProduct
from charcnn import layers, offload
from charcnn.layers import place
from charcnn.runtime import mixed_training
from charcnn.runtime.filed_training import FiledTraining
from charcnn.runtime.offloaded_training import OffloadedTraining
from charcnn.runtime.sharding import LEAST_MEMORY
from charcnn.runtime.shared_mixed_training import SharedMixedTraining

mixed_training.PRODUCTS["wgmma"] = PlainProduct
nodes = place(
    (layers.OneHot(6), layers.Conv1d(8, 3, name="conv1"), layers.Relu(), layers.MaxPool1d(3),
     layers.Flatten(), layers.Linear(8, name="fc1"), layers.Relu(), layers.Linear(3, name="fc2")), (8,))
rng, comm = np.random.default_rng(0), offload.world()
weights = {name: (rng.standard_normal(shape) / 4).astype(np.float32)
           for node in nodes for name, shape in node.parameters.items()}
ids, targets = rng.integers(0, 7, (1, 8), np.uint8), np.eye(3, dtype=np.float32)[:1]
too_much = np.array([1 if comm.rank else 1e30], np.float32)  # on one rank: all leave the step out
file, found = f"{sys.argv[1]}/kept.safetensors", []
how = {"comm": comm, "clip": 0.1, "precision": "fp16"}
filed = {"directory": sys.argv[1], "memory": LEAST_MEMORY}
for stage, make, more in ((1, SharedMixedTraining, {"stage": 1}), (2, OffloadedTraining, {"stage": 2}),
                          (3, FiledTraining, filed)):
    training = make(nodes, weights, 1, **how, **more)
    first = training.digest()
    training.step(ids, targets, weights=too_much)
    assert (training.left_out, training.steps, training.digest()) == (1, 0, first), stage
    training.save(file, force=True)
    training.step(ids, targets)
    assert (training.left_out, training.steps) == (1, 1)
    last = training.digest()
    again = make(nodes, weights, 1, **how, **more)
    again.resume(file)
    assert again.left_out == 1 and again._factor.loss_scale.scale == 2**15
    again.step(ids, targets)
    assert again.digest() == last != first
    found.append(last)
    training.close()
    again.close()
assert len({*comm.allgather(found[0])}) == 1 and found[1] == found[2]
if comm.rank == 0:
    print("all right")
"""


@needs_mpi
@pytest.mark.exhaustive
def test_ranks_leave_out_the_same_steps(tmp_path):
    """In fp16, where gradients of one rank alone overflow; a checkpoint has the loss scale. Emulated."""
    done = mpiexec(2, "-c", IN_FP16, tmp_path, NUMBA_ENABLE_CUDASIM="1", timeout=600)
    assert done.stdout.startswith("all right"), done.stderr


def test_too_little_memory_for_files_is_refused():
    with pytest.raises(ValueError, match="memory=1: need at least"):
        FiledTraining((), {}, 4, directory=".", memory=1)


@pytest.mark.parametrize("ranks", [1, 2, 5])
def test_a_buffer_has_parts(ranks):
    weights, layout = params.init(TINY, 1), FlatParams(TINY.nodes, ranks)
    flat = layout.flat(weights)
    parts = np.stack([layout.own(flat, rank) for rank in range(ranks)])
    assert parts.shape == (ranks, layout.size // ranks)
    assert layout.merged(parts).tobytes() == flat.tobytes()
    assert {name: array.tobytes() for name, array in layout.named(flat).items()} == {
        name: array.tobytes() for name, array in weights.items()
    }
    assert sorted(name for bucket in layout.buckets for name in bucket.names) == sorted(weights)
    assert ranks == 1 or [*layout.buckets[0].names] == plain_of(TINY.nodes)
    for bucket, after in zip(layout.buckets, layout.buckets[1:], strict=False):
        assert layout.whole(bucket).stop == after.begin
        assert layout.part(bucket).stop == layout.part(after).start


def test_counts():
    """ZeRO's, of 18 bytes a weight; besides 4 for each on every rank that no product reads."""
    n, ranks = SMALL.parameters, 64
    plain = sum(int(np.prod(params.init(SMALL, 0)[name].shape)) for name in plain_of(SMALL.nodes))
    assert 0.05 < plain / n < 0.06
    for stage in range(4):
        found = counted(SMALL.nodes, 256, ranks, stage)
        for kind, each in (("weights", 2), ("gradients", 4), ("masters", 4), ("moments", 8)):
            held = each * (n - (plain if kind == "weights" and stage else 0))
            held /= ranks if stage >= STAGES[kind] else 1
            assert found[kind] == pytest.approx(held + (4 * plain if kind == "weights" and stage else 0), abs=1)
