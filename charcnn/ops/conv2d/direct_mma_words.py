"""Which taps of a row of the kernel four lanes multiply at once, in the technique `direct_mma`: words, in registers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

LANES = 4
"""That share a column of a product."""

NONE = 15
"""In place of an exponent, where a word has no second tap."""


@dataclass(frozen=True)
class Word:
    """Taps of a row of the kernel that a lane multiplies at once."""

    channel: int
    column: int
    """Of the first tap."""
    halvings: tuple[int, int]
    """How often each tap's weight is halved, as other words have it, too; NONE where there is no second one."""


def _words(c_in: int, taps: int, together: int) -> Iterator[list[Word]]:
    """Words of a row of the kernel, by channel.

    Of an odd number of taps the last but one is in two words, half of it in each: no word has a pixel that is in no
    window, whose infinity would spread.
    """
    for channel in range(c_in):
        if together == 1 or taps == 1:
            yield [Word(channel, column, (0, NONE)) for column in range(taps)]
        else:
            odd = taps % 2
            words = [Word(channel, column, (0, 0)) for column in range(0, taps - 1, 2)]
            if odd:
                words[-1] = Word(channel, taps - 3, (0, 1))
                words.append(Word(channel, taps - 2, (1, 0)))
            yield words


@lru_cache(1024)
def registers(c_in: int, taps: int, together: int) -> tuple[tuple[Word, ...], ...]:
    """Fours of words: neighbours of a row first, then a column's of four channels, then what is left.

    A last register that has not enough takes words twice or four times, halved as often.
    """
    channels = [*_words(c_in, taps, together)]
    whole = len(channels[0]) // LANES * LANES
    found = [tuple(words[i : i + LANES]) for words in channels for i in range(0, whole, LANES)]
    fours = c_in // LANES * LANES
    for column in range(whole, len(channels[0])):
        found += _fours([words[column] for words in channels[:fours]])
    rest = [word for words in channels[fours:] for word in words[whole:]]
    for four in _fours(rest):
        lanes = [four[lane % len(four)] for lane in range(LANES)]
        found.append(tuple(_halved(word, lanes.count(word).bit_length() - 1) for word in lanes))
    return tuple(found)


def _fours(words: list[Word]) -> Iterator[tuple[Word, ...]]:
    return (tuple(words[i : i + LANES]) for i in range(0, len(words), LANES))


def _halved(word: Word, times: int) -> Word:
    first, second = word.halvings
    return Word(word.channel, word.column, (first + times, second if second == NONE else second + times))
