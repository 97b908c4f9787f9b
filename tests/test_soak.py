"""bench/soak.py: a row that is missing, changed or late is seen."""

from __future__ import annotations

import pytest
import soak

ROWS = b'1,"one"\n2,two\n3,three\n'
LABELLED = b'1,"one",A,0.9\n2,two,B,0.8\n3,three,A,0.7\n'


@pytest.mark.parametrize("size", [1, 5, 40, 1000])
def test_the_same_rows_again(size):
    output, all_of_it = soak.Output(ROWS, exact=True), LABELLED * 20
    for at in range(0, len(all_of_it), size):
        output.take(all_of_it[at : at + size])
    assert output.wrong is None
    assert output.rows == 60


@pytest.mark.parametrize(
    "came",
    [
        LABELLED * 2 + LABELLED.replace(b"0.8", b"0.7"),
        LABELLED + LABELLED[15:] + LABELLED,  # a row less
        LABELLED.replace(b"two", b"2") * 3,
        LABELLED.replace(b"3,three,A,0.7\n", b"3,three\n") * 2,
    ],
    ids=["changed", "missing", "not as given", "no label"],
)
def test_other_rows(came):
    output = soak.Output(ROWS, exact=True)
    for at in range(0, len(came), 7):
        output.take(came[at : at + 7])
    assert output.wrong is not None


def test_digits_of_probabilities_may_differ_on_a_gpu():
    for came, right in ((LABELLED.replace(b"0.8", b"0.7"), True), (LABELLED.replace(b"B,", b"A,"), False)):
        output = soak.Output(ROWS, exact=False)
        output.take(LABELLED + came)
        assert (output.wrong is None) == right
        assert output.rows == 6


def test_minutes_are_counted_from_both_ends():
    samples = [(n / 2, 100 * n, 1000 + n, n / 4) for n in range(2 * 150)]  # 200 rows a second, for 149.5 s
    found = soak.minutes(samples)
    assert [round(minute["rows_per_second"]) for minute in found] == [200, 200]
    assert [minute["resident_bytes"] for minute in found] == [1120, 1299]
    assert found[0]["rows_per_cpu_second"] == pytest.approx(400)
