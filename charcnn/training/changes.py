"""What is changed at random in every batch: words blanked, characters replaced, texts moved and joined.

Each number drawn follows from a key, the row's place in the batch, and how many the row drew before: the same bits on
any number of threads.
"""

from __future__ import annotations

import numpy as np
from numba import njit, prange, uint64

from charcnn.ops.common import threads
from charcnn.text.encodings import BLANK_BYTE
from charcnn.training.recipe import Recipe

LONGEST_WORD = 12
"""Bytes of a word of the encoding `bytes` at most: some languages have no spaces, and a text would be one word."""

_SPACE = ord(" ")
_STEP, _FIRST, _SECOND = (np.uint64(n) for n in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))


@njit
def _mixed(key, count):
    """64 bits that follow from both: SplitMix64 (Steele, Lea, Flood 2014)."""
    z = key + (uint64(count) + uint64(1)) * _STEP
    z = (z ^ (z >> uint64(30))) * _FIRST
    z = (z ^ (z >> uint64(27))) * _SECOND
    return z ^ (z >> uint64(31))


@njit
def _uniform(key, count):
    """A number from 0 to less than 1."""
    return float(_mixed(key, count) >> uint64(11)) * 2.0**-53


@njit
def _change(source, key, blank, shares, moves, out):
    in_bytes, begun, dropped, words, characters = blank == BLANK_BYTE, -1, False, shares[0], shares[1]
    drawn, low, high = 1, moves[0], moves[1]
    by = int(np.rint(shares[2] * (low + int(_uniform(key, 0) * (high - low + 1)))))
    out[:] = blank
    for at in range(source.size):
        id = int(source[at])
        inside = id != blank and not (in_bytes and id <= _SPACE)
        if not inside:
            begun = -1
        else:
            begun = at if begun < 0 else begun
            if at == begun or (in_bytes and (at - begun) % LONGEST_WORD == 0):
                dropped = _uniform(key, drawn) < words
                drawn += 1
            if dropped:
                continue
        if id != blank:
            if _uniform(key, drawn) < characters:
                id = int(_uniform(key, drawn + 1) * (blank + 1))
            drawn += 2
        if 0 <= at + by < out.size:
            out[at + by] = id


@njit(cache=True, nogil=True, parallel=True)
def _change_kernel(ids, rows, key, blank, shares, moves, out):
    for n in prange(rows.size):
        _change(ids[rows[n]], _mixed(key, n), blank, shares, moves, out[n])


@njit(cache=True, nogil=True, parallel=True)
def _join_kernel(texts, key, blank, share, out, own):
    for n in prange(texts.shape[0]):
        row, text, partner = _mixed(key, n), texts[n], texts[int(n) - 1]
        end = 0
        for at in range(text.size):
            if text[at] != blank:
                end = at + 1
        cut = text.size if _uniform(row, 0) >= share else int(_uniform(row, 1) * end)
        there, left = 0, 0
        for at in range(text.size):
            out[n, at] = text[at] if at < cut else partner[at]
            if out[n, at] != blank:
                there += 1
                left += at < cut
        own[n] = left / there if there else 1.0


def changed(
    ids: np.ndarray, rows: np.ndarray, blank: int, recipe: Recipe, made: float, seeds: tuple[int, ...]
) -> tuple[np.ndarray, np.ndarray | None]:
    """Some texts, changed as the recipe says.

    Each word, a run of ids that are not blank, becomes blank with probability `blank_words`. With 70 characters a space
    is blank. Of bytes (`blank` 255) it is not: there a word ends before what is not above it (a space, a line's end),
    and after LONGEST_WORD bytes. Each character that is not blank becomes any other of the alphabet, or a blank, with
    probability `replace_characters`. Then the text moves, and what leaves either end is lost. With probability `cut` it
    ends at a random place of its own, and the end of the text before it in the batch stands behind.

    Args:
        ids: uint8 (N, L), of all rows.
        rows: int64 (B,): which of them.
        blank: the id of a blank.
        recipe: whose shares and moves are meant.
        made: the share of the changes that is made.
        seeds: whole numbers that all that is drawn follows from.

    Returns:
        The texts uint8 (B, L); and with `cut` how much of each is still its own, float32 (B,): the share of characters
        that are not blank, 1 where there is none. None without.
    """
    keys = np.random.SeedSequence(seeds).generate_state(2, np.uint64)
    shares = np.array([recipe.blank_words, recipe.replace_characters, 1]) * made
    moves = np.array([-recipe.shift_left, recipe.shift_right])
    out = np.empty((len(rows), ids.shape[1]), np.uint8)
    threads.launch(_change_kernel, ids, rows, keys[0], blank, shares, moves, out)
    if not recipe.cut:
        return out, None
    joined, own = np.empty_like(out), np.empty(len(rows), np.float32)
    threads.launch(_join_kernel, out, keys[1], blank, made * recipe.cut, joined, own)
    return joined, own
