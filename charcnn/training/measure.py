"""How good a network is: what it took for what, and figures from that."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from charcnn.aliases import Record
from charcnn.ops.reference import softmax


@dataclass(frozen=True)
class Measured:
    """A network's answers to labelled examples."""

    confusion: np.ndarray
    """int64 (classes, classes): examples of the row's class that were taken for the column's"""
    loss: float
    """mean cross-entropy, with no smoothing and no weights"""
    calibration_error: float = math.nan
    """as the function of that name has it; NaN where it was not taken"""

    @property
    def accuracy(self) -> float:
        """Share of right answers."""
        return float(np.trace(self.confusion) / self.confusion.sum())

    @property
    def recalls(self) -> np.ndarray:
        """Share of right answers of each class; NaN of a class with no example."""
        with np.errstate(invalid="ignore"):
            return np.diagonal(self.confusion) / self.confusion.sum(1)

    @property
    def precisions(self) -> np.ndarray:
        """Of the answers that name a class, the share that is right; NaN of a class that none names."""
        with np.errstate(invalid="ignore"):
            return np.diagonal(self.confusion) / self.confusion.sum(0)

    @property
    def balanced(self) -> float:
        """Mean recall over the classes that have examples."""
        return float(np.nanmean(self.recalls))

    @property
    def learned(self) -> bool:
        """Whether more answers are right than by chance, where each class is named as often: by two sigmas."""
        has, given = self.confusion.sum(1), self.confusion.sum(0)
        return _beyond_chance(self.confusion.trace(), has, given, int(has.sum()), exclusive=True)

    score_name = "balanced_accuracy"

    @property
    def score(self) -> float:
        """What decides which epoch is kept."""
        return self.balanced

    @property
    def interval(self) -> tuple[float, float]:
        """The accuracy's, as `interval` has it."""
        return interval(int(np.trace(self.confusion)), int(self.confusion.sum()))

    def figures(self) -> Record:
        """What a model file keeps of it, beside accuracy and interval."""
        found = {"loss": self.loss, "calibration_error": self.calibration_error}
        return {"confusion": self.confusion.tolist(), **found}

    def table(self, classes: tuple[str, ...]) -> str:
        """The figures of each class, as text."""
        width = max(len("class"), *map(len, classes))
        lines = [f"{'class':{width}}  examples  recall  precision  taken for (most often wrong)"]
        for index, name in enumerate(classes):
            wrong = self.confusion[index].copy()
            wrong[index] = 0
            mistaken = f"{classes[int(wrong.argmax())]} ({wrong.max()})" if wrong.any() else "-"
            lines.append(
                f"{name:{width}}  {self.confusion[index].sum():8,}  {_percent(self.recalls[index])}  "
                f"{_percent(self.precisions[index]):>9}  {mistaken}"
            )
        return "\n".join(lines)


@dataclass(frozen=True)
class MultiLabelMeasured:
    """A network's answers to examples that have any number of labels."""

    counts: np.ndarray
    """int64 (3, classes): examples that have the class; that were given it; that have it and were given it"""
    right: int
    """Examples whose labels were all given, and no other."""
    rows: int
    """Examples."""
    loss: float = 0.0
    """mean binary cross-entropy of a class, with no smoothing"""

    @property
    def learned(self) -> bool:
        """Whether anything of the labels given was learned: see `Measured.learned`."""
        has, given, both = self.counts
        return _beyond_chance(both.sum(), has, given, self.rows, exclusive=False)

    score_name = "macro_f1"

    @property
    def accuracy(self) -> float:
        """Subset accuracy: share of examples with all labels right."""
        return self.right / self.rows

    @property
    def interval(self) -> tuple[float, float]:
        """The subset accuracy's, as `interval` has it."""
        return interval(self.right, self.rows)

    @property
    def f1(self) -> np.ndarray:
        """Harmonic mean of each class's precision and recall; NaN of one that no example has or was given."""
        has, given, both = self.counts
        with np.errstate(invalid="ignore"):
            return 2 * both / (has + given)

    @property
    def macro_f1(self) -> float:
        """Mean F1 of the classes that have one; 0 where none has."""
        known = self.f1[~np.isnan(self.f1)]
        return float(known.mean()) if known.size else 0.0

    @property
    def micro_f1(self) -> float:
        """F1 of all labels together; 0 where there are none."""
        has, given, both = self.counts.sum(axis=1).tolist()
        return 2 * both / (has + given) if has + given else 0.0

    @property
    def score(self) -> float:
        """What decides which epoch is kept."""
        return self.macro_f1

    def figures(self) -> Record:
        """What a model file keeps of it, beside accuracy and interval."""
        found = {"micro_f1": self.micro_f1, "macro_f1": self.macro_f1, "loss": self.loss}
        return {**found, "counts": self.counts.tolist()}

    def table(self, classes: tuple[str, ...]) -> str:
        """The figures of each class, as text."""
        width, (has, given, both) = max(len("class"), *map(len, classes)), self.counts
        lines = [
            f"micro F1 {self.micro_f1:.4f}, macro F1 {self.macro_f1:.4f}",
            f"{'class':{width}}  examples  recall  precision      F1",
        ]
        with np.errstate(invalid="ignore"):
            shares = zip(has, both / has, both / given, self.f1, strict=True)
        for name, (count, recall, precision, f1) in zip(classes, shares, strict=True):
            lines.append(f"{name:{width}}  {count:8,}  {_percent(recall)}  {_percent(precision):>9}  {_percent(f1)}")
        return "\n".join(lines)


def finite(logits: np.ndarray) -> np.ndarray:
    """The logits; ValueError where one is not finite."""
    if not np.isfinite(logits).all():
        raise ValueError("the network's logits are not finite; try a lower rate, or --store float32")
    return logits


def measured(logits: np.ndarray, labels: np.ndarray, *, multi_label: bool) -> Measured | MultiLabelMeasured:
    """What a network's answers come to.

    Args:
        logits: float32 (N, classes).
        labels: int64 (N,); with `multi_label` uint8 (N, classes), 1 where an example has the class.
        multi_label: whether an example may have several classes, or none.

    Raises:
        ValueError: a logit is not finite.
    """
    exact, classes = finite(logits).astype(np.float64), logits.shape[1]
    if multi_label:
        has, given = labels.astype(bool), logits >= 0
        right = int((has == given).all(1).sum())
        # Binary cross-entropy, with no exponential of a positive number.
        losses = np.maximum(exact, 0) - exact * has + np.log1p(np.exp(-np.abs(exact)))
        return MultiLabelMeasured(counts_of(has, given), right, len(labels), float(losses.mean()))
    pairs = np.bincount(labels * classes + logits.argmax(1), minlength=classes * classes)
    below = exact - exact.max(1, keepdims=True)
    losses = np.log(np.exp(below).sum(1)) - below[np.arange(len(labels)), labels]
    return Measured(pairs.reshape(classes, classes), float(losses.mean()), calibration_error(logits, labels))


def counts_of(has: np.ndarray, given: np.ndarray) -> np.ndarray:
    """The counts of `MultiLabelMeasured`, from what each example has and was given, bool (N, classes) both."""
    return np.stack([has.sum(axis=0), given.sum(axis=0), (has & given).sum(axis=0)])


def interval(right: int, examples: int) -> tuple[float, float]:
    """The 95 % confidence interval of a share, from so many right answers (Wilson 1927)."""
    share, n, z = right / examples, examples, 1.959964
    centre = (share + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n))
    return centre - half, centre + half


def _beyond_chance(hits: int, has: np.ndarray, given: np.ndarray, rows: int, *, exclusive: bool) -> bool:
    """Whether there are more hits than of answers drawn anew, each as often: two sigmas more, at least.

    Args:
        hits: right answers.
        has, given: (classes,): rows of each class, and answers that name it.
        rows: all of them.
        exclusive: whether a row has one class.
    """
    products = has.astype(float) * given
    spread = (products * (rows - has) * (rows - given)).sum()
    if exclusive:
        spread += products.sum() ** 2 - (products**2).sum()
    return bool(hits > products.sum() / rows + 2 * math.sqrt(spread / max(rows - 1, 1)) / rows)


BINS = 15
"""Of probabilities, in `calibration_error`: as Guo et al. (2017) have it."""


def calibration_error(logits: np.ndarray, labels: np.ndarray) -> float:
    """How far the probability of the answer is from the share of right answers: a mean over 15 bins of probability.

    The expected calibration error of Guo et al. (2017, arXiv:1706.04599): each bin weighs what it holds.
    """
    probabilities = softmax(np.asarray(logits, np.float64))
    sure, right = probabilities.max(1), probabilities.argmax(1) == labels
    bins = np.minimum((sure * BINS).astype(int), BINS - 1)
    apart = np.bincount(bins, right, BINS) - np.bincount(bins, sure, BINS)
    return float(np.abs(apart).sum() / len(labels))


LOWEST, HIGHEST = 0.05, 20.0
"""Temperatures, less these bounds themselves."""


PRIOR = math.log(2)
"""Standard deviation of a temperature's logarithm, before any row is seen: mostly between 1/2 and 2."""

FEW = 20
"""Rows from which on they can tell a temperature."""


def fit_temperature(logits: np.ndarray, labels: np.ndarray) -> float | None:
    """By what the logits are to be divided so that the labels are likeliest (Guo et al. 2017), with a prior near 1.

    The prior keeps a few rows, all of them right, from making every answer a certain one; many outweigh it. None where
    rows are fewer than FEW, or where the likeliest temperature lies at a bound: the logits say nothing of the labels.
    """
    if len(labels) < FEW:
        return None
    exact, at = np.asarray(logits, np.float64), np.arange(len(labels))

    def loss(logarithm: float) -> float:
        scaled = exact * math.exp(-logarithm)
        largest = scaled.max(1)
        own = np.log(np.exp(scaled - largest[:, None]).sum(1)) + largest - scaled[at, labels]
        return float(own.sum() + (logarithm / PRIOR) ** 2 / 2)

    low, high = math.log(LOWEST), math.log(HIGHEST)
    while high - low > 1e-4:  # the least of a grid, then of a finer one around it
        grid = np.linspace(low, high, 41)
        best = int(np.argmin([loss(value) for value in grid]))
        low, high = grid[max(best - 1, 0)], grid[min(best + 1, 40)]
    temperature = math.exp((low + high) / 2)
    return temperature if 1.01 * LOWEST < temperature < HIGHEST / 1.01 else None


def _percent(share: float) -> str:
    return "     -" if np.isnan(share) else f"{100 * share:5.1f}%"
