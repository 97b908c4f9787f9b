"""Gradients of whole networks and of single layers: against PyTorch's autograd, and against differences."""

from __future__ import annotations

import inspect

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from operator_cases import CASES
from operator_rows import VARIANTS, arrays, each

from charcnn import TINY, layers
from charcnn.catalog import NETWORKS, network, operator
from charcnn.layers import place
from charcnn.model import gradients
from charcnn.model.network import run
from charcnn.ops import reference

LEAF = {"axis": -1, "keepdims": True}


def drawn(nodes, n, seed, ids=70):
    """Inputs, targets and weights of a network, float64; ids, or bytes, where it reads those."""
    rng = np.random.default_rng(seed)
    shape = (n, *nodes[0].in_shape)
    read = isinstance(nodes[0].layer, gradients.FIXED)
    x = rng.integers(0, 256 if ids is None else ids + 1, shape, np.uint8) if read else rng.standard_normal(shape)
    params = {name: rng.standard_normal(of) / np.sqrt(max(np.prod(of[1:]), 1)) for node in nodes
              for name, of in node.parameters.items()}  # fmt: skip
    for name in params:
        if name.endswith("running_var"):
            params[name] = params[name] ** 2 + 0.5
    targets = rng.random((n, *nodes[-1].out_shape))
    return x, targets / targets.sum(**LEAF) * rng.uniform(0.5, 2, (n, 1)), params


def differences(nodes, x, targets, params, name, count=6):
    """Some gradients by a parameter, as central differences, and the places they are at."""
    found, flat = [], params[name].reshape(-1)
    places = np.random.default_rng(0).choice(flat.size, min(count, flat.size), replace=False)
    for place_ in places:
        was, losses = flat[place_], []
        for by in (1e-5, -1e-5):
            flat[place_] = was + by
            logits = run(gradients.logits_of(nodes), x, params)
            losses.append(reference.softmax_cross_entropy(logits, targets).mean())
        flat[place_] = was
        found.append((losses[0] - losses[1]) / 2e-5)
    return np.array(found), places


def against_pytorch(nodes, x, targets, params):
    torch = pytest.importorskip("torch", reason="PyTorch is not installed: no second oracle")
    loss, found = gradients.loss_and_gradients(nodes, x, targets, params)
    held = {name: torch.from_numpy(array).requires_grad_("running" not in name) for name, array in params.items()}
    y = torch_forward(torch, gradients.logits_of(nodes), x, held)
    expected = -(torch.log_softmax(y, 1) * torch.from_numpy(targets)).sum(1).mean()
    expected.backward()
    np.testing.assert_allclose(loss, expected.item(), rtol=1e-12)
    assert found.keys() == {name for name, tensor in held.items() if tensor.requires_grad}
    for name, array in found.items():
        grad = held[name].grad.numpy()
        np.testing.assert_allclose(array, grad, rtol=1e-9, atol=1e-12 * max(abs(grad).max(), 1), err_msg=name)


def torch_forward(torch, nodes, x, held):
    f, ids = torch.nn.functional, x
    for node in nodes:
        of, own = node.layer, [held[name] for name in node.parameters]
        if isinstance(of, gradients.FIXED):
            x = torch.from_numpy(run([node], x, {}))
            continue
        x = x if isinstance(x, torch.Tensor) else torch.from_numpy(x)
        match of:
            case layers.Conv1d():
                x = f.conv1d(x, *own)
            case layers.Conv2d():
                top, bottom, left, right = of.window(node.in_shape).padding
                moves = {name: value for name, value in of.moves.items() if name != "padding"}
                x = f.conv2d(f.pad(x, (left, right, top, bottom)), *own, **moves)
            case layers.LayerNorm(eps):
                x = f.layer_norm(x, node.in_shape, *own, eps)
            case layers.BatchNorm2d(eps):
                x = f.batch_norm(x, own[2], own[3], own[0], own[1], eps=eps)
            case layers.MaxPool1d(size):
                x = f.max_pool1d(x, size)
            case layers.MaxPool2d(size, stride, padding):
                x = f.max_pool2d(x, size, stride, padding)
            case layers.AvgPool2d(size, stride, padding):
                x = f.avg_pool2d(x, size, stride, padding)
            case layers.GlobalAvgPool2d():
                x = x.mean((2, 3))
            case layers.LocalResponseNorm(size, alpha, beta, k):
                x = f.local_response_norm(x, size, alpha, beta, k)
            case layers.LeakyRelu(slope):
                x = f.leaky_relu(x, slope)
            case layers.Linear():
                x = f.linear(x, *own)
            case layers.Flatten():
                x = x.flatten(1)
            case layers.Embedding():
                word, position, kind = own
                x = f.embedding(torch.from_numpy(ids).long(), word) + position[: ids.shape[1]] + kind[0]
            case layers.RowNorm(eps):
                x = f.layer_norm(x, x.shape[-1:], *own, eps)
            case layers.Projection():
                x = f.linear(x, *own)
            case layers.SelfAttention(heads, causal):
                q, k, v = (f.linear(x, *own[i : i + 2]).unflatten(2, (heads, -1)).transpose(1, 2) for i in (0, 2, 4))
                x = f.scaled_dot_product_attention(q, k, v, is_causal=causal).transpose(1, 2).flatten(2)
            case layers.Residual():
                x = x + torch_forward(torch, of.nodes(node.in_shape), x, held)
            case other:
                plain = {"Relu": f.relu, "Tanh": torch.tanh, "Gelu": f.gelu, "Sigmoid": torch.sigmoid}
                x = plain[type(other).__name__](x)
    return x


def networks():
    yield pytest.param(TINY.nodes, TINY.alphabet, id="charcnn")
    for row in NETWORKS:
        of = network(row.name).module
        nodes = place(of.layers("tiny"), row.architecture("tiny").in_shape)
        if all(isinstance(node.layer, (*gradients.RULES, *gradients.FIXED)) for node in nodes):
            yield pytest.param(nodes, None, id=row.name)


@pytest.mark.parametrize(("nodes", "ids"), list(networks()))
def test_networks(nodes, ids):
    """CharCNN's LayerNorms, and each network's layers, their strides, padding and groups."""
    x, targets, params = drawn(nodes, 3, 1, ids)
    against_pytorch(nodes, x, targets, params)
    _, found = gradients.loss_and_gradients(nodes, x, targets, params)
    for name, array in found.items():
        expected, places = differences(nodes, x, targets, params, name)
        scale = max(abs(array).max(), 1e-3)
        np.testing.assert_allclose(array.reshape(-1)[places], expected, rtol=2e-5, atol=2e-6 * scale, err_msg=name)


def test_every_layer_that_has_a_reference_has_a_rule():
    kinds = {*gradients.RULES, *gradients.FIXED}
    named = {kind for kind in vars(layers).values() if isinstance(kind, type) and issubclass(kind, layers.Layer)}
    assert {kind.__name__ for kind in named - kinds} == {"Layer", "Window2d", "MeanPool", "Normalize"}
    node = layers.Node(layers.MeanPool(), (2, 3), (3,))
    with pytest.raises(TypeError, match="has no gradient"):
        gradients.gradient(node, np.ones((1, 3)), np.ones((1, 2, 3)), {}, lambda name: getattr(reference, name))


def encoder(causal=False):
    """Token ids through two residuals, one of them within the other's block, to three classes."""
    feed = layers.Residual((layers.Projection(7, name="up"), layers.Gelu(), layers.Projection(6, name="down")))
    attention = layers.SelfAttention(2, causal, name="attention"), layers.Projection(6, name="joined")
    return place(
        (layers.Embedding(11, 6, 5, name="tokens"), layers.RowNorm(1e-5, name="norm1"), layers.Residual(attention),
         layers.RowNorm(name="norm2"), layers.Residual((layers.RowNorm(name="norm3"), feed)), layers.Flatten(),
         layers.Linear(3, name="fc")), (4,))  # fmt: skip


@pytest.mark.parametrize("causal", [False, True], ids=["all", "causal"])
def test_encoders(causal):
    nodes = encoder(causal)
    x, targets, params = drawn(nodes, 3, 1)
    x = np.random.default_rng(0).integers(0, 12, (3, 4), np.int32)
    against_pytorch(nodes, x, targets, params)
    _, found = gradients.loss_and_gradients(nodes, x, targets, params)
    assert found.keys() == gradients.trained(nodes)
    for name, array in found.items():
        expected, places = differences(nodes, x, targets, params, name)
        np.testing.assert_allclose(array.reshape(-1)[places], expected, rtol=1e-4, atol=1e-7, err_msg=name)


POINTWISE = (layers.Relu(), layers.LeakyRelu(0.2), layers.Tanh(), layers.Gelu(), layers.Sigmoid())


@st.composite
def images(draw):
    """A small network of images: a convolution that moves, pads, spreads and is grouped, and what may follow."""
    groups = draw(st.integers(1, 3))
    number = lambda least, most: draw(st.integers(least, most))  # noqa: E731
    pair = lambda least, most: (number(least, most), number(least, most))  # noqa: E731
    padding = draw(st.sampled_from([0, (1, 2), (1, 0, 2, 1), "same", "valid"]))
    conv = layers.Conv2d(
        groups * number(1, 3), pair(1, 3), pair(1, 3), padding, pair(1, 2), groups, draw(st.booleans()), name="conv"
    )
    follows = draw(st.lists(st.sampled_from([
        *POINTWISE, layers.BatchNorm2d(name="norm"), layers.LocalResponseNorm(3, 0.5, 0.7, 1.5),
        layers.MaxPool2d(2, 1, 1), layers.MaxPool2d((2, 3), (1, 2)), layers.AvgPool2d(3, 2, 1)], ), max_size=3,
        unique_by=type))  # fmt: skip
    last = draw(st.sampled_from([(layers.GlobalAvgPool2d(),), (layers.Flatten(),)]))
    return (conv, *follows, *last, layers.Linear(3, name="fc")), (groups * number(1, 2), number(5, 9), number(5, 9))


@st.composite
def sequences(draw):
    """A small network of sequences."""
    kernel, channels = draw(st.integers(1, 4)), draw(st.integers(1, 4))
    follows = draw(st.permutations([layers.LayerNorm(name="norm"), draw(st.sampled_from(POINTWISE)),
                                    layers.MaxPool1d(draw(st.integers(1, 3)))]))  # fmt: skip
    first = layers.Conv1d(channels, kernel, name="conv")
    return (first, *follows, layers.Flatten(), layers.Linear(3, name="fc")), (draw(st.integers(1, 3)), kernel + 5)


@settings(max_examples=60)
@given(st.one_of(images(), sequences()), st.integers(1, 4), st.integers(0, 2**32 - 1))
def test_drawn_networks(network_of, n, seed):
    found, shape = network_of
    try:
        nodes = place(found, shape)
    except ValueError:  # a window larger than what is left
        return
    against_pytorch(nodes, *drawn(nodes, n, seed, None))


@pytest.mark.parametrize("x", [[[1.0, 3, 3, 2]], [[-np.inf] * 4], [[np.nan, 1, np.nan, 2]]], ids=str)
def test_a_maximum_of_equals_is_the_first(x):
    x = np.array([x])
    dx = reference.maxpool1d_backward(np.ones((1, 1, 2)), x, 2, padding=0)
    image = reference.maxpool2d_backward(np.ones((1, 1, 1, 2)), x[:, :, None], (1, 2))
    np.testing.assert_array_equal(dx, image[:, :, 0])
    first = [min(i for i in (a, a + 1) if x[0, 0, i] == np.max(x[0, 0, a : a + 2]) or np.isnan(x[0, 0, i]))
             for a in (0, 2)]  # fmt: skip
    np.testing.assert_array_equal(np.flatnonzero(dx), first)


def test_padding_takes_no_gradient():
    """Not even where a window holds nothing above -inf."""
    x = np.full((1, 1, 4), -np.inf)
    assert reference.maxpool1d_backward(np.ones((1, 1, 3)), x, 2, padding=1).sum() == 3
    assert reference.maxpool2d_backward(np.ones((1, 1, 1, 3)), x[:, :, None], (1, 2), padding=(0, 1)).sum() == 3


FORWARD = {name: name.removesuffix("_backward") for name in CASES if name.endswith("_backward")}


@pytest.mark.parametrize("name", [name for name, of in FORWARD.items() if hasattr(reference, of)])
def test_operators_by_differences(name):
    """Some gradients by each array of the sum of the results, times dy, in float64."""
    forward, of = getattr(reference, FORWARD[name]), CASES[name].build(CASES[name].edges[0], 1, normal=True)
    given = {key: array.astype(float) if array.dtype == np.float32 else array for key, array in of.inputs.items()}
    dy = given.pop("dy")
    found = arrays(getattr(reference, name)(dy, **given, **of.options))
    last = given.get("weight2", given.get("weight", np.zeros(0)))
    biases = {"beta": given.get("gamma"), "bias": np.zeros(len(last)), "bias2": np.zeros(len(last))}
    taken = inspect.signature(forward).parameters
    needed = {key for key, one in taken.items() if one.default is one.empty} - given.keys() - of.options.keys()
    given |= {key: np.array(biases[key]) for key in needed}
    given = {key: given[key] for key in taken if key in given}
    results = operator(name).results or ("dx",)
    for key, gradient in zip((one.removeprefix("d") for one in results), found, strict=True):
        flat = given[{"type_rows": "types"}.get(key, key)].reshape(-1)
        for place_ in np.random.default_rng(0).choice(flat.size, min(5, flat.size), replace=False):
            was, sums = flat[place_], []
            for by in (1e-6, -1e-6):
                flat[place_] = was + by
                sums.append((dy * forward(**given, **of.options)).sum())
            flat[place_] = was
            difference = (sums[0] - sums[1]) / 2e-6
            np.testing.assert_allclose(gradient.reshape(-1)[place_], difference, rtol=1e-6, atol=1e-7, err_msg=key)


@each([row for row in VARIANTS if "_backward" in row.operator])
def test_the_same_bits_each_time(variant):
    """Of sums over inputs and positions, too, as their order is fixed."""
    cases = CASES[variant.operator]
    case = cases.build(cases.edges[0], normal=True)
    first, *others = (arrays(variant.launcher(**case.inputs, **case.options)) for _ in range(3))
    for again in others:
        assert all(one.tobytes() == other.tobytes() for one, other in zip(first, again, strict=True))
