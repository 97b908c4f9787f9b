"""The training itself: steps, epochs, checkpoints."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from tqdm import tqdm

from charcnn.config import Config
from charcnn.files import Path, replacing
from charcnn.model.model_files import check_sums, open_archive
from charcnn.training.augment import blank_words, replace_characters, shift
from charcnn.training.data import Examples
from charcnn.training.measure import Measured, MultiLabelMeasured, counts_of
from charcnn.training.network import Network
from charcnn.training.recipe import Recipe

FORMAT = 1
"""Version of what a checkpoint holds."""

COLUMNS = (
    "epoch",
    "seconds",
    "rate",
    "train_loss",
    "train_accuracy",
    "valid_loss",
    "valid_accuracy",
    "valid_balanced_accuracy",
)
"""What is recorded of every epoch. The training part's figures are of changed, dropped-out inputs: the lower ones."""


def columns(config: Config) -> tuple[str, ...]:
    """COLUMNS; of several labels a text, where accuracy is that of all of them together, macro F1 in the last."""
    return (*COLUMNS[:-1], f"valid_{MultiLabelMeasured.score_name}") if config.multi_label else COLUMNS


_RESIDENT = 0.25  # share of the GPU's free memory that the training part's ids may take


@dataclass(frozen=True)
class Trained:
    """What training gave."""

    arrays: dict[str, np.ndarray]
    epoch: int
    """The epoch whose weights these are."""
    history: list[dict[str, Any]]
    """A row of COLUMNS an epoch."""


def train(
    examples: Examples,
    valid: Examples | None,
    config: Config,
    recipe: Recipe,
    *,
    device: torch.device,
    dtype: torch.dtype,
    compiled: bool = False,
    checkpoint: Path | None = None,
    interval: float = 60.0,
    settings: dict[str, Any] | None = None,
    saved: dict[str, Any] | None = None,
    on_epoch: Callable[[list[dict[str, Any]]], None] = lambda history: None,
) -> Trained:
    """Train a network.

    The order, the changes and the dropout of an epoch follow from the seed and its number alone, so that training
    goes on from a checkpoint as if it had never ended.

    Args:
        examples: what to learn from.
        valid: what decides which epoch's weights are kept and when training ends early; None: the last epoch's.
        config: the sizes.
        recipe: how.
        device: where.
        dtype: of the arithmetic: torch.float32 or torch.bfloat16. Weights are float32 in either case.
        compiled: whether torch.compile makes the kernels.
        checkpoint: file to keep the state in, or None.
        interval: seconds between two checkpoints, at least; they are written at the end of an epoch.
        settings: what must be equal for a checkpoint to be of use, as JSON values; written into it.
        saved: what `read_checkpoint` gave, to go on from there.
        on_epoch: called after every epoch with the rows so far.

    Raises:
        ValueError: a class has no example to learn from, the recipe balances classes that do not exclude each other,
            or the loss stops being a number.
        OSError: the checkpoint cannot be written.
    """
    counts = (
        np.bincount(examples.labels, minlength=config.classes) if not config.multi_label else examples.labels.sum(0)
    )
    if not counts.all():
        raise ValueError(f"class {np.argmin(counts) + 1} has no example to learn from")
    if config.multi_label and recipe.balance:
        raise ValueError("balance=True: classes that do not exclude each other have no shares to balance; need False")
    weights = len(examples) / (config.classes * counts) if recipe.balance else np.ones(config.classes)
    trainer = _Trainer(examples, weights, config, recipe, device, dtype, compiled)
    history: list[dict[str, Any]] = []
    best: dict[str, Any] | None = None
    if saved is not None:
        trainer.restore(saved["trainer"])
        history, best = saved["history"], saved["best"]
    before = history[-1]["seconds"] if history else 0.0
    started = written = time.perf_counter()
    for epoch in range(len(history) + 1, recipe.epochs + 1):
        if best is not None and recipe.patience and epoch - 1 - best["epoch"] >= recipe.patience:
            break
        row: dict[str, Any] = {"epoch": epoch, "rate": trainer.rate}
        row["train_loss"], row["train_accuracy"] = trainer.epoch(epoch)
        if not math.isfinite(row["train_loss"]):
            raise ValueError(f"epoch {epoch}: the loss is {row['train_loss']}; try a lower rate than {recipe.rate:g}")
        if valid is not None:
            measured = measure(trainer.average, valid, recipe.batch)
            row["valid_loss"], row["valid_accuracy"] = measured.loss, measured.accuracy
            row[f"valid_{measured.score_name}"] = measured.score
            score = [measured.score, -measured.loss]
            if best is None or score > best["score"]:
                best = {"score": score, "epoch": epoch, "weights": trainer.weights()}
        row["seconds"] = before + time.perf_counter() - started
        history.append({name: row[name] for name in columns(config) if name in row})
        on_epoch(history)
        if checkpoint is not None and (time.perf_counter() - written >= interval):
            state = {
                "format": FORMAT,
                "settings": settings,
                "trainer": trainer.state(),
                "history": history,
                "best": best,
            }
            with replacing(checkpoint, "wb") as file:
                torch.save(state, file)
            written = time.perf_counter()
    if best is not None:
        trainer.average.load_state_dict(best["weights"])
    return Trained(trainer.average.arrays(), len(history) if best is None else best["epoch"], history)


def read_checkpoint(path: Path, settings: dict[str, Any]) -> dict[str, Any]:
    """What a killed training left.

    Raises:
        ValueError: the file is no checkpoint, or of a training with other settings; names them.
        OSError: the file cannot be read.
    """
    with open(path, "rb") as file:
        try:
            archive = open_archive(file)
            check_sums(archive, storages=False)
            check_sums(archive, storages=True)
            file.seek(0)
            state = torch.load(file, map_location="cpu", weights_only=True)
        except Exception as error:  # of many types, for what a damaged file makes its unpickler meet
            raise ValueError(f"{path}: not a whole checkpoint ({type(error).__name__})") from error
    if not isinstance(state, dict) or type(state.get("format")) is not int or state["format"] != FORMAT:
        raise ValueError(f"{path}: not a checkpoint of this version of charcnn")
    had = state["settings"]
    other = [name for name in sorted({*had, *settings}) if had.get(name) != settings.get(name)]
    if other:
        listed = "; ".join(f"{name} was {had.get(name)!r}, now {settings.get(name)!r}" for name in other)
        raise ValueError(f"{path} is of a training with other settings: {listed}")
    return state


@torch.no_grad()
def measure(network: Network, examples: Examples, batch: int) -> Measured | MultiLabelMeasured:
    """A network's answers to examples, `batch` at a time; ValueError where logits are not finite."""
    classes = network.config.classes
    network.eval()
    confusion = torch.zeros(classes * classes, dtype=torch.int64)
    counts, right = np.zeros((3, classes), np.int64), 0
    losses = []
    for start in range(0, len(examples), batch):
        ids = torch.from_numpy(examples.ids[start : start + batch]).to(network.one_hot.device)
        labels = torch.from_numpy(examples.labels[start : start + batch])
        logits = network(ids).cpu()
        if not logits.isfinite().all():
            raise ValueError("the network's logits are not finite; try a lower rate, or --store float32")
        if network.config.multi_label:
            has, given = labels.bool(), logits >= 0
            counts += counts_of(has.numpy(), given.numpy())
            right += int((has == given).all(1).sum())
            losses.append(
                F.binary_cross_entropy_with_logits(logits.double(), labels.double(), reduction="sum") / classes
            )
            continue
        confusion += torch.bincount(labels * classes + logits.argmax(1), minlength=classes * classes)
        losses.append(F.cross_entropy(logits.double(), labels, reduction="sum"))
    if network.config.multi_label:
        return MultiLabelMeasured(counts, right, len(examples), float(sum(losses)) / len(examples))
    return Measured(confusion.reshape(classes, classes).numpy(), float(sum(losses)) / len(examples))


class _Trainer:
    """The network, its moving average, the optimiser and the data, on the device."""

    def __init__(
        self,
        examples: Examples,
        weights: Sequence[float] | np.ndarray,
        config: Config,
        recipe: Recipe,
        device: torch.device,
        dtype: torch.dtype,
        compiled: bool,
    ) -> None:
        self._recipe, self._blank, self._device = recipe, config.alphabet, device
        self._multi_label = config.multi_label
        self._ids = torch.from_numpy(examples.ids)
        if device.type != "cuda" or examples.ids.nbytes < _RESIDENT * torch.cuda.mem_get_info(device)[0]:
            self._ids = self._ids.to(device)
        self._labels = torch.from_numpy(examples.labels).to(device)
        self._batch = min(recipe.batch, len(examples))
        self._steps = -(-len(examples) // self._batch)
        self._weights = torch.tensor(weights, dtype=torch.float32, device=device)

        self._network = Network(config, recipe.dropout, dtype)
        self._network.initialise(recipe.seed)
        self._network.to(device)
        self._forward = torch.compile(self._network, dynamic=False) if compiled else self._network
        self.average = Network(config, 0.0, dtype).to(device).requires_grad_(False)
        self.average.load_state_dict(self._network.state_dict())
        self._optimiser = torch.optim.AdamW(
            self._network.parameters(), lr=recipe.rate, weight_decay=recipe.decay, betas=(0.9, recipe.beta2), fused=True
        )
        # Warming up takes a step at least, for a run of a step or two.
        steps = max(recipe.epochs * self._steps, 4) + 1
        self._schedule = torch.optim.lr_scheduler.OneCycleLR(
            self._optimiser, recipe.rate, total_steps=steps, cycle_momentum=False
        )

    @property
    def rate(self) -> float:
        """The learning rate of the next step."""
        return float(max(self._schedule.get_last_lr()))

    def epoch(self, number: int) -> tuple[float, float]:
        """One pass; the mean loss, and the share of examples answered right."""
        recipe = self._recipe
        self._network.train()
        torch.manual_seed(recipe.seed * 1_000_003 + number)
        order = torch.randperm(len(self._labels))
        order = torch.cat([order, order])[: self._steps * self._batch]  # the last batch is filled from the first
        total = torch.zeros(2, device=self._device)
        bar = tqdm(order.split(self._batch), f"epoch {number}", unit="step", leave=False, disable=None, mininterval=1)
        for step, index in enumerate(bar, (number - 1) * self._steps + 1):
            ids = self._ids[index.to(self._ids.device)].to(self._device)
            labels = self._labels[index.to(self._device)]
            logits, losses = self._losses(self._changed(ids), labels)
            self._optimiser.zero_grad()
            losses.mean().backward()
            self._optimiser.step()
            self._schedule.step()
            self._follow(step)
            total += torch.stack([losses.detach().mean(), self._right(logits, labels).float().mean()])
        loss, accuracy = (total / self._steps).tolist()
        return loss, accuracy

    def weights(self) -> dict[str, torch.Tensor]:
        """A copy of the average."""
        return {name: value.clone() for name, value in self.average.state_dict().items()}

    def state(self) -> dict[str, Any]:
        """All that the next epoch depends on."""
        return {
            "network": self._network.state_dict(),
            "average": self.average.state_dict(),
            "optimiser": self._optimiser.state_dict(),
            "schedule": self._schedule.state_dict(),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Take what `state` gave."""
        self._network.load_state_dict(state["network"])
        self.average.load_state_dict(state["average"])
        self._optimiser.load_state_dict(state["optimiser"])
        self._schedule.load_state_dict(state["schedule"])

    def _changed(self, ids: torch.Tensor) -> torch.Tensor:
        recipe = self._recipe
        ids = blank_words(ids, self._blank, recipe.blank_words)
        ids = replace_characters(ids, self._blank, recipe.replace_characters)
        return shift(ids, self._blank, -recipe.shift_left, recipe.shift_right)

    def _losses(self, ids: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The logits, and each example's loss."""
        if not self._recipe.mixup:
            logits = self._forward(ids)
            return logits, self._loss(logits, labels)
        partners = torch.randperm(len(ids), device=ids.device)
        alpha = torch.full((len(ids),), self._recipe.mixup, device=ids.device)
        share = torch.distributions.Beta(alpha, alpha, validate_args=False).sample()
        share = torch.maximum(share, 1 - share)  # the larger part's label counts for accuracy
        logits = self._forward(ids, ids[partners], share)
        return logits, share * self._loss(logits, labels) + (1 - share) * self._loss(logits, labels[partners])

    def _right(self, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Whether each example's answer is right; of several labels, all of them."""
        return ((logits >= 0) == labels.bool()).all(1) if self._multi_label else logits.argmax(1) == labels

    def _loss(self, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        if self._multi_label:
            wanted = torch.lerp(labels.float(), torch.full_like(logits, 0.5), self._recipe.smoothing)
            return F.binary_cross_entropy_with_logits(logits, wanted, reduction="none").mean(1)
        return F.cross_entropy(logits, labels, self._weights, label_smoothing=self._recipe.smoothing, reduction="none")

    @torch.no_grad()
    def _follow(self, step: int) -> None:
        """Move the average towards the weights; fast at first, so that the first ones are soon forgotten."""
        window = min(self._recipe.average * self._steps, step / 9)
        share = 1 / (1 + window)
        torch._foreach_lerp_(list(self.average.parameters()), list(self._network.parameters()), share)
