"""Texts in, labels out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cached_property, partial
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np

from charcnn import ops
from charcnn.classify.engine import Engine, overflowed
from charcnn.classify.explain import Explanation, occlude
from charcnn.classify.multi_label import MIN_PROBABILITY, members, sigmoid
from charcnn.classify.unsure import UNSURE, check_min_probability, check_unsure_label, likeliest
from charcnn.files import Path
from charcnn.model import params as params_module
from charcnn.model import shipped
from charcnn.model.params import Params
from charcnn.runtime import ordered
from charcnn.text import encodings
from charcnn.text.columns import columns
from charcnn.text.encodings import Encoding
from charcnn.text.names import check_classes, named
from charcnn.text.strings import PackedStrings
from charcnn.text.windows import TextWindows

if TYPE_CHECKING:
    from charcnn.text.encode_gpu import StringsToEncode

ROWS = {"cpu": 1024, "cuda": 16384}
"""Texts that are one block: so many are token ids at a time in each thread, a kilobyte each."""

BLOCK = 1 << 30
"""Token ids of a block, at most: as many as a CPU's ROWS have of the longest texts."""

ENCODE_ON = ("cpu", "gpu")

CORES_TO_ENCODE = 16
"""Cores a GPU with which the CPU encodes fast enough, so that the GPU need not: beside one H200 it was faster."""

FEW = 8
"""Texts in a list that the caller's thread computes: other threads take longer to start than these to encode."""


class Classifier:
    """A trained network with its encoding and its classes' names, on the fastest level that fits.

        classifier = Classifier.load()
        classifier.predict(["Stocks fell on Monday as oil rose.", "The home team won the cup final."])

    Threads may share a classifier. Memory does not grow with the number of texts, except for the results. A pickle
    holds the model and the options: processes that are started by spawn can be handed one. In a fork of its process
    each call raises charcnn.host.forks.ForkedError.

    Args:
        params: the weights.
        encoding: how texts become token ids; None for what params say.
        classes: the classes' names; None for what params say, or else "class 0" and on.
        device: "cpu" or "cuda"; None for a GPU where the machine has one that can be used.
        precision: one of charcnn.catalog.PRECISIONS; None for fp32, or fp16 on a GPU with a level for it.
        level: which level, "l11"; None for the fastest that fits.
        batch: inputs that an operator takes at once; None for what the level prefers.
        gpus: how many GPUs, or which; None for all.
        encode_on: "cpu" or "gpu", for levels that take texts; None for the GPU where it can and the CPU has few cores.
        windows: bytes of a window. A longer text is cut into such windows, and the mean of their logits counts. True
            for as many bytes as the network takes. False for none: only what the encoding keeps of a long text counts.
        numpy_first: so many texts at first are computed by NumPy, in float32, where a CPU's level is chosen unasked:
            they need not wait until the level is compiled, up to a minute on a new machine.

    Raises:
        ValueError: the encoding is not known; windows are longer than the network takes; or no level computes with
            these options: the message names those that do.
        charcnn.gpu.device.DeviceError: the machine cannot run what was asked for.
    """

    def __init__(
        self,
        params: Params,
        *,
        encoding: str | Encoding | None = None,
        classes: Sequence[str] | None = None,
        device: str | None = None,
        precision: str | None = None,
        level: str | None = None,
        batch: int | None = None,
        gpus: int | Sequence[int] | None = None,
        encode_on: str | None = None,
        windows: bool | int = False,
        numpy_first: int = 0,
    ) -> None:
        if not isinstance(params, Params):
            raise ValueError(f"params is a {type(params).__name__}: need Params; Classifier.load reads a model's file")
        self._options: dict[str, Any] = {
            "encoding": encoding,
            "classes": classes,
            "device": device,
            "precision": precision,
            "level": level,
            "batch": batch,
            "gpus": gpus,
            "encode_on": encode_on,
            "windows": windows,
            "numpy_first": numpy_first,
        }
        config = params.config
        encoding = params.encoding if encoding is None else encoding
        if encoding is None:
            known = ", ".join(encodings.ENCODINGS)
            raise ValueError(f"the model does not say how its texts were encoded: pass encoding, one of {known}")
        self.encoding: Encoding = encodings.find_encoding(encoding)
        if self.encoding.blank != config.alphabet:
            raise ValueError(
                f"encoding {self.encoding.name!r} has {self.encoding.blank} characters: "
                f"the model has {config.alphabet} one-hot channels"
            )
        names = params.classes if classes is None else tuple(classes)
        if names is None:
            names = tuple(f"class {index}" for index in range(config.classes))
        check_classes(names, config.classes)
        self.classes_: np.ndarray = np.array(names)
        """The classes' names, str (C,): probabilities stand in this order."""
        self.config, self.params = config, params
        self.metadata = params.metadata
        if not isinstance(windows, (bool, int)) or not (isinstance(windows, bool) or 2 <= windows <= config.length):
            raise ValueError(f"windows={windows!r}: need 2 to {config.length} bytes, or True or False")
        self.windows: int | None = config.length if windows is True else windows or None
        """Bytes of a window; None for no windows."""
        engine = partial(Engine, params, device=device, precision=precision, level=level)
        self.engine = engine(batch=batch, gpus=gpus, numpy_first=numpy_first)
        if encode_on not in (None, *ENCODE_ON):
            raise ValueError(f"encode_on={encode_on!r}: need one of {', '.join(ENCODE_ON)}")
        if encode_on == "gpu" and not self.engine.takes_text:
            raise ValueError(f"encode_on='gpu': {self.engine.choice} takes token ids only")
        few = self.engine.cores_a_gpu < CORES_TO_ENCODE
        self.encode_on: str = encode_on or ("gpu" if self.engine.takes_text and few else "cpu")
        """Where texts become token ids."""
        self.rows = min(ROWS[self.engine.choice.level.device], BLOCK // config.length)
        """Texts of a block."""

    @classmethod
    def load(cls, path: Path | None = None, **options: Any) -> Classifier:
        """A model from a file, or one that ships: news in four classes.

        Args:
            path: a file as for charcnn.params.load, or the name of a model that ships: "fast", the default,
                "accurate" or "sparse".
            options: as for the class.

        Raises:
            ValueError, OSError: the file is damaged, foreign or missing, or as for the class.
        """
        return cls(shipped.load(path), **options)

    def save(self, path: Path, *, dtype: str = "float32") -> None:
        """Write the model as `charcnn.params.save` does, which says what `path` and `dtype` may be."""
        names = self.classes_.tolist()
        params_module.save(path, self.params, self.config, encoding=self.encoding, classes=names, dtype=dtype)

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(type(self), **self._options), (self.params,)

    def __repr__(self) -> str:
        return f"Classifier({', '.join(self.classes_)}; {self.engine.choice})"

    @cached_property
    def digest(self) -> str:
        """16 hexadecimal digits that identify its weights."""
        return params_module.digest(self.params)

    def encode(self, texts: Any) -> np.ndarray:
        """Texts, as for predict_proba, to token ids, uint8 (N, L), as levels take them."""
        if not isinstance(texts, PackedStrings):
            blocks = [self.encode(block) for block in columns(texts, self.rows)]
            return np.concatenate(blocks) if blocks else np.empty((0, self.config.length), np.uint8)
        return encodings.encode_buffer(texts.buffer, texts.offsets, self.encoding, self.config.length)

    def to_encode(self, texts: PackedStrings) -> StringsToEncode:
        """Texts that the engine's GPU is to encode."""
        from charcnn.text.encode_gpu import StringsToEncode

        encodings.check_buffer(texts.buffer, texts.offsets)
        return StringsToEncode(texts.buffer, texts.offsets, self.encoding, self.config.length)

    def logits(
        self, texts: PackedStrings, stage: Callable[[str], AbstractContextManager[Any]] = nullcontext
    ) -> np.ndarray:
        """Texts to float32 (N, C), as the level gives them; threads may call it at once.

        With `windows`, a longer text's logits are the mean of its windows'. All other texts are computed in the same
        batches as without, and have the same bits.

        Args:
            texts: N of them.
            stage: gives what "encode" and "compute" are done in, to time them.
        """
        if self.leaves_to_gpu(texts):
            given: Any = self.to_encode(texts)
        else:
            with stage("encode"):
                given = self.encode(texts)
        with stage("compute"):
            logits = self.engine.logits(given)
        if self.windows is not None:
            self._take_means(texts, self.windows, logits, stage)
        return logits

    def _take_means(
        self, texts: PackedStrings, size: int, logits: np.ndarray, stage: Callable[[str], AbstractContextManager[Any]]
    ) -> None:
        """The logits of each text of more bytes than `size` become the mean of all its windows'."""
        length = self.config.length
        known = self.encoding.keep if size == length else None
        windows = TextWindows(texts.offsets, size, known)
        sums = logits[windows.texts].astype(np.float64)
        if known is None:
            sums[:] = 0
        for text, starts in windows.others(self.rows):
            with stage("encode"):
                ids = encodings.encode_windows(texts.buffer, starts, size, self.encoding, length)
            with stage("compute"):
                found = self.engine.logits(ids)
            with np.errstate(invalid="ignore"):  # infinities of both signs: the row is told
                np.add.at(sums, text, found)
        logits[windows.texts] = sums / windows.counts[:, None]

    def leaves_to_gpu(self, texts: PackedStrings) -> bool:
        """Whether the GPU is to encode these: a few take less time here."""
        return self.encode_on == "gpu" and len(texts) > self.engine.few

    def probabilities(self, texts: PackedStrings, first: int = 0) -> np.ndarray:
        """Texts to float32 (N, C); threads may call it at once.

        Raises:
            ValueError: a text is empty or blank, or logits are not finite; names its index, counted from `first`.
        """
        return self.shares(self._finite(texts, first))

    def _finite(self, texts: PackedStrings, first: int = 0) -> np.ndarray:
        """`logits`, checked as `probabilities` says."""
        blank = texts.first_blank()
        if blank is not None:
            raise ValueError(f"texts[{first + blank}] is empty or blank: it has no label")
        logits = self.logits(texts)
        wrong = overflowed(logits)
        if wrong.size:
            raise ValueError(f"texts[{first + wrong[0]}]: {self.engine.overflow}")
        return logits

    def shares(self, logits: np.ndarray) -> np.ndarray:
        """Logits, float32 (N, C), as probabilities."""
        return sigmoid(logits) if self.config.multi_label else ops.softmax_loops(logits)

    def _each(self, texts: Any, give: Callable[..., np.ndarray] | None = None) -> Iterable[np.ndarray]:
        give = give or self.probabilities  # what is asked for of each block of texts
        if isinstance(texts, (list, tuple)) and len(texts) <= FEW:
            return (give(PackedStrings(*encodings.pack(texts))),) if texts else ()
        blocks = _numbered(columns(texts, self.rows))
        if (first := next(blocks, None)) is None:
            return ()
        return ordered.ordered(chain([first], blocks), lambda block: give(*block), self.engine.threads)

    def predict_proba(self, texts: Any) -> np.ndarray:
        """Each text's probability of each class, in the order of `classes_`.

        Args:
            texts: str or bytes in a list, a tuple, a NumPy array, an Arrow, pandas or polars column, or any iterable;
                or one str.

        Returns:
            float32 (N, C), or (C,) for one str. A row sums to 1, except with `multi_label`.

        Raises:
            ValueError: a text is missing, empty, blank or no text; or its logits are not finite, as where a large
                weight outgrows fp16. Names its index. Or the classifier is closed.
        """
        if isinstance(texts, str):
            first: np.ndarray = self.predict_proba([texts])[0]
            return first
        batches = list(self._each(texts))
        return np.concatenate(batches) if batches else np.empty((0, self.config.classes), np.float32)

    def predict(self, texts: Any, *, min_probability: float | None = None, unsure_label: str = UNSURE) -> Any:
        """Each text's likeliest class; with `multi_label`, all its classes.

        Args:
            texts: as for predict_proba.
            min_probability: a text whose likeliest class is less probable gets `unsure_label`; None for no such text.
                With `multi_label`, the least probability of each class that a text gets; None for 0.5.
            unsure_label: a name that no class has. Not with `multi_label`, where a text may have no class.

        Returns:
            str (N,), of `classes_` or `unsure_label`; for one str, a str. With `multi_label`, N lists of str in the
            order of `classes_`; for one str, a list.

        Raises:
            ValueError: as for predict_proba; min_probability is not from 0 to 1, or unsure_label is no name or a class.
        """
        if self.config.multi_label:
            return self._predict_all(texts, min_probability, unsure_label)
        names = self.classes_
        if min_probability is not None:
            min_probability = check_min_probability(min_probability)
            names = np.append(names, check_unsure_label(unsure_label, names))
        if isinstance(texts, str):
            return str(self.predict([texts], min_probability=min_probability, unsure_label=unsure_label)[0])
        give = self._finite if min_probability is None else None  # the largest logit is the likeliest class's
        batches = [likeliest(shares, min_probability) for shares in self._each(texts, give)]
        return names[np.concatenate(batches)] if batches else names[:0]

    def _predict_all(self, texts: Any, min_probability: float | None, unsure_label: str) -> Any:
        """`predict` of classes that do not exclude each other."""
        if unsure_label != UNSURE:
            raise ValueError(f"unsure_label={unsure_label!r}: with several labels a text, one may have none")
        least = check_min_probability(MIN_PROBABILITY if min_probability is None else min_probability)
        if isinstance(texts, str):
            return self._predict_all([texts], least, UNSURE)[0]
        return [self.classes_[own].tolist() for shares in self._each(texts) for own in shares >= least]

    def predict_topk(self, texts: Any, k: int) -> tuple[np.ndarray, np.ndarray]:
        """Each text's k likeliest classes, the likeliest first.

        Args:
            texts: as for predict_proba.
            k: 1 to the number of classes.

        Returns:
            Names, str (N, k), and probabilities, float32 (N, k); for one str, (k,) and (k,).

        Raises:
            ValueError: k is out of range, or the model has `multi_label`; or as for predict_proba.
        """
        if self.config.multi_label:
            raise ValueError(
                "the model gives several labels a text, which do not compete: use predict or predict_proba"
            )
        if isinstance(k, bool) or not isinstance(k, int) or not 1 <= k <= len(self.classes_):
            raise ValueError(f"k={k!r}: need 1 to {len(self.classes_)}")
        shares = self.predict_proba(texts)
        order = np.argsort(-shares, axis=-1, kind="stable")[..., :k]
        return self.classes_[order], np.take_along_axis(shares, order, axis=-1)

    def score(self, texts: Any, labels: Any) -> float:
        """Share of texts whose likeliest class is the label; with `multi_label`, of those with all labels right.

        Args:
            texts: as for predict_proba.
            labels: N names of `classes_`, or N indices of them; with `multi_label`, N lists of such.

        Raises:
            ValueError: a label is no class, there are more or fewer labels than texts, or none; and as for predict.
        """
        if self.config.multi_label:
            return self._score_all(texts, list(labels))
        wanted = named(labels, self.classes_)
        predicted = self.predict(texts)
        if wanted.shape != predicted.shape:
            raise ValueError(f"labels has shape {wanted.shape}: need ({len(predicted)},), a label a text")
        if not len(wanted):
            raise ValueError("texts is empty: there is no score")
        return float(np.mean(predicted == wanted))

    def _score_all(self, texts: Any, labels: Sequence[Any]) -> float:
        """`score` of classes that do not exclude each other: the subset accuracy."""
        wanted, given = members(labels, self.classes_.tolist()), self.predict_proba(texts) >= MIN_PROBABILITY
        if len(wanted) != len(given):
            raise ValueError(f"labels has {len(wanted)} lists: need {len(given)}, one a text")
        if not len(wanted):
            raise ValueError("texts is empty: there is no score")
        return float((wanted == given).all(axis=1).mean())

    def explain(self, text: str, *, label: str | None = None, width: int = 4) -> Explanation:
        """Which characters moved the decision: how much less likely the class is where they are blanked.

        Occlusion (Zeiler and Fergus 2014, arXiv:1311.2901): each window of `width` characters is blanked in turn, and
        what that costs the class's logit, less the mean of the others', is shared by the window's characters.

        Args:
            text: one text.
            label: the class to ask about; the likeliest one where None.
            width: characters of a window.

        Raises:
            ValueError: text is no str, empty or blank, label no class, or width not positive; or logits are not finite.
        """
        return occlude(self, text, label, width)

    def close(self) -> None:
        """End the level's threads; the classifier cannot be used any more."""
        self.engine.close()


def _numbered(blocks: Iterator[PackedStrings]) -> Iterator[tuple[PackedStrings, int]]:
    """Each with how many texts come before it."""
    first = 0
    for block in blocks:
        yield block, first
        first += len(block)
