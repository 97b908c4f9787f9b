"""What a training's result gives cause to doubt, in a line each."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec

import numpy as np

from charcnn.host.terminal import printable
from charcnn.text.encodings import Encoding
from charcnn.training.data import Examples
from charcnn.training.measure import FEW, HIGHEST, LOWEST, Measured, MultiLabelMeasured

UNCALIBRATED = (
    f"no temperature from {LOWEST:g} to {HIGHEST:g} makes the validation rows' labels likeliest: "
    "the classes are not told apart. Probabilities are not calibrated: do not rely on them"
)

TOO_FEW = f"fewer than {FEW} validation rows tell no temperature. Probabilities are not calibrated: do not rely on them"

TRY = (
    "--batch 16 --rate 4e-3 --average 1 --decay 0.02 --smoothing 0 --dropout 0.1 --blank-words 0.05 "
    "--replace-characters 0.01 --shift-left 0 --shift-right 10"
)
"""Steps for few rows, and changes that leave short ones whole."""

MOST_COMPARED = 5_000
"""Rows that a linear model learns from in some seconds; beside more, none is fitted."""


def nothing_learned(
    part: str, measured: Measured | MultiLabelMeasured, classes: Sequence[str], *, descended: bool = True
) -> str:
    """A warning, with what naming the most frequent class would have brought; of few rows, that they do not tell.

    Args:
        descended: whether gradient descent ran, which has options to try.
    """
    always, said = "", f"nothing was learned: {100 * measured.accuracy:.2f} % of the {part} rows are right"
    if isinstance(measured, Measured):
        always = f"; always naming {_largest(measured, classes)[1]}"
        if (count := int(measured.confusion.sum())) < FEW:
            said = f"{count} {part} rows are too few to tell whether anything was learned: "
            said += f"{100 * measured.accuracy:.2f} % of them are right"
    options = f". Few or short rows may need other options: {TRY}" if descended else ""
    return f"{said}, no more than by chance{always}{options}"


def _largest(measured: Measured, classes: Sequence[str]) -> tuple[float, str]:
    """The share of the most frequent class, and a clause about it."""
    rows = measured.confusion.sum(1)
    share = float(rows.max() / rows.sum())
    return share, f"{printable(classes[int(rows.argmax())])} would make it {100 * share:.2f} %"


def linear_accuracy(part: Examples, held: Examples, encoding: Encoding) -> float | None:
    """The share of `held` that a linear model on character n-grams gets right, of one that learned from `part`.

    It is scikit-learn's logistic regression on TF-IDF of 2 to 5 characters within words; None where it is missing, or
    rows are more than MOST_COMPARED.
    """
    if len(part) > MOST_COMPARED or not find_spec("sklearn"):
        return None
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline

    grams = TfidfVectorizer(analyzer="char_wb", ngram_range=(2, 5), sublinear_tf=True)
    model = make_pipeline(grams, LogisticRegression(max_iter=1000))
    model.fit(_read(part.ids, encoding), part.labels, logisticregression__sample_weight=part.weights)
    return float(np.mean(model.predict(_read(held.ids, encoding)) == held.labels))


def _read(ids: np.ndarray, encoding: Encoding) -> list[str]:
    """The texts that were encoded, as far as ids keep them: a space for what is unknown."""
    alphabet = encoding.alphabet
    known = bytes(range(256)) if alphabet is None else alphabet.encode().ljust(256, b" ")
    table = np.frombuffer(known[: encoding.blank] + b" " * (256 - encoding.blank), np.uint8)
    return [row.tobytes().decode("utf-8", "replace").rstrip() for row in table[ids]]


def compared(
    part: str, measured: Measured, linear: float | None, classes: Sequence[str], learned_from: int
) -> tuple[str, str | None]:
    """A line on what simpler ways reach on the same rows, and a warning where they are as good or better, or None.

    Args:
        part: what the rows are called.
        measured: the network's answers to them.
        linear: what `linear_accuracy` gave.
        classes: their names.
        learned_from: how many rows.
    """
    share, always = _largest(measured, classes)
    said = f"other ways on the same {part} rows: always naming {always}"
    if linear is not None:
        said += f"; a linear model on character n-grams gets {100 * linear:.2f} % right"
    elif learned_from > MOST_COMPARED:
        said += f"; no linear model was fitted, as rows are more than {MOST_COMPARED:,}"
    else:
        said += "; no linear model was fitted, as scikit-learn is missing"
    own = f"{100 * measured.accuracy:.2f} % of the {part} rows are right"
    if measured.accuracy <= share:
        return said, f"NO BETTER THAN ONE ANSWER FOR ALL: {own}; always naming {always}. Do not use this model"
    if linear is not None and measured.accuracy < linear:
        return said, f"A LINEAR MODEL IS BETTER: {own}, and {100 * linear:.2f} % with TF-IDF of character n-grams"
    return said, None
