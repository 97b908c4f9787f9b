"""Training steps of a character-level network on tensor cores, in mixed precision.

Features and their gradients are bf16 or fp16, and channels last, sums float32. Weights are float32 in one buffer, the
masters, as products read them; AdamW leaves a copy of 16 bits beside each. Buffers are made once for the largest number
of rows: a step with fewer has rows of blanks that count nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np
from numba import cuda

from charcnn.aliases import Array, Record, Stream
from charcnn.gpu import device, graph
from charcnn.gpu.arrays import check, expect
from charcnn.layers import Node
from charcnn.ops.adamw import AdamW, LossScale, ParameterGroup
from charcnn.ops.adamw_options import ARRAYS, check_state
from charcnn.ops.common.precision import choose
from charcnn.ops.conv1d.mma.products_layer import MmaProduct
from charcnn.ops.conv1d.products import TrainingProduct
from charcnn.ops.conv1d.wgmma.products_layer import WgmmaProduct
from charcnn.ops.moving_average import follow
from charcnn.runtime.mixed_plan import FlatParams, FlatWeights, check_dropout, check_leak, counted
from charcnn.runtime.mixed_step import HALVES, Around, Held, MixedStep
from charcnn.runtime.pinned import Pinned
from charcnn.runtime.training import KINDS

PRODUCTS: dict[str, type[TrainingProduct]] = {"mma": MmaProduct, "wgmma": WgmmaProduct}
"""By technique."""

INFINITY = {"bf16": 0x7F80, "fp16": 0x7C00}
"""The greatest word of what is above 0: behind it are NaN, and what has a sign."""

BLANK = 255
"""An id that is a blank in every network."""

Answering = Callable[[Mapping[str, np.ndarray]], Callable[[np.ndarray], np.ndarray]]


class MixedTraining:
    """A network, the buffers of its steps, and its optimiser, as `training.Training` has them.

    Args:
        nodes: of a network of token ids, as `blocks_of` takes it.
        params: the weights to begin with, NumPy; they stay as they are.
        rows: inputs of a step, at most.
        group: what AdamW is told; its size is filled in.
        clip: the largest norm of a step's gradient; 0 for no limit.
        dropout: share of what each linear layer reads that a step drops.
        seed: of dropout.
        multi_label: whether an input may have several of the classes: the loss is then the mean over them of binary
            cross-entropy, and targets are from 0 to 1.
        recorded: whether a step is recorded as a CUDA graph the first time, and started as one from then on.
        stream: of the steps; a stream of their own where None.
        answering: gives of weights by name a function from inputs (N, length) to logits (N, classes), NumPy, by which
            `answers` computes; None: the forward pass of a step, whose features are bf16.
        technique: of products: "wgmma", on Hopper, or "mma", on any GPU since compute capability 8.0.
        precision: of features and their gradients, "bf16", or "fp16", by a loss scale: a step whose gradients are not
            finite is left out.

    Raises:
        ValueError: a layer does not fit; names it. There is no such technique or precision.
        DeviceError: the GPU has no such tensor cores.
    """

    def __init__(
        self, nodes: Sequence[Node], params: Mapping[str, np.ndarray], rows: int, *,
        group: ParameterGroup = ParameterGroup(0), clip: float = 1.0, dropout: float = 0.0, seed: int = 0,  # noqa: B008 - frozen
        multi_label: bool = False, recorded: bool = False, stream: Stream = None, answering: Answering | None = None,
        technique: str = "wgmma", precision: str = "bf16",
    ) -> None:  # fmt: skip
        if technique not in PRODUCTS:
            raise ValueError(f"{technique=}: need one of {', '.join(PRODUCTS)}")
        self.precision, self._ptx_type = precision, choose(precision, HALVES).ptx_type
        self._scale = LossScale() if precision == "fp16" else None
        if rows < 1:
            raise ValueError(f"{rows=}: need 1 or more")
        check_dropout(dropout)
        product = PRODUCTS[technique]
        product.require()
        self._nodes, self._rows = nodes, rows
        self._stream = device.as_stream(stream) or cuda.stream()
        self._recorded = recorded and not device.SIMULATED
        self._layout, self._answering = self._laid_out(), answering
        self._begun, self._pinned = self._layout.flat(params), Pinned(self._stream)
        self._average: Array | None = None
        held = self._hold(group, clip)
        self._step = MixedStep(
            nodes, rows, held, self.optimiser.made, self._factor.scaling, product, dropout=dropout, seed=seed,
            multi_label=multi_label, precision=precision, around=self._around(),
        )  # fmt: skip
        self._rate, self._classes = device.to_device(np.ones(1)), int(self._step.targets.shape[1])
        self._given, self._shared, self._weighted = 0, 0, False
        self._set_rate, self._set_leak = 1.0, 0.0
        self._graph: graph.Graph | None = None

    def _laid_out(self) -> FlatParams:
        return FlatParams(self._nodes)

    def _around(self) -> Around:
        return Around()

    def _hold(self, group: ParameterGroup, clip: float) -> Held:
        """Make the buffers and the optimiser."""
        size = self._layout.size
        self.weights = device.to_device(self._begun)
        self.gradients = device.to_device(np.zeros_like(self._begun))
        self._copies = device.empty((size,), np.uint16)
        more = {"shadow": self._copies, "stream": self._stream, "ptx_type": self._ptx_type, "loss_scale": self._scale}
        self.optimiser = AdamW(self.weights, [replace(group, size=size)], clip=clip, **more)
        self._factor = self.optimiser.factor
        return Held(*map(self._layout.parts, (self.weights, self.gradients, self._copies)))

    @property
    def left_out(self) -> int:
        """Steps whose gradients were not finite; it waits for all steps."""
        scale = self._factor.loss_scale
        return 0 if scale is None else scale.left_out

    @property
    def _by(self) -> np.float32:
        """The loss scale, or 1."""
        by: np.float32 = self.fetched(self._factor.scaling)[0]
        return by

    @property
    def memory(self) -> dict[str, int]:
        """Bytes that are held, by KINDS."""
        moments, workspace = [self.optimiser.first, self.optimiser.second], self._step.workspace
        masters = [self.weights] if self._average is None else [self.weights, self._average]
        held = [self._copies], [self.gradients], masters, moments, self._step.features, workspace
        return {kind: sum(int(one.nbytes) for one in arrays) for kind, arrays in zip(KINDS, held, strict=True)}

    @property
    def counted(self) -> dict[str, int]:
        """Bytes that the layers say it needs, by KINDS."""
        return counted(self._nodes, self._rows)

    @property
    def params(self) -> dict[str, np.ndarray]:
        """A copy of the weights, by name."""
        return self._layout.named(self.fetched(self.weights))

    @property
    def averaged(self) -> Mapping[str, np.ndarray]:
        """A copy of the weights that `average` moves, by name; before, those to begin with."""
        if self._average is None:
            return self._layout.named(self._begun)
        return FlatWeights(self._layout, self._copied(self._average), self._stream)

    @property
    def logits(self) -> Array:
        """Of the inputs of the last step (N, classes), on the GPU; the next step, `answers` and `live` write them."""
        return self._step.logits[: self._given]

    def loss_and_gradients(
        self, x: np.ndarray, targets: np.ndarray, *, leak: float = 0.0, weights: np.ndarray | None = None
    ) -> tuple[float, dict[str, np.ndarray]]:
        """The mean loss of some inputs and copies of its gradients, by name; arguments as of `step`."""
        self._compute(x, targets, leak, weights)
        losses = self.fetched(self._step.losses)[: len(x)]
        return float(losses.mean(dtype=np.float64)), self._layout.named(self.fetched(self.gradients) / self._by)

    def step(
        self, x: Array, targets: Array, rate: float = 1.0, *, leak: float = 0.0, weights: np.ndarray | None = None
    ) -> Array:
        """Move the weights by the mean loss of some inputs.

        Args:
            x: uint8 (N, length): at most as many inputs as there are rows; NumPy, or on the GPU, then as many.
            targets: float32 (N, classes): the share that each class should get; likewise. They need not sum to 1.
            rate: factor of the learning rate.
            leak: slope of each ReLU below 0, from 0 to less than 1.
            weights: float32 (N,), factors of the losses, NumPy; None: 1 each.

        Returns:
            The losses (N,), before the step, on the GPU; `fetched` waits for them. The next step writes them anew.

        Raises:
            ValueError: there are no inputs or more than rows, or an array has another shape or dtype.
        """
        self._fill(x, targets, weights)
        self._leak(leak)
        if rate != self._set_rate:
            self._pinned.up("rate", self._rate, np.array([rate], np.float64), 0)
            self._set_rate = rate
        if self._graph is not None:
            self._graph.launch()
        elif self._recorded:
            self._graph = graph.Graph(self._whole, self._stream)  # which makes this step, and then records the next one
        else:
            self._whole(self._stream)
        return self._step.losses[: len(x)]

    def told(self) -> Callable[[], tuple[np.ndarray, np.ndarray]]:
        """What gives copies of the last step's losses and logits, when it is done; call it before two more steps."""
        n, arrays = self._given, {"losses": self._step.losses, "logits": self._step.logits}
        losses, logits = (self._pinned.down(name, array) for name, array in arrays.items())
        return lambda: (losses()[:n], logits()[:n])

    def average(self, follows: float) -> None:
        """Move the averaged weights towards the weights, by this share of what is between them."""
        if self._average is None:
            self._average = device.to_device(self._begun, self._stream)
        follow(self._average, self.weights, follows, stream=self._stream)

    def load(self, params: Mapping[str, np.ndarray]) -> None:
        """Take other weights; the average and the moments stay.

        Raises:
            ValueError: one is missing, or has another shape; names it.
        """
        self._write(self._layout.flat(params))

    def state(self) -> Record:
        """All that the next step depends on, on the host: NumPy arrays and numbers."""
        weights = self.fetched(self.weights)
        average = self._begun.copy() if self._average is None else self.fetched(self._average)
        moments = {name: saved for name, saved in self.optimiser.state().items() if saved is not None}
        return {"weights": weights, "average": average, **moments}

    def restore(self, state: Record) -> None:
        """Take what `state` gave.

        Raises:
            ValueError: it is of another network, or damaged; nothing was taken then.
        """
        check_state(state, self.weights.size, ARRAYS)
        self.optimiser.check(state)
        self._write(state["weights"])
        self._begun = np.array(state["average"])
        if self._average is not None:
            self._average.copy_to_device(self._begun, stream=self._stream)
        self.optimiser.restore(state)

    def answers(self, x: np.ndarray, params: Mapping[str, np.ndarray] | None = None) -> np.ndarray:
        """Logits float32 (N, classes) of inputs uint8 (N, length), NumPy, without dropout or leak.

        Args:
            x: any number of inputs.
            params: other weights, by name; None: those that are trained. `FlatWeights` stay on the GPU.

        Raises:
            ValueError: x, or one of the weights, has another shape; names it.
        """
        if self._answering is not None:
            return self._answering(self.params if params is None else params)(x)
        if params is None:
            found = [self.fetched(self._step.logits)[:n] for n in self._forward(x)]
            return np.concatenate(found) if found else np.empty((0, self._classes), np.float32)
        if isinstance(params, FlatWeights):
            other, kept = params.buffer, self._copied(self.weights)
        else:
            other, kept = self._layout.flat(params), self.fetched(self.weights)
        self._write(other)
        try:
            return self.answers(x)
        finally:
            self._write(kept)

    def live(self, x: np.ndarray) -> dict[str, np.ndarray]:
        """Which channels and units give more than 0 for any of the inputs (N, length): by layer with ReLU, bool.

        Raises:
            ValueError: x has another shape.
        """
        found = {stage.block.name: np.zeros(stage.block.node.out_shape[0], bool) for stage in self._step.stages}
        for n in self._forward(x):
            for stage in self._step.stages:
                words = self.fetched(stage.result)[:n, : stage.valid]
                found[stage.block.name] |= ((words > 0) & (words <= INFINITY[self.precision])).any(axis=(0, 1))
        return found

    def _forward(self, x: np.ndarray) -> Iterator[int]:
        """Compute features and logits of inputs in parts, and give how many there are of each part."""
        self._leak(0.0)
        for begin in range(0, len(x), self._rows):
            part = x[begin : begin + self._rows]
            self._place("x", part, self._step.ids, BLANK)
            for start in self._step.forwards:
                start(stream=self._stream)
            yield len(part)

    def _copied(self, buffer: Array) -> Array:
        graph.copy(held := device.empty(tuple(buffer.shape), buffer.dtype), buffer, self._stream)
        return held

    def _write(self, flat: Array) -> None:
        """Other weights, of the host or of the GPU, and their copies."""
        if device.on_device(flat):
            expect("params", flat, tuple(self.weights.shape))
            graph.copy(self.weights, flat, self._stream)
        else:
            self.weights.copy_to_device(flat, stream=self._stream)
        self.optimiser.refresh()

    def _leak(self, leak: float) -> None:
        check_leak(leak)
        if leak != self._set_leak:
            self._pinned.up("factors", self._step.factors, self._step.factors_of(leak), 0)
            self._set_leak = leak

    def fetched(self, array: Array) -> np.ndarray:
        """A copy on the host, when all steps before are done."""
        return device.to_host(array, self._stream)

    def _whole(self, stream: Stream) -> None:
        self._backward(stream)
        self.optimiser.step(self.gradients, self._rate, stream=stream)

    def _compute(self, x: Array, targets: Array, leak: float, weights: np.ndarray | None) -> None:
        """Losses and gradients, where they belong."""
        self._fill(x, targets, weights)
        self._leak(leak)
        self._backward(self._stream)

    def _backward(self, stream: Stream) -> None:
        """Losses, and gradients in their buffer, of what `_fill` was given."""
        for start in self._step.starts:
            start(stream=stream)

    def _place(self, name: str, given: Array, to: Array, fill: float) -> None:
        """What a step reads; behind what is given, rows that are missing are filled."""
        if device.on_device(given):
            check(name, given, to.dtype)
            expect(name, given, tuple(to.shape))
            graph.copy(to, given, self._stream)
            return
        given = np.ascontiguousarray(given)
        check(name, given, to.dtype)
        expect(name, given, (len(given), *to.shape[1:]))
        self._pinned.up(name, to, given, fill)

    def _fill(self, x: Array, targets: Array, weights: np.ndarray | None) -> None:
        n = len(x)
        if not 0 < n <= self._rows:
            raise ValueError(f"x has {n} inputs: need 1 to {self._rows}, the rows of a step")
        expect("targets", targets, (n, self._classes))
        self._place("x", x, self._step.ids, BLANK)
        self._place("targets", targets, self._step.targets, 0)
        total = self._total(n)
        if (n, total) != (self._given, self._shared) or self._weighted or weights is not None:
            counts = np.ones(n, np.float32) if weights is None else weights
            expect("weights", counts, (n,))
            self._place("weights", counts, self._step.counts, 0)
            self._step.share.copy_to_device(np.array([1 / total], np.float32), stream=self._stream)
            self._given, self._shared, self._weighted = n, total, weights is not None

    def _total(self, n: int) -> int:
        """Of how many losses a step's is the mean, where these inputs are given."""
        return n
