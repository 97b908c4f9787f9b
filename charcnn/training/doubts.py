"""What a training's result gives cause to doubt, in a line each."""

from __future__ import annotations

from collections.abc import Sequence

from charcnn.host.terminal import printable
from charcnn.training.measure import HIGHEST, LOWEST, Measured, MultiLabelMeasured

UNCALIBRATED = (
    f"no temperature from {LOWEST:g} to {HIGHEST:g} makes the validation rows' labels likeliest: "
    "all are right, or the classes are not told apart. Probabilities are not calibrated: do not rely on them"
)

TRY = (
    "--batch 16 --rate 4e-3 --average 1 --decay 0.02 --smoothing 0 --dropout 0.1 --blank-words 0.05 "
    "--replace-characters 0.01 --shift-left 0 --shift-right 10"
)
"""Steps for few rows, and changes that leave short ones whole."""


def nothing_learned(part: str, measured: Measured | MultiLabelMeasured, classes: Sequence[str]) -> str:
    """A warning, with what naming the most frequent class would have brought."""
    always = ""
    if isinstance(measured, Measured):
        rows = measured.confusion.sum(1)
        most = printable(classes[int(rows.argmax())])
        always = f"; always naming {most} would make it {100 * rows.max() / rows.sum():.2f} %"
    return (
        f"nothing was learned: {100 * measured.accuracy:.2f} % of the {part} rows are right, no "
        f"more than by chance{always}. Few or short rows may need other options: {TRY}"
    )
