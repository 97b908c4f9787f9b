"""Every size of the network, and the lengths that follow from them."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import Any

POOL_SIZE = 3
POOLED_BLOCKS = (1, 2, 6)
NORMALISED_BLOCKS = (1, 6)


@dataclass(frozen=True)
class Config:
    """The sizes of one character-level CNN (Zhang, Zhao, LeCun 2015, arXiv:1509.01626, with two LayerNorms).

    Six convolution blocks (stride 1, no padding), of which blocks 1, 2 and 6 end in a max-pool of 3, and
    three linear blocks.

    Args:
        length: characters an input (L).
        alphabet: one-hot channels; the token id `alphabet` stands for a blank.
        channels: output channels of every convolution.
        kernel_sizes: the six convolutions' kernel sizes.
        units: outputs of fc1 and of fc2.
        classes: outputs of fc3.
        layernorm: whether blocks 1 and 6 normalise (the paper's own network does not).

    Raises:
        ValueError: a size is not a positive int, or the chain runs out of positions; names the block.
    """

    length: int = 1014
    alphabet: int = 70
    channels: int = 256
    kernel_sizes: tuple[int, ...] = (7, 7, 3, 3, 3, 3)
    units: int = 1024
    classes: int = 4
    layernorm: bool = True

    def __post_init__(self) -> None:
        for field in fields(self):
            if field.name in ("kernel_sizes", "layernorm"):
                continue
            _positive(field.name, getattr(self, field.name))
        if self.alphabet > 255:
            raise ValueError(f"alphabet={self.alphabet}: token ids are uint8, so at most 255 and one blank")
        if not isinstance(self.layernorm, bool):
            raise ValueError(f"layernorm={self.layernorm!r}: need True or False")
        if isinstance(self.kernel_sizes, list):  # as JSON gives it
            object.__setattr__(self, "kernel_sizes", tuple(self.kernel_sizes))
        if not isinstance(self.kernel_sizes, tuple) or len(self.kernel_sizes) != 6:
            raise ValueError(f"kernel_sizes={self.kernel_sizes!r}: need a tuple of six ints, one a block")
        for block, size in enumerate(self.kernel_sizes, 1):
            _positive(f"kernel_sizes[{block - 1}] (conv_block_{block})", size)
        length = self.length
        for block, size in enumerate(self.kernel_sizes, 1):
            if length < size:
                raise ValueError(
                    f"conv_block_{block} gets {length} positions from length={self.length}, "
                    f"its kernel size {size} needs at least {size}"
                )
            length = length - size + 1
            if block in POOLED_BLOCKS:
                if length < POOL_SIZE:
                    raise ValueError(
                        f"conv_block_{block} convolves length={self.length} down to {length} positions, "
                        f"its max-pool needs at least {POOL_SIZE}"
                    )
                length //= POOL_SIZE

    def in_channels(self, block: int) -> int:
        """C_in of convolution block 1 to 6."""
        return self.alphabet if block == 1 else self.channels

    @property
    def conv_lengths(self) -> tuple[int, ...]:
        """Positions out of each of the six convolutions: (1008, 330, 108, 106, 104, 102) for SMALL."""
        lengths, length = [], self.length
        for block, size in enumerate(self.kernel_sizes, 1):
            length = length - size + 1
            lengths.append(length)
            if block in POOLED_BLOCKS:
                length //= POOL_SIZE
        return tuple(lengths)

    @property
    def block_lengths(self) -> tuple[int, ...]:
        """Positions out of each of the six blocks, after pooling: (336, 110, 108, 106, 104, 34) for SMALL."""
        return tuple(
            length // POOL_SIZE if block in POOLED_BLOCKS else length
            for block, length in enumerate(self.conv_lengths, 1)
        )

    @property
    def features(self) -> int:
        """Inputs of fc1: 8704 for SMALL."""
        return self.channels * self.block_lengths[-1]

    @property
    def parameter_shapes(self) -> dict[str, tuple[int, ...]]:
        """Every parameter's name and shape, in the order of the original program's params.bin."""
        shapes: dict[str, tuple[int, ...]] = {}
        for block, (size, length) in enumerate(zip(self.kernel_sizes, self.conv_lengths, strict=True), 1):
            shapes[f"conv{block}.weight"] = (self.channels, self.in_channels(block), size)
            shapes[f"conv{block}.bias"] = (self.channels,)
            if self.layernorm and block in NORMALISED_BLOCKS:
                shapes[f"norm{block}.weight"] = (self.channels, length)
                shapes[f"norm{block}.bias"] = (self.channels, length)
        sizes = (self.features, self.units, self.units, self.classes)
        for block in (1, 2, 3):
            shapes[f"fc{block}.weight"] = (sizes[block], sizes[block - 1])
            shapes[f"fc{block}.bias"] = (sizes[block],)
        return shapes

    @property
    def parameters(self) -> int:
        """Values in all parameters: 11,908,100 for SMALL."""
        total = 0
        for shape in self.parameter_shapes.values():
            size = 1
            for extent in shape:
                size *= extent
            total += size
        return total

    @property
    def flops(self) -> int:
        """Floating-point operations an input on dense one-hot input, a multiply-add counted as two."""
        macs = sum(
            self.channels * length * self.in_channels(block) * size
            for block, (length, size) in enumerate(zip(self.conv_lengths, self.kernel_sizes, strict=True), 1)
        )
        macs += self.features * self.units + self.units * self.units + self.units * self.classes
        return 2 * macs

    def to_dict(self) -> dict[str, Any]:
        """The fields as JSON values; `Config(**value)` reads them back."""
        return asdict(self)


def _positive(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"{name}={value!r}: need a positive int")


SMALL = Config()
"""The paper's small network, with two LayerNorms: 11,908,100 parameters."""

TINY = Config(length=123, channels=4, units=8)
"""The shortest length that the chain admits and a few channels: for the simulator and quick tests."""
