"""Training by several ranks, which hold everything, or each its part: data parallelism, and ZeRO's stages.

A rank has some rows of a step. As soon as all gradients of a bucket are there, its ranks' sums are on their way while
the rest of backward runs. A rank adds up its part of them, and AdamW moves its part of the weights: the same sums, by
the same order of ranks, whoever holds what. So all stages have the same bits.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext
from functools import partial

import numpy as np

from charcnn.aliases import Array, Comm
from charcnn.files import Path
from charcnn.gpu.arrays import expect
from charcnn.layers import Node
from charcnn.ops import adamw_cpu
from charcnn.ops.adamw import ParameterGroup
from charcnn.ops.techniques import CPU
from charcnn.runtime import sharding, training_checkpoint
from charcnn.runtime.exchange import RankExchange
from charcnn.runtime.sharding import Bucket, BucketLayout, Sharding, StatesInFiles, StatesInMemory
from charcnn.runtime.training import KINDS, Training, counted

STATES = ("weights", "first", "second")
"""What a checkpoint has."""


class Views(dict[str, Array]):
    """Arrays by name, of which some are given when they are asked for."""

    def __init__(self, names: Iterable[str], give: Callable[[str], Array]) -> None:
        super().__init__(dict.fromkeys(names))
        self._give = give

    def __getitem__(self, name: str) -> Array:
        held = super().__getitem__(name)
        return self._give(name) if held is None else held


class ShardedTraining(Training):
    """A rank's side of a training on the CPU. All ranks call the same methods, in the same order.

    Args:
        nodes, params, group, clip: as of `Training`, the same on all ranks.
        rows: inputs of a rank's share of a step, at most.
        technique: of all operators: one that computes on the CPU.
        sharding: who holds what.
        comm: an mpi4py communicator of the ranks; None: there is one.

    Raises:
        ValueError: as of `Training`, or the technique needs a GPU.
        OSError: the directory for files is missing, or full.
    """

    precision = "fp32"

    def __init__(
        self, nodes: Sequence[Node], params: Mapping[str, np.ndarray], rows: int, technique: str = "loops",
        sharding: Sharding = Sharding(), comm: Comm | None = None, *,  # noqa: B008 - frozen
        group: ParameterGroup = ParameterGroup(0), clip: float = 1.0,  # noqa: B008 - frozen
    ) -> None:  # fmt: skip
        if technique not in CPU:
            raise ValueError(f"technique={technique!r}: need one that computes on the CPU: {', '.join(sorted(CPU))}")
        self._exchange, self._sharding = RankExchange(comm), sharding
        super().__init__(nodes, params, rows, technique, group=group, clip=clip)

    def _hold(self, params: Mapping[str, np.ndarray], group: ParameterGroup, clip: float) -> None:
        of, ranks, self._group, self._clip = self._sharding, self._exchange.ranks, group, clip
        self._layout = layout = BucketLayout(self._shapes, ranks, of.bucket)
        kinds, size = STATES if of.stage == 3 else STATES[1:], layout.size // of.held("moments", ranks)
        self._states = (
            StatesInMemory(kinds, size) if of.directory is None else StatesInFiles(kinds, size, of.directory, of.memory)
        )
        self.weights = np.zeros(0 if of.stage == 3 else layout.size, np.float32)
        self.gradients = np.zeros(layout.size // of.held("gradients", ranks), np.float32)
        self._params, self._gradients = Views(self._shapes, self._weight), Views(self._shapes, self._gradient)
        self.steps = 0
        """That were made."""
        self._missing: dict[Bucket, set[str]] = {}
        """Parameters of each bucket whose gradients backward has yet to compute."""
        self._opened: dict[Bucket, np.ndarray] = {}
        """From stage 2 on, gradients of the buckets that are on their way."""
        self._sums_spread = list[Callable[[], None]]()
        """At stage 0, what waits for the sums of all ranks' parts."""
        self._moves: dict[Bucket, Future[None]] = {}
        """Buckets that AdamW has yet to move, in another thread."""
        self._fetched: dict[Bucket, np.ndarray] = {}
        """At stage 3, weights of the few buckets that are here."""
        self._gathers: dict[Bucket, Callable[[], None]] = {}
        """What waits for weights that are on their way."""
        self._next = 1
        """Whether backward or forward goes through the buckets."""
        self._thread = ThreadPoolExecutor(1, "AdamW") if of.behind else None
        for bucket in layout.buckets:
            values = np.zeros(ranks * bucket.part, np.float32)
            for name in bucket.names:
                if name not in params:
                    raise ValueError(f"params lack {name}: need float32 {self._shapes[name]}")
                part = layout.parameter(values, name)
                expect(name, params[name], self._shapes[name])
                part[...] = params[name]
            self._set("weights", bucket, values)

    @property
    def memory(self) -> dict[str, int]:
        """Bytes that this rank holds in memory, by KINDS, at most: arrays that come and go are workspace."""
        own = self.weights.nbytes, self.gradients.nbytes
        states, one = self._states.nbytes, self._states.nbytes // 3
        weights, moments = (one, states - one) if self._sharding.stage == 3 else (own[0], states)
        features = sum(array.nbytes for array in (*self._features, *self._dx))
        held = weights, own[1], 0, moments, features, self._exchange.buffers.most + self._states.windows
        return dict(zip(KINDS, held, strict=True))

    @property
    def files(self) -> int:
        """Bytes that this rank holds in files."""
        return self._states.files

    @property
    def counted(self) -> dict[str, int]:
        """Bytes in memory that the layers say it needs, by KINDS."""
        found = counted(self._nodes, self._rows)
        found |= sharding.counted(self._layout.weights, self._exchange.ranks, self._sharding.stage)
        return found | ({"weights": 0, "moments": 0} if self.files else {})

    @property
    def params(self) -> dict[str, np.ndarray]:
        """A copy of the weights that are trained, by name."""
        return self._named("weights")

    def digest(self) -> str:
        """Of the weights that this rank uses."""
        return hashlib.sha256(b"".join(array.tobytes() for array in self.params.values())).hexdigest()

    def loss_and_gradients(self, x: np.ndarray, targets: np.ndarray) -> tuple[float, dict[str, np.ndarray]]:
        """The mean loss of all ranks' inputs and copies of its gradients, by name."""
        total = self._exchange.total(len(x))
        return self.mean(self._backward(x, targets, total)), self._named("gradients")

    def mean(self, losses: np.ndarray) -> float:
        """Of all ranks' losses."""
        total, of = (self._exchange.total(number) for number in (float(losses.sum(dtype=np.float64)), len(losses)))
        return total / of

    def step(self, x: np.ndarray, targets: np.ndarray, rate: float = 1.0) -> np.ndarray:
        """Move the weights by the mean loss of all ranks' inputs; see `Training.step`.

        Args:
            x: this rank's share of them, at least one.
            targets: of these.
            rate: factor of the learning rate.

        Returns:
            The losses of this rank's inputs, before the step.
        """
        losses = self._backward(x, targets, self._exchange.total(len(x)))
        factor = self._factor()
        self.steps += 1
        for bucket in self._layout.buckets:
            given = bucket, factor, rate, self.steps
            if self._thread is not None:
                self._moves[bucket] = self._thread.submit(self._move, *given)
            else:
                self._move(*given)
                self._spread(bucket)
        return losses

    def settle(self) -> None:
        """Have all weights moved, and where all ranks hold them, there."""
        for bucket in self._layout.buckets:
            if bucket in self._moves:
                self._spread(bucket)
            if self._sharding.stage < 3:
                self._ready(bucket)

    def save(self, path: Path, *, force: bool = False) -> None:
        """Write weights, moments and the number of steps, for `resume` of any number of ranks.

        Args:
            path: the file, which is whole or not there, or else what it was; the first rank writes it.
            force: whether it may replace a file that is no such checkpoint.

        Raises:
            OSError: the file cannot be written.
        """
        root = self._exchange.rank == 0
        with training_checkpoint.writing(path, self._shapes, self.steps, force) if root else nullcontext() as file:
            for kind in STATES:
                for bucket in self._layout.buckets:
                    values = self._whole(kind, bucket)[: bucket.length]
                    if file is not None:
                        file.write(values.data)

    def resume(self, path: Path) -> None:
        """Go on from what `save` wrote.

        Raises:
            ValueError: the file is no checkpoint of such a network; nothing was taken then.
            OSError: it cannot be read.
        """
        self.settle()
        with training_checkpoint.reading(path, self._shapes) as (self.steps, _, fill):
            for kind in STATES:
                for bucket in self._layout.buckets:
                    values = np.zeros(self._layout.ranks * bucket.part, np.float32)
                    fill(values[: bucket.length])
                    self._set(kind, bucket, values)

    def close(self) -> None:
        """Wait for what is under way."""
        self.settle()
        if self._thread is not None:
            self._thread.shutdown()

    # Gradients, on their way to whoever adds them up.

    def _backward(self, x: np.ndarray, targets: np.ndarray, total: int | None = None) -> np.ndarray:
        self._missing = {bucket: set(bucket.names) for bucket in self._layout.buckets}
        self._next = 1
        losses: np.ndarray = super()._backward(x, targets, total)
        self._exchange.finish_sums()
        for wait in self._sums_spread:
            wait()
        self._sums_spread.clear()
        self._let_go(())
        return losses

    def _gradient(self, name: str) -> np.ndarray:
        bucket = self._bucket(name)
        return self._layout.parameter(self._written(bucket), name)

    def _written(self, bucket: Bucket) -> np.ndarray:
        """Where backward writes a bucket's gradients."""
        if self._sharding.stage < 2:
            return self.gradients[self._layout.whole(bucket)]
        if bucket not in self._opened:
            self._opened[bucket] = self._exchange.buffers.take(self._layout.ranks * bucket.part)
            self._opened[bucket][bucket.length :] = 0
        return self._opened[bucket]

    def _finished(self, names: Iterable[str]) -> None:
        for name in names:
            bucket = self._bucket(name)
            self._missing[bucket].remove(name)
            if not self._missing[bucket]:
                self._exchange.sums(self._written(bucket), partial(self._summed, bucket))
        self._exchange.progress()

    def _summed(self, bucket: Bucket, total: np.ndarray) -> None:
        """Keep this rank's part of the sums of all ranks' gradients."""
        self._own_gradients(bucket)[:] = total
        if self._sharding.stage == 0:
            self._sums_spread.append(self._exchange.gather(self._written(bucket)))
        elif self._sharding.stage >= 2:
            self._exchange.buffers.give(self._opened.pop(bucket))

    def _own_gradients(self, bucket: Bucket) -> np.ndarray:
        if self._sharding.stage < 2:
            return self._written(bucket)[bucket.of(self._exchange.rank)]
        return self.gradients[self._layout.part(bucket)]

    # AdamW, of what this rank has the moments of.

    def _factor(self) -> float:
        """By what gradients are multiplied, so that their norm is not too large."""
        if not self._clip:
            return 1.0
        partials = []
        for bucket in self._layout.buckets:
            partials.append(np.empty(adamw_cpu.tasks(bucket.part)))
            adamw_cpu.squares(self._own_gradients(bucket), partials[-1])
        return adamw_cpu.clipped(self._exchange.gathered(np.concatenate(partials)).ravel(), self._clip)[1]

    def _move(self, bucket: Bucket, factor: float, rate: float, steps: int) -> None:
        everything, span = self._sharding.stage == 0, self._span(bucket)
        gradients = self._written(bucket) if everything else self._own_gradients(bucket)
        weights = self.weights[self._layout.whole(bucket)]
        weights = weights if everything else weights[bucket.of(self._exchange.rank)]
        for begin in range(0, gradients.size, self._states.most):
            here = slice(begin, min(begin + self._states.most, gradients.size))
            with self._states.window(slice(span.start + here.start, span.start + here.stop)) as (*own, first, second):
                moved = own[0] if own else weights[here]
                adamw_cpu.move(moved, gradients[here], first, second, self._group, steps, factor, rate)
                del own, first, second, moved  # else this window stays mapped while the next one is

    # Weights, on their way to whoever reads them.

    def _weight(self, name: str) -> np.ndarray:
        bucket = self._bucket(name)
        values = self._fetch(bucket) if self._sharding.stage == 3 else self._ready(bucket)
        return self._layout.parameter(values, name)

    def _spread(self, bucket: Bucket) -> None:
        """Once AdamW has moved it, send it to all."""
        if (move := self._moves.pop(bucket, None)) is not None:
            move.result()
        if self._sharding.stage in (1, 2):
            self._gathers[bucket] = self._exchange.gather(self.weights[self._layout.whole(bucket)])

    def _ready(self, bucket: Bucket) -> np.ndarray:
        """All of it, when it has come; the one behind it is sent then."""
        sent = self._behind(bucket) if self._exchange.ranks > 1 else ()
        for one in (bucket, *sent):
            if one in self._moves:
                self._spread(one)
        if (wait := self._gathers.pop(bucket, None)) is not None:
            wait()
        return self.weights[self._layout.whole(bucket)]

    def _fetch(self, bucket: Bucket) -> np.ndarray:
        """All of it, when it has come; the one that follows is on its way then, and others are let go."""
        if bucket == self._layout.buckets[-1]:
            self._next = -1
        wanted = bucket, *self._behind(bucket)
        self._let_go(wanted)
        for one in wanted:
            if one not in self._fetched:
                if one in self._moves:
                    self._spread(one)
                self._fetched[one] = values = self._exchange.buffers.take(self._layout.ranks * one.part)
                self._states.read("weights", self._span(one), values[one.of(self._exchange.rank)])
                self._gathers[one] = self._exchange.gather(values)
        if (wait := self._gathers.pop(bucket, None)) is not None:
            wait()
        return self._fetched[bucket]

    def _let_go(self, wanted: Sequence[Bucket]) -> None:
        for one in self._fetched.keys() - set(wanted):
            if (wait := self._gathers.pop(one, None)) is not None:
                wait()
            self._exchange.buffers.give(self._fetched.pop(one))

    # Buckets and places.

    def _bucket(self, name: str) -> Bucket:
        return self._layout.buckets[self._layout.places[name][0]]

    def _behind(self, bucket: Bucket) -> Sequence[Bucket]:
        """The one that is used next, if there is one."""
        at = self._layout.buckets.index(bucket) + self._next
        return self._layout.buckets[at : at + 1] if at >= 0 else []

    def _span(self, bucket: Bucket) -> slice:
        """Its place in what this rank has of moments."""
        return self._layout.whole(bucket) if self._sharding.stage == 0 else self._layout.part(bucket)

    def _set(self, kind: str, bucket: Bucket, values: np.ndarray) -> None:
        """Of a bucket's values keep what this rank holds."""
        if kind == "weights" and self._sharding.stage < 3:
            self.weights[self._layout.whole(bucket)] = values
        else:
            own = values if self._sharding.stage == 0 else values[bucket.of(self._exchange.rank)]
            self._states.write(kind, self._span(bucket), own)

    def _whole(self, kind: str, bucket: Bucket) -> np.ndarray:
        """A copy of a bucket's weights, gradients or moments, on all ranks."""
        self.settle()
        of, values = self._sharding, np.empty(self._layout.ranks * bucket.part, np.float32)
        own = values[bucket.of(self._exchange.rank)]
        if kind == "gradients":
            own[:] = self._own_gradients(bucket)
        elif kind == "weights" and of.stage < 3:
            values[:] = self.weights[self._layout.whole(bucket)]
            return values
        else:
            self._states.read(kind, self._span(bucket), values if of.stage == 0 else own)
        if kind == "gradients" or of.stage > 0:
            self._exchange.gather(values)()
        return values

    def _named(self, kind: str) -> dict[str, np.ndarray]:
        found = dict[str, np.ndarray]()
        for bucket in self._layout.buckets:
            values = self._whole(kind, bucket)
            found |= {name: self._layout.parameter(values, name) for name in bucket.names}
        return found
