"""Operators' arguments from sizes: sequences and what follows them.

Each takes a generator, whether values are normal, and sizes. Data that are not are well-conditioned.
"""

from __future__ import annotations

import numpy as np
from case_kinds import Case, values, weights

from charcnn.ops import reference
from charcnn.ops.common.arrays import pack


def one_hot(rng, normal, n, length, depth):
    return Case({"ids": rng.integers(0, min(depth + 2, 256), (n, length), dtype=np.uint8)}, {"depth": depth})


def one_hot_conv1d(rng, normal, n, depth, c_out, length, k):
    ids = one_hot(rng, normal, n, length, depth).inputs["ids"]
    weight, bias = weights(rng, c_out, depth, k, normal=normal)
    return Case({"ids": ids, "weight": weight, "bias": bias})


def conv1d(rng, normal, n, c_in, c_out, length, k, **options):
    weight, bias = weights(rng, c_out, c_in, k, normal=normal)
    return Case({"x": values(rng, n, c_in, length, normal=normal), "weight": weight, "bias": bias}, options)


def layernorm(rng, normal, n, c, length):
    x = rng.standard_normal((n, c * length)) + 4 * (np.arange(c * length) % 2)  # never all nearly equal
    return Case(
        {
            "x": x.reshape(n, c, length).astype(np.float32),
            "gamma": weights(rng, c, length, normal=normal)[0],
            "beta": values(rng, c, length, normal=True) / 8,
        }
    )


def layernorm_relu(rng, normal, n, c, length):
    case = layernorm(rng, normal, n, c, length)
    x = case.inputs.pop("x")
    # Given statistics are taken as they are: these are near x's own, and not its own.
    stat = reference.stat(x.astype(np.float64)) * rng.uniform(0.9, 1.1, (n, 2))
    return Case({"x": x, "stat": stat, **case.inputs})


def layernorm_relu_maxpool1d(rng, normal, n, c, length, kernel_size, **options):
    case = layernorm_relu(rng, normal, n, c, length)
    return Case(case.inputs, {"kernel_size": kernel_size, **options})


def relu(rng, normal, n, c, length):
    return Case({"x": values(rng, n, c, length, normal=True)})


def maxpool1d(rng, normal, n, c, length, kernel_size, **options):
    return Case({"x": values(rng, n, c, length, normal=True)}, {"kernel_size": kernel_size, **options})


def linear(rng, normal, n, c_in, c_out):
    weight, bias = weights(rng, c_out, c_in, normal=normal)
    return Case({"x": values(rng, n, c_in, normal=normal), "weight": weight, "bias": bias})


def two_linears(rng, normal, n, c_in, c_mid, c_out):
    case = linear(rng, normal, n, c_in, c_mid)
    weight2, bias2 = weights(rng, c_out, c_mid, normal=normal)
    x, weight1, bias1 = case.inputs.values()
    return Case({"x": x, "weight1": weight1, "bias1": bias1, "weight2": weight2, "bias2": bias2})


def conv1d_relu_maxpool1d(rng, normal, n, c_in, c_out, length, k, pool_size, **options):
    case = conv1d(rng, normal, n, c_in, c_out, length, k)
    return Case(case.inputs, {"pool_size": pool_size, **options})


def channels_last(make):
    """The case for the operator on channels-last features: all axes but the inputs' turned round."""

    def turned(*arguments, **sizes):
        case = make(*arguments, **sizes)
        axes = {"x": (0, 2, 1), "gamma": (1, 0), "beta": (1, 0)}
        for name, array in case.inputs.items():
            if name.startswith("weight"):
                case.inputs[name] = pack(array)
            elif name in axes and array.ndim == len(axes[name]):
                case.inputs[name] = np.ascontiguousarray(array.transpose(axes[name]))
        return case

    return turned


def one_hot_conv1d_nlc(rng, normal, n, length, k, depth, c_out):
    inputs = one_hot_conv1d(rng, normal, n, depth, c_out, length, k).inputs
    return Case({**inputs, "weight": pack(inputs["weight"])})


def one_hot_conv1d_relu_maxpool1d_nlc(rng, normal, n, length, k, depth, c_out, pool_size):
    return Case(one_hot_conv1d_nlc(rng, normal, n, length, k, depth, c_out).inputs, {"pool_size": pool_size})


def one_hot_conv1d_layernorm_relu_maxpool1d_nlc(rng, normal, n, length, k, depth, c_out, pool_size):
    ids, weight, bias = one_hot_conv1d_nlc(rng, normal, n, length, k, depth, c_out).inputs.values()
    # Given statistics are taken as they are: these are not the values' own, from which single ones may hardly differ.
    stat = reference.one_hot_conv1d_stat_nlc(ids, weight.astype(np.float64), bias.astype(np.float64))
    stat[:, 0] /= 4
    stat[:, 1] += 1
    gamma = weights(rng, length - k + 1, c_out, normal=normal)[0]
    beta = values(rng, length - k + 1, c_out, normal=True) / 8
    inputs = {"ids": ids, "stat": stat, "weight": weight, "bias": bias, "gamma": gamma, "beta": beta}
    return Case(inputs, {"pool_size": pool_size})


def softmax(rng, normal, n, c):
    return Case({"x": 4 * values(rng, n, c, normal=True)})


def rownorm(rng, normal, n, s, h):
    case = layernorm(rng, normal, n * s, h, 1)
    return Case(
        {"x": case.inputs["x"].reshape(n, s, h), **{name: case.inputs[name][:, 0] for name in ("gamma", "beta")}}
    )


def add_rownorm(rng, normal, n, s, h):
    inputs = rownorm(rng, normal, n, s, h).inputs
    x = inputs.pop("x")
    return Case({"x": x, "residual": rownorm(rng, normal, n, s, h).inputs["x"], **inputs})


def heads(rng, normal, n, s, heads, d):
    return Case({"x": values(rng, n, s, heads, d, normal=normal)})


def add(rng, normal, n, s, heads, d):
    shape = n, s, heads, d
    return Case({name: values(rng, *shape, normal=normal) for name in ("x", "residual")})


def embedding(rng, normal, n, s, h, vocabulary, types, given=0):
    """Of ids beyond the tables' rows, some; of positions, more than there are tokens."""
    tables = {"weight": vocabulary, "positions": s + 3, "types": types}
    inputs = {"tokens": rng.integers(-1, vocabulary + 1, (n, s), np.int32)}
    inputs |= {name: values(rng, rows, h, normal=normal) for name, rows in tables.items()}
    if given:
        inputs["type_ids"] = rng.integers(-1, types + 1, (n, s), np.int32)
    return Case(inputs)


def embedding_rownorm(rng, normal, n, s, h, **sizes):
    inputs = embedding(rng, normal, n, s, h, **sizes).inputs
    kinds = {"type_ids": inputs.pop("type_ids")} if "type_ids" in inputs else {}
    inputs["positions"] += 4 * (np.arange(h, dtype=np.float32) % 2)  # never all nearly equal
    return Case(inputs | dict(zip(("gamma", "beta"), values(rng, 2, h, normal=normal), strict=True)) | kinds)


def attention(rng, normal, n, heads, s, d, given=0, causal=0):
    """With lengths where they are `given`: the first 0, the second s, the third 1, others between."""
    inputs = {"q": values(rng, n, heads, s, d, normal=True), "k": values(rng, n, heads, s, d, normal=True)}
    inputs["v"] = values(rng, n, heads, s, d, normal=normal)
    if given:
        lengths = rng.integers(0, s + 1, n, np.int32)
        lengths[:3] = (0, s, 1)[:n]
        inputs["lengths"] = lengths
    return Case(inputs, {"causal": bool(causal)})


def packed_attention(rng, normal, n, heads, s, d, causal=0):
    """Of up to s rows each: the first none, the second s, the third one."""
    counts = rng.integers(0, s + 1, n, np.int32)
    counts[:3] = (0, s, 1)[:n]
    offsets = np.concatenate([[0], counts.cumsum()]).astype(np.int32)
    qkv = values(rng, offsets[-1], 3 * heads * d, normal=True)
    qkv[:, 2 * heads * d :] = values(rng, offsets[-1], heads * d, normal=normal)
    return Case({"qkv": qkv, "offsets": offsets}, {"heads": heads, "causal": bool(causal)})


def of_each(of, qkv, offsets, heads, causal=False):
    """Attention by `of` of each input's rows, with heads apart, in NumPy."""
    qkv = np.asarray(qkv)
    found = [qkv[:0, : qkv.shape[1] // 3]]
    for rows in np.split(qkv, np.asarray(offsets)[1:-1]):
        parts = [one.reshape(1, len(one), heads, -1).swapaxes(1, 2) for one in np.split(rows, 3, axis=1) if len(one)]
        if parts:
            found.append(np.asarray(of(*parts, causal=causal))[0].swapaxes(0, 1).reshape(len(rows), -1))
    return np.concatenate(found)


def argmax(rng, normal, n, c):
    return Case({"x": rng.integers(-3, 3, (n, c)).astype(np.float32)})  # with equals
