"""Layers between those of a rank's share of a network: they bring what the next one reads from other ranks.

A share is a network by itself, whose layers have some of the channels.
"""

from __future__ import annotations

from dataclasses import dataclass

from charcnn.gpu.collectives.pieces import Piece
from charcnn.layers import Layer, LocalResponseNorm, Shape
from charcnn.offload.partition import Ranges, overlap


@dataclass(frozen=True)
class Gathered(Layer):
    """Gathers the channels that this rank needs of those that all ranks have."""

    has: Ranges
    """By rank, the channels of its array."""
    owns: Ranges
    """By rank, those of them that are right."""
    needs: Ranges
    """By rank, the channels that it needs."""
    place: tuple[int, int]
    """This rank's number, and how many they are."""
    local: bool = False
    """Whether each rank has all that it needs."""

    @property
    def kept(self) -> slice:
        """What this rank needs of its array, where it has all of that."""
        begin, need = self.has[self.place[0]].start, self.needs[self.place[0]]
        return slice(need.start - begin, need.stop - begin)

    def out_shape(self, shape: Shape) -> Shape:
        """(C, ...), the channels that are needed"""
        return (len(self.needs[self.place[0]]), *shape[1:])

    def pieces(self, channel: int) -> list[list[Piece]]:
        """What each rank gives each, in bytes, of which a channel has so many."""
        owns = self.has if self.local else self.owns

        def piece(source: int, to: int) -> Piece:
            both = overlap(owns[source], self.needs[to])
            if not both or (self.local and source != to):
                return Piece(0, 0, 0)
            begin, place = both.start - self.has[source].start, both.start - self.needs[to].start
            return Piece(begin * channel, len(both) * channel, place * channel)

        ranks = range(self.place[1])
        return [[piece(source, to) for to in ranks] for source in ranks]


@dataclass(frozen=True)
class GatheredInputs(Layer):
    """Gathers the inputs of a batch. Up to here each rank has computed some of them, by whole layers."""

    @staticmethod
    def own(n: int, rank: int, ranks: int) -> slice:
        """The part of n inputs that a rank takes. All take as many, so two may have the last ones."""
        each = -(-n // ranks)
        begin = min(rank * each, n - each)
        return slice(begin, begin + each)

    @classmethod
    def pieces(cls, n: int, ranks: int, nbytes: int) -> list[list[Piece]]:
        """What each rank sends to each other rank, for inputs of so many bytes. Every input comes from one rank."""
        found = []
        for rank in range(ranks):
            own = cls.own(n, rank, ranks)
            first = min(rank * (own.stop - own.start), n)
            piece = Piece((first - own.start) * nbytes, (own.stop - first) * nbytes, first * nbytes)
            found.append([piece] * ranks)
        return found


@dataclass(frozen=True)
class Summed(Layer):
    """The sum of what all ranks have."""


@dataclass(frozen=True)
class SharedNorm(LocalResponseNorm):
    """Local response normalisation of channels that ranks share."""

    owns: Ranges = ()
    """By rank, its channels."""

    @property
    def alone(self) -> LocalResponseNorm:
        """The norm of one rank's channels."""
        return LocalResponseNorm(self.size, self.alpha, self.beta, self.k, name=self.name)


BETWEEN = Gathered, GatheredInputs, Summed, SharedNorm
"""Layers that `Exchanges` has kernels for."""
