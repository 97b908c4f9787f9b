"""Training steps of a network that is given as layers: forward, back and AdamW by the operators of one technique.

Weights, gradients and moments are one flat buffer each, of which a parameter is a part. Features stay where the forward
pass left them until its gradient was taken; ReLU writes over what it read.
"""

from __future__ import annotations

import math
from collections import ChainMap
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial

import numpy as np

from charcnn import layers, ops
from charcnn.aliases import Argument, Array, DType, Function, Stream
from charcnn.gpu import device
from charcnn.layers import Node, Shape
from charcnn.model import composed, gradients
from charcnn.ops.adamw import AdamW, ParameterGroup
from charcnn.ops.common.pixel_tables import pixel_tables
from charcnn.ops.table import function_name
from charcnn.ops.techniques import CPU

FLOAT = np.dtype(np.float32).itemsize

_CHANNELS = (0, 2, 3)
"""The axes over which batch normalisation takes means."""

KINDS = ("weights", "gradients", "masters", "moments", "features", "workspace")
"""What memory holds in training. Weights in float32 are their own masters. Workspace is sums in parts and the like, of
which no count says anything: a technique may have it."""


def trained(nodes: Sequence[Node]) -> dict[str, Shape]:
    """The parameters that have gradients, in order, and their shapes."""
    names = gradients.trained(nodes)
    return {name: shape for node in nodes for name, shape in node.parameters.items() if name in names}


def counted(nodes: Sequence[Node], rows: int) -> dict[str, int]:
    """Bytes by kind that a step of so many rows needs, from the layers alone: with AdamW 16 a weight, and features.

    Features are what each layer writes in a place of its own, and two gradients of the largest.
    """
    weights = FLOAT * sum(map(math.prod, trained(nodes).values()))
    sizes = [math.prod(node.out_shape) for node in gradients.logits_of(nodes) if _writes(node)]
    features = FLOAT * rows * (sum(sizes) + 2 * max(sizes))
    return dict(zip(KINDS, (weights, weights, 0, 2 * weights, features, 0), strict=True))


def _writes(node: Node) -> bool:
    return not isinstance(node.layer, layers.Relu | layers.Flatten | COMPOSED)


COMPOSED = layers.SelfAttention | layers.Residual
"""Layers of several operators, whose features are arrays of their own."""


class Training:
    """A network, the buffers of its steps, and its optimiser.

    Args:
        nodes: of a network whose result is logits, or probabilities by a last Softmax.
        params: the weights to begin with, NumPy; they stay as they are.
        rows: inputs of a step, at most.
        technique: of all operators, forward and back: a name of `charcnn.catalog.TECHNIQUES`, or several of a CPU's, of
            which an operator takes the first that it has.
        group: what AdamW is told; its size is filled in.
        clip: the largest norm of a step's gradient; 0 for no limit.
        stream: of the steps on a GPU.
        momentum: share by which a step moves the running statistics of batch normalisation towards those of its
            inputs, by which it normalises; None: they stay as they are given, and are what it normalises by.

    Raises:
        ValueError: a layer, or its gradient, has no operator of this technique; names it. `momentum` is for a
            technique of the CPU alone.
    """

    def __init__(
        self, nodes: Sequence[Node], params: Mapping[str, np.ndarray], rows: int, technique: str | tuple[str, ...], *,
        group: ParameterGroup = ParameterGroup(0), clip: float = 1.0, stream: Stream = None,  # noqa: B008 - frozen
        momentum: float | None = None,
    ) -> None:  # fmt: skip
        self._nodes, self._rows, self._momentum = gradients.logits_of(nodes), rows, momentum
        self._techniques = (technique,) if isinstance(technique, str) else technique
        self._cuda = not set(CPU).issuperset(self._techniques)
        if self._cuda and momentum is not None:
            raise ValueError(f"{momentum=}: need a technique of the CPU, one of {', '.join(CPU)}")
        self._stream = device.as_stream(stream) if self._cuda else None
        self._functions: dict[str, Function] = {}
        for node in self._nodes:
            for name in composed.needed(node.layer):
                with_gradient = type(node.layer) in gradients.RULES and name not in ("add", "heads_apart")
                for needed in [name] * (name != "collapse") + [f"{name}_backward"] * with_gradient:
                    self._function(needed)
        self._shapes = trained(self._nodes)
        fixed = {name for node in self._nodes for name in node.parameters} - self._shapes.keys()
        self._hold(params, group, clip)
        own = {name: self._put(np.asarray(params[name], np.float32)) for name in fixed}
        self._params |= own
        self.running = {} if self._cuda else {name: array.copy() for name, array in own.items()}
        self._beside = {node: beside for node in self._nodes if (beside := self._arguments(node))}
        written = [math.prod(node.out_shape) for node in self._nodes if _writes(node)]
        self._features = [self._empty((rows * size,)) for size in written]
        self._dx = [self._empty((rows * max(written),)) for _ in range(2)]

    def _hold(self, params: Mapping[str, np.ndarray], group: ParameterGroup, clip: float) -> None:
        """Make what holds weights, gradients and the optimiser's state."""
        self.weights = self._put(np.concatenate([np.ravel(params[name]) for name in self._shapes]).astype(np.float32))
        self.gradients = self._put(np.zeros(self.weights.size, np.float32))
        self._params, self._gradients = self._parts(self.weights), self._parts(self.gradients)
        sized = ParameterGroup(self.weights.size, group.lr, group.betas, group.eps, group.weight_decay)
        self.optimiser = AdamW(self.weights, [sized], clip=clip, stream=self._stream)

    @property
    def memory(self) -> dict[str, int]:
        """Bytes that are held, by KINDS."""
        moments = [self.optimiser.first, self.optimiser.second]
        none, features = list[Array](), [*self._features, *self._dx]
        held = ([self.weights], [self.gradients], none, moments, features, none)
        return {kind: sum(array.size * FLOAT for array in arrays) for kind, arrays in zip(KINDS, held, strict=True)}

    @property
    def counted(self) -> dict[str, int]:
        """Bytes that the layers say it needs, by KINDS."""
        return counted(self._nodes, self._rows)

    @property
    def params(self) -> dict[str, np.ndarray]:
        """A copy of the weights that are trained, by name."""
        return self._parts(self.fetched(self.weights))

    def loss_and_gradients(self, x: np.ndarray, targets: np.ndarray) -> tuple[float, dict[str, np.ndarray]]:
        """The mean loss of some inputs and copies of its gradients, by name; see `gradients.loss_and_gradients`."""
        losses = self._backward(x, targets)
        return float(self.fetched(losses).mean(dtype=np.float64)), self._parts(self.fetched(self.gradients))

    def step(self, x: np.ndarray, targets: np.ndarray, rate: float = 1.0) -> Array:
        """Move the weights by the mean loss of some inputs.

        Args:
            x: at most as many inputs as there are rows, NumPy, or already where the operators compute.
            targets: float32 (N, classes): the share that each class should get.
            rate: factor of the learning rate.

        Returns:
            The losses (N,), before the step, where the operators compute; `fetched` waits for them.
        """
        losses = self._backward(x, targets)
        self.optimiser.step(self.gradients, rate)
        return losses

    def fetched(self, array: Array) -> np.ndarray:
        """A copy on the host, when all steps before are done."""
        return device.to_host(array, self._stream) if self._cuda else np.array(array)

    def _backward(self, x: np.ndarray, targets: np.ndarray, total: int | None = None) -> Array:
        """Losses, with gradients left in the buffer: of the sum of losses by `total`, by default their mean."""
        if not 0 < len(x) <= self._rows:
            raise ValueError(f"x has {len(x)} inputs: need 1 to {self._rows}, the rows of a step")
        n, read, targets = len(x), self._put(x), self._put(np.ascontiguousarray(targets, np.float32))
        kept, buffers = [], iter(self._features)
        for node in self._nodes:
            kept.append(read)
            if isinstance(node.layer, layers.Flatten):
                read = read.reshape(n, *node.out_shape)
                continue
            if self._momentum is not None and isinstance(node.layer, layers.BatchNorm2d):
                self._normalise_by(node.layer.name, read)
            if isinstance(node.layer, COMPOSED):
                read = composed.forward(node, read, self._params, self._function)
                continue
            own = [self._params[name] for name in node.parameters] + self._beside.get(node, [])
            out = _part(next(buffers), (n, *node.out_shape)) if _writes(node) else read
            read = self._function(composed.operator_of(node.layer))(read, *own, **composed.options(node.layer), out=out)
        losses = self._function("softmax_cross_entropy")(read, targets)
        share = self._put(np.full(n, 1 / (total or n), np.float32))
        dx = self._turns()
        dy = self._function("softmax_cross_entropy_backward")(share, read, targets, out=dx)
        out = ChainMap({"dx": dx}, self._gradients)
        gradients.backward(self._nodes, kept, dy, self._params, self._function, out, self._finished)
        return losses

    def _finished(self, names: Iterable[str]) -> None:
        """What is done with a layer's gradients as soon as they have been computed, while the rest still is."""

    def _normalise_by(self, name: str, x: np.ndarray) -> None:
        """Mean and variance of what a batch normalisation reads are its own of this step; running ones follow."""
        mean, variance = (
            array.astype(np.float32) for array in (x.mean(_CHANNELS, np.float64), x.var(_CHANNELS, np.float64))
        )
        count = x.size // x.shape[1]
        unbiased = variance * np.float32(count / max(1, count - 1))
        for part, own, moved in (("running_mean", mean, mean), ("running_var", variance, unbiased)):
            self._params[f"{name}.{part}"] = own
            self.running[f"{name}.{part}"] += np.float32(self._momentum) * (moved - self.running[f"{name}.{part}"])

    def _turns(self) -> Callable[[Shape, DType], Array]:
        """What gives places of features' gradients: that which an operator does not read."""
        buffers = [*self._dx]

        def place(shape: Shape, dtype: DType) -> Array:
            buffers.reverse()
            return _part(buffers[0], shape)

        return place

    def _function(self, name: str) -> Function:
        """The operator of this name by the technique."""
        if name == "collapse_backward":
            return _uncollapsed
        if name not in self._functions:
            found = next(filter(None, (function_name(name, one) for one in self._techniques)), None)
            if found is None:
                raise ValueError(f"technique={' or '.join(self._techniques)}: has no operator {name}")
            function: Function = getattr(ops, found)
            if name == "batchnorm2d_backward" and self._momentum is not None:
                function = partial(_with_statistics, function)
            self._functions[name] = partial(function, stream=self._stream) if self._cuda else function
        return self._functions[name]

    def _arguments(self, node: Node) -> list[Array | int]:
        """What a layer's operator takes behind x and its parameters."""
        match node.layer:
            case layers.Pixels() as of:
                return [self._put(pixel_tables(of.mean, of.std).astype(np.float32)), of.height, of.width]
            case layers.Conv2d(bias=False) as of:
                return [self._put(np.zeros(of.channels, np.float32))]
        return []

    def _parts(self, buffer: Array) -> dict[str, Array]:
        found, begin = {}, 0
        for name, shape in self._shapes.items():
            found[name] = buffer[begin : begin + math.prod(shape)].reshape(shape)
            begin += math.prod(shape)
        return found

    def _put(self, array: np.ndarray) -> Array:
        return device.to_device(array, self._stream) if self._cuda else np.ascontiguousarray(array)

    def _empty(self, shape: Shape) -> Array:
        return device.empty(shape, np.float32, self._stream) if self._cuda else np.empty(shape, np.float32)


def _part(buffer: Array, shape: Shape) -> Array:
    return buffer[: math.prod(shape)].reshape(shape)


def _with_statistics(
    function: Function, dy: Array, x: Array, gamma: Array, mean: Array, variance: Array, *, eps: float, **more: Argument
) -> tuple[Array, Array, Array]:
    """Gradients of a batch normalisation whose mean and variance are those of x."""
    dx, dgamma, dbeta = function(dy, x, gamma, mean, variance, eps=eps, **more)
    scale = 1 / np.sqrt(variance + np.float32(eps))
    normal = (x - mean[:, None, None]) * scale[:, None, None]
    dx -= (gamma * scale / np.float32(x.size // x.shape[1]))[:, None, None] * (
        dbeta[:, None, None] + normal * dgamma[:, None, None]
    )
    return dx, dgamma, dbeta


def _uncollapsed(dy: Array, x: Array, out: Array) -> Array:
    return dy.reshape(tuple(x.shape))
