"""The whole network from reference operators: what every level's logits are checked against."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from charcnn import layers
from charcnn.aliases import Array, DType
from charcnn.config import Config
from charcnn.layers import Node
from charcnn.model import composed
from charcnn.model.plane_errors import PlaneErrors
from charcnn.model.rounding import E4M3, FP32, TF32, Grid, Rounding
from charcnn.ops import reference
from charcnn.ops.common.pixel_tables import pixel_tables
from charcnn.ops.conv1d.toom_cook.transforms import POINTS
from charcnn.ops.token_conv1d.plane_gather import byte_table, short_table

TOOM_COOK = "conv2"
"""What Toom-Cook's products compute, where a level has them."""

WHOLE_NUMBERS: dict[Grid | None, Any] = {E4M3: byte_table, TF32: short_table}
"""What holds block 1's weights where it writes planes of a format."""

EPS = layers.LayerNorm.eps
"""LayerNorm's."""


def forward(ids: np.ndarray, params: Mapping[str, np.ndarray], config: Config, dtype: DType = np.float64) -> np.ndarray:
    """Token ids (N, L) uint8 -> logits (N, classes), computed in `dtype` by the plain operators."""
    return run(config.nodes, ids, params, dtype)


PLAIN: dict[type, Callable[..., np.ndarray]] = {
    layers.Conv1d: reference.conv1d, layers.Linear: reference.linear, layers.Flatten: reference.collapse,
    layers.Relu: reference.relu, layers.Tanh: reference.tanh, layers.Gelu: reference.gelu,
    layers.Sigmoid: reference.sigmoid, layers.Softmax: reference.softmax,
    layers.GlobalAvgPool2d: reference.global_avgpool2d,
}  # fmt: skip
"""Operators of layers that have no arguments but features and parameters."""


def run(
    nodes: Sequence[Node], x: np.ndarray, params: Mapping[str, np.ndarray], dtype: DType = np.float64
) -> np.ndarray:
    """What a network of layers makes of inputs x (N, ...), computed in `dtype` by the plain operators."""
    for node in nodes:
        p = [np.asarray(params[name], dtype) for name in node.parameters]  # here, as all at once would take 95 MB
        match node.layer:
            case layers.OneHot(depth):
                x = reference.one_hot(x, depth, dtype=dtype)
            case layers.LayerNorm(eps):
                x = reference.layernorm(x, *p, eps=eps)
            case layers.MaxPool1d(size):
                x = reference.maxpool1d(x, size)
            case layers.Pixels() as of:
                x = reference.pixels(x, pixel_tables(of.mean, of.std).astype(dtype), of.height, of.width)
            case layers.Conv2d() as of:
                weight, *bias = p
                x = reference.conv2d(x, weight, *(bias or [np.zeros(len(weight), dtype)]), **of.moves)
            case layers.BatchNorm2d(eps):
                x = reference.batchnorm2d(x, *p, eps=eps)
            case layers.MaxPool2d(size, stride, padding):
                x = reference.maxpool2d(x, size, stride=stride, padding=padding)
            case layers.AvgPool2d(size, stride, padding):
                x = reference.avgpool2d(x, size, stride=stride, padding=padding)
            case layers.LocalResponseNorm(size, alpha, beta, k):
                x = reference.local_response_norm(x, size, alpha=alpha, beta=beta, k=k)
            case layers.LeakyRelu(slope):
                x = reference.leaky_relu(x, slope)
            case other if type(other) in composed.OPERATORS:
                x = composed.forward(node, x, dict(zip(node.parameters, p, strict=True)), composed.plain)
            case other if type(other) in PLAIN:
                x = PLAIN[type(other)](x, *p)
            case other:
                raise TypeError(f"{other!r} has no reference")
    return x


def forward_with_sigma(
    ids: np.ndarray,
    params: Mapping[str, np.ndarray],
    config: Config,
    roundings: Sequence[Rounding],
    *,
    eps: float = EPS,
    arrays: Arrays | None = None,
) -> tuple[Array, list[Array]]:
    """`forward` in float64, and beside it how far rounding moves each logit (`charcnn.model.rounding`).

    Args:
        ids: token ids (N, L) uint8, NumPy.
        params: the weights; for a rounding that is `scaled`, those of `calibrate.rescaled`.
        config: the sizes.
        roundings: one for each sigma.
        eps: LayerNorm 6's.
        arrays: what computes; NumPy where None.

    Returns:
        The logits (N, classes), and for each rounding the standard deviation of each logit, of the same shape.
    """
    on = arrays or Arrays()
    steps, x, norms = _Steps(roundings, on), ids, 0
    for node in config.nodes:
        p = [np.asarray(params[name], np.float64) for name in node.parameters]
        match node.layer:
            case layers.OneHot():
                continue  # the first convolution reads ids
            case layers.Conv1d():
                x = steps.first(ids, *p) if x is ids else steps.product(x, *p, name=node.layer.name)
            case layers.LayerNorm(usual, name=name):
                x = steps.layernorm(x, *p, eps=eps if name == "norm6" else usual, number=norms)
                norms += 1
            case layers.Relu():
                x = steps.relu(x)
            case layers.MaxPool1d(size):
                x = steps.maxpool1d(x, size)
            case layers.Flatten():
                x = steps.collapse(x)
            case layers.Linear():
                x = steps.product(x, p[0][..., None], p[1], name="")
            case other:
                raise TypeError(f"{other!r} has no sigma")
    return x[..., 0], [on.xp.sqrt(v) for v in steps.variances(config.classes)]


class _Steps:
    """The network's steps in float64; each leaves what takes the logits' gradient back, and how its rounding shows.

    Features are (N, C, L). `back` are functions from the gradient of the logits by a step's result, (N, M, C, L) of M
    logits, to that by what it read. `errors` are, for each rounding, variances of the errors at that place, or None.
    """

    def __init__(self, roundings: Sequence[Rounding], on: Arrays) -> None:
        self.roundings, self.on = roundings, on
        self._tape: list[tuple[str, Any]] = []

    def variances(self, classes: int) -> list[Any]:
        """Variances of logits, (N, classes), for each rounding: every place's errors, by how much a logit follows them.

        At one place those of a channel's positions are taken as independent or as the same, by what gives more.
        """
        g: Array = self.on.unit_gradient(classes)
        totals: list[Any] = [0.0] * len(self.roundings)
        for kind, what in reversed(self._tape):
            if kind == "back":
                g = what(g)
                continue
            towards, variances = what
            at = towards(g) if towards else g
            squared = at * at
            for i, v in enumerate(variances):
                if v is not None:
                    v = v[:, None]
                    apart = (squared * v).sum(axis=(2, 3))
                    alike = ((at * self.on.xp.sqrt(v)).sum(axis=3) ** 2).sum(axis=2)
                    totals[i] = totals[i] + self.on.xp.maximum(apart, alike)
        return totals

    def _errors(self, variances: list[Any], towards: Callable[[Any], Any] | None = None) -> None:
        """Errors here; or where `towards` takes the gradient from here, but for what follows."""
        if any(v is not None for v in variances):
            self._tape.append(("errors", (towards, variances)))

    def _back(self, function: Callable[[Any], Any]) -> None:
        self._tape.append(("back", function))

    def first(self, ids: np.ndarray, weight: np.ndarray, bias: np.ndarray) -> Array:
        """Block 1's convolution from ids: each tap adds a row of weights, and a blank's is zero."""
        on, (_, depth, taps) = self.on, weight.shape
        length = ids.shape[1] - taps + 1
        table = np.pad(weight, ((0, 0), (0, 1), (0, 0))).transpose(2, 1, 0)
        at = on.index(np.minimum(ids, depth))

        def sums(rows: Any) -> Any:
            y = rows[0][at[:, :length]]
            for k in range(1, taps):
                y = y + rows[k][at[:, k : k + length]]
            return y.swapaxes(1, 2)

        b = on.exact(bias)[:, None]
        y = sums(on.exact(table)) + b
        squares, b, size, found = sums(on.rough(on.exact(table * table))), on.rough(b), on.rough(y) ** 2, []
        packed = weight.transpose(2, 1, 0)
        for of in self.roundings:
            step = of.first.unit**2 / 3
            own = step * squares if of.first is not FP32 else 0.0  # of the weights; the ones are exact
            whole = WHOLE_NUMBERS.get(of.operands) if of.toom_cook else None
            if whole and whole.holds(packed):
                own = on.rough(on.exact(whole.variance(packed)[:, None]))
            found.append(step * taps / 2 * squares + own + step * (taps / 2 * b * b + size))
        self._errors(found)
        return y

    def product(self, x: Array, weight: np.ndarray, bias: np.ndarray, *, name: str) -> Array:
        """A convolution by its name, weight (C_out, C_in, K); a linear layer has one tap, one position, and none."""
        on, (_, c_in, taps) = self.on, weight.shape
        b, rough = on.exact(bias)[:, None], on.rough(x)
        by_planes = [of.toom_cook and name == TOOM_COOK for of in self.roundings]
        planes = PlaneErrors(on, rough, weight) if any(by_planes) else None
        read, read_as_planes = [], []
        for of, apart in zip(self.roundings, by_planes, strict=True):
            read.append(None if of.operands is None or apart else of.operands.variance(rough, on.xp))
            read_as_planes.append(planes.of_planes(of.operands) if planes and of.operands and apart else None)
        self._errors(read)
        w, rough_w = on.exact(weight), on.rough(on.exact(weight))
        self._back(lambda g: on.conv1d_back(g, rough_w))
        if planes:
            self._errors(read_as_planes, planes.back)
        y = on.conv1d(x, w) + b
        b, direct, size = on.rough(b), on.conv1d(rough * rough, rough_w * rough_w), on.rough(y) ** 2
        grown: Any = planes.squares() if planes else None
        least = (rough * rough).sum(axis=1, keepdims=True)
        step, found = FP32.unit**2 / 3, []
        for of, apart in zip(self.roundings, by_planes, strict=True):
            squares = grown if apart else direct
            # Of Toom-Cook's products, a point's sums have two groups, and half of them are there in the mean.
            sums = c_in + POINTS if apart else of.roundings(c_in, taps) if name else c_in * taps / 2
            v = step * (sums * (squares + b * b) + size) + of.left_out * squares
            if of.operands is not None:
                of_weights = of.weights or of.operands
                v = v + of_weights.unit**2 / 3 * squares
                if np.any(tiny := of_weights.least(weight)):
                    each = planes.least() if planes and apart else on.windows(least, taps)
                    v = v + on.rough(on.exact(np.square(tiny) / 3)) * each
            found.append(v)
        self._errors(found)
        return y

    def layernorm(self, x: Array, gamma: np.ndarray, beta: np.ndarray, *, eps: float, number: int) -> Array:
        """LayerNorm: of block 1 number 0, of block 6 number 1."""
        on, xp = self.on, self.on.xp
        mean = x.mean(axis=(1, 2), keepdims=True)
        s = xp.sqrt(((x - mean) ** 2).mean(axis=(1, 2), keepdims=True) + eps)
        z = (x - mean) / s
        scale, offset = on.exact(gamma), on.exact(beta)
        y = z * scale + offset
        rough, mean, s, z, scale, offset = (on.rough(value) for value in (x, mean, s, z, scale, offset))
        scaled, size, read, written = (scale * z) ** 2, on.rough(y) ** 2, [], []
        for of in self.roundings:
            stored, unit = of.stored[number], (FP32 if number else of.first).unit
            read.append(None if stored is None else stored.variance(rough, xp))
            v = unit**2 / 3 * (4 * scaled + size + (scale * mean / s) ** 2)
            written.append(v + of.affine[number] ** 2 / 3 * (scaled + offset * offset))

        def back(g: Array) -> Any:
            g, at = g * scale, z[:, None]
            over = {"axis": (2, 3), "keepdims": True}
            return (g - g.mean(**over) - at * (g * at).mean(**over)) / s[:, None]

        self._errors(read)
        self._back(back)
        self._errors(written)
        return y

    def relu(self, x: Array) -> Array:
        """ReLU."""
        passes = self.on.rough(x >= 0)[:, None]
        self._back(lambda g: g * passes)
        return self.on.xp.clip(x, 0, None)

    def maxpool1d(self, x: Array, size: int) -> Array:
        """Max-pool; equal maxima share the gradient."""
        on, (n, channels, length) = self.on, x.shape
        kept = length // size
        parts = x[:, :, : kept * size].reshape(n, channels, kept, size)
        best = on.xp.amax(parts, 3)
        won = on.rough(parts == best[..., None])
        won = (won / won.sum(axis=3, keepdims=True))[:, None]

        def back(g: Array) -> Any:
            whole = on.zeros((*g.shape[:3], length))
            whole[..., : kept * size] = (g[..., None] * won).reshape(*g.shape[:3], kept * size)
            return whole

        self._back(back)
        return best

    def collapse(self, x: Array) -> Array:
        """(N, C, L) -> (N, C * L, 1)."""
        shape = x.shape[1:]
        self._back(lambda g: g.reshape(*g.shape[:2], *shape))
        return x.reshape(len(x), -1, 1)


class Arrays:
    """What `forward_with_sigma` computes with: here NumPy in float64, of whose range no square leaves anything out."""

    xp: Any = np

    def exact(self, value: np.ndarray) -> Any:
        """A float64 array of NumPy as one to compute features with."""
        return value

    def rough(self, value: Any) -> Any:
        """An array of features as one to compute variances and gradients with."""
        return np.asarray(value, np.float64)

    def index(self, ids: np.ndarray) -> Array:
        """Token ids as what an array may be indexed by."""
        return ids

    def zeros(self, shape: tuple[int, ...]) -> Any:
        """An array to compute gradients with."""
        return np.zeros(shape)

    def unit_gradient(self, classes: int) -> Any:
        """Of logits by logits, (1, classes, classes, 1)."""
        return np.eye(classes)[None, :, :, None]

    def conv1d(self, x: Array, weight: Array) -> Array:
        """x (N, C_in, L), weight (C_out, C_in, K) -> (N, C_out, L - K + 1), without a bias."""
        length = x.shape[2] - weight.shape[2] + 1
        if x.shape[2] == 1:  # a linear layer's inputs as one matrix
            return (x[..., 0] @ weight[..., 0].T)[..., None]
        y = weight[:, :, 0] @ x[:, :, :length]
        for k in range(1, weight.shape[2]):
            y += weight[:, :, k] @ x[:, :, k : k + length]
        return y

    def conv1d_back(self, g: Array, weight: Array) -> Array:
        """Gradients by a convolution's result, (N, M, C_out, L - K + 1), to those by x, (N, M, C_in, L)."""
        *others, c_out, length = g.shape
        c_in, taps = weight.shape[1:]
        if length == taps == 1:
            return (g.reshape(-1, c_out) @ weight[..., 0]).reshape(*others, c_in, 1)
        back = self.zeros((*others, c_in, length + taps - 1))
        for k in range(taps):
            back[..., k : k + length] += weight[:, :, k].T @ g
        return back

    def windows(self, x: Array, taps: int) -> Array:
        """The sum of each `taps` neighbours of x (N, 1, L)."""
        length = x.shape[2] - taps + 1
        return sum(x[:, :, k : k + length] for k in range(taps))
