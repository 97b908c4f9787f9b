"""A step of training, on a GPU captured once and replayed as a CUDA graph: its 400 kernels wait for no Python."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from charcnn.aliases import Argument, Record
from charcnn.config import Config
from charcnn.model import sparsity
from charcnn.training.augment import blank_words, join, replace_characters, shift
from charcnn.training.data import Examples
from charcnn.training.network import TrainableNetwork
from charcnn.training.passes import Passes
from charcnn.training.recipe import Recipe
from charcnn.training.start import initialised

_RESIDENT = 0.25  # share of the GPU's free memory that the training part's ids may take

_EAGER = 3  # steps before the capture: torch.compile and cuDNN do then what they do once


class Trainer(Passes):
    """The network, its moving average, its teachers, the optimiser and the data, on the device.

    Args:
        examples: what to learn from.
        weights: of each class in the loss.
        config: the sizes.
        recipe: how.
        device: where.
        dtype: of the arithmetic: torch.float32 or torch.bfloat16.
        compiled: whether torch.compile makes the kernels.
        teachers: weights of networks of the same sizes, whose mean probabilities it also learns from; what examples
            were taught counts as one more.
        first: the weights to begin with; None for random ones.
    """

    def __init__(
        self,
        examples: Examples,
        weights: Sequence[float] | np.ndarray,
        config: Config,
        recipe: Recipe,
        device: torch.device,
        dtype: torch.dtype,
        compiled: bool,
        teachers: Sequence[Mapping[str, np.ndarray]] = (),
        first: Mapping[str, np.ndarray] | None = None,
    ) -> None:
        super().__init__(recipe, len(examples))
        self._blank, self._device = config.alphabet, device
        self._multi_label = config.multi_label
        self._ids = torch.from_numpy(examples.ids)
        if device.type != "cuda" or examples.ids.nbytes < _RESIDENT * torch.cuda.mem_get_info(device)[0]:
            self._ids = self._ids.to(device)
        self._labels = torch.from_numpy(examples.labels).to(device)
        self._weights = torch.tensor(weights, dtype=torch.float32, device=device)

        def prepared(network: TrainableNetwork) -> Any:
            if not compiled:
                return network
            torch._dynamo.config.recompile_limit = 64  # of one function; teachers are networks each
            return torch.compile(network, dynamic=False)

        self._network = TrainableNetwork(config, recipe.dropout, dtype, leaky=recipe.leak > 0)
        begun, kept = sparsity.begun(
            initialised(config, recipe.seed) if first is None else first, config, recipe.sparse
        )
        self._network.load(begun)
        self._network.to(device)
        self._kept = [(parameter, mask.to(device)) for parameter, mask in self._network.laid(kept)]
        self._forward = prepared(self._network)
        self.average = TrainableNetwork(config, 0.0, dtype).to(device).requires_grad_(False)
        self.average.load_state_dict(self._network.state_dict())
        self._teachers = []
        for arrays in teachers:
            teacher = TrainableNetwork(config, 0.0, dtype).eval()
            teacher.load(arrays)
            self._teachers.append(prepared(teacher.to(device).requires_grad_(False)))

        # What a step reads and adds to: at fixed places, as a captured graph has it.
        self._scheduled = torch.from_numpy(self._schedule).to(device)
        self._now = self._scheduled[0].clone()
        self._rate, self._network.leak, self._changes, self._follows = self._now.unbind()
        self._batch_ids = self._ids[: self._batch].to(device, copy=True)
        self._beside: list[tuple[torch.Tensor, torch.Tensor]] = []

        def batch_of(values: np.ndarray | None) -> torch.Tensor | None:
            if values is None:
                return None
            whole = torch.from_numpy(values).to(device)
            self._beside.append((whole, whole[: self._batch].clone()))
            return self._beside[-1][1]

        self._batch_given, self._batch_taught = batch_of(examples.weights), batch_of(examples.taught)
        self._batch_labels = self._labels[: self._batch].clone()
        self._beside.append((self._labels, self._batch_labels))
        self._total = torch.zeros(2, device=device)
        self._graph: torch.cuda.CUDAGraph | None = None
        self._eager = _EAGER if device.type == "cuda" and not recipe.mixup else math.inf  # a Beta is drawn by the host
        self._optimiser = torch.optim.AdamW(
            self._network.parameters(),
            lr=self._rate,
            weight_decay=recipe.decay,
            betas=(0.9, recipe.beta2),
            fused=True,
            capturable=device.type == "cuda",
        )

    def plan(self, passes: int, steps: int, share: float) -> None:
        """See `Passes.plan`."""
        super().plan(passes, steps, share)
        self._scheduled = torch.from_numpy(self._schedule).to(self._device)

    def weights(self) -> dict[str, np.ndarray]:
        """See `Passes.weights`."""
        return self.average.arrays()

    def answers(self, ids: np.ndarray) -> np.ndarray:
        """See `Passes.answers`."""
        return self.average.answers(ids, self._recipe.batch)

    def _begin(self, number: int) -> None:
        self._network.train()
        torch.manual_seed(self._recipe.seed * 1_000_003 + number)
        order = torch.randperm(len(self._labels))
        order = torch.cat([order, order])[: self._each * self._batch]  # the last batch is filled from the first
        self._indices, self._on_device = order.to(self._ids.device), order.to(self._device)
        self._total.zero_()

    def _one(self, step: int) -> None:
        part = self._part(step)
        self._batch_ids.copy_(self._ids[self._indices[part]])
        for whole, batch in self._beside:
            batch.copy_(whole[self._on_device[part]])
        self._now.copy_(self._scheduled[self._done])
        self._run()

    def _totals(self) -> tuple[float, float]:
        loss, accuracy = self._total.tolist()
        return loss, accuracy

    def _state(self) -> Record:
        return {
            "network": self._network.state_dict(),
            "average": self.average.state_dict(),
            "optimiser": self._optimiser.state_dict(),
        }

    def _restore(self, state: Record) -> None:
        like, saved = self._state(), {name: state.get(name) for name in ("network", "average", "optimiser")}
        like["optimiser"]["state"] = {  # which PyTorch makes at the first step
            number: {"step": torch.zeros(()), "exp_avg": one, "exp_avg_sq": one}
            for number, one in enumerate(self._network.parameters())
        }
        _check("state", saved, like)
        self._network.load_state_dict(state["network"])
        self.average.load_state_dict(state["average"])
        self._optimiser.load_state_dict(state["optimiser"])
        self._optimiser.param_groups[0]["lr"] = self._rate

    def _run(self) -> None:
        """One step: as written at first, then captured, then replayed."""
        if self._graph is not None:
            self._graph.replay()
        elif self._eager > 0:
            self._eager -= 1
            if self._device.type != "cuda":
                return self._step()
            side = torch.cuda.Stream(self._device)  # a capture needs what ran before to have run on no default stream
            side.wait_stream(torch.cuda.current_stream(self._device))
            with torch.cuda.stream(side):
                self._step()
            torch.cuda.current_stream(self._device).wait_stream(side)
        else:
            self._optimiser.zero_grad(set_to_none=True)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                self._step()
            self._graph = graph
            graph.replay()

    def _step(self) -> None:
        recipe, labels = self._recipe, self._batch_labels
        logits, losses = self._losses(self._changed(self._batch_ids), labels)
        if self._batch_given is not None:
            losses = losses * self._batch_given
        self._optimiser.zero_grad(set_to_none=True)
        losses.mean().backward()
        for parameter, mask in self._kept:
            assert parameter.grad is not None
            parameter.grad.mul_(mask)
        if recipe.clip:
            torch.nn.utils.clip_grad_norm_(self._network.parameters(), recipe.clip, foreach=True)
        self._optimiser.step()
        self._follow()
        self._total += torch.stack([losses.detach().mean(), self._right(logits, labels).float().mean()])

    def _changed(self, ids: torch.Tensor) -> torch.Tensor:
        recipe, made = self._recipe, self._changes
        ids = blank_words(ids, self._blank, made * recipe.blank_words)
        ids = replace_characters(ids, self._blank, made * recipe.replace_characters)
        return shift(ids, self._blank, -recipe.shift_left, recipe.shift_right, made)

    def _losses(self, ids: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The logits, and each example's loss."""
        recipe = self._recipe
        if not recipe.mixup and not recipe.cut:
            logits = self._forward(ids)
            return logits, self._taught(self._loss(logits, labels), logits, None, ids)
        inputs: tuple[torch.Tensor, ...]
        partners, others = ids.roll(1, 0), labels.roll(1, 0)  # the batch's order is random
        if recipe.cut:
            ids, share = join(ids, partners, self._blank, self._changes * recipe.cut)
            logits, inputs = self._forward(ids), (ids,)
        else:
            alpha = torch.full((len(ids),), recipe.mixup, device=ids.device)
            share = torch.distributions.Beta(alpha, alpha, validate_args=False).sample()
            share = torch.maximum(share, 1 - share)  # the larger part's label counts for accuracy
            inputs = (ids, partners, share)
            logits = self._forward(*inputs)
        losses = share * self._loss(logits, labels) + (1 - share) * self._loss(logits, others)
        return logits, self._taught(losses, logits, share, *inputs)

    def _right(self, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Whether each example's answer is right; of several labels, all of them."""
        return ((logits >= 0) == labels.bool()).all(1) if self._multi_label else logits.argmax(1) == labels

    def _loss(self, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        if self._multi_label:
            wanted = torch.lerp(labels.float(), torch.full_like(logits, 0.5), self._recipe.smoothing)
            return F.binary_cross_entropy_with_logits(logits, wanted, reduction="none").mean(1)
        return F.cross_entropy(logits, labels, self._weights, label_smoothing=self._recipe.smoothing, reduction="none")

    def _taught(
        self, losses: torch.Tensor, logits: torch.Tensor, share: torch.Tensor | None, *inputs: torch.Tensor
    ) -> torch.Tensor:
        """The losses, with what the teachers answer to the same inputs, of which `share` is each example's own."""
        with torch.no_grad():
            answers = [teacher(*inputs).softmax(1) for teacher in self._teachers]
            if self._batch_taught is not None:
                own = self._batch_taught
                answers.append(own if share is None else torch.lerp(own.roll(1, 0), own, share[:, None]))
        if not answers:
            return losses
        taught = F.cross_entropy(logits, torch.stack(answers).mean(0), reduction="none")
        return (1 - self._recipe.teaching) * losses + self._recipe.teaching * taught

    @torch.no_grad()
    def _follow(self) -> None:
        """Move the average towards the weights."""
        average: list[torch.Tensor] = list(self.average.parameters())
        weights: list[torch.Tensor] = list(self._network.parameters())
        apart = torch._foreach_sub(weights, average)
        torch._foreach_mul_(apart, self._follows)
        torch._foreach_add_(average, list(apart))


def _check(name: str, saved: Argument, like: Argument) -> None:
    """Raise ValueError, which names it, unless a saved state has all that another one has, of the same kind."""
    if isinstance(like, torch.Tensor):
        found = getattr(saved, "dtype", type(saved).__name__), tuple(getattr(saved, "shape", ()))
        if found != (like.dtype, tuple(like.shape)):
            raise ValueError(f"{name} is {found[0]} {found[1]}: need {like.dtype} {tuple(like.shape)}")
    elif not isinstance(saved, dict if isinstance(like, dict) else type(like)):
        raise ValueError(f"{name} is a {type(saved).__name__}: need a {type(like).__name__}")
    elif isinstance(like, dict | list | tuple):
        parts, wanted = (one if isinstance(one, dict) else dict(enumerate(one)) for one in (saved, like))
        if parts.keys() != wanted.keys():
            raise ValueError(f"{name} has {', '.join(map(str, parts))}: need {', '.join(map(str, wanted))}")
        for key, part in parts.items():
            _check(f"{name}[{key!r}]", part, wanted[key])
