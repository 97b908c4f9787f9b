"""What shapes an operator takes and gives: the one place where they are checked.

Every function takes anything with a `.shape`, returns the output's shape, and raises ValueError naming the
argument, what it got and what it needs. References and launchers of every technique call the same function.
"""

from __future__ import annotations

from math import prod
from numbers import Real

from charcnn.aliases import Array
from charcnn.gpu.arrays import expect, shape_of
from charcnn.layers.layer import SLOPE, Shape
from charcnn.layers.windows import at_least, countable


def conv1d(x: Array, weight: Array, bias: Array, stride: int = 1, padding: int = 0, dilation: int = 1) -> Shape:
    """x (N, C_in, L), weight (C_out, C_in, K), bias (C_out,) -> (N, C_out, L_out)."""
    n, c_in, length = ranked("x", x, "N, C_in, L")
    c_out, w_in, kernel_size = ranked("weight", weight, "C_out, C_in, K")
    if w_in != c_in:
        raise ValueError(f"weight has shape {tuple(weight.shape)}: need C_in={c_in}, as in x of shape {tuple(x.shape)}")
    expect("bias", bias, (c_out,))
    return n, c_out, _windows(length, kernel_size, stride, padding, dilation)


def layernorm(x: Array, gamma: Array, beta: Array, eps: float = 1e-5) -> Shape:
    """x (N, ...), gamma and beta (...) -> (N, ...): each input is normalised over all its other axes."""
    shape = shape_of("x", x)
    if len(shape) < 2 or 0 in shape[1:]:
        raise ValueError(f"x has shape {shape}: need (N, ...) with at least one value an input")
    if len(shape) > 2 and shape_of("gamma", gamma) == shape[-1:]:
        raise ValueError(
            f"gamma has shape {shape[-1:]}: need {shape[1:]}, as each input is normalised over all its axes; "
            f"over the last axis alone: x.reshape(-1, {shape[-1]})"
        )
    affine(gamma, beta, eps, shape[1:])
    return shape


def affine(gamma: Array, beta: Array, eps: float, shape: Shape) -> None:
    """Raise unless gamma and beta have this shape, and eps is greater than 0."""
    expect("gamma", gamma, shape)
    expect("beta", beta, shape)
    if not eps > 0:
        raise ValueError(f"eps={eps!r}: need a positive number")


def relu(x: Array) -> Shape:
    """x (...) -> (...)"""
    return shape_of("x", x)


def leaky_relu(x: Array, negative_slope: float = SLOPE) -> Shape:
    """x (...) -> (...)"""
    if not (isinstance(negative_slope, Real) and 0 <= negative_slope <= 1):
        raise ValueError(f"negative_slope={negative_slope!r}: need a number from 0 to 1")
    return shape_of("x", x)


def maxout(x: Array, pieces: int = 2) -> Shape:
    """x (N, C, ...) -> (N, C / pieces, ...)."""
    shape = shape_of("x", x)
    at_least("pieces", pieces, 1)
    if len(shape) < 2 or shape[1] % pieces:
        raise ValueError(f"x has shape {shape}: need (N, C, ...), C a multiple of {pieces=}")
    return shape[0], shape[1] // pieces, *shape[2:]


def maxpool1d(x: Array, kernel_size: int, stride: int | None = None, padding: int = 0) -> Shape:
    """x (N, C, L) -> (N, C, L_out)."""
    n, channels, length = ranked("x", x, "N, C, L")
    at_least("kernel_size", kernel_size, 1)
    stride = kernel_size if stride is None else stride
    at_least("stride", stride, 1)
    at_least("padding", padding, 0)
    if padding > kernel_size // 2:  # else a window could hold padding only
        raise ValueError(f"padding={padding}: need at most half of kernel_size={kernel_size}")
    out = (length + 2 * padding - kernel_size) // stride + 1
    if out < 1:
        raise ValueError(f"x has {length} positions: need at least {kernel_size - 2 * padding} for {kernel_size=}")
    return n, channels, out


def conv1d_relu_maxpool1d(
    x: Array,
    weight: Array,
    bias: Array,
    pool_size: int,
    stride: int = 1,
    padding: int = 0,
    dilation: int = 1,
    pool_stride: int | None = None,
) -> Shape:
    """x (N, C_in, L), weight (C_out, C_in, K), bias (C_out,) -> (N, C_out, L_pooled)."""
    n, c_out, length = conv1d(x, weight, bias, stride, padding, dilation)
    at_least("pool_size", pool_size, 1)
    pool_stride = pool_size if pool_stride is None else pool_stride
    at_least("pool_stride", pool_stride, 1)
    if length < pool_size:
        raise ValueError(f"x convolves to {length} positions: need at least {pool_size} for {pool_size=}")
    return n, c_out, (length - pool_size) // pool_stride + 1


def stat(x: Array) -> Shape:
    """x (N, ...) -> (N, 2)."""
    shape = shape_of("x", x)
    if len(shape) < 2 or 0 in shape[1:]:
        raise ValueError(f"x has shape {shape}: need (N, ...) with at least one value an input")
    return shape[0], 2


def layernorm_relu(x: Array, stat: Array, gamma: Array, beta: Array, eps: float = 1e-5) -> Shape:
    """x (N, ...), stat (N, 2), gamma and beta (...) -> (N, ...)."""
    shape = layernorm(x, gamma, beta, eps)
    expect("stat", stat, (shape[0], 2))
    return shape


def layernorm_relu_maxpool1d(
    x: Array, stat: Array, gamma: Array, beta: Array, kernel_size: int, eps: float = 1e-5, stride: int | None = None
) -> Shape:
    """x (N, C, L), stat (N, 2), gamma and beta (C, L) -> (N, C, L_out)."""
    layernorm_relu(x, stat, gamma, beta, eps)
    return maxpool1d(x, kernel_size, stride)


def two_linears(x: Array, weight1: Array, bias1: Array, weight2: Array, bias2: Array) -> Shape:
    """x (N, ..., C_in), weight1 (C_mid, C_in), bias1 (C_mid,), weight2 (C_out, C_mid), bias2 (C_out,) ->
    (N, ..., C_out)."""
    *leading, middle = _linear(x, weight1, bias1, "1")
    c_out, w_in = ranked("weight2", weight2, "C_out, C_mid")
    if w_in != middle:
        raise ValueError(f"weight2 has shape {tuple(weight2.shape)}: need C_mid={middle}, as weight1 gives")
    expect("bias2", bias2, (c_out,))
    return *leading, c_out


def linear(x: Array, weight: Array, bias: Array) -> Shape:
    """x (N, ..., C_in), weight (C_out, C_in), bias (C_out,) -> (N, ..., C_out)."""
    return _linear(x, weight, bias)


def linear_maxout(x: Array, weight: Array, bias: Array, pieces: int = 2) -> Shape:
    """x (N, ..., C_in), weight (C_out, C_in), bias (C_out,) -> (N, ..., C_out / pieces)."""
    *leading, channels = _linear(x, weight, bias)
    at_least("pieces", pieces, 1)
    if channels % pieces:
        raise ValueError(f"weight has shape {tuple(weight.shape)}: need C_out a multiple of {pieces=}")
    return *leading, channels // pieces


def linear_softmax(x: Array, weight: Array, bias: Array) -> Shape:
    """x (N, ..., C_in), weight (C_out, C_in), bias (C_out,) -> (N, ..., C_out), at least one class."""
    shape = _linear(x, weight, bias)
    if shape[-1] < 1:
        raise ValueError(f"weight has shape {tuple(weight.shape)}: need at least one class")
    return shape


def linear_argmax(x: Array, weight: Array, bias: Array) -> Shape:
    """x (N, ..., C_in), weight (C_out, C_in), bias (C_out,) -> (N, ...)."""
    return linear_softmax(x, weight, bias)[:-1]


def one_hot(ids: Array, depth: int) -> Shape:
    """ids (N, L) -> (N, depth, L)."""
    n, length = ranked("ids", ids, "N, L")
    at_least("depth", depth, 1)
    return n, depth, length


def one_hot_conv1d(ids: Array, weight: Array, bias: Array) -> Shape:
    """ids (N, L), weight (C_out, depth, K), bias (C_out,) -> (N, C_out, L_out)."""
    n, length = ranked("ids", ids, "N, L")
    c_out, depth, kernel_size = ranked("weight", weight, "C_out, depth, K")
    if depth < 1:
        raise ValueError(f"weight has shape {tuple(weight.shape)}: need a depth of at least 1")
    expect("bias", bias, (c_out,))
    if not 1 <= kernel_size <= length:
        raise ValueError(f"weight has K={kernel_size}: need 1 to {length}, the positions of ids")
    return n, c_out, length - kernel_size + 1


def collapse(x: Array) -> Shape:
    """x (N, C, L) or (N, C, H, W) -> (N, C*L) or (N, C*H*W)."""
    shape = shape_of("x", x)
    if len(shape) not in (3, 4):
        raise ValueError(f"x has shape {shape}: need (N, C, L) or (N, C, H, W)")
    return shape[0], prod(shape[1:])


def collapse_linear(x: Array, weight: Array, bias: Array) -> Shape:
    """x (N, C, L) or (N, C, H, W), weight (C_out, C_in), bias (C_out,) -> (N, C_out), where C_in = C*L or C*H*W."""
    n, c_in = collapse(x)
    c_out, w_in = ranked("weight", weight, "C_out, C_in")
    if w_in != c_in:
        raise ValueError(
            f"weight has shape {tuple(weight.shape)}: need C_in={c_in}, as x of shape {tuple(x.shape)} has"
        )
    expect("bias", bias, (c_out,))
    return n, c_out


def softmax(x: Array) -> Shape:
    """x (..., C) -> (..., C): each row of the last axis."""
    shape = shape_of("x", x)
    if not shape or shape[-1] < 1:
        raise ValueError(f"x has shape {shape}: need (..., C), at least one class")
    return shape


def softmax_cross_entropy(x: Array, targets: Array) -> Shape:
    """x and targets (N, C) -> (N,), at least one class."""
    shape = ranked("x", x, "N, C")
    softmax(x)
    expect("targets", targets, shape)
    return shape[:1]


def argmax(x: Array) -> Shape:
    """x (N, ..., C) -> (N, ...): each row of the last axis."""
    shape = shape_of("x", x)
    if len(shape) < 2 or shape[-1] < 1:
        raise ValueError(f"x has shape {shape}: need (N, ..., C), at least one class")
    return shape[:-1]


def attention(q: Array, k: Array, v: Array, lengths: Array | None = None) -> Shape:
    """q, k and v (N, heads, S, d), lengths (N,) -> (N, heads, S, d), at least one feature a head."""
    shape = ranked("q", q, "N, heads, S, d")
    if shape[3] < 1:
        raise ValueError(f"q has shape {shape}: need (N, heads, S, d), d at least 1")
    expect("k", k, shape)
    expect("v", v, shape)
    if lengths is not None:
        expect("lengths", lengths, shape[:1])
    return shape


def conv1d_nlc(x: Array, weight: Array, bias: Array, stride: int = 1, padding: int = 0, dilation: int = 1) -> Shape:
    """x (N, L, C_in), weight (K, C_in, C_out), bias (C_out,) -> (N, L_out, C_out)."""
    n, length, c_in = ranked("x", x, "N, L, C_in")
    kernel_size, w_in, c_out = ranked("weight", weight, "K, C_in, C_out")
    if w_in != c_in:
        raise ValueError(f"weight has shape {tuple(weight.shape)}: need C_in={c_in}, as in x of shape {tuple(x.shape)}")
    expect("bias", bias, (c_out,))
    return n, _windows(length, kernel_size, stride, padding, dilation), c_out


def conv1d_relu_maxpool1d_nlc(x: Array, weight: Array, bias: Array, pool_size: int) -> Shape:
    """x (N, L, C_in), weight (K, C_in, C_out), bias (C_out,) -> (N, L_out // pool_size, C_out)."""
    n, length, c_out = conv1d_nlc(x, weight, bias)
    at_least("pool_size", pool_size, 1)
    if length < pool_size:
        raise ValueError(f"x convolves to {length} positions: need at least {pool_size} for {pool_size=}")
    return n, length // pool_size, c_out


def layernorm_relu_maxpool1d_nlc(
    x: Array, stat: Array, gamma: Array, beta: Array, kernel_size: int, eps: float = 1e-5, stride: int | None = None
) -> Shape:
    """x (N, L, C), stat (N, 2), gamma and beta (L, C) -> (N, L_out, C)."""
    n, length, channels = ranked("x", x, "N, L, C")
    layernorm_relu(x, stat, gamma, beta, eps)
    at_least("kernel_size", kernel_size, 1)
    stride = kernel_size if stride is None else stride
    at_least("stride", stride, 1)
    if length < kernel_size:
        raise ValueError(f"x has {length} positions: need at least {kernel_size} for {kernel_size=}")
    return n, (length - kernel_size) // stride + 1, channels


def linear_nlc(x: Array, weight: Array, bias: Array) -> Shape:
    """x (N, ..., C_in), weight (C_in, C_out), bias (C_out,) -> (N, ..., C_out)."""
    *leading, c_in = _rows(x)
    w_in, c_out = ranked("weight", weight, "C_in, C_out")
    if w_in != c_in:
        raise ValueError(f"weight has shape {tuple(weight.shape)}: need C_in={c_in}, as in x of shape {tuple(x.shape)}")
    expect("bias", bias, (c_out,))
    return *leading, c_out


def two_linears_nlc(x: Array, weight1: Array, bias1: Array, weight2: Array, bias2: Array) -> Shape:
    """x (N, ..., C_in), weight1 (C_in, C_mid), bias1 (C_mid,), weight2 (C_mid, C_out), bias2 (C_out,) ->
    (N, ..., C_out)."""
    *leading, c_in = _rows(x)
    w_in, middle = ranked("weight1", weight1, "C_in, C_mid")
    if w_in != c_in:
        raise ValueError(f"weight1 has shape {(w_in, middle)}: need C_in={c_in}, as in x of shape {tuple(x.shape)}")
    expect("bias1", bias1, (middle,))
    w_middle, c_out = ranked("weight2", weight2, "C_mid, C_out")
    if w_middle != middle:
        raise ValueError(f"weight2 has shape {(w_middle, c_out)}: need C_mid={middle}, as weight1 gives")
    expect("bias2", bias2, (c_out,))
    return *leading, c_out


def one_hot_nlc(ids: Array, depth: int) -> Shape:
    """ids (N, L) -> (N, L, depth)."""
    n, depth, length = one_hot(ids, depth)
    return n, length, depth


def one_hot_conv1d_nlc(ids: Array, weight: Array, bias: Array) -> Shape:
    """ids (N, L), weight (K, depth, C_out), bias (C_out,) -> (N, L_out, C_out)."""
    n, length = ranked("ids", ids, "N, L")
    kernel_size, depth, c_out = ranked("weight", weight, "K, depth, C_out")
    if depth < 1:
        raise ValueError(f"weight has shape {tuple(weight.shape)}: need at least one character")
    expect("bias", bias, (c_out,))
    if kernel_size < 1 or length < kernel_size:
        raise ValueError(f"ids has {length} positions: need at least {max(kernel_size, 1)} for K={kernel_size}")
    return n, length - kernel_size + 1, c_out


def one_hot_conv1d_stat_nlc(ids: Array, weight: Array, bias: Array) -> Shape:
    """ids (N, L), weight (K, depth, C_out), bias (C_out,) -> (N, 2)."""
    n, _, c_out = one_hot_conv1d_nlc(ids, weight, bias)
    if c_out < 1:
        raise ValueError(f"weight has shape {tuple(weight.shape)}: need at least one output channel")
    return n, 2


def one_hot_conv1d_relu_maxpool1d_nlc(ids: Array, weight: Array, bias: Array, pool_size: int) -> Shape:
    """ids (N, L), weight (K, depth, C_out), bias (C_out,) -> (N, L_out // pool_size, C_out)."""
    n, length, c_out = one_hot_conv1d_nlc(ids, weight, bias)
    at_least("pool_size", pool_size, 1)
    if length < pool_size:
        raise ValueError(f"ids convolves to {length} positions: need at least {pool_size} for {pool_size=}")
    return n, length // pool_size, c_out


def one_hot_conv1d_layernorm_relu_maxpool1d_nlc(
    ids: Array, stat: Array, weight: Array, bias: Array, gamma: Array, beta: Array, pool_size: int, eps: float = 1e-5
) -> Shape:
    """ids (N, L), stat (N, 2), weight (K, depth, C_out), bias (C_out,), gamma and beta (L_out, C_out)
    -> (N, L_out // pool_size, C_out).
    """
    n, length, c_out = one_hot_conv1d_nlc(ids, weight, bias)
    expect("stat", stat, (n, 2))
    expect("gamma", gamma, (length, c_out))
    expect("beta", beta, (length, c_out))
    if not eps > 0:
        raise ValueError(f"eps={eps!r}: need a positive number")
    return one_hot_conv1d_relu_maxpool1d_nlc(ids, weight, bias, pool_size)


def _windows(length: int, kernel_size: int, stride: int, padding: int, dilation: int) -> int:
    """How many a sequence has, one at least."""
    at_least("stride", stride, 1)
    at_least("padding", padding, 0)
    at_least("dilation", dilation, 1)
    out = (length + 2 * padding - dilation * (kernel_size - 1) - 1) // stride + 1
    if kernel_size < 1 or out < 1:
        raise ValueError(
            f"x has {length} positions: need at least {dilation * (kernel_size - 1) + 1 - 2 * padding} for "
            f"K={kernel_size}, padding={padding}, dilation={dilation}"
        )
    countable(padding, out)
    return out


def _linear(x: Array, weight: Array, bias: Array, number: str = "") -> Shape:
    *leading, c_in = _rows(x)
    return *leading, _units(c_in, x, weight, bias, number)


def _units(c_in: int, x: Array, weight: Array, bias: Array, number: str = "") -> int:
    """C_out of a linear layer whose x has so many features."""
    name = f"weight{number}"
    c_out, w_in = ranked(name, weight, "C_out, C_in")
    if w_in != c_in:
        raise ValueError(f"{name} has shape {tuple(weight.shape)}: need C_in={c_in}, as in x of shape {tuple(x.shape)}")
    expect(f"bias{number}", bias, (c_out,))
    return c_out


def _rows(x: Array) -> Shape:
    """The shape of a linear layer's x."""
    shape = shape_of("x", x)
    if len(shape) < 2:
        raise ValueError(f"x has shape {shape}: need (N, ..., C_in)")
    return shape


def ranked(name: str, array: Array, axes: str) -> Shape:
    """The shape of an array that must have as many axes as `axes` names."""
    shape = shape_of(name, array)
    if len(shape) != axes.count(",") + 1:
        raise ValueError(f"{name} has shape {shape}: need ({axes})")
    return shape


def power_of_two(size: int) -> int:
    """The least that is not less than a positive size."""
    return 1 << (size - 1).bit_length()
