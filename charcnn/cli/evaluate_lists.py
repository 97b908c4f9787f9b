"""What `charcnn evaluate` counts and tells of a model that gives several labels a text."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from charcnn.aliases import Record
from charcnn.cli import classes

if TYPE_CHECKING:
    import numpy as np

    from charcnn.classify.classifier import Classifier
    from charcnn.text.readers.base import Block, Reader


class Lists:
    """Scores of lists of labels.

    Args:
        classifier: the model.
        options: those of `charcnn evaluate`.
        labels: which class a label is.

    Raises:
        ValueError: an option is for models that give one label a text.
    """

    def __init__(self, classifier: Classifier, options: argparse.Namespace, labels: classes.Labels) -> None:
        from charcnn.classify.multi_label import MIN_PROBABILITY

        if options.png is not None:
            raise ValueError("--png: a model that gives several labels a text has no confusion matrix")
        least = options.min_probability
        self._classifier, self._labels = classifier, labels
        self._least: float = MIN_PROBABILITY if least is None else least
        self.shape = 4, len(classifier.classes_) + 1

    def count(self, reader: Reader, block: Block, logits: np.ndarray) -> np.ndarray:
        """Rows that have each class, that were given it, and both; then how many have all labels right, and rows.

        A row that has no column of labels, or a label that is no class, becomes one that cannot be read.
        """
        import numpy as np

        from charcnn.text.readers import scan
        from charcnn.training.measure import counts_of

        given = self._classifier.shares(logits) >= self._least
        has = np.zeros(given.shape, bool)
        for n, labels in enumerate(reader.label_lists(block)):
            if block.kinds[n] != scan.READABLE:
                continue
            found = {label: self._labels.find(label) for label in labels or ()}
            wrong = next((label for label, index in found.items() if index is None), None)
            if wrong is not None:
                self._labels.refuse_other(block, n, wrong)
            if labels is None or wrong is not None:
                block.kinds[n] = scan.NO_CLASS
                block.reasons[n] = "no labels" if wrong is None else f"label {wrong!r} is not a class of the model"
            else:
                has[n, [index for index in found.values() if index is not None]] = True
        used = block.kinds == scan.READABLE
        has, given = has[used], given[used]
        counts = np.zeros(self.shape, np.int64)
        counts[:3, :-1] = counts_of(has, given)
        counts[3, 0], counts[3, -1] = (has == given).all(axis=1).sum(), len(has)
        return counts

    def report(self, counts: np.ndarray) -> Record:
        """What they say, as JSON values.

        Returns:
            rows, min_probability, subset_accuracy, its 95 % confidence interval (Wilson's), micro_f1, macro_f1 and
            classes (name, rows, precision, recall, f1: None where no row has or was given it).
        """
        import numpy as np

        from charcnn.training.measure import MultiLabelMeasured

        counted = counts[:3, :-1]
        measured = MultiLabelMeasured(counted, int(counts[3, 0]), int(counts[3, -1]))
        by_class: list[Record] = []
        columns = zip(self._classifier.classes_.tolist(), *counted.tolist(), measured.f1.tolist(), strict=True)
        for name, has, given, both, f1 in columns:
            by_class.append(
                {
                    "name": name,
                    "rows": has,
                    "precision": both / given if given else None,
                    "recall": both / has if has else None,
                    "f1": None if np.isnan(f1) else f1,
                }
            )
        return {
            "rows": measured.rows,
            "min_probability": self._least,
            "subset_accuracy": measured.accuracy,
            "subset_accuracy_95": list(measured.interval),
            "micro_f1": measured.micro_f1,
            "macro_f1": measured.macro_f1,
            "classes": by_class,
        }

    def show(self, report: Record) -> None:
        """Print it."""
        low, high = report["subset_accuracy_95"]
        print(
            f"subset accuracy {report['subset_accuracy']:.2%} (95 %: {low:.2%} to {high:.2%}) of {report['rows']:,} "
            f"rows, labels of probability {self._least:g} or more\n"
            f"F1: micro (of all labels) {report['micro_f1']:.2%}, macro (mean of classes) {report['macro_f1']:.2%}"
        )
        classes.show_classes(report["classes"])
