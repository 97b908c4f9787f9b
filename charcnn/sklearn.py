"""A character-level CNN as an estimator of scikit-learn, which is an extra: `pip install -e '.[sklearn]'`.

from charcnn.sklearn import CharCNNClassifier
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

import charcnn
from charcnn.aliases import Argument, Array, Labels, Record, Texts
from charcnn.config import Config
from charcnn.files import Path
from charcnn.host.install import pip_install
from charcnn.text import names
from charcnn.text.encodings import find_encoding

try:
    from sklearn.base import BaseEstimator, ClassifierMixin
    from sklearn.utils import check_random_state
    from sklearn.utils.class_weight import compute_sample_weight
    from sklearn.utils.multiclass import check_classification_targets
    from sklearn.utils.validation import check_is_fitted, column_or_1d
except ImportError as error:
    raise ImportError(f"charcnn.sklearn needs scikit-learn: {pip_install('sklearn')}") from error


class CharCNNClassifier(ClassifierMixin, BaseEstimator):
    """A network that learns from texts and their classes, by `charcnn.train`.

        model = CharCNNClassifier(random_state=0).fit(texts, labels)
        model.predict(["Another text."])

    X is a column of texts: a list, a NumPy array, a pandas, polars or Arrow column; or a table with `text_columns`.
    A fitted estimator can be pickled, also by joblib, and needs no GPU to predict.

    Args:
        preset: "laptop", "balanced" or "best", as for `charcnn.train`; None for balanced.
        encoding: how texts become token ids: "forward", "crepe", or "bytes" for any language; or an Encoding.
        config: the network's sizes, a `charcnn.Config`; None for those that follow from the rows.
        recipe: fields of `charcnn.training.recipe.Recipe` by name, as {"epochs": 20}; None for the defaults.
        minutes: wall time of a fit, in place of the recipe's epochs, as for `charcnn.train`; None for no limit.
        init: a model whose convolutions the network begins with, as for `charcnn.train`; None for none.
        valid: share of each class that `fit` holds out to choose an epoch and to calibrate probabilities; 0 for none;
            None for a tenth, or a row of the rarest class.
        text_columns: names of a table's columns of text, or their numbers from 0, which are joined with a space; None
            where X is one column.
        engine: what trains: "own", "torch" or "auto", as for `charcnn.train`.
        device: "cpu", "cuda", or "auto" for a GPU where there is one that can be used.
        precision: of predictions: one of charcnn.catalog.PRECISIONS; None for fp32, or fp16 on a GPU.
        class_weight: "balanced", weights by class, or None for all alike.
        random_state: an int for the same network each time, a NumPy RandomState, or None.

    Attributes:
        classes_: the classes (C,), as they are in y: probabilities stand in this order.
        classifier_: the `charcnn.Classifier` that was fitted; `classifier_.save` writes a file for every command. Its
            own classes are the names of `classes_` where those may be names, else "class 0" and on.
    """

    def __init__(
        self,
        *,
        preset: str | None = None,
        encoding: Argument = "forward",
        config: Config | None = None,
        recipe: Mapping[str, Argument] | None = None,
        minutes: float | None = None,
        init: Path | None = None,
        valid: float | None = None,
        text_columns: Sequence[str | int] | None = None,
        engine: str = "auto",
        device: str = "auto",
        precision: str | None = None,
        class_weight: str | Mapping[Argument, float] | None = None,
        random_state: Argument = None,
    ) -> None:
        self.preset = preset
        self.encoding = encoding
        self.config = config
        self.recipe = recipe
        self.minutes = minutes
        self.init = init
        self.valid = valid
        self.text_columns = text_columns
        self.engine = engine
        self.device = device
        self.precision = precision
        self.class_weight = class_weight
        self.random_state = random_state

    def fit(
        self,
        X: Texts,
        y: Labels,
        sample_weight: Array | None = None,
        teacher_probabilities: Array | None = None,
        teacher_name: str | None = None,
        teacher_license: str | None = None,
    ) -> CharCNNClassifier:
        """Train on texts.

        Args:
            X: N texts.
            y: their classes (N,), of any type that scikit-learn takes.
            sample_weight: how much each text counts in the loss (N,), 0 or more; None for all alike.
            teacher_probabilities: what a teacher answers to the texts (N, C), columns in the order of `classes_`, or a
                table or mapping with a column for each class, as for `charcnn.train`; None for no teacher.
            teacher_name, teacher_license: of the teacher: `classifier_.metadata` keeps them.

        Raises:
            ValueError: X, y or a parameter does not fit, as for `charcnn.train`.
        """
        texts = self._texts(X)
        y = column_or_1d(y, warn=True)
        check_classification_targets(y)
        self.classes_, indices = np.unique(y, return_inverse=True)
        if len(self.classes_) < 2:
            raise ValueError(f"y holds one class, {self.classes_[0]!r}: need at least two")
        if len(texts) != len(y):
            raise ValueError(f"X holds {len(texts)} texts and y {len(y)} labels: need as many")
        own = _names(self.classes_)
        balanced = isinstance(self.class_weight, str) and self.class_weight == "balanced"
        if self.class_weight is not None and not balanced:
            of_class = compute_sample_weight(self.class_weight, y)
            sample_weight = of_class if sample_weight is None else of_class * np.asarray(sample_weight)
        how: Record = {"balance": balanced, "seed": int(check_random_state(self.random_state).randint(2**31 - 1))}
        fitted = charcnn.train(
            texts,
            [own[index] for index in indices],
            classes=own,
            preset=self.preset,
            valid=self.valid,
            sample_weight=sample_weight,
            teacher_probabilities=teacher_probabilities,
            teacher_name=teacher_name,
            teacher_license=teacher_license,
            encoding=self.encoding,
            config=self.config,
            minutes=self.minutes,
            init=self.init,
            engine=self.engine,
            device=self.device,
            **{**how, **(self.recipe or {})},
        )
        device = None if self.device == "auto" else self.device
        if self.precision is not None:
            fitted = charcnn.Classifier(fitted.params, device=device, precision=self.precision)
        self.classifier_ = fitted
        return self

    def predict(self, X: Texts) -> np.ndarray:
        """Each text's likeliest class, of `classes_`: (N,)."""
        likeliest = self.predict_proba(X).argmax(axis=1)
        found: np.ndarray = self.classes_[likeliest]
        return found

    def predict_proba(self, X: Texts) -> np.ndarray:
        """Each text's probability of each class, in the order of `classes_`: float64 (N, C)."""
        check_is_fitted(self)
        shares = self.classifier_.predict_proba(self._texts(X)).astype(np.float64)
        return shares / shares.sum(axis=1, keepdims=True)

    def _texts(self, X: Texts) -> Texts:
        """The column of texts.

        Raises:
            ValueError: X is a table with no `text_columns`, or has no such column.
        """
        if self.text_columns is None:
            if getattr(X, "ndim", 1) == 1 and not hasattr(X, "columns"):
                return X if hasattr(X, "__len__") else list(X)
            if X.shape[1] != 1:
                raise ValueError(f"X has {X.shape[1]} columns: need one, or text_columns that name those of text")
            return _column(X, next(iter(X.columns)) if hasattr(X, "columns") else 0)
        if not self.text_columns or isinstance(self.text_columns, str):
            raise ValueError(f"text_columns={self.text_columns!r}: need a list of columns")
        columns = [_column(X, name) for name in self.text_columns]
        join = find_encoding(self.encoding).join
        return [join(row) for row in zip(*columns, strict=True)]

    def __sklearn_tags__(self) -> Argument:
        tags = super().__sklearn_tags__()
        tags.input_tags = replace(tags.input_tags, one_d_array=True, two_d_array=False, string=True)
        tags.non_deterministic = self.random_state is None
        return tags


def _column(X: Texts, name: Argument) -> list[str]:
    """A table's column, with no missing value."""
    try:
        found = X[name] if hasattr(X, "columns") else np.asarray(X, dtype=object).T[name]
    except (KeyError, IndexError, TypeError) as error:
        known = f"columns {', '.join(map(str, X.columns))}" if hasattr(X, "columns") else "no such column"
        raise ValueError(f"text_columns holds {name!r}: X has {known}") from error
    except Exception as error:  # polars has one of its own
        raise ValueError(f"text_columns holds {name!r}: {error}") from error
    values = found.to_pylist() if hasattr(found, "to_pylist") else list(found)  # of Arrow
    wrong = next((n for n, value in enumerate(values) if not isinstance(value, str)), None)
    if wrong is not None:
        raise ValueError(f"X[{name!r}] holds {values[wrong]!r} in row {wrong}: need str")
    return values


def _names(classes: np.ndarray) -> list[str]:
    """Names for classes of any type: what they look like, where those are names that differ."""
    found = [str(value) for value in classes.tolist()]
    if len(set(found)) == len(found) and not any(map(names.problem, found)):
        return found
    return [f"class {number}" for number in range(len(found))]
