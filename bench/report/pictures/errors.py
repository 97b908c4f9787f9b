"""The picture of what a precision costs: how far logits are off, and labels that change."""

from __future__ import annotations

from charcnn.charts.svg import Axis, Picture
from report.schema import results

LEFT, RIGHT, TOP, ROW = 92, 36, 34, 28
ENDS = (1e-7, 1e-1)


def errors() -> str:
    """A row a precision: the largest error of a logit on a log scale, and how many labels are as float32 has them."""
    rows = [row for raw in results().agreed.values() for row in raw["precisions"]]
    bottom = TOP + ROW * len(rows)
    picture = Picture("Error of the logits by precision, on a log scale, and labels that are as fp32's", bottom + 46)
    picture.text(LEFT, 16, "line: error of the logits; number: labels as fp32's", "small")
    across = Axis(*ENDS, LEFT, picture.width - RIGHT)
    for value in across.decades():
        x = across(value)
        picture.line(x, TOP, x, bottom)
        picture.text(x, bottom + 18, f"{value:.0e}".replace("e-0", "e-"), "small", "middle")
    picture.text(across.end, bottom + 38, "error of the logits", anchor="end")
    for number, row in enumerate(rows):
        y, end = TOP + ROW * (number + 0.5), across(row["error"])
        picture.text(LEFT - 8, y + 4, f"{row['precision']}, {row['level']}", "said", "end")
        picture.line(LEFT, y, end, y, "s0 thick")
        picture.dot(end, y, "c0", f"{row['precision']}, {row['level']}: {row['error']:.1e}", 5.5)
        kept = f"{row['agreement']:.2%}".replace(".00%", "%").replace("%", " %")
        picture.text(end + 11, y + 4, kept, "small said")
    return str(picture)
