"""Whether logits are right: the error of each in units of what rounding makes of it, over inputs drawn at random."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from charcnn.config import Config
from charcnn.model import calibrate, network
from charcnn.model.rounding import Rounding

AT_ONCE = 8
"""Inputs that the reference takes at once: 60 MB of features."""


def expected(
    ids: np.ndarray, params: Mapping[str, np.ndarray], config: Config, rounding: Rounding
) -> tuple[np.ndarray, np.ndarray]:
    """Token ids (N, L) uint8 -> the float64 reference's logits, and the sigma of each, (N, classes)."""
    params, eps = calibrate.scaled(params, config, rounding)
    logits, sigma = np.empty((2, len(ids), config.classes))
    for start in range(0, len(ids), AT_ONCE):
        part = slice(start, start + AT_ONCE)
        logits[part], (sigma[part],) = network.forward_with_sigma(ids[part], params, config, [rounding], eps=eps)
    return logits, sigma


def in_sigmas(logits: np.ndarray, reference: np.ndarray, sigma: np.ndarray) -> np.ndarray:
    """The error of each input: the root of the mean square of its logits' (logit - reference) / sigma, (N,).

    Where sigma is 0, as where all weights are, a logit is right if it is the reference's to the last bit. What is not
    finite, of any of the three, makes the error infinite.
    """
    finite = np.isfinite(logits) & np.isfinite(reference) & np.isfinite(sigma)
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        errors = abs(logits.astype(np.float64) - reference)
        errors = np.where(errors == 0, 0.0, errors / sigma)
        return np.sqrt(np.square(np.where(finite, errors, np.inf)).mean(axis=1))


def drawn(total: int, count: int, borders: Sequence[Sequence[int]], seed: int) -> np.ndarray:
    """Which of `total` inputs to look at: `count` of them, sorted, drawn with the seed.

    Half of them at most are chosen: the first and the last, and those on both sides of some borders.

    Args:
        total: inputs.
        count: how many to draw; all where there are no more.
        borders: kinds of them: of each, the inputs that begin a batch, or a rank's share.
        seed: a non-negative int.
    """
    if total <= count:
        return np.arange(total)
    rng = np.random.default_rng(seed)
    chosen = {0, total - 1}
    kinds = [kind for kind in borders if len(kind)]
    for i in rng.permutation(len(kinds)):
        border = int(kinds[i][int(rng.integers(len(kinds[i])))])
        if 0 < border < total and len(chosen) + 2 <= count // 2:
            chosen |= {border - 1, border}
    while len(chosen) < count:
        chosen.add(int(rng.integers(total)))
    return np.array(sorted(chosen))
