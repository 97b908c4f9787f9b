"""Every size of the network, its layers, and what follows from them."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, fields
from functools import cached_property
from typing import Any

from charcnn.aliases import Record
from charcnn.layers import Conv1d, Flatten, Layer, LayerNorm, Linear, MaxPool1d, Network, OneHot, Relu, place

POOL_SIZE = 3
POOLED_BLOCKS = (1, 2, 6)
NORMALISED_BLOCKS = (1, 6)
_HIDDEN = (*(f"conv{block}" for block in range(1, 7)), "fc1", "fc2")

LONGEST = 1 << 20
"""Characters of an input. A classifier has blocks of 1,024 texts or more in memory, a byte a character."""


@dataclass(frozen=True)
class Config(Network):
    """The sizes of one character-level CNN (Zhang, Zhao, LeCun 2015, arXiv:1509.01626, with two LayerNorms).

    Six convolution blocks (stride 1, no padding), of which blocks 1, 2 and 6 end in a max-pool of 3, and
    three linear blocks.

    Args:
        length: characters an input (L).
        alphabet: one-hot channels, 70 of the paper's characters, 255 of bytes; the token id `alphabet` is a blank.
        channels: output channels of every convolution.
        kernel_sizes: the six convolutions' kernel sizes.
        units: outputs of fc1 and of fc2.
        classes: outputs of fc3.
        layernorm: whether blocks 1 and 6 normalise (the paper's own network does not).
        widths: where layers differ, the channels of the six convolutions and the units of fc1 and fc2: channels and
            units are the largest of them. None where all are alike. `charcnn compact` makes such networks.
        multi_label: whether a text may have several of the classes, or none: a class's probability is then its logit's
            sigmoid, and no softmax of all. No size depends on it.

    Raises:
        ValueError: a size is not a positive int, or the chain runs out of positions; names the layer.
    """

    length: int = 1014
    alphabet: int = 70
    channels: int = 256
    kernel_sizes: tuple[int, ...] = (7, 7, 3, 3, 3, 3)
    units: int = 1024
    classes: int = 4
    layernorm: bool = True
    widths: tuple[int, ...] | None = None
    multi_label: bool = False

    def __post_init__(self) -> None:
        for field in fields(self):
            if field.name in ("kernel_sizes", "layernorm", "widths", "multi_label"):
                continue
            _positive(field.name, getattr(self, field.name))
        if self.length > LONGEST:
            raise ValueError(f"length={self.length}: need at most {LONGEST}: 1,024 texts are 1 GiB of token ids then")
        if self.alphabet > 255:
            raise ValueError(f"alphabet={self.alphabet}: token ids are uint8, so at most 255 and one blank")
        for name in ("layernorm", "multi_label"):
            if not isinstance(getattr(self, name), bool):
                raise ValueError(f"{name}={getattr(self, name)!r}: need True or False")
        if isinstance(self.kernel_sizes, list):  # as JSON gives it
            object.__setattr__(self, "kernel_sizes", tuple(self.kernel_sizes))
        if not isinstance(self.kernel_sizes, tuple) or len(self.kernel_sizes) != 6:
            raise ValueError(f"kernel_sizes={self.kernel_sizes!r}: need a tuple of six ints, one a block")
        for block, size in enumerate(self.kernel_sizes, 1):
            _positive(f"kernel_sizes[{block - 1}] (conv_block_{block})", size)
        if self.widths is not None:
            self._check_widths(self.widths)
        try:
            place(self.layers, (self.length,))
        except ValueError as error:
            raise ValueError(f"length={self.length}: {error}") from None

    def _check_widths(self, widths: object) -> None:
        """And leave None where they say nothing more, so that equal networks are equal."""
        if not isinstance(widths, (tuple, list)) or len(widths) != 8:
            raise ValueError(f"widths={widths!r}: need a tuple of eight ints: conv1 to conv6, fc1, fc2")
        for at, width in enumerate(widths):
            _positive(f"widths[{at}] ({_HIDDEN[at]})", width)
        largest = max(widths[:6]), max(widths[6:])
        if largest != (self.channels, self.units):
            raise ValueError(
                f"channels={self.channels}, units={self.units}: need {largest[0]} and {largest[1]}, the largest widths"
            )
        same = tuple(widths) == (self.channels,) * 6 + (self.units,) * 2
        object.__setattr__(self, "widths", None if same else tuple(widths))  # JSON gives a list

    @classmethod
    def of_widths(cls, widths: tuple[int, ...], **sizes: Any) -> Config:
        """The network of these widths, and other sizes as of Config."""
        return cls(channels=max(widths[:6]), units=max(widths[6:]), widths=tuple(widths), **sizes)

    @property
    def block_channels(self) -> tuple[int, ...]:
        """Channels out of each of the six convolutions."""
        return (self.channels,) * 6 if self.widths is None else self.widths[:6]

    @property
    def fc_units(self) -> tuple[int, ...]:
        """Outputs of fc1, fc2 and fc3."""
        return (*((self.units,) * 2 if self.widths is None else self.widths[6:]), self.classes)

    @cached_property
    def layers(self) -> tuple[Layer, ...]:  # type: ignore[override]
        """The network, token ids (L,) to logits (classes,): every other form of it is made of these."""
        layers: list[Layer] = [OneHot(self.alphabet)]
        for block, size in enumerate(self.kernel_sizes, 1):
            layers.append(Conv1d(self.block_channels[block - 1], size, name=f"conv{block}"))
            if self.layernorm and block in NORMALISED_BLOCKS:
                layers.append(LayerNorm(name=f"norm{block}"))
            layers.append(Relu())
            if block in POOLED_BLOCKS:
                layers.append(MaxPool1d(POOL_SIZE, name=f"pool{block}"))
        fc1, fc2, fc3 = (Linear(units, name=f"fc{block}") for block, units in enumerate(self.fc_units, 1))
        return (*layers, Flatten(), fc1, Relu(), fc2, Relu(), fc3)

    @property
    def in_shape(self) -> tuple[int]:  # type: ignore[override]
        """(L,)"""
        return (self.length,)

    @property
    def byte_values(self) -> int:  # type: ignore[override]
        """alphabet + 1, with the blank."""
        return self.alphabet + 1

    def in_channels(self, block: int) -> int:
        """C_in of convolution block 1 to 6."""
        return self.alphabet if block == 1 else self.block_channels[block - 2]

    @property
    def conv_lengths(self) -> tuple[int, ...]:
        """Positions out of each of the six convolutions: (1008, 330, 108, 106, 104, 102) for SMALL."""
        return tuple(node.out_shape[1] for node in self.nodes if isinstance(node.layer, Conv1d))

    @property
    def block_lengths(self) -> tuple[int, ...]:
        """Positions out of each of the six blocks, after pooling: (336, 110, 108, 106, 104, 34) for SMALL."""
        return tuple(node.in_shape[1] for node in self.nodes[2:] if isinstance(node.layer, Conv1d | Flatten))

    @property
    def largest_features(self) -> int:
        """Values of the largest that any layer gives of an input, one-hot columns included."""
        return max(math.prod(node.out_shape) for node in self.nodes)

    @property
    def features(self) -> int:
        """Inputs of fc1: 8704 for SMALL."""
        return self.block_channels[-1] * self.block_lengths[-1]

    def to_dict(self) -> Record:
        """The fields as JSON values; `Config(**value)` reads them back.

        Widths are left out where all are alike, and a `multi_label` that is False: files of before them have none, and
        their digests hold.
        """
        left_out = {"widths": None, "multi_label": False}
        return {name: value for name, value in asdict(self).items() if (name, value) not in left_out.items()}


def _positive(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"{name}={value!r}: need a positive int")


SMALL = Config()
"""The paper's small network, with two LayerNorms: 11,908,100 parameters, in the order of the original's params.bin."""

TINY = Config(length=123, channels=4, units=8)
"""The shortest length that the chain admits and a few channels: for the simulator and quick tests."""

TINY_MATRICES = Config(length=123, channels=64, units=64)
"""TINY, with as many channels as tensor cores take at once."""
