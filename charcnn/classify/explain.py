"""Which characters moved a decision, as data and as coloured text."""

from __future__ import annotations

import html
import os
import re
import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from charcnn.host.terminal import listed, printable
from charcnn.text.encodings import pack
from charcnn.text.strings import PackedStrings

if TYPE_CHECKING:
    from charcnn.classify.classifier import Classifier

_BLANK = 0xFF
"""A byte that is in no alphabet."""

_KEPT = "\n\t"
"""Control characters of a text that a terminal may obey."""

_FOR, _AGAINST = (34, 139, 34), (205, 64, 64)
"""Green and red, at full strength."""


@dataclass(frozen=True, eq=False)
class Explanation:
    """What `Classifier.explain` found. Printed on a terminal, or shown in a notebook, it is coloured text.

    Green characters speak for the class, red ones against it.
    """

    text: str
    label: str
    """The class that was asked about."""
    probability: float
    """Its probability."""
    scores: np.ndarray = field(repr=False)
    """float32, one a character of text: what blanking it costs the class, in logits; below 0 it helps the class."""

    def words(self) -> list[tuple[str, float]]:
        """Each word and the sum of its characters' scores, what moved the decision most first."""
        matches = _WORD.finditer(self.text)
        found = [(match[0], float(self.scores[match.start() : match.end()].sum())) for match in matches]
        return sorted(found, key=lambda pair: -abs(pair[1]))

    def ansi(self) -> str:
        """The text for a terminal, on coloured ground; what the text itself would tell the terminal is escaped."""
        parts = []
        for piece, strength in self._pieces():
            piece = printable(piece, keep=_KEPT)
            if strength == 0:
                parts.append(piece)
                continue
            red, green, blue = (round(part * abs(strength)) for part in (_FOR if strength > 0 else _AGAINST))
            parts.append(f"\x1b[48;2;{red};{green};{blue}m\x1b[97m{piece}\x1b[0m")
        return "".join(parts)

    def html(self) -> str:
        """The text for a web page or a notebook, on coloured ground."""
        parts = []
        for piece, strength in self._pieces():
            escaped = html.escape(piece.encode("utf-8", "replace").decode())  # no page can hold half a character
            if strength == 0:
                parts.append(escaped)
                continue
            red, green, blue = _FOR if strength > 0 else _AGAINST
            shade = f"background:rgba({red},{green},{blue},{abs(strength):.1f})"
            parts.append(f'<span style="{shade}">{escaped}</span>')
        head = f"<b>{html.escape(self.label)}</b> {self.probability:.1%}"
        return f'<div>{head}</div><div style="white-space:pre-wrap">{"".join(parts)}</div>'

    def _repr_html_(self) -> str:
        return self.html()

    def __str__(self) -> str:
        coloured = sys.stdout.isatty() and "NO_COLOR" not in os.environ
        words = ", ".join(f"{word} {score:+.2f}" for word, score in self.words()[:5])
        head = printable(f"{self.label} {self.probability:.1%} ({words})")
        return f"{head}\n{self.ansi() if coloured else printable(self.text, keep=_KEPT)}"

    def _pieces(self) -> list[tuple[str, float]]:
        """Neighbours of one shade, -1 to 1 in tenths."""
        greatest = float(np.abs(self.scores).max(initial=0.0))
        pieces: list[tuple[str, float]] = []
        for character, score in zip(self.text, self.scores.tolist(), strict=True):
            strength = round(score / greatest, 1) if greatest else 0.0
            if pieces and pieces[-1][1] == strength:
                pieces[-1] = (pieces[-1][0] + character, strength)
            else:
                pieces.append((character, strength))
        return pieces


_WORD = re.compile(r"\w+(?:['\u2019]\w+)*")


def occlude(classifier: Classifier, text: str, label: str | None, width: int) -> Explanation:
    """See `Classifier.explain`."""
    if not isinstance(text, str):
        raise ValueError(f"text is a {type(text).__name__}: need a str")
    if not text.strip():
        raise ValueError("text is empty or blank: it has no label to explain")
    if isinstance(width, bool) or not isinstance(width, int) or width < 1:
        raise ValueError(f"width={width!r}: need a positive int")
    names = classifier.classes_.tolist()
    if label is not None and label not in names:
        raise ValueError(f"label={label!r}: need one of {listed(names)}")
    whole, ends = pack(text)  # a character each
    # Characters that the encoding cuts off move nothing.
    length = classifier.config.length
    if classifier.windows is not None and whole.size > classifier.windows:
        raise ValueError(f"text has {whole.size:,} bytes: need at most {classifier.windows:,}, a single window")
    kept = (max(0, whole.size - length), whole.size) if classifier.encoding.keep == "tail" else (0, length)
    first = int(np.searchsorted(ends, kept[0], "right")) - 1
    last = min(int(np.searchsorted(ends, kept[1], "left")), len(text))
    width = min(width, max(1, last - first))
    windows = [(start, start + width) for start in range(first, last - width + 1)]
    whole, ends = whole[slice(*kept)], np.clip(ends - kept[0], 0, length)  # a copy a window, of a text of any size
    copies = np.tile(whole, (len(windows) + 1, 1))
    for row, (start, stop) in enumerate(windows, 1):
        copies[row, ends[start] : ends[stop]] = _BLANK
    offsets = np.arange(len(copies) + 1, dtype=np.int64) * whole.size
    logits = classifier.engine.logits(classifier.encode(PackedStrings(copies.reshape(-1), offsets))).astype(np.float64)
    if not np.isfinite(logits).all():
        raise ValueError(f"text: {classifier.engine.overflow}")
    share = classifier.shares(logits[:1].astype(np.float32))[0]
    asked = int(logits[0].argmax()) if label is None else names.index(label)
    margin = logits[:, asked]
    if len(names) > 1 and not classifier.config.multi_label:  # where they exclude each other
        margin = margin - np.delete(logits, asked, axis=1).mean(axis=1)
    scores, covering = np.zeros(len(text)), np.zeros(len(text))
    for (start, stop), cost in zip(windows, margin[0] - margin[1:], strict=True):
        scores[start:stop] += cost / width
        covering[start:stop] += 1
    scores = np.divide(scores, covering, out=scores, where=covering > 0)
    return Explanation(text, names[asked], float(share[asked]), scores.astype(np.float32))
