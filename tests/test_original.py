"""The original program's input.bin and answer.bin."""

import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from charcnn.config import SMALL, TINY
from charcnn.model.original import read_answer, read_input
from charcnn.ops import reference


def random_ids(n, config=TINY, seed=0):
    return np.random.default_rng(seed).integers(0, config.alphabet + 1, (n, config.length), np.uint8)


def written(path, x):
    x.astype("<f4").tofile(path)
    return path


@settings(deadline=None)  # the first call compiles
@given(n=st.integers(1, 7), chunk=st.integers(1, 9), seed=st.integers(0, 99))
def test_what_one_hot_made_is_read_back_for_any_chunk(tmp_path_factory, n, chunk, seed):
    ids = random_ids(n, seed=seed)
    path = written(tmp_path_factory.getbasetemp() / "input.bin", reference.one_hot(ids))
    result = read_input(path, TINY, chunk)
    assert result.dtype == np.uint8
    np.testing.assert_array_equal(result, ids)


def test_small_is_the_default(tmp_path):
    ids = random_ids(3, SMALL)
    np.testing.assert_array_equal(read_input(written(tmp_path / "input.bin", reference.one_hot(ids))), ids)


def test_minus_zero_is_zero(tmp_path):
    ids = random_ids(1)
    x = reference.one_hot(ids)
    x[x == 0] = -0.0
    np.testing.assert_array_equal(read_input(written(tmp_path / "input.bin", x), TINY), ids)


@pytest.mark.parametrize("value", [2, 0.5, -1, np.nan, np.inf, 1e-40, np.nextafter(np.float32(1), np.float32(2))])
@pytest.mark.parametrize(("n", "t"), [(0, 0), (3, 7), (4, 122)])
def test_a_column_of_another_value_is_named(tmp_path, value, n, t):
    x = reference.one_hot(random_ids(5))
    x[n, :, t] = 0
    x[n, 9, t] = value
    path = written(tmp_path / "input.bin", x)
    stored = x[n, 9, t].item()
    message = rf"input\.bin: input {n}, position {t}: .* channels \[9\] hold {re.escape(str([stored]))}"
    for chunk in (1, 2, 64):
        with pytest.raises(ValueError, match=message):
            read_input(path, TINY, chunk)


def test_a_column_with_two_ones_is_named_and_the_first_wins(tmp_path):
    x = reference.one_hot(random_ids(4))
    for n, t in ((1, 50), (1, 30), (2, 0)):
        x[n, :, t] = 0
        x[n, [3, 60], t] = 1
    with pytest.raises(ValueError, match=r"input 1, position 30: .* channels \[3, 60\] hold \[1\.0, 1\.0\]"):
        read_input(written(tmp_path / "input.bin", x), TINY)


@pytest.mark.parametrize("size", [0, 4, 4 * 70 * 123 - 4, 4 * 70 * 123 + 1])
def test_a_file_of_another_size_is_refused(tmp_path, size):
    path = tmp_path / "input.bin"
    path.write_bytes(bytes(size))
    with pytest.raises(ValueError, match=rf"input\.bin has {size} bytes: need a positive multiple of {4 * 70 * 123}"):
        read_input(path, TINY)


@pytest.mark.parametrize("chunk", [0, 1.5, True])
def test_chunk_is_checked(tmp_path, chunk):
    with pytest.raises(ValueError, match="chunk="):
        read_input(written(tmp_path / "input.bin", reference.one_hot(random_ids(1))), TINY, chunk)


def test_answers(tmp_path):
    answers = read_answer(written(tmp_path / "answer.bin", np.array([3.0, 0, 2, 255])))
    assert answers.dtype == np.int64
    assert answers.tolist() == [3, 0, 2, 255]


@pytest.mark.parametrize("value", [-1, 0.5, np.nan, np.inf, 2.0**24])
def test_an_answer_that_is_no_class_is_named(tmp_path, value):
    with pytest.raises(ValueError, match=r"answer\.bin: answer 2 is .*: need a class index"):
        read_answer(written(tmp_path / "answer.bin", np.array([1, 2, value, value])))


@pytest.mark.parametrize("size", [0, 3, 5])
def test_answers_of_another_size_are_refused(tmp_path, size):
    path = tmp_path / "answer.bin"
    path.write_bytes(bytes(size))
    with pytest.raises(ValueError, match=f"has {size} bytes"):
        read_answer(path)


def test_missing_files_are_oserrors(tmp_path):
    for read in (read_input, read_answer):
        with pytest.raises(FileNotFoundError):
            read(tmp_path / "missing.bin")
