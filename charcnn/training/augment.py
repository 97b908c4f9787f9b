"""What is changed at random in every batch, in PyTorch: words blanked, characters replaced, texts moved and joined.

Shares are numbers or tensors of one value: what a captured CUDA graph computes with must lie on the GPU.
"""

from __future__ import annotations

import torch

from charcnn.text.encodings import BLANK_BYTE
from charcnn.training.changes import LONGEST_WORD

Share = float | torch.Tensor


def blank_words(ids: torch.Tensor, blank: int, share: Share) -> torch.Tensor:
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


def replace_characters(ids: torch.Tensor, blank: int, share: Share) -> torch.Tensor:
    """Each character that is not blank becomes any other of the alphabet, or a blank, with probability `share`."""
    random = torch.randint(0, blank + 1, ids.shape, device=ids.device, dtype=ids.dtype)
    hit = (torch.rand(ids.shape, device=ids.device) < share) & (ids != blank)
    return torch.where(hit, random, ids)


def shift(ids: torch.Tensor, blank: int, low: int, high: int, share: Share = 1.0) -> torch.Tensor:
    """Each text moves by `share` of low to high positions to the right; what leaves either end is lost."""
    drawn = torch.randint(low, high + 1, (len(ids), 1), device=ids.device)
    by = (drawn * share).round().long()
    source = torch.arange(ids.shape[1], device=ids.device) - by
    outside = (source < 0) | (source >= ids.shape[1])
    return ids.gather(1, source.clamp(0, ids.shape[1] - 1)).masked_fill(outside, blank)


def join(ids: torch.Tensor, partners: torch.Tensor, blank: int, share: Share) -> tuple[torch.Tensor, torch.Tensor]:
    """Each text, with probability `share`, ends at a random place of its own, and its partner's end stands behind.

    Returns:
        The texts (N, L), and how much of each is still its own (N,): float32, the share of characters that are no
        blanks; 1 where nothing is.
    """
    position = torch.arange(ids.shape[1], device=ids.device)
    end = ((ids != blank) * (position + 1)).amax(1, keepdim=True)
    cut = (torch.rand(len(ids), 1, device=ids.device) * end).long()
    whole = torch.rand(len(ids), 1, device=ids.device) >= share
    own = (position < cut) | whole
    joined = torch.where(own, ids, partners)
    there = joined != blank
    left = (there & own).sum(1) / there.sum(1).clamp(min=1)
    return joined, left.masked_fill(~there.any(1), 1.0)
