"""What programs on engines import for charcnn's Classifier in tests: one whose process is killed once, at a row.

Environment: CLASSIFIER_LOG, a file to which each process that makes a classifier adds its number; CLASSIFIER_STRIKE, a
file that says it was struck. Without the second nothing is struck.
"""

from __future__ import annotations

import os
import signal
from typing import Any

import numpy as np

from charcnn.classify import classifier

MARKER = "the row that is struck"


class Classifier(classifier.Classifier):
    """Notes where it is made, and dies of SIGKILL after it has computed labels of the marked row."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **{**options, "device": "cpu"})
        with open(os.environ["CLASSIFIER_LOG"], "a", encoding="utf-8") as file:
            file.write(f"{os.getpid()}\n")

    def predict_topk(self, texts: Any, k: int) -> tuple[np.ndarray, np.ndarray]:
        found = super().predict_topk(texts, k)
        strike = os.environ.get("CLASSIFIER_STRIKE")
        if strike and any(MARKER in str(text) for text in texts):
            try:
                with open(strike, "x", encoding="utf-8") as file:
                    file.write(str(os.getpid()))
            except FileExistsError:
                return found
            os.kill(os.getpid(), signal.SIGKILL)
        return found
