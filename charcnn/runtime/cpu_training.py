"""Training steps of a character-level network on all CPU cores, in float32.

Features are channels last. Weights, gradients and moments are one flat buffer each; products read weights in the order
(C_out, K, C_in), the first convolution's in (K, depth, C_out).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from charcnn.aliases import Record
from charcnn.gpu.arrays import check, expect
from charcnn.layers import Node, Shape
from charcnn.ops import cpu_training as training
from charcnn.ops import maxpool1d_cpu_training as pools
from charcnn.ops.adamw import AdamW, ParameterGroup
from charcnn.ops.adamw_options import ARRAYS, check_state
from charcnn.ops.common.cpu_conv import BATCH
from charcnn.ops.common.cpu_gemm import RELU, CpuPacked
from charcnn.ops.common.cpu_tile import tile_of_columns
from charcnn.ops.conv1d.cpu_by_weights import by_weights
from charcnn.ops.layernorm import cpu_training as norms
from charcnn.ops.token_conv1d import cpu
from charcnn.ops.token_conv1d import cpu_training as tokens
from charcnn.runtime.mixed_plan import TrainedBlock, blocks_of, check_dropout, check_leak
from charcnn.runtime.training import trained

NONE, NO_PLACES = np.empty((0, 0, 0), np.float32), np.empty((0, 0, 0), np.uint8)

Arrays = dict[str, np.ndarray]


class Laid(NamedTuple):
    """How a parameter lies in a buffer: its axes as they are taken, their order there, and how they are seen then."""

    axes: Shape
    order: Shape
    laid: Shape


class Written(NamedTuple):
    """A block's features: what a step writes, each with a row an input. An array is empty where it has none."""

    y: np.ndarray
    """Of its product, (rows, L, C), or of linear layers (rows, 1, C)."""
    pooled: np.ndarray
    place: np.ndarray
    moments: np.ndarray
    dropped: np.ndarray
    """What a linear layer reads behind dropout."""

    def of(self, n: int) -> Written:
        """Those of the first inputs."""
        return Written(*(array[:n] for array in self))

    @property
    def result(self) -> np.ndarray:
        """What the next block reads."""
        return self.pooled if self.pooled.size else self.y


class CpuTraining:
    """A network, the buffers of its steps, and its optimiser.

    All has the same bits for any number of threads.

    Args:
        nodes: of a network of token ids, as `blocks_of` takes it.
        params: the weights to begin with; they stay as they are.
        rows: inputs of a step, at most.
        group: what AdamW is told; its size is filled in.
        clip: the largest norm of a step's gradient; 0 for no limit.
        dropout: share of values dropped before each linear layer in a step.
        seed: of dropout.
        multi_label: whether the loss is the mean of the classes' binary cross-entropies, in place of softmax
            cross-entropy.
        masks: of some parameters, by name, bool in their shapes: gradients are 0 where they are False, and so stay
            weights that are 0 there.

    Raises:
        ValueError: a layer or a parameter does not fit, or a number is out of its range; names it.
    """

    def __init__(
        self, nodes: Sequence[Node], params: Mapping[str, np.ndarray], rows: int, *, group: ParameterGroup, clip: float,
        dropout: float = 0.0, seed: int = 0, multi_label: bool = False, masks: Mapping[str, np.ndarray] | None = None,
    ) -> None:  # fmt: skip
        if rows < 1:
            raise ValueError(f"{rows=}: need 1 or more")
        check_dropout(dropout)
        self._blocks, self._rows, self._dropout, self._seed = blocks_of(nodes), rows, dropout, seed
        self._shapes, self._multi_label = trained(nodes), multi_label
        self._length, self._classes = math.prod(nodes[0].in_shape), math.prod(self._blocks[-1].node.out_shape)
        self._layouts = _layouts(self._blocks, self._shapes)
        self.weights = self._laid(params)
        self._mask = (
            self._laid({**{name: np.ones(shape) for name, shape in self._shapes.items()}, **masks}) if masks else None
        )
        self._averaged, self.gradients = self.weights.copy(), np.zeros_like(self.weights)
        self._params, self._slopes = self._parts(self.weights), self._parts(self.gradients)
        sized = ParameterGroup(self.weights.size, group.lr, group.betas, group.eps, group.weight_decay)
        self.optimiser = AdamW(self.weights, [sized], clip=clip)
        self._stages = [self._stage(block) for block in self._blocks]
        largest = max(stage.result[0].size for stage in self._stages)
        self._turns = [np.empty(rows * largest, np.float32) for _ in range(2)]
        self._given, self._losses = 0, np.empty(0, np.float32)

    @property
    def logits(self) -> np.ndarray:
        """Of the last step, float32 (N, classes); the next one, `answers` and `live` write them anew."""
        return self._stages[-1].y[: self._given, 0]

    @property
    def params(self) -> Arrays:
        """A copy of the weights, by name."""
        return self._named(self.weights)

    @property
    def averaged(self) -> Arrays:
        """A copy of the averaged weights, by name; the first weights before the first call of `average`."""
        return self._named(self._averaged)

    def load(self, params: Mapping[str, np.ndarray]) -> None:
        """Take other weights; the average and the optimiser's moments stay.

        Raises:
            ValueError: a parameter is missing, or has another shape; names it.
        """
        self.weights[:] = self._laid(params)

    def average(self, follows: float) -> None:
        """Move the averaged weights towards the weights by a share of what lies between."""
        training.follow(self._averaged, self.weights, follows)

    def fetched(self, array: np.ndarray) -> np.ndarray:
        """A copy of an array of the engine's."""
        return np.array(array)

    def step(
        self, x: np.ndarray, targets: np.ndarray, rate: float = 1.0, *, leak: float = 0.0,
        weights: np.ndarray | None = None,
    ) -> np.ndarray:  # fmt: skip
        """Move the weights by the mean loss of some inputs.

        Args:
            x: uint8 (N, length): at most as many inputs as there are rows.
            targets: float32 (N, classes): the share that each class should get.
            rate: factor of the learning rate.
            leak: slope of each ReLU below 0, from 0 to less than 1.
            weights: float32 (N,): by what each input's loss is multiplied; None for 1.

        Returns:
            The losses float32 (N,), before the step.

        Raises:
            ValueError: an argument's shape does not fit, or there are more inputs than rows.
        """
        self._losses = self._backward(x, targets, leak, weights)
        self.optimiser.step(self.gradients, rate)
        return self._losses

    def told(self) -> Callable[[], tuple[np.ndarray, np.ndarray]]:
        """What gives copies of the last step's losses and logits."""
        found = self._losses, self.logits.copy()
        return lambda: found

    def loss_and_gradients(
        self, x: np.ndarray, targets: np.ndarray, *, leak: float = 0.0, weights: np.ndarray | None = None
    ) -> tuple[float, Arrays]:
        """The mean loss that the next step would have, and copies of its gradients, by name; see `step`."""
        losses = self._backward(x, targets, leak, weights)
        return float(losses.mean(dtype=np.float64)), self._named(self.gradients)

    def answers(self, x: np.ndarray, params: Mapping[str, np.ndarray] | None = None) -> np.ndarray:
        """The logits of inputs, without dropout or leak.

        Args:
            x: uint8 (N, length), of any length.
            params: other weights, by name; None for those of the engine.

        Returns:
            float32 (N, classes)
        """
        held = self._params if params is None else self._parts(self._laid(params))
        found = [np.empty((0, self._classes), np.float32)]
        for begin in range(0, len(x), self._rows):
            stages = self._forward(self._ids(x[begin : begin + self._rows]), held)
            found.append(stages[-1].y[:, 0].copy())
        return np.concatenate(found)

    def live(self, x: np.ndarray) -> Arrays:
        """By layer, which of its channels or units a ReLU gives more than 0 for any of the inputs, bool (channels,)."""
        found = {block.name: np.zeros(block.node.out_shape[0], bool) for block in self._blocks if block.rectified}
        for begin in range(0, len(x), self._rows):
            stages = self._forward(self._ids(x[begin : begin + self._rows]), self._params)
            for name, stage in zip(found, stages, strict=False):
                found[name] |= (stage.result > 0).any((0, 1))
        return found

    def state(self) -> Record:
        """All that the next step depends on: arrays, and the number of steps."""
        optimiser = self.optimiser.state()
        del optimiser["loss_scale"]
        return {"weights": self.weights.copy(), "average": self._averaged.copy(), **optimiser}

    def restore(self, state: Record) -> None:
        """Take what `state` gave.

        Raises:
            ValueError: it is of another network, or damaged; nothing was taken then.
        """
        check_state(state, self.weights.size, ARRAYS)
        self.weights[:], self._averaged[:] = state["weights"], state["average"]
        self.optimiser.restore(state)

    # Forward and back.

    def _ids(self, x: np.ndarray) -> np.ndarray:
        if not 0 < len(x) <= self._rows:
            raise ValueError(f"x has {len(x)} inputs: need 1 to {self._rows}, the rows of a step")
        expect("x", x, (len(x), self._length))
        x = np.ascontiguousarray(x)
        check("x", x, np.uint8)
        return x

    def _forward(self, ids: np.ndarray, held: Arrays, leak: float = 0.0, step: int | None = None) -> list[Written]:
        """The stages of some inputs; of a step of this number with dropout."""
        stages, read = [stage.of(len(ids)) for stage in self._stages], ids
        for at, (block, stage) in enumerate(zip(self._blocks, stages, strict=True)):
            weight, bias = held[f"{block.name}.weight"], held[f"{block.name}.bias"]
            if at == 0 and block.norm is None:
                tokens.forward(ids, weight, bias, leak, stage.pooled, stage.place)
            elif at == 0:
                cpu.launch(stage.y.transpose(0, 2, 1), ids, weight.transpose(2, 1, 0), bias)
            else:
                if block.linear:
                    read = self._dropped(at, stage, read, step)
                self._multiply(block, read, weight, bias, stage, leak)
            if block.norm is not None:
                gamma, beta = (held[f"{block.norm.layer.name}.{part}"] for part in ("weight", "bias"))
                written = stage.pooled, stage.place, stage.moments
                norms.norm_pool_forward(stage.y, gamma, beta, block.eps, leak, *written)
            elif at and block.pooled:
                pools.pool_forward(stage.y, leak, stage.pooled, stage.place)
            read = stage.result
        return stages

    def _dropped(self, at: int, stage: Written, read: np.ndarray, step: int | None) -> np.ndarray:
        read = read.reshape(len(read), 1, -1)
        if step is None or not self._dropout:
            return read
        training.drop(read, self._dropout, training.key_of(self._seed, step, at), stage.dropped)
        return stage.dropped

    def _multiply(
        self, block: TrainedBlock, x: np.ndarray, weight: np.ndarray, bias: np.ndarray, stage: Written, leak: float
    ) -> None:
        after = block.rectified and not block.pooled
        tile = tile_of_columns(len(bias), BATCH) if block.linear else None
        packed = CpuPacked(weight[:, None], bias, tile)
        packed.multiply(_images(block, x), _images(block, stage.y), after=RELU if after and leak == 0 else 0)
        if after and leak:
            pools.rectify(_flat(stage.y), leak)

    def _backward(self, x: np.ndarray, targets: np.ndarray, leak: float, weights: np.ndarray | None) -> np.ndarray:
        """Losses, with gradients left in their buffer."""
        check_leak(leak)
        ids, n, step = self._ids(x), len(x), self.optimiser.steps
        targets = np.asarray(targets, np.float32)
        expect("targets", targets, (n, self._classes))
        if weights is not None:
            weights = np.asarray(weights, np.float32)
            expect("weights", weights, (n,))
        stages, self._given = self._forward(ids, self._params, leak, step), n
        losses, dy = training.loss(stages[-1].y[:, 0], targets, self._multi_label)
        share = np.float32(1) if weights is None else weights
        dy = (dy.T * (share / np.float32(n))).T.reshape(n, 1, -1)
        self._slopes[f"{self._blocks[-1].name}.bias"][:] = dy.sum((0, 1))
        for at in reversed(range(1, len(stages))):
            dy = self._block_backward(at, stages, dy, leak, step)
        self._token_backward(ids, stages[0], dy, leak)
        if self._mask is not None:
            self.gradients *= self._mask
        return losses * share

    def _block_backward(self, at: int, stages: list[Written], dy: np.ndarray, leak: float, step: int) -> np.ndarray:
        """From the gradient of a block's result to that of what it read."""
        block, stage, x = self._blocks[at], stages[at], stages[at - 1].result
        dy, n = self._result_backward(block, stage, dy, leak), len(dy)
        weight, dweight = self._params[f"{block.name}.weight"], self._slopes[f"{block.name}.weight"]
        dropping = block.linear and self._dropout
        by_weights(dy, stage.dropped if dropping else x.reshape(n, -1, weight.shape[2]), dweight)
        self._turns.reverse()
        dx = self._turns[0][: x.size].reshape(n, -1, weight.shape[2])
        tile = tile_of_columns(weight.shape[2], BATCH) if block.linear else None
        back = CpuPacked(weight.transpose(2, 1, 0)[:, None, ::-1], np.zeros(weight.shape[2], np.float32), tile)
        back.multiply(_images(block, dy), _images(block, dx), corner=(0, block.taps - 1))
        if dropping:
            training.drop(dx, self._dropout, training.key_of(self._seed, step, at), dx)
        return dx.reshape(x.shape)

    def _result_backward(self, block: TrainedBlock, stage: Written, dy: np.ndarray, leak: float) -> np.ndarray:
        """From the gradient of a block's result to that of its product."""
        dbias = self._slopes[f"{block.name}.bias"]
        if block.norm is not None:
            name = block.norm.layer.name
            given = stage.pooled, stage.place, leak, self._params[f"{name}.weight"], stage.moments, stage.y
            norms.norm_pool_backward(dy, *given, self._slopes[f"{name}.weight"], self._slopes[f"{name}.bias"], dbias)
        elif block.pooled:
            pools.pool_backward(dy, stage.pooled, stage.place, leak, stage.y, dbias)
        else:
            if block.rectified:
                pools.rectify_backward(_flat(dy), _flat(stage.y), leak, dbias)
            return dy
        return stage.y

    def _token_backward(self, ids: np.ndarray, stage: Written, dy: np.ndarray, leak: float) -> None:
        block = self._blocks[0]
        weight, bias = (self._slopes[f"{block.name}.{part}"] for part in ("weight", "bias"))
        if block.norm is None:
            tokens.backward(dy, stage.pooled, stage.place, leak, ids, weight, bias)
        else:
            dy = self._result_backward(block, stage, dy, leak)
            tokens.backward(dy, NONE, NO_PLACES, leak, ids, weight, None)

    # Arrays.

    def _stage(self, block: TrainedBlock) -> Written:
        rows, (channels, length) = self._rows, (*block.node.out_shape, 1)[:2]
        first, normed = block is self._blocks[0], block.norm is not None
        windows = length // pools.WINDOW if block.pooled else 0
        return Written(
            NONE if first and not normed else np.empty((rows, length, channels), np.float32),
            np.empty((rows, windows, channels), np.float32),
            np.empty((rows, windows, channels), np.uint8),
            np.empty((rows, 2), np.float32),
            np.empty((rows, 1, math.prod(block.node.in_shape)), np.float32) if block.linear and self._dropout else NONE,
        )

    def _laid(self, params: Mapping[str, np.ndarray]) -> np.ndarray:
        """Parameters as the engine holds them."""
        flat = np.empty(sum(map(math.prod, self._shapes.values())), np.float32)
        for name, part in self._parts(flat).items():
            if name not in params:
                raise ValueError(f"params lack {name}: need float32 {self._shapes[name]}")
            array, how = np.asarray(params[name]), self._layouts[name]
            expect(name, array, self._shapes[name])
            part[...] = array.reshape(how.axes).transpose(how.order).reshape(how.laid)
        return flat

    def _named(self, buffer: np.ndarray) -> Arrays:
        """A copy of what a buffer holds of each parameter, as the network has it."""
        found = {}
        for name, part in self._parts(buffer).items():
            how = self._layouts[name]
            turned = part.reshape([how.axes[axis] for axis in how.order]).transpose(np.argsort(how.order))
            found[name] = np.array(turned, order="C").reshape(self._shapes[name])
        return found

    def _parts(self, buffer: np.ndarray) -> Arrays:
        """Of a buffer the part of each parameter, as it lies there."""
        found, begin = {}, 0
        for name, how in self._layouts.items():
            size = math.prod(how.laid)
            found[name] = buffer[begin : begin + size].reshape(how.laid)
            begin += size
        return found


def _layouts(blocks: Sequence[TrainedBlock], shapes: Mapping[str, Shape]) -> dict[str, Laid]:
    found, before = dict[str, Laid](), 0
    for block in blocks:
        name, (units, channels, *_) = f"{block.name}.weight", shapes[f"{block.name}.weight"]
        if block.linear:  # reads (L, C), as the last convolution writes it
            axes = units, before, channels // before
            found[name] = Laid(axes, (0, 2, 1), (units, 1, channels))
        else:
            order = (0, 2, 1) if found else (2, 1, 0)
            found[name] = Laid(shapes[name], order, tuple(shapes[name][axis] for axis in order))
        found[f"{block.name}.bias"] = Laid((units,), (0,), (units,))
        if block.norm is not None:
            for part in ("weight", "bias"):
                shape = shapes[f"{block.norm.layer.name}.{part}"]
                found[f"{block.norm.layer.name}.{part}"] = Laid(shape, (1, 0), shape[::-1])
        before = units
    return found


def _images(block: TrainedBlock, features: np.ndarray) -> np.ndarray:
    """Features (N, L, C) as products read them: images of a row each, or of a linear layer one of a pixel an input."""
    return features.transpose(1, 0, 2)[None] if block.linear else features[:, None]


def _flat(features: np.ndarray) -> np.ndarray:
    """(rows, channels)"""
    return features.reshape(-1, features.shape[-1])
