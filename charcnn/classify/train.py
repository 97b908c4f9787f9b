"""`charcnn.train`: texts and labels in memory in, a classifier out."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from charcnn.aliases import Argument, Array, Labels, Record, Texts
from charcnn.classify.classifier import Classifier
from charcnn.config import Config
from charcnn.files import Path
from charcnn.model.params import Params
from charcnn.text import names
from charcnn.text.columns import columns
from charcnn.text.encodings import Encoding, find_encoding
from charcnn.training import data, probabilities, start
from charcnn.training.budget import Budget
from charcnn.training.engines import choose
from charcnn.training.fit import TrainingTask
from charcnn.training.plan import plan
from charcnn.training.recipe import Recipe

_ROWS = 1 << 16
"""Texts that are read at a time."""


def train(
    texts: Texts,
    labels: Labels,
    *,
    preset: str | None = None,
    valid: float | tuple[Texts, Labels] | None = None,
    classes: Sequence[str] | None = None,
    multi_label: bool = False,
    sample_weight: Array | None = None,
    teacher_probabilities: Array | None = None,
    teacher_name: str | None = None,
    teacher_license: str | None = None,
    encoding: str | Encoding = "forward",
    config: Config | None = None,
    minutes: float | None = None,
    init: Path | None = None,
    engine: str = "auto",
    device: str = "auto",
    precision: str = "auto",
    store: str = "float16",
    calibrated: bool = True,
    say: Callable[[str], object] | None = None,
    **recipe: Argument,
) -> Classifier:
    """Train a network on texts, as `charcnn train` does on files.

        classifier = charcnn.train(texts, labels)
        classifier.predict(["Another text."])
        classifier.save("mine.safetensors")

    Args:
        texts: N of them, as for `Classifier.predict_proba`.
        labels: N of them, str or whole numbers; with `multi_label`, N lists of such.
        preset: "laptop" for a small and fast network, "balanced", which None is, or "best" for an accurate one.
        valid: share of each class that is held out to decide which epoch is kept and to calibrate, 0 to less than 1; or
            texts and labels of their own; None for a tenth, or a row of the rarest class.
        classes: names of the classes, which labels are or count from 1; None for the labels that occur.
        multi_label: whether a text may have several labels, or none.
        sample_weight: how much each text counts in the loss, float (N,), 0 or more; None for all alike.
        teacher_probabilities: what a teacher of any kind answers to the texts; the network learns from these and from
            the labels. Numbers (N, classes), 0 or more, each row's sum 1. Columns are in the order of the classes,
            which are sorted where `classes` does not say. Or a table or mapping with a column for each class. The
            recipe's field `teaching` is the teacher's weight in the loss, 0.7 by default. Not with `multi_label`.
        teacher_name, teacher_license: of the teacher: `metadata` keeps them.
        encoding: how texts become token ids: "forward", "crepe", "bytes" for any language, or an Encoding.
        config: the network's sizes, which then begins with random weights; None for those that follow from the rows.
            Alphabet and classes follow from the encoding and the labels.
        minutes: wall time for the training, in place of `epochs`; None for the recipe's epochs. The first steps are
            timed. As many epochs follow as fit, and the learning rate reaches its end with the last one.
        init: a model whose convolutions the network begins with: a file, or the name of one that ships, such as
            "accurate"; None for none. With sparse="2:4" it begins with all layers, pruned. Sizes: `config`, or its own.
        engine: "own" for this package's kernels. They train in float32 on a CPU, and in bf16 on a GPU since compute
            capability 8.0. "torch" for PyTorch. "auto" takes own kernels on a CPU and a Hopper GPU. On other GPUs, and
            for what own kernels lack, such as mixup, it takes PyTorch where that is installed.
        device: "cuda", "cpu", or "auto" for a GPU where there is one that can be used.
        precision: "bf16", "float32", or "auto" for bf16 on a GPU and float32 on a CPU.
        store: "float16" or "float32": what the weights are rounded to, and fit when they are saved.
        calibrated: whether a temperature is fitted on what was held out.
        say: takes lines about each epoch and the result, as `print` does; None for silence.
        recipe: fields of `charcnn.training.recipe.Recipe`, as epochs=20, batch=64, seed=1. With few rows the network
            begins with n-grams. Gradient descent then follows only if `epochs` or `minutes` is given.

    Returns:
        The classifier, on `device`. Its `metadata` has the recipe, the engine, and what was reached.

    Raises:
        ValueError: the engine does not train so here, or needs PyTorch, which is missing; a text or a label is blank or
            missing; there are not as many labels as texts, or fewer than two classes; a class has too few rows to hold
            some out; or another argument does not fit. Names it.

    Warns:
        UserWarning: nothing was learned, a linear model is better, no temperature fits, or a GPU stays unused.
    """
    given, encoding = {"balance": not multi_label, **recipe}, find_encoding(encoding)
    asked = Recipe(**given)  # refuses what it cannot take
    if store not in ("float16", "float32"):
        raise ValueError(f"store={store!r}: need 'float16' or 'float32'")
    if minutes is not None and "epochs" in recipe:
        raise ValueError(f"minutes={minutes}: it says how many epochs; leave out epochs={recipe['epochs']!r}")
    budget = None if minutes is None else Budget(minutes)
    begun = None if init is None else _begun(init, encoding, config, preset)
    say = say or _silent
    computes = choose(
        engine, device, precision, mixup=asked.mixup, sparse=asked.sparse, say=say, warn=partial(_warn, level=4)
    )
    rows = _rows("", texts, labels, multi_label)
    known, index = data.named(rows.labels, classes, multi_label=multi_label)
    own = plan(
        preset,
        [len(text) for text in rows.texts],
        encoding,
        len(known),
        config=start.sizes(begun) if config is None and begun is not None else config,
        multi_label=multi_label,
        cuda=computes.device == "cuda",
    )
    how = Recipe(**{**own.recipe, **given})

    def examples(rows: data.TrainingRows) -> data.Examples:
        found, bad = data.to_examples(rows, index, encoding, own.config.length, multi_label=multi_label)
        if bad:
            raise ValueError(f"labels[{bad[0].line}]: {bad[0].reason}")
        return found

    part = _with(examples(rows), sample_weight, teacher_probabilities, known)
    valid = data.share(part.labels) if valid is None else valid
    credit: Record = {"teaching": how.teaching, "name": teacher_name, "license": teacher_license}
    credited = probabilities.credited(None, part.taught, **credit)
    if isinstance(valid, tuple):
        held: data.Examples | None = examples(_rows("valid: ", *valid, multi_label))
    else:
        part, held = _split(part, valid, how.seed)
    task = TrainingTask(
        part, held, None, own.config, encoding, known, how, computes, store, calibrated, own.ngrams,
        not own.ngrams or "epochs" in recipe or budget is not None, not isinstance(valid, tuple), budget, begun,
        say=say, warn=_warn,
    )  # fmt: skip
    task.introduce()
    model = task.finished(task.trained(log_every=0), {"command": "charcnn.train", "teachers": credited})
    return Classifier(model, device=None if device == "auto" else device)


def _rows(name: str, texts: Texts, labels: Labels, multi_label: bool) -> data.TrainingRows:
    """Texts and labels, checked.

    Raises:
        ValueError: one is not usable; `name` is what stands before it.
    """
    found: list[bytes] = []
    for block in columns(texts, _ROWS):
        blank = block.blank()
        if blank.any():
            raise ValueError(f"{name}texts[{len(found) + int(blank.argmax())}] is empty or blank: nothing to learn")
        found += block.tolist()
    given = [_label(f"{name}labels[{n}]", label, multi_label) for n, label in enumerate(labels)]
    if len(given) != len(found):
        raise ValueError(f"{name}labels holds {len(given)}: need {len(found)}, one a text")
    return data.TrainingRows(found, given, list(range(len(found))), [])


def _label(name: str, label: Labels, multi_label: bool) -> Labels:
    """The label as str; with `multi_label`, all of them as a tuple."""
    if multi_label:
        if isinstance(label, str) or not hasattr(label, "__iter__"):
            raise ValueError(f"{name}={label!r}: need a list of labels, as a text may have several")
        return tuple(_label(name, one, False) for one in label)
    if not isinstance(label, (str, int, np.integer, np.bool_)):
        raise ValueError(f"{name}={label!r}: need a str or a whole number")
    wrong = names.problem(str(label))
    if wrong is not None:
        raise ValueError(f"{name}={label!r} {wrong}")
    return str(label)


def _begun(init: Path, encoding: Encoding, config: Config | None, preset: str | None) -> Params:
    """The model whose convolutions are taken."""
    if preset is not None:
        raise ValueError(f"preset={preset!r}: it says the sizes; leave it or init out")
    return start.read(init, encoding, config)


def _split(part: data.Examples, share: float, seed: int) -> tuple[data.Examples, data.Examples | None]:
    """What is learned from, and what is held out; None of a share of 0."""
    if not 0 <= share < 1:
        raise ValueError(f"valid={share!r}: need at least 0 and less than 1, or texts and labels")
    if not share:
        return part, None
    first, second = data.split(part.labels, share, seed)
    return part.part(first), part.part(second)


def _with(part: data.Examples, weights: Array | None, taught: Array | None, classes: Sequence[str]) -> data.Examples:
    """The examples with weights and a teacher's probabilities, checked."""
    if taught is not None and part.labels.ndim == 2:
        raise ValueError("teacher_probabilities: teach one label a text; leave out multi_label")
    return replace(
        part,
        weights=None if weights is None else _weights(weights, len(part)),
        taught=None if taught is None else probabilities.of_texts(taught, len(part), classes),
    )


def _weights(given: Array, count: int) -> np.ndarray:
    """Weights of texts, so that their mean is 1."""
    weights = np.asarray(given, np.float64)
    if weights.shape != (count,):
        raise ValueError(f"sample_weight has shape {weights.shape}: need ({count},), one a text")
    if not (np.isfinite(weights).all() and (weights >= 0).all() and weights.any()):
        raise ValueError("sample_weight holds one that is negative or not finite, or zeros alone: need 0 or more")
    return (weights / weights.mean()).astype(np.float32)


def _warn(line: str, level: int = 5) -> None:
    """Warn, at whoever called `train`."""
    warnings.warn(line, stacklevel=level)


def _silent(line: str) -> None:
    """Say nothing."""
