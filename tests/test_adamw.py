"""AdamW on the CPU and on a GPU against PyTorch's: groups, clipping, schedules, loss scales, and what is saved."""

from __future__ import annotations

import numba
import numpy as np
import pytest
from numba import cuda

from charcnn.ops.adamw import AdamW, LossScale, ParameterGroup
from charcnn.ops.adamw_cpu import PART

GROUPS = (
    ParameterGroup(70, weight_decay=0.3, lr=2e-3),
    ParameterGroup(1, betas=(0.8, 0.95), eps=1e-6, weight_decay=0.0),
    ParameterGroup(59, betas=(0.0, 0.9), weight_decay=0.1),
)
SIZE = sum(group.size for group in GROUPS)
ON = pytest.mark.parametrize("put", [np.copy, cuda.to_device], ids=["cpu", "cuda"])


def drawn(steps=8, size=SIZE):
    rng = np.random.default_rng(3)
    return rng.standard_normal(size, np.float32), rng.standard_normal((steps, size), np.float32)


def fetched(array):
    return array if isinstance(array, np.ndarray) else array.copy_to_host()


def of_pytorch(weights, gradients, rates, clip=0.0, dtype="float64"):
    torch = pytest.importorskip("torch", reason="PyTorch is not installed: nothing to compare with")
    begin, parts = np.cumsum([0, *(group.size for group in GROUPS)]), []
    for start, group in zip(begin, GROUPS, strict=False):
        values = torch.tensor(weights[start : start + group.size], dtype=getattr(torch, dtype), requires_grad=True)
        parts.append(values)
    groups = [{"params": [values], "lr": of.lr, "betas": of.betas, "eps": of.eps, "weight_decay": of.weight_decay}
              for values, of in zip(parts, GROUPS, strict=True)]  # fmt: skip
    optimiser = torch.optim.AdamW(groups)
    for rate, gradient in zip(rates, gradients, strict=True):
        for start, values, group, of in zip(begin, parts, optimiser.param_groups, GROUPS, strict=False):
            values.grad = torch.tensor(gradient[start : start + of.size], dtype=values.dtype)
            group["lr"] = rate * of.lr
        if clip:
            torch.nn.utils.clip_grad_norm_(parts, clip)
        optimiser.step()
    return np.concatenate([values.detach().numpy() for values in parts])


@ON
@pytest.mark.parametrize("clip", [0.0, 2.0, 1e3])
def test_as_pytorch(put, clip):
    weights, gradients = drawn()
    rates = np.linspace(1, 0.1, len(gradients))
    optimiser = AdamW(put(weights), GROUPS, clip=clip)
    for rate, gradient in zip(rates, gradients, strict=True):
        optimiser.step(put(gradient), rate)
    found, exact = fetched(optimiser.weights), of_pytorch(weights, gradients, rates, clip)
    moved = np.linalg.norm(exact - weights)
    assert np.linalg.norm(found - exact) <= 2e-6 * moved + 2e-7 * np.linalg.norm(weights)
    other = of_pytorch(weights, gradients, rates, clip, "float32")
    np.testing.assert_allclose(found, other, rtol=4e-6, atol=1e-7)


@ON
def test_a_loss_scale_leaves_out_what_is_not_finite(put):
    """Scales and weights are those of PyTorch's GradScaler."""
    weights, gradients = drawn()
    how = {"scale": 1024.0, "interval": 3}
    optimiser, scales, before = AdamW(put(weights), GROUPS, clip=2.0, loss_scale=LossScale(**how)), [1024.0], []
    for number, gradient in enumerate(gradients):
        given = gradient * np.float32(scales[-1])
        if number in (1, 5):
            given[number] = (np.nan, np.inf)[number == 5]
        before.append((fetched(optimiser.weights).tobytes(), optimiser.steps))
        optimiser.step(put(given))
        scales.append(optimiser.loss_scale.scale)
    made = [0, 2, 3, 4, 6, 7]
    assert [number for number in range(7) if before[number] != before[number + 1]] == made[:-1]
    assert optimiser.steps == len(made)
    assert optimiser.loss_scale.left_out == 2
    assert scales == [1024, 1024, 512, 512, 512, 1024, 512, 512, 512]
    exact = of_pytorch(weights, gradients[made], np.ones(len(made)), 2.0)
    np.testing.assert_allclose(fetched(optimiser.weights), exact, rtol=4e-6, atol=1e-7)
    torch = pytest.importorskip("torch", reason="PyTorch is not installed: nothing to compare with")
    other = torch.amp.GradScaler("cpu", init_scale=how["scale"], growth_interval=how["interval"])
    one = torch.nn.Parameter(torch.zeros(1))
    for number, scale in enumerate(scales[:-1]):
        assert other.get_scale() == scale
        one.grad = other.scale(torch.full((1,), torch.nan if number in (1, 5) else 1.0))
        other.step(torch.optim.SGD([one]))
        other.update()


@ON
def test_resumed_to_the_same_bits(put):
    weights, gradients = drawn()
    whole = AdamW(put(weights), GROUPS, clip=1.0, loss_scale=LossScale())
    for gradient in gradients:
        whole.step(put(gradient))
    half = AdamW(put(weights), GROUPS, clip=1.0, loss_scale=LossScale())
    for gradient in gradients[:4]:
        half.step(put(gradient))
    rest = AdamW(put(fetched(half.weights)), GROUPS, clip=1.0, loss_scale=LossScale(scale=1.0))
    rest.restore(half.state())
    for gradient in gradients[4:]:
        rest.step(put(gradient))
    assert fetched(rest.weights).tobytes() == fetched(whole.weights).tobytes()
    assert rest.state()["loss_scale"] == whole.state()["loss_scale"]
    for scale in (None, {"scale": 2.0}):
        with pytest.raises(ValueError, match=r"^state\['loss_scale'\] is "):
            rest.restore({**half.state(), "loss_scale": scale})
    assert rest.state()["first"].tobytes() == whole.state()["first"].tobytes()


def test_the_same_bits_on_any_number_of_cores():
    weights, gradients = drawn(2, 3 * PART + 5)
    found, most = [], numba.get_num_threads()
    try:
        for count in dict.fromkeys((1, most)):
            numba.set_num_threads(count)
            optimiser = AdamW(weights.copy(), [ParameterGroup(weights.size)], clip=1.0)
            for gradient in gradients:
                optimiser.step(gradient)
            found.append(optimiser.weights.tobytes())
    finally:
        numba.set_num_threads(most)
    assert len(set(found)) == 1


@ON
def test_what_does_not_fit(put):
    weights, (gradient, *_) = drawn()
    with pytest.raises(ValueError, match=rf"^weights has shape \({SIZE},\): need \(7,\)$"):
        AdamW(put(weights), [ParameterGroup(7)])
    with pytest.raises(ValueError, match=r"^weights has dtype float64: need float32$"):
        AdamW(put(weights.astype(np.float64)), GROUPS)
    with pytest.raises(ValueError, match=r"^gradients has shape \(3,\)"):
        AdamW(put(weights), GROUPS).step(put(gradient[:3]))


def rounded(weights):
    bits = weights.view(np.uint32).astype(np.uint64)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)


@pytest.mark.parametrize("begin", [0, 1], ids=["aligned", "not aligned"])
def test_a_rate_and_a_shadow_on_the_gpu(begin):
    weights, gradients = drawn()
    other = AdamW(cuda.to_device(weights), GROUPS, clip=2.0)
    on = {name: cuda.to_device(np.zeros(begin + SIZE, dtype))[begin:] for name, dtype in
          (("weights", np.float32), ("gradient", np.float32), ("shadow", np.uint16))}  # fmt: skip
    on["weights"].copy_to_device(weights)
    optimiser = AdamW(on["weights"], GROUPS, clip=2.0, shadow=on["shadow"])
    assert (fetched(on["shadow"]) == rounded(weights)).all(), "before the first step"
    rate = cuda.to_device(np.ones(1))
    for number, gradient in enumerate(gradients):
        rate.copy_to_device(np.array([1 / (1 + number)]))
        on["gradient"].copy_to_device(gradient)
        optimiser.step(on["gradient"], rate)
        other.step(cuda.to_device(gradient), 1 / (1 + number))
    found = fetched(optimiser.weights)
    np.testing.assert_allclose(found, fetched(other.weights), rtol=0 if begin == 0 else 1e-6, atol=1e-7 * begin)
    assert (fetched(on["shadow"]) == rounded(found)).all()
    assert optimiser.steps == other.steps == len(gradients)


def test_groups_that_are_alike_count_as_one():
    weights, (gradient, *_) = drawn()
    found = []
    for groups in ([ParameterGroup(SIZE)], [ParameterGroup(3), ParameterGroup(SIZE - 3)]):
        optimiser = AdamW(weights.copy(), groups)
        optimiser.step(gradient)
        found.append((optimiser.groups, optimiser.weights.tobytes()))
    assert found[0] == found[1]


def test_a_shadow_needs_a_gpu():
    weights, _ = drawn()
    with pytest.raises(ValueError, match=r"^shadow needs a GPU"):
        AdamW(weights, GROUPS, shadow=np.zeros(SIZE, np.uint16))
    with pytest.raises(ValueError, match=r"^shadow has dtype float32: need uint16$"):
        AdamW(cuda.to_device(weights), GROUPS, shadow=cuda.to_device(weights))
    with pytest.raises(ValueError, match=r"^rate has dtype float32: need float64$"):
        AdamW(cuda.to_device(weights), GROUPS).step(cuda.to_device(weights), cuda.to_device(weights[:1]))
