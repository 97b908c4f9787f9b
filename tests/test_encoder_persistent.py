"""The persistent kernel of an encoder's blocks, alone: plans, weights in its order, and clusters that exchange keys."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from unittest import mock

import numpy as np
import pytest

from charcnn.catalog import encoder_technique
from charcnn.gpu import device, emulator
from charcnn.layers import Node
from charcnn.model import params
from charcnn.model.sequences import Exact, Rounded, features
from charcnn.networks import bert
from charcnn.networks.encoder import EncoderNetwork, persistent, steps
from charcnn.networks.encoder.sizes import SIZES
from charcnn.ops.common.precision import HALF_PRECISIONS
from charcnn.ops.encoder.persistent import kernel, launch
from charcnn.ops.encoder.persistent.launch import KeysRoom, PersistentBlocks
from charcnn.ops.encoder.persistent.plan import BlocksPlan
from charcnn.ops.encoder.persistent.weights import LayerWeights, packed

OF = HALF_PRECISIONS["fp16"]

EMULATED = pytest.mark.skipif(not device.SIMULATED, reason="the emulator knows what is wrong, and goes on after a trap")


def sizes_of(variant: str) -> tuple[int, int, int, int]:
    """Width, heads, hidden units and blocks."""
    of = SIZES[variant]
    return of.width, of.heads, of.hidden, of.blocks


def blocks_of(variant: str = "tiny") -> tuple[PersistentBlocks, tuple[Node, ...], params.Params]:
    """An encoder's blocks with random weights, their layers, and the weights."""
    of = EncoderNetwork("bert", variant, bert.layers(variant), 16)
    held = params.init(of, 1)
    return persistent.prepared(steps(of.nodes), held, OF), of.nodes[2:-2], held


@pytest.mark.parametrize(
    ("variant", "rows", "cluster", "products"),
    [
        ("minilm", 16, 16, ((3, 6), (6, 1), (3, 6), (6, 3))),
        ("minilm", 32, 8, ((6, 6), (6, 2), (6, 6), (6, 6))),
        ("base", 32, 16, ((6, 12), (12, 2), (6, 12), (12, 6))),
        ("tiny", 16, 2, ((6, 1), (2, 1), (4, 1), (2, 2))),
    ],
)
def test_a_plan_shares_all_products(
    variant: str, rows: int, cluster: int, products: tuple[tuple[int, int], ...]
) -> None:
    plan = BlocksPlan(*sizes_of(variant), rows, cluster, 4 if variant == "tiny" else 8)
    assert plan.products == products
    assert plan.stages >= 2
    assert plan.smem_bytes <= plan.shared_limit < plan.smem_bytes + plan.warps * (plan.stage_bytes + 8) + 128
    assert all(one.pieces % plan.pieces == 0 for one in plan.products)


@pytest.mark.parametrize(
    ("sizes", "shape", "error"),
    [
        ((96, 2, 128, 2), {}, "heads of 32 or 64 features"),
        ((64, 2, 128, 2), {"cluster": 16}, "a cluster of 16 blocks cannot share them"),
        ((64, 2, 128, 2), {"cluster": 2, "warps": 16}, "16 warps of 2 blocks cannot share them"),
        (
            (64, 2, 128, 2),
            {"cluster": 2, "rows": 17, "warps": 4},
            "17 rows of .*: 2 blocks of 4 warps",
        ),
        ((768, 12, 3072, 12), {"rows": 64}, "64 rows of .*: 16 blocks have too little shared memory"),
    ],
)
def test_what_has_no_plan(sizes: tuple[int, int, int, int], shape: dict[str, int], error: str) -> None:
    with pytest.raises(ValueError, match=error):
        BlocksPlan(*sizes, **shape)


def test_each_weight_is_packed_once() -> None:
    plan, rng = BlocksPlan(*sizes_of("tiny"), cluster=2, warps=4), np.random.default_rng(0)
    shapes = {"qkv": (192, 64), "out": (64, 64), "up": (128, 64), "back": (64, 128)}
    zeros = dict.fromkeys(LayerWeights._fields, np.zeros(64, np.float32))
    numbers = np.split(rng.permutation(sum(map(np.prod, shapes.values()))) % 2048, np.cumsum([12288, 4096, 8192]))
    given = {name: one.reshape(shapes[name]).astype(np.float32) for name, one in zip(shapes, numbers, strict=True)}
    found = packed([LayerWeights(**{**zeros, **given})], plan, OF).view(np.float16)
    np.testing.assert_array_equal(np.sort(found), np.sort(np.concatenate(numbers)))


def agrees(
    blocks: PersistentBlocks, nodes: tuple[Node, ...], held: params.Params, counts: list[int], launches: int = 1
) -> None:
    """Launches on random rows of texts with so many tokens give what the layers do, but for rounding."""
    offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
    x = np.random.default_rng(0).standard_normal((offsets[-1], 64)).astype(np.float16)
    room, rounding = KeysRoom(blocks, len(x)), encoder_technique("persistent").rounding("fp16")
    weights = {name: np.asarray(value, np.float64) for name, value in held.items()}
    right, moved = (
        np.concatenate([
            features(nodes, x[first:end].astype(np.float64), weights, by)
            for first, end in pairwise(offsets) if end > first
        ])
        for by in (Exact(), Rounded(rounding, 0))
    )  # fmt: skip
    for _ in range(launches):
        out = device.to_device(np.zeros_like(x))
        blocks.start(device.to_device(x), device.to_device(offsets), out, room, 0)
        error = np.sqrt(np.square(out.copy_to_host() - right).mean())
        assert error <= 2 * np.sqrt(np.square(moved - right).mean())


@pytest.fixture
def wait(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[int], None]]:
    """Sets how long a kernel that is made from then on waits: the emulator is slow."""
    yield lambda nanoseconds: (kernel.make_kernel.cache_clear(), monkeypatch.setattr(kernel, "PATIENCE", nanoseconds))
    kernel.make_kernel.cache_clear()


@pytest.mark.skipif(not (device.SIMULATED or device.sees_hopper()), reason="needs Hopper")
def test_clusters_exchange_keys(wait: Callable[[int], None]) -> None:
    wait(1 << 60)
    blocks, *rest = blocks_of()
    agrees(blocks, *rest, [20], launches=2)


@EMULATED
def test_a_cluster_that_does_not_run_ends_the_kernel(
    wait: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    wait(0)
    monkeypatch.setattr(kernel, "LOOKS", 4)
    blocks, *rest = blocks_of()
    monkeypatch.setattr(PersistentBlocks, "plan", lambda self, rows, texts: (self.plans[0][0], 1))
    with pytest.raises(emulator.EmulatorError, match="trap"):
        agrees(blocks, *rest, [20])


@EMULATED
@pytest.mark.exhaustive
@pytest.mark.parametrize(("rows", "counts", "seed"), [(16, [20, 0], 1), (32, [33], 2), (16, [3, 9], 3)])
def test_texts_in_any_order_of_warps(
    rows: int, counts: list[int], seed: int, wait: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    wait(1 << 60)
    monkeypatch.setattr(launch, "HEIGHTS", (rows,))
    with emulator.checking(seed) as found:
        blocks, *rest = blocks_of()
        agrees(blocks, *rest, counts)
    assert not found


@EMULATED
def test_too_many_rows_have_no_plan() -> None:
    with mock.patch.object(launch, "most_clusters", return_value=4):
        blocks, *_ = blocks_of()
    plans = [blocks.plan(*sizes) for sizes in ((64, 1), (65, 1), (128, 1), (64, 2), (128, 2))]
    assert [found and (found[0].rows, found[1]) for found in plans] == [(16, 4), (32, 3), (32, 4), (32, 3), None]
