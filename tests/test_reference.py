"""The references against plain Python loops in float64, and against PyTorch."""

from __future__ import annotations

import math

import gradient_oracles
import image_oracles
import numpy as np
import pytest
from case_makers import of_each
from hypothesis import given, settings
from hypothesis import strategies as st
from operator_cases import CASES

from charcnn.catalog import CHAIN, OPERATORS
from charcnn.ops import reference


def double(case):
    return [array.astype(np.float64) if array.dtype == np.float32 else array for array in case.inputs.values()]


def arrays(result):
    return result if isinstance(result, tuple) else (result,)


def plain(row, functions):
    """What to compare the operator with, and what turns its arguments and results to be as there.

    An operator on channels-last features is compared with the plain one of its name.
    """
    if row.name in functions:
        return functions[row.name], lambda name, array: array
    return functions[row.name.removesuffix("_nlc")], channels_first


def channels_first(name, array):
    if name.rstrip("12") in ("weight", "gamma", "beta"):
        return array.T
    return array.swapaxes(1, 2) if array.ndim == 3 else array


# The definitions, one output at a time, in plain Python.


def one_hot_loops(ids, depth):
    return [[[float(token == c) for token in row] for c in range(depth)] for row in ids]


def conv1d_loops(x, weight, bias, stride=1, padding=0, dilation=1):
    n, c_in, length = x.shape
    c_out, _, k = weight.shape
    out = np.zeros((n, c_out, (length + 2 * padding - dilation * (k - 1) - 1) // stride + 1))
    for i, o, t in np.ndindex(out.shape):
        total = bias[o]
        for c in range(c_in):
            for tap in range(k):
                position = t * stride + tap * dilation - padding
                if 0 <= position < length:
                    total += x[i, c, position] * weight[o, c, tap]
        out[i, o, t] = total
    return out


def layernorm_loops(x, gamma, beta, eps=1e-5):
    out = np.zeros(x.shape)
    for i, values in enumerate(x):
        mean = math.fsum(values.flat) / values.size
        variance = math.fsum((value - mean) ** 2 for value in values.flat) / values.size
        out[i] = (values - mean) / math.sqrt(variance + eps) * gamma + beta
    return out


def relu_loops(x):
    return np.array([value if value > 0 else 0.0 for value in x.flat]).reshape(x.shape)


def maxpool1d_loops(x, kernel_size, stride=None, padding=0):
    stride = stride or kernel_size
    n, c, length = x.shape
    out = np.zeros((n, c, (length + 2 * padding - kernel_size) // stride + 1))
    for i, j, t in np.ndindex(out.shape):
        start = t * stride - padding
        out[i, j, t] = max(x[i, j, p] for p in range(max(start, 0), min(start + kernel_size, length)))
    return out


def collapse_loops(x):
    n, c, length = x.shape
    return np.array([[x[i, j, t] for j in range(c) for t in range(length)] for i in range(n)]).reshape(n, c * length)


def linear_loops(x, weight, bias):
    out = np.zeros((x.shape[0], weight.shape[0]))
    for i, o in np.ndindex(out.shape):
        out[i, o] = math.fsum(a * b for a, b in zip(x[i], weight[o], strict=True)) + bias[o]
    return out


def stat_loops(x):
    out = np.zeros((len(x), 2))
    for i, values in enumerate(x):
        mean = math.fsum(values.flat) / values.size
        out[i] = mean, math.fsum((value - mean) ** 2 for value in values.flat) / values.size
    return out


def with_stat(y):
    return y, stat_loops(y)


def layernorm_relu_loops(x, stat, gamma, beta, eps=1e-5):
    out = [(values - m) / math.sqrt(v + eps) * gamma + beta for values, (m, v) in zip(x, stat, strict=True)]
    return relu_loops(np.array(out).reshape(x.shape))


def conv1d_relu_maxpool1d_loops(x, weight, bias, pool_size, *, pool_stride=None, **options):
    return maxpool1d_loops(relu_loops(conv1d_loops(x, weight, bias, **options)), pool_size, pool_stride)


def layernorm_relu_maxpool1d_loops(x, stat, gamma, beta, kernel_size, *, stride=None):
    return maxpool1d_loops(layernorm_relu_loops(x, stat, gamma, beta), kernel_size, stride)


def chain_loops(x, *parameters):
    for i in range(0, 6, 2):
        x = relu_loops(conv1d_loops(x, *parameters[i : i + 2]))
    return with_stat(conv1d_loops(x, *parameters[6:]))


def one_hot_conv1d_loops(ids, weight, bias):
    x = np.array(one_hot_loops(ids, weight.shape[1])).reshape(len(ids), weight.shape[1], ids.shape[1])
    return conv1d_loops(x, weight, bias)


def packed_one_hot_conv1d_loops(ids, weight, bias):
    """The convolution from weights as `pack` lays them out; still channels first."""
    return one_hot_conv1d_loops(ids, weight.transpose(2, 1, 0), bias)


def one_hot_conv1d_layernorm_relu_maxpool1d_loops(ids, stat, weight, bias, gamma, beta, pool_size):
    y = layernorm_relu_loops(packed_one_hot_conv1d_loops(ids, weight, bias), stat, gamma.T, beta.T)
    return maxpool1d_loops(y, pool_size).swapaxes(1, 2)


def one_hot_conv1d_relu_maxpool1d_loops(ids, weight, bias, pool_size):
    return maxpool1d_loops(relu_loops(packed_one_hot_conv1d_loops(ids, weight, bias)), pool_size).swapaxes(1, 2)


def softmax_loops(x):
    out = np.zeros(x.shape)
    for i, row in enumerate(x):
        exponentials = [math.exp(value) for value in row]
        out[i] = np.array(exponentials) / math.fsum(exponentials)
    return out


def rownorm_loops(x, gamma, beta):
    return layernorm_loops(x.reshape(-1, x.shape[-1]), gamma, beta).reshape(x.shape)


def embedding_loops(tokens, weight, positions, types, type_ids=None):
    out = np.zeros((*tokens.shape, weight.shape[1]))
    for n, s in np.ndindex(tokens.shape):
        out[n, s] = positions[s]
        for row, table in ((tokens[n, s], weight), (0 if type_ids is None else type_ids[n, s], types)):
            out[n, s] += table[row] if 0 <= row < len(table) else 0
    return out


def attention_loops(q, k, v, lengths=None, causal=False):
    out = np.zeros(q.shape)
    for n, h, i, c in np.ndindex(out.shape):
        length = q.shape[2] if lengths is None else lengths[n]
        keys = [j for j in range(length if i < length else 0) if j <= i or not causal]
        scores = [math.exp(math.fsum(q[n, h, i] * k[n, h, j]) / math.sqrt(q.shape[3])) for j in keys]
        out[n, h, i, c] = math.fsum(score * v[n, h, j, c] for score, j in zip(scores, keys, strict=True))
        out[n, h, i, c] /= math.fsum(scores) or 1
    return out


def argmax_loops(x):
    return [list(row).index(max(row)) for row in x]


LOOPS = {
    "one_hot": one_hot_loops,
    "one_hot_conv1d": one_hot_conv1d_loops,
    "conv1d": conv1d_loops,
    "conv1d_relu": lambda *args, **options: relu_loops(conv1d_loops(*args, **options)),
    "layernorm": layernorm_loops,
    "relu": relu_loops,
    "maxpool1d": maxpool1d_loops,
    "collapse": collapse_loops,
    "linear": linear_loops,
    "linear_relu": lambda *args: relu_loops(linear_loops(*args)),
    "conv1d_stat": lambda *args, **options: with_stat(conv1d_loops(*args, **options)),
    "layernorm_relu": layernorm_relu_loops,
    "relu_maxpool1d": lambda x, *args, **options: maxpool1d_loops(relu_loops(x), *args, **options),
    "conv1d_relu_maxpool1d": conv1d_relu_maxpool1d_loops,
    "layernorm_relu_maxpool1d": layernorm_relu_maxpool1d_loops,
    CHAIN: chain_loops,
    "linear_relu_linear": lambda x, *args: linear_loops(relu_loops(linear_loops(x, *args[:2])), *args[2:]),
    "one_hot_conv1d_nlc": lambda *args: packed_one_hot_conv1d_loops(*args).swapaxes(1, 2),
    "one_hot_conv1d_stat_nlc": lambda *args: stat_loops(packed_one_hot_conv1d_loops(*args)),
    "one_hot_conv1d_relu_maxpool1d_nlc": one_hot_conv1d_relu_maxpool1d_loops,
    "one_hot_conv1d_layernorm_relu_maxpool1d_nlc": one_hot_conv1d_layernorm_relu_maxpool1d_loops,
    "softmax": softmax_loops,
    "argmax": argmax_loops,
    "heads_apart": lambda x: [
        [[x[n, s, h] for s in range(x.shape[1])] for h in range(x.shape[2])] for n in range(len(x))
    ],
    "add": lambda x, residual: [a + b for a, b in zip(x.flat, residual.flat, strict=True)],
    "embedding": embedding_loops,
    "embedding_rownorm": lambda *given: rownorm_loops(embedding_loops(*given[:4], *given[6:]), *given[4:6]),
    "rownorm": rownorm_loops,
    "add_rownorm": lambda x, residual, *args: rownorm_loops(x + residual, *args),
    "attention": attention_loops,
    "packed_attention": lambda *given, **options: of_each(attention_loops, *given, **options),
    **image_oracles.LOOPS,
    **gradient_oracles.LOOPS,
}


def each(rows=OPERATORS):
    return pytest.mark.parametrize("row", rows, ids=lambda row: row.name)


@each()
def test_against_plain_loops(row):
    cases = CASES[row.name]
    loops, turn = plain(row, LOOPS)

    def compare(case):
        results = arrays(row.reference(*double(case), **case.options))
        arguments = map(turn, case.inputs, double(case))
        for out, expected in zip(results, arrays(loops(*arguments, **case.options)), strict=True):
            turned = turn("y", out)
            np.testing.assert_allclose(turned, np.array(expected).reshape(turned.shape), rtol=1e-12, atol=1e-12)

    for sizes in cases.edges:
        compare(cases.build(sizes))

    @settings(max_examples=12)
    @given(cases.sizes(compiled=False), st.integers(0, 2**32 - 1))
    def try_one(sizes, seed):
        compare(cases.build(sizes, seed, normal=True))

    try_one()


# PyTorch, an oracle by other hands.


def torch_functions():
    torch = pytest.importorskip("torch", reason="PyTorch is not installed: no second oracle")
    f = torch.nn.functional

    def one_hot(ids, depth):
        return f.one_hot(ids.long().clamp(max=depth), depth + 1)[..., :depth].transpose(1, 2)

    def with_stat(y):
        return y, torch.stack((y.flatten(1).mean(1), y.flatten(1).var(1, unbiased=False)), 1)

    def layernorm_relu(x, stat, gamma, beta):
        mean, variance = stat.view(len(x), 2, *[1] * (x.ndim - 1)).unbind(1)
        return f.relu((x - mean) * torch.rsqrt(variance + 1e-5) * gamma + beta)

    def conv1d_relu_maxpool1d(x, weight, bias, pool_size, pool_stride=None, **options):
        return f.max_pool1d(f.relu(f.conv1d(x, weight, bias, **options)), pool_size, pool_stride)

    def layernorm_relu_maxpool1d(x, stat, gamma, beta, **options):
        return f.max_pool1d(layernorm_relu(x, stat, gamma, beta), **options)

    def chain(x, *parameters):
        for i in range(0, 6, 2):
            x = f.relu(f.conv1d(x, *parameters[i : i + 2]))
        return with_stat(f.conv1d(x, *parameters[6:]))

    def one_hot_conv1d(ids, weight, bias):
        depth, windows = weight.shape[1], ids.shape[1] - len(weight) + 1
        ids = ids.long().clamp(max=depth)
        table = f.pad(weight, (0, 0, 0, 1))  # the blank's row
        return sum(f.embedding(ids[:, k : k + windows], rows) for k, rows in enumerate(table)) + bias

    def pooled(y, pool_size):
        return f.max_pool1d(y.transpose(1, 2), pool_size).transpose(1, 2)

    def one_hot_conv1d_layernorm_relu_maxpool1d(ids, stat, weight, bias, gamma, beta, pool_size):
        return pooled(layernorm_relu(one_hot_conv1d(ids, weight, bias), stat, gamma, beta), pool_size)

    def attention(q, k, v, lengths=None, causal=False):
        places = torch.arange(q.shape[2])
        counts = places < (torch.full((len(q),), q.shape[2]) if lengths is None else lengths)[:, None]
        seen = counts[:, None, None] & (places[:, None] >= places if causal else True)
        return f.scaled_dot_product_attention(q, k, v, seen).where(counts[:, None, :, None], 0)

    def embedding(tokens, weight, positions, types, type_ids=None):
        def rows(ids, table):  # one of zeros before the first, and behind the last
            return f.embedding((ids.long() + 1).clamp(0, len(table) + 1), f.pad(table, (0, 0, 1, 1)))

        kinds = torch.zeros_like(tokens) if type_ids is None else type_ids
        return rows(tokens, weight) + positions[: tokens.shape[1]] + rows(kinds, types)

    return torch, {
        "one_hot": one_hot,
        "one_hot_conv1d": lambda ids, w, b: f.conv1d(one_hot(ids, w.shape[1]).to(w.dtype), w, b),
        "conv1d": f.conv1d,
        "conv1d_relu": lambda *args, **options: f.relu(f.conv1d(*args, **options)),
        "layernorm": lambda x, gamma, beta: f.layer_norm(x, x.shape[1:], gamma, beta),
        "relu": f.relu,
        "maxpool1d": f.max_pool1d,
        "collapse": lambda x: x.flatten(1),
        "linear": f.linear,
        "linear_relu": lambda *args: f.relu(f.linear(*args)),
        "conv1d_stat": lambda *args, **options: with_stat(f.conv1d(*args, **options)),
        "layernorm_relu": layernorm_relu,
        "relu_maxpool1d": lambda x, **options: f.max_pool1d(f.relu(x), **options),
        "conv1d_relu_maxpool1d": conv1d_relu_maxpool1d,
        "layernorm_relu_maxpool1d": layernorm_relu_maxpool1d,
        CHAIN: chain,
        "linear_relu_linear": lambda x, *args: f.linear(f.relu(f.linear(x, *args[:2])), *args[2:]),
        "one_hot_conv1d_nlc": one_hot_conv1d,
        "one_hot_conv1d_stat_nlc": lambda *args: with_stat(one_hot_conv1d(*args))[1],
        "one_hot_conv1d_relu_maxpool1d_nlc": lambda *args, pool_size: pooled(f.relu(one_hot_conv1d(*args)), pool_size),
        "one_hot_conv1d_layernorm_relu_maxpool1d_nlc": one_hot_conv1d_layernorm_relu_maxpool1d,
        "softmax": lambda x: f.softmax(x, dim=1),
        "argmax": lambda x: x.argmax(dim=1),
        "heads_apart": lambda x: x.transpose(1, 2),
        "add": torch.add,
        "embedding": embedding,
        "embedding_rownorm": lambda *given: f.layer_norm(
            embedding(*given[:4], *given[6:]), given[4].shape, *given[4:6]
        ),
        "rownorm": lambda x, gamma, beta: f.layer_norm(x, gamma.shape, gamma, beta),
        "add_rownorm": lambda x, residual, gamma, beta: f.layer_norm(x + residual, gamma.shape, gamma, beta),
        "attention": attention,
        "packed_attention": lambda *given, **options: torch.from_numpy(
            of_each(lambda *parts, causal: attention(*map(torch.from_numpy, parts), causal=causal), *given, **options)
        ),
        **image_oracles.torch_functions(torch),
        **gradient_oracles.torch_functions(torch),
    }


@each()
@pytest.mark.parametrize("rest", [False, pytest.param(True, marks=pytest.mark.exhaustive)], ids=["", "larger"])
def test_against_pytorch(row, rest):
    torch, functions = torch_functions()
    cases = CASES[row.name]
    oracle, turn = plain(row, functions)
    large = sorted(cases.large, key=lambda sizes: math.prod(sizes.values()))
    some = [sizes for sizes in cases.edges if sizes["n"] > 0]  # PyTorch refuses some empty batches
    for sizes in large[1:] if rest else (*some, *large[:1]):
        case = cases.build(sizes, normal=True)
        results = arrays(row.reference(*double(case), **case.options))
        arguments = map(torch.from_numpy, map(turn, case.inputs, double(case)))
        for out, expected in zip(results, arrays(oracle(*arguments, **case.options)), strict=True):
            np.testing.assert_allclose(turn("y", out), expected.numpy(), rtol=1e-10, atol=1e-10)


def test_nan_as_in_pytorch():
    torch, functions = torch_functions()
    x = np.array([[[1, math.nan, 3, 4, 5, -math.inf]]])
    assert np.array_equal(reference.relu(x), functions["relu"](torch.from_numpy(x)).numpy(), equal_nan=True)
    pooled = functions["maxpool1d"](torch.from_numpy(x), 3).numpy()
    assert np.array_equal(reference.maxpool1d(x, 3), pooled, equal_nan=True)
    assert np.array_equal(reference.argmax(x[0]), functions["argmax"](torch.from_numpy(x[0])).numpy())


NO_FLOATS = ("one_hot", "one_hot_nlc", "one_hot_conv1d", "argmax", "linear_argmax", "pixels", "pixels_nhwc")


@each([row for row in OPERATORS if row.name not in NO_FLOATS])
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_dtype_is_kept(row, dtype):
    cases = CASES[row.name]
    case = cases.build(cases.edges[0])
    result = row.reference(
        *(array.astype(dtype) if array.dtype.kind == "f" else array for array in case.inputs.values()), **case.options
    )
    assert all(array.dtype == dtype for array in arrays(result))


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_one_hot_dtype(dtype):
    assert reference.one_hot(np.zeros((1, 2), np.uint8), 3, dtype=dtype).dtype == dtype
    assert reference.one_hot(np.zeros((1, 2), np.uint8)).shape == (1, 70, 2)
    assert reference.one_hot(np.zeros((1, 2), np.uint8)).dtype == np.float32
    weight, bias = np.zeros((4, 3, 2), dtype), np.zeros(4, dtype)
    assert reference.one_hot_conv1d(np.zeros((1, 2), np.uint8), weight, bias).dtype == dtype


def test_argmax_dtype():
    assert reference.argmax(np.zeros((2, 3), np.float32)).dtype == np.int64
