"""What is changed at random in every batch: words blanked, characters replaced, the text moved."""

from __future__ import annotations

import torch

from charcnn.text.encodings import BLANK_BYTE

LONGEST_WORD = 12
"""Bytes of a word of the encoding `bytes` at most: some languages have no spaces, and a text would be one word."""


def blank_words(ids: torch.Tensor, blank: int, share: float) -> torch.Tensor:
    """Each word, a run of ids that are not blank, becomes blank with probability `share`.

    With 70 characters a space is blank. Of bytes (`blank` 255) it is none: there a word ends before what is not above
    it (a space, a line's end), and after LONGEST_WORD bytes.
    """
    inside = ids != blank
    if blank == BLANK_BYTE:
        inside &= ids > ord(" ")
    starts = inside.clone()
    starts[:, 1:] &= ~inside[:, :-1]
    if blank == BLANK_BYTE:
        place = torch.arange(ids.shape[1], device=ids.device).expand_as(starts)
        begun = torch.where(starts, place, 0).cummax(1).values
        starts |= inside & ((place - begun) % LONGEST_WORD == 0)
    word = starts.cumsum(1)  # the word that a position is in, from 1
    dropped = torch.rand(len(ids), ids.shape[1] // 2 + 2, device=ids.device) < share
    return ids.masked_fill(dropped.gather(1, word) & inside, blank)


def replace_characters(ids: torch.Tensor, blank: int, share: float) -> torch.Tensor:
    """Each character that is not blank becomes any other of the alphabet, or a blank, with probability `share`."""
    random = torch.randint(0, blank + 1, ids.shape, device=ids.device, dtype=ids.dtype)
    hit = (torch.rand(ids.shape, device=ids.device) < share) & (ids != blank)
    return torch.where(hit, random, ids)


def shift(ids: torch.Tensor, blank: int, low: int, high: int) -> torch.Tensor:
    """Each text moves by low to high positions to the right; what leaves either end is lost, blanks come in."""
    by = torch.randint(low, high + 1, (len(ids), 1), device=ids.device)
    source = torch.arange(ids.shape[1], device=ids.device) - by
    outside = (source < 0) | (source >= ids.shape[1])
    return ids.gather(1, source.clamp(0, ids.shape[1] - 1)).masked_fill(outside, blank)
