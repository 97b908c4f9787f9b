"""Scales of FP8 for an encoder, by texts: what 1 stands for in the features that each product reads.

`charcnn.model.calibrate` says what a scale decides in e4m3. Normalised features are divided by a scale, a power of two.
So are the weights of values, and with them attention's results. GELU's results have scale 1: GELU is not linear, and
what it gives for small sums matters little compared with what it gives for others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from charcnn.layers import SelfAttention
from charcnn.model.calibrate import HEADROOM, power_of_two
from charcnn.model.sequences import Exact, features, lengths
from charcnn.networks.encoder import EncoderNetwork, EncoderStep
from charcnn.networks.encoder.tokens import TextTokenizer
from charcnn.ops.common.precision import LARGEST_E4M3
from charcnn.text.texts import sample

TEXTS = 16
"""Texts of the sample that count: a second's work."""

DRAWN = 4, 64
"""Random texts, and tokens of one at most, where there is no tokenizer."""


class _Peaks(Exact):
    """Finds the largest value of the features that each product of weights reads."""

    def __init__(self) -> None:
        self.found: list[float] = []

    def product(self, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        if y.ndim == 2:  # a weight: heads are multiplied by heads
            self.found.append(float(abs(x).max()))
        return super().product(x, y)


def calibration(config: EncoderNetwork, tokenizer: Path | None) -> np.ndarray:
    """Token ids int32 (n, S) to calibrate with: of the sample that ships, by a tokenizer.json; random where None."""
    if tokenizer is None:
        count, most = DRAWN
        shape = count, min(most, config.tokens)
        return np.random.default_rng(0).integers(0, config.vocabulary, shape, np.int32)
    return TextTokenizer(tokenizer, config)(sample("bytes").texts[:TEXTS])[0]


def units(
    config: EncoderNetwork, steps: Sequence[EncoderStep], params: Mapping[str, np.ndarray], ids: np.ndarray
) -> list[float]:
    """What 1 stands for in what each step gives to a product; 1 where no product reads it.

    Args:
        config: the network.
        steps: its own.
        params: its weights.
        ids: token ids int32 (n, S), of texts with a token at least.

    Raises:
        ValueError: features are not finite; or what GELU gives is too large for e4m3 in unit 1. Names the layer.
    """
    held = {name: np.asarray(params[name], np.float64) for node in config.nodes for name in node.parameters}
    peaks = []
    with np.errstate(over="ignore", invalid="ignore"):
        for row, length in zip(ids, lengths(ids), strict=True):
            features(config.nodes, row[:length], held, by := _Peaks())
            peaks.append(by.found)
    largest = iter(np.max(peaks, axis=0))
    found: list[float] = []
    for step in steps:
        if step.kind in ("attend", "project"):
            peak = next(largest)
            for _ in range(2 * isinstance(step.layer, SelfAttention)):  # of queries, keys and values
                next(largest)
            if not np.isfinite(peak):
                raise ValueError(f"what {step.layer.label} reads is not finite: the weights are too large for fp8")
            if not steps[len(found) - 1].epilogue:
                found[-1] = float(power_of_two(np.float32(peak * HEADROOM / LARGEST_E4M3)))
            elif peak > LARGEST_E4M3:
                raise ValueError(f"what {step.layer.label} reads is up to {peak:.3g}: need at most {LARGEST_E4M3:g}")
        found.append(1.0)
    return found
