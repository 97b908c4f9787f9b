"""A network to begin with where rows are few: its first layer detects the n-grams that tell the classes apart.

Gradients find no n-grams in a few hundred rows. A linear model does, in seconds. So the n-grams of the rows' ids are
chosen by it, each becomes a channel of conv1, and its weights become those of the layers behind.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from charcnn.config import POOL_SIZE, Config
from charcnn.text.encodings import BLANK_BYTE
from charcnn.training.data import Examples
from charcnn.training.plan import NGRAM_KERNELS
from charcnn.training.probabilities import targets

SHORTEST, LONGEST = 2, NGRAM_KERNELS[0]
"""Ids of an n-gram: at most as many as conv1 sees at once; eight bytes hold them."""

_LAST = 254
"""The largest id in a code, where a byte holds an id plus 1: of bytes the blank, 255, as no text has a byte 254."""

MOST_ROWS = 10_000
"""Rows that n-grams are chosen from; of more, so many are drawn."""

LEAST = 2
"""Rows that have an n-gram, at least. Where there are fewer such n-grams than channels, one row is enough: of what it
alone has, something returns in other texts."""

ALL, FOUR, LONG = (2, 3, 4, 5), (4,), 120
"""Sizes of n-grams, and from how many characters, less spaces, a text is long. Longer n-grams hold shorter ones, and
channels are few: of long texts those of one size say most, but in bytes, of which a character may have several."""

INVERSE_PENALTIES = 10.0, 3.0
"""Of logistic regression: the inverse of what squared weights cost; the first is usual."""

STEPS, HISTORY, FINEST = 60, 8, 1e-7
"""Of L-BFGS: steps, at most; those that tell the curvature; and what is too little: a gain, as a share of the value, or
a share of a step."""

Way = tuple[bool, tuple[int, ...]]
"""Whether n-grams that go on from one word into the next are left out; and the sizes of those that are taken."""

Choice = tuple[Way, float]
"""What cross-validation chooses, and which of INVERSE_PENALTIES."""

FOLDS, JUDGED = 3, 1_500
"""Parts of cross-validation, and the rows, at most, that it takes."""

WINDOW = (2 / 3, 1 / 3)
"""Weights of the pooled positions whose evidence conv2 adds up: windows overlap, and the middle of the largest and the
smallest of three is near their mean. A text's first position is in one window alone, and so its weight is the largest:
with three equal ones short texts lost a point. conv6 has the same in long texts, and in short ones one position."""

BEGINNING = 1.4
"""What fc1 multiplies its first position by in long texts, for what both windows leave out of a text's beginning."""

SHOWN = 64
"""Rows, at most, that the largest evidence is measured on."""

HEADROOM = 1.5
"""How much more evidence a text may have at one place than any that was learned from, before ReLU cuts it off."""


@dataclass(frozen=True)
class _Table:
    """Which row has which n-gram: a sparse matrix.

    Values are square roots of counts times rarity, each row of norm 1.
    """

    codes: np.ndarray
    """uint64 (V,): an n-gram's ids plus 1, a byte each, the last one lowest"""
    scale: np.ndarray
    """float32 (V,): inverse document frequencies"""
    row: np.ndarray
    column: np.ndarray
    value: np.ndarray
    """(M,) each"""

    def features(self, chosen: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """The values of the n-grams `chosen`, of the rows: float32 (R, K)."""
        place, at = np.full(len(self.codes), -1), np.full(int(self.row.max(initial=-1)) + 1, -1)
        place[chosen], at[rows] = np.arange(len(chosen)), np.arange(len(rows))
        column, row = place[self.column], at[self.row]
        x, kept = np.zeros((len(rows), len(chosen)), np.float32), (column >= 0) & (row >= 0)
        x[row[kept], column[kept]] = self.value[kept]
        return x


def _codes(ids: np.ndarray) -> Iterator[np.ndarray]:
    """What stands at each place of rows (N, L), as codes of 1, 2, up to LONGEST ids: uint64 (N, L - ids + 1) each."""
    wide, code = np.minimum(ids, _LAST).astype(np.uint64) + np.uint64(1), np.zeros(ids.shape, np.uint64)
    for size in range(1, LONGEST + 1):
        code = code[:, : ids.shape[1] - size + 1] * np.uint64(256) + wide[:, size - 1 :]
        yield code


def _table(ids: np.ndarray, blank: int, way: Way, most: int) -> _Table:
    """The n-grams of rows, less those that are blank: a text's end is one blank.

    Args:
        ids: of the rows (N, L).
        blank: the id of a blank.
        way: which.
        most: how many will be chosen, at most.
    """
    (within, sizes), (count, length) = way, ids.shape
    position = np.arange(length)
    space = (ids == blank) | ((blank == BLANK_BYTE) & (ids == ord(" ")))
    end = ((ids != blank) * (position + 1)).max(axis=1, initial=0)[:, None]
    seen, inner = np.zeros((count, length), bool), np.zeros((count, length), bool)
    codes, columns, rows, counts = [np.zeros(0, np.uint64)], [], [], []
    for size, code in enumerate(_codes(ids), 1):
        starts = length - size + 1
        seen = seen[:, :starts] | (ids[:, size - 1 :] != blank)
        inner = inner[:, :starts] | (space[:, size - 2 : -1] if size > 2 else False)
        if size not in sizes:
            continue
        row, column = np.nonzero(seen & (position[:starts] + size <= end + 1) & ~(inner & within))
        found, of = np.unique(code[row, column], return_inverse=True)
        pair, times = np.unique(of.astype(np.int64) * count + row, return_counts=True)
        columns.append(pair // count + sum(map(len, codes)))
        rows.append(pair % count)
        counts.append(times)
        codes.append(found)
    row, column, times = (np.concatenate(part) for part in (rows, columns, counts))
    common = np.bincount(column) >= LEAST
    common |= common.sum() < most
    place, taken = np.cumsum(common) - 1, common[column]
    row, column, times = row[taken], place[column[taken]], times[taken]
    known = np.concatenate(codes)[common]
    scale = np.log((1 + count) / (1 + np.bincount(column, minlength=len(known)))) + 1
    value = np.sqrt(times) * scale[column]
    value /= np.sqrt(np.bincount(row, value * value, count))[row]
    return _Table(known, scale.astype(np.float32), row, column, value.astype(np.float32))


def _select(table: _Table, wanted: np.ndarray, weights: np.ndarray, most: int) -> np.ndarray:
    """The n-grams, at most so many, on which the classes differ most; rows of weight 0 do not count."""
    values, classes = len(table.codes), wanted.shape[1]
    size = np.sqrt(np.bincount(table.column, table.value**2 * (weights[table.row] > 0), values))
    beyond = (wanted - 1 / classes) * weights[:, None]
    size[size == 0] = np.inf
    sums = [np.bincount(table.column, table.value * beyond[table.row, label], values) for label in range(classes)]
    # Of each class as many: else n-grams of one that is easily told, as of another script, would take all places.
    ranks = [np.argsort(np.argsort(-np.square(pull) / size, kind="stable"), kind="stable") for pull in sums]
    chosen = np.argsort(np.min(ranks, axis=0), kind="stable")[:most]
    return chosen[np.isfinite(size[chosen])]


def _prior(wanted: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """What is said for each class before a text is read: the logarithms of the classes' shares, less their mean."""
    shares = np.log(np.maximum(weights @ wanted, 1e-9))
    return (shares - shares.mean()).astype(np.float32)


def _regress(x: np.ndarray, wanted: np.ndarray, weights: np.ndarray, penalty: float) -> np.ndarray:
    """Logistic regression (K, C). Its biases are the prior, and not learned: no long text has another than a short one.

    Args:
        x: features (R, K).
        wanted, weights: of the rows.
        penalty: one of INVERSE_PENALTIES.
    """
    prior, own, answers = _prior(wanted, weights), weights.astype("f4")[:, None], wanted.astype("f4")

    def loss(found: np.ndarray) -> tuple[float, np.ndarray]:
        logits = x @ found + prior
        logits -= logits.max(axis=1, keepdims=True)
        shares = np.exp(logits)
        total = shares.sum(axis=1, keepdims=True)
        value = float((own * answers * (np.log(total) - logits)).sum(dtype=np.float64))
        slope = x.T @ (own * (answers.sum(axis=1, keepdims=True) * shares / total - answers)) + found / penalty
        return value + float((found**2).sum(dtype=np.float64)) / (2 * penalty), slope

    return _least(loss, np.zeros((x.shape[1], len(prior)), np.float32))


def _least(loss: Callable[[np.ndarray], tuple[float, np.ndarray]], found: np.ndarray) -> np.ndarray:
    """Where a strictly convex function is least, by L-BFGS (Nocedal 1980), which halves steps that gain too little.

    Args:
        loss: gives the function's value and its gradient.
        found: where to begin.
    """
    (value, slope), past = loss(found), deque[tuple[np.ndarray, np.ndarray]](maxlen=HISTORY)
    for _ in range(STEPS):
        way, by = slope.copy(), []
        for moved, bent in reversed(past):
            by.append(np.vdot(moved, way) / np.vdot(moved, bent))
            way -= by[-1] * bent
        if past:
            way *= np.vdot(*past[-1]) / np.vdot(past[-1][1], past[-1][1])
        for moved, bent in past:
            way += (by.pop() - np.vdot(bent, way) / np.vdot(moved, bent)) * moved
        size, gain = 1.0 if past else min(1.0, 1 / max(float(np.abs(slope).sum()), 1e-9)), float(np.vdot(way, slope))
        if gain <= FINEST * abs(value):
            break
        while size > FINEST:
            other = found - np.float32(size) * way
            new, new_slope = loss(other)
            if new <= value - 1e-4 * size * gain:
                break
            size /= 2
        else:
            break  # rounding hides what could be gained
        if np.vdot(other - found, new_slope - slope) > 0:
            past.append((other - found, new_slope - slope))
        found, value, slope = other, new, new_slope
    return found


def _judge(tables: Mapping[Way, _Table], wanted: np.ndarray, weights: np.ndarray, most: int, seed: int) -> Choice:
    """The way that is right for most rows not learned from, by cross-validation. The first table and the first of
    INVERSE_PENALTIES stay unless another way is better by more than a standard error."""
    rng, classes, labels = np.random.default_rng(seed), wanted.shape[1], wanted.argmax(1)
    fold = np.full(len(labels), -1)
    for label in range(classes):
        own = rng.permutation(np.flatnonzero(labels == label))
        own = own[: max(FOLDS, round(JUDGED * len(own) / len(labels)))]
        fold[own] = np.arange(len(own)) % FOLDS
    right = dict.fromkeys(((way, penalty) for penalty in INVERSE_PENALTIES for way in tables), 0.0)
    for part in range(FOLDS):
        learned, held = np.flatnonzero((fold >= 0) & (fold != part)), np.flatnonzero(fold == part)
        if not len(held) or len(np.unique(labels[learned])) < classes:
            continue
        counted = np.zeros(len(labels))
        counted[learned] = weights[learned]
        for way, table in tables.items():
            chosen = _select(table, wanted, counted, most)
            x, other = table.features(chosen, learned), table.features(chosen, held)
            for penalty in INVERSE_PENALTIES:
                found = _regress(x, wanted[learned], weights[learned], penalty)
                logits = other @ found + _prior(wanted[learned], weights[learned])
                right[way, penalty] += float(weights[held] @ (logits.argmax(1) == labels[held]))
    first, best = next(iter(right)), max(right, key=right.__getitem__)
    total = max(float(weights[fold >= 0].sum()), 1e-9)
    usual = min(right[first] / total, 1.0)
    sure = (right[best] - right[first]) / total > np.sqrt(usual * (1 - usual) / max((fold >= 0).sum(), 1))
    return best if sure else first


def weights(
    examples: Examples, config: Config, *, balance: bool, teaching: float, seed: int, choice: Choice | None = None
) -> tuple[dict[str, np.ndarray], float, Choice]:
    """Weights of a network that begins with n-grams.

    conv1 has a channel for each n-gram, which is 1 where it stands. conv2 adds up what they say for each class in a
    window, and the same with the other sign. A bias keeps both above 0, so that pooling gives the largest and the
    smallest of three windows. conv3 takes the middle of these. conv6 does the same once more, and fc1 adds up all
    positions. So the network is near the linear model, and differs by what stands at borders of windows. A linear model
    of damped counts is learned; the network counts what stands there twice as two.

    Args:
        examples: rows to learn from, of one label each.
        config: as a plan with n-grams has it: as many n-grams as conv1 has channels are looked for.
        balance: whether a rare class counts as much as a frequent one.
        teaching: weight of what the examples were taught, where they were; their labels have the rest.
        seed: of the draw where rows are too many, and of cross-validation.
        choice: as an earlier call gave it; None for cross-validation.

    Returns:
        The arrays; the linear model's spread of logits, to which what fc3 gives should be scaled; and the choice.

    Raises:
        ValueError: rows are shorter than an n-gram.
    """
    if len(examples) > MOST_ROWS:
        examples = examples.part(np.random.default_rng(seed).permutation(len(examples))[:MOST_ROWS])
    labels, classes, blank = examples.labels, config.classes, config.alphabet
    wanted = targets(labels, classes, examples.taught, teaching)
    each = np.ones(len(examples)) if examples.weights is None else examples.weights.astype(float)
    if balance:
        each = each * (len(examples) / (classes * np.maximum(np.bincount(labels, minlength=classes), 1)))[labels]
    most, long = config.block_channels[0], (examples.ids != blank).sum(axis=1).mean() > LONG
    sizes = (FOUR, ALL) if long and blank != BLANK_BYTE else (ALL, FOUR)
    ways: list[Way] = [(True, sizes[0]), (False, sizes[0]), (True, sizes[1])] if choice is None else [choice[0]]
    tables = {way: table for way in ways if len((table := _table(examples.ids, blank, way, most)).codes)}
    if tables and choice is None:
        choice = _judge(tables, wanted, each, most, seed)
    chosen = _select(tables[choice[0]], wanted, each, most) if tables and choice else np.zeros(0, int)
    if choice is None or not len(chosen):
        raise ValueError(
            f"no row has {SHORTEST} characters in a row that tell the classes apart: nothing to learn from"
        )
    table = tables[choice[0]]
    x = table.features(chosen, np.arange(len(examples)))
    learned = _regress(x, wanted, each, choice[1])
    spread = float(np.median((x @ learned).std(axis=1, ddof=1)))
    arrays = {name: np.zeros(shape, np.float32) for name, shape in config.parameter_shapes.items()}
    _detect(arrays, table.codes[chosen].tolist(), blank)
    said = learned * table.scale[chosen][:, None]
    said = (said - said.mean(axis=1, keepdims=True)).T
    said /= max(float(np.abs(said).max()), 1e-9)  # fp16 holds it, and sums of it
    both, own = np.arange(2 * classes), np.arange(classes)  # each class, then the same with the other sign
    taps = np.array(WINDOW, np.float32)
    arrays["conv2.weight"][both, : len(chosen), : len(taps)] = np.concatenate([said, -said])[..., None] * taps
    bias = HEADROOM * _largest(examples.ids[:SHOWN], table.codes[chosen], said)
    sign = np.kron([[1, -1], [-1, 1]], np.eye(classes)) / 2
    for name in ("conv2", "conv3"):
        arrays[f"{name}.bias"][both] = bias
    arrays["conv3.weight"][: 2 * classes, : 2 * classes, 0] = sign
    for name in ("conv4", "conv5"):
        arrays[f"{name}.weight"][both, both, 0] = 1
    arrays["conv6.weight"][both, both, : len(taps)] = taps if long else [1, 0]
    fc1 = arrays["fc1.weight"].reshape(config.fc_units[0], config.block_channels[-1], -1)
    fc1[: 2 * classes, : 2 * classes] = sign[..., None]
    if long:
        fc1[..., 0] *= BEGINNING
    arrays["fc2.weight"][both, both] = 1
    arrays["fc3.weight"][own, own], arrays["fc3.weight"][own, classes + own] = 1, -1
    arrays["fc3.bias"][:] = _prior(wanted, each)
    return arrays, spread, choice


def _largest(ids: np.ndarray, codes: np.ndarray, said: np.ndarray) -> float:
    """The most that conv2 gives for any of some rows, before it has a bias.

    Args:
        ids: of the rows.
        codes: the n-grams (K,).
        said: float32 (C, K): what each says for each class.
    """
    places, order = ids.shape[1] - LONGEST + 1, np.argsort(codes)
    windows, found = places // POOL_SIZE, [np.zeros(0, np.int64)]
    for code in _codes(ids):
        at = np.minimum(np.searchsorted(codes, code[:, :places], sorter=order), len(codes) - 1)
        row, place = np.nonzero((codes[order[at]] == code[:, :places]) & (np.arange(places) < windows * POOL_SIZE))
        found.append((row * windows + place // POOL_SIZE) * len(codes) + order[at[row, place]])
    window, gram = np.divmod(np.unique(np.concatenate(found)), len(codes))  # that it stands there twice says no more
    evidence = np.zeros((len(ids) * windows, len(said)), np.float32)
    np.add.at(evidence, window, said.T[gram])
    views = np.lib.stride_tricks.sliding_window_view(evidence.reshape(len(ids), windows, -1), len(WINDOW), axis=1)
    sums = views @ np.array(WINDOW, np.float32)
    last = (windows - NGRAM_KERNELS[1] + 1) // POOL_SIZE * POOL_SIZE
    return float(np.abs(sums[:, :last]).max(initial=0))


def _detect(arrays: dict[str, np.ndarray], codes: list[int], blank: int) -> None:
    """Make conv1's channels 1 where the n-grams stand, and 0 elsewhere."""
    conv1, bias = arrays["conv1.weight"], arrays["conv1.bias"]
    for channel, code in enumerate(codes):
        ids = [byte - 1 for byte in code.to_bytes(8, "big") if byte]
        blanks = [id == min(blank, _LAST) for id in ids]
        bias[channel] = 1 - (len(ids) - sum(blanks))
        for tap, id in enumerate(ids):
            if blanks[tap]:
                conv1[channel, :, tap] = -1  # any character there is one too many
            else:
                conv1[channel, id, tap] = 1
