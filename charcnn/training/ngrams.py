"""A network to begin with where rows are few: its first layer detects the n-grams that tell the classes apart.

Gradients find no n-grams in a few hundred rows. A linear model does, in seconds. So the n-grams of the rows' ids are
chosen by it, each becomes a channel of conv1, and its weights become those of the layers behind.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F

from charcnn.config import Config
from charcnn.training.data import Examples
from charcnn.training.plan import NGRAM_KERNELS
from charcnn.training.probabilities import targets

LONGEST = NGRAM_KERNELS[0]
"""Ids of an n-gram, as many as conv1 sees at once; eight bytes hold them."""

_LAST = 254
"""The largest id in a code, where a byte holds an id plus 1: of bytes the blank, 255, as no text has a byte 254."""

MOST_ROWS = 10_000
"""Rows that n-grams are chosen from; of more, so many are drawn."""

LEAST = 2
"""Rows that have an n-gram, at least."""

INVERSE_PENALTY, STEPS = 3.0, 60
"""Of logistic regression: the inverse of what squared weights cost, twice; and steps of L-BFGS, at most."""


@dataclass(frozen=True)
class _Table:
    """Which row has which n-gram: a sparse matrix, its values TF-IDF, each row of norm 1."""

    codes: np.ndarray
    """uint64 (V,): an n-gram's ids plus 1, a byte each, the last one lowest"""
    rarity: np.ndarray
    """float32 (V,): inverse document frequencies"""
    row: np.ndarray
    column: np.ndarray
    value: np.ndarray
    """(M,) each"""


def _table(ids: np.ndarray, blank: int) -> _Table:
    """The n-grams that two rows have at least, less those that are blank: a text's end is one blank."""
    count, length = ids.shape
    position = np.arange(length)
    end = ((ids != blank) * (position + 1)).max(axis=1, initial=0)[:, None]
    wide, code = np.minimum(ids, _LAST).astype(np.uint64) + np.uint64(1), np.zeros((count, length), np.uint64)
    seen = np.zeros((count, length), bool)
    pairs = []
    for size in range(1, LONGEST + 1):
        starts = length - size + 1
        code = code[:, :starts] * np.uint64(256) + wide[:, size - 1 :]
        seen = seen[:, :starts] | (ids[:, size - 1 :] != blank)
        row, column = np.nonzero(seen & (position[:starts] + size <= end + (size > 1)))
        found, of = np.unique(code[row, column], return_inverse=True)
        pair, times = np.unique(of.astype(np.int64) * count + row, return_counts=True)
        common = np.bincount(pair // count, minlength=len(found)) >= LEAST
        kept = common[pair // count]
        place = np.cumsum(common) - 1
        pairs.append((found[common], place[pair[kept] // count], pair[kept] % count, times[kept]))
    firsts = np.cumsum([0, *(len(found) for found, *_ in pairs)])
    column = np.concatenate([own + first for (_, own, *_), first in zip(pairs, firsts, strict=False)])
    row = np.concatenate([own for _, _, own, _ in pairs])
    rarity = np.log((1 + count) / (1 + np.bincount(column, minlength=firsts[-1]))) + 1
    value = (1 + np.log(np.concatenate([times for *_, times in pairs]))) * rarity[column]
    value /= np.sqrt(np.bincount(row, value * value, count))[row]
    codes = np.concatenate([found for found, *_ in pairs])
    return _Table(codes, rarity.astype(np.float32), row, column, value.astype(np.float32))


@dataclass(frozen=True)
class _Chosen:
    codes: list[int]
    weights: np.ndarray
    """float32 (K, C), for an n-gram that occurs"""
    spread: float
    """A row's logits' standard deviation, of the linear model: their median."""


def _choose(examples: Examples, wanted: np.ndarray, weights: np.ndarray, blank: int, most: int) -> _Chosen:
    """The n-grams, at most so many, on which the classes differ most, and what logistic regression makes of each."""
    table, (count, classes) = _table(examples.ids, blank), wanted.shape
    values = len(table.codes)
    size = np.sqrt(np.bincount(table.column, table.value**2, values))
    beyond = (wanted - 1 / classes) * weights[:, None]
    sums = [np.bincount(table.column, table.value * beyond[table.row, label], values) for label in range(classes)]
    # Of each class as many: else n-grams of one that is easily told, as of another script, would take all places.
    ranks = [np.argsort(np.argsort(-np.square(pull) / size, kind="stable"), kind="stable") for pull in sums]
    chosen = np.argsort(np.min(ranks, axis=0), kind="stable")[:most]
    place = np.full(values, -1)
    place[chosen] = np.arange(len(chosen))
    at = place[table.column]
    x = np.zeros((count, len(chosen)), np.float32)
    x[table.row[at >= 0], at[at >= 0]] = table.value[at >= 0]
    features, labels, own = torch.from_numpy(x), torch.from_numpy(wanted), torch.from_numpy(weights).float()
    found = torch.zeros(len(chosen) + 1, classes, requires_grad=True)  # the last row are biases
    optimiser = torch.optim.LBFGS([found], max_iter=STEPS, history_size=8, line_search_fn="strong_wolfe")

    def loss() -> torch.Tensor:
        optimiser.zero_grad()
        losses = F.cross_entropy(torch.addmm(found[-1], features, found[:-1]), labels, reduction="none")
        value = (losses * own).sum() + (found[:-1] ** 2).sum() / (2 * INVERSE_PENALTY)
        value.backward()
        return value

    optimiser.step(loss)
    with torch.no_grad():
        spread = float((features @ found[:-1]).std(dim=1).median())
        learned = found[:-1].numpy() * table.rarity[chosen][:, None]
    return _Chosen(table.codes[chosen].tolist(), learned, spread)


def weights(
    examples: Examples, config: Config, *, balance: bool, teaching: float, seed: int
) -> tuple[dict[str, np.ndarray], float]:
    """Weights of a network that begins with n-grams.

    conv1 has a channel for each n-gram, which is 1 where it stands. What it says for each class, and against it, conv2
    adds up within a pooled position; conv6 and fc1 over positions; and fc3 takes one from the other. Pooling takes the
    largest where positions are next to each other, so that the network is near the linear model, and not equal to it.

    Args:
        examples: rows to learn from, of one label each.
        config: as a plan with n-grams has it: as many n-grams as conv1 has channels are looked for.
        balance: whether a rare class counts as much as a frequent one.
        teaching: weight of what the examples were taught, where they were; their labels have the rest.
        seed: of the draw where rows are too many.

    Returns:
        The arrays, and the linear model's spread of logits: what fc3 gives should be scaled to it.

    Raises:
        ValueError: no two rows have an n-gram in common.
    """
    if len(examples) > MOST_ROWS:
        examples = examples.part(np.random.default_rng(seed).permutation(len(examples))[:MOST_ROWS])
    counts, classes, blank = np.bincount(examples.labels, minlength=config.classes), config.classes, config.alphabet
    each = np.ones(len(examples)) if examples.weights is None else examples.weights.astype(float)
    if balance:
        each = each * (len(examples) / (classes * np.maximum(counts, 1)))[examples.labels]
    wanted = targets(examples.labels, classes, examples.taught, teaching)
    found = _choose(examples, wanted, each, blank, config.block_channels[0])
    if not found.codes:
        raise ValueError("no two rows have a character in common: nothing to learn from")
    arrays = {name: np.zeros(shape, np.float32) for name, shape in config.parameter_shapes.items()}
    conv1, bias = arrays["conv1.weight"], arrays["conv1.bias"]
    for channel, code in enumerate(found.codes):
        ids = [byte - 1 for byte in code.to_bytes(8, "big") if byte]
        blanks = [id == min(blank, _LAST) for id in ids]
        bias[channel] = 1 - (len(ids) - sum(blanks))
        for tap, id in enumerate(ids):
            if blanks[tap]:
                conv1[channel, :, tap] = -1  # any character there is one too many
            else:
                conv1[channel, id, tap] = 1
    said = found.weights - found.weights.mean(axis=1, keepdims=True)
    evidence = np.arange(2 * classes)  # for each class, then against each
    arrays["conv2.weight"][evidence, : len(said), 0] = np.maximum(np.concatenate([said, -said], axis=1), 0).T
    for name in ("conv3", "conv4", "conv5"):
        arrays[f"{name}.weight"][evidence, evidence, 0] = 1
    arrays["conv6.weight"][evidence, evidence] = 1
    arrays["fc1.weight"].reshape(config.fc_units[0], config.block_channels[-1], -1)[evidence, evidence] = 1
    arrays["fc2.weight"][evidence, evidence] = 1
    arrays["fc3.weight"][:, : 2 * classes] = np.concatenate([np.eye(classes), -np.eye(classes)], axis=1)
    shares = np.log(np.maximum(np.bincount(examples.labels, each, classes), 1e-9))
    arrays["fc3.bias"][:] = shares - shares.mean()  # where a text says nothing, the frequent class is likelier
    return arrays, found.spread
