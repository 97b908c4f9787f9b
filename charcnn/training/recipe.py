"""How a network is trained."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from charcnn.aliases import Record
from charcnn.ops.common.sparse import SPARSE


@dataclass(frozen=True)
class Recipe:
    """What decides the weights, beside the data and the sizes.

    Args:
        epochs: passes over the training part.
        batch: examples a step.
        rate: the largest learning rate of AdamW; it is reached at 30 % of all steps and falls to 0 (one-cycle).
        decay: AdamW's weight decay, of all parameters.
        beta2: what AdamW keeps of its mean of squared gradients at a step: 0.999 is a mean over 1,000 steps. Where they
            grow at once, as when a network leaves chance, a shorter one lets no larger steps through meanwhile.
        smoothing: label smoothing.
        dropout: before each linear layer.
        blank_words: share of words that are blanked, anew in every batch.
        replace_characters: share of characters that become random ones.
        shift_left: positions that a text may move to the left, at most; it loses its beginning.
        shift_right: positions that it may move to the right, at most.
        mixup: alpha of the Beta distribution from which the share comes in which two examples are mixed, 0 for none
            (Zhang et al. 2017, arXiv:1710.09412).
        cut: share of texts that end somewhere and go on as another's end does; the loss weighs both labels by length.
        settle: share of the epochs, the last ones, in which all these changes fade to none, so that the network ends
            on texts as they are.
        leak: slope of what ReLU would make 0, at first; so a unit that is never positive still learns, and does not
            die. It falls to 0 in a line, and the network that is kept has ReLU alone.
        leak_until: share of the epochs behind which it is 0.
        clip: the largest norm of a step's gradient, of all parameters together; 0 for no limit.
        teaching: weight in the loss of what teachers answer, where there are some; the labels have the rest (Hinton et
            al. 2015, arXiv:1503.02531). Networks answer to the same changed texts, probabilities that are given to the
            texts as they are.
        average: the weights that are measured and kept are a moving average over about so many epochs; 0 for none.
        balance: whether the loss weighs classes so that a rare one counts as much as a frequent one; not of classes
            that do not exclude each other.
        sparse: "2:4" for weights of which two of each four are 0: those that are largest at first are kept
            (`charcnn.model.sparsity`). "" for dense ones.
        patience: epochs without a better result on the validation part after which training ends; 0 for never.
        seed: of the weights, the order and all that is random.

    Raises:
        ValueError: a field is out of its range; names it.
    """

    epochs: int = 120
    batch: int = 256
    rate: float = 1e-3
    decay: float = 0.3
    beta2: float = 0.999
    smoothing: float = 0.05
    dropout: float = 0.5
    blank_words: float = 0.4
    replace_characters: float = 0.05
    shift_left: int = 30
    shift_right: int = 250
    mixup: float = 0.0
    cut: float = 0.0
    settle: float = 0.2
    leak: float = 0.1
    leak_until: float = 0.6
    clip: float = 1.0
    teaching: float = 0.7
    average: float = 8.0
    balance: bool = True
    sparse: str = ""
    patience: int = 40
    seed: int = 0

    def __post_init__(self) -> None:
        if self.mixup and self.cut:
            raise ValueError(f"mixup={self.mixup!r} and cut={self.cut!r}: need one of them to be 0")
        for name in ("epochs", "batch"):
            _whole(name, getattr(self, name), 1)
        for name in ("shift_left", "shift_right", "patience", "seed"):
            _whole(name, getattr(self, name), 0)
        for name in ("smoothing", "dropout", "blank_words", "replace_characters", "beta2", "leak"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)!r}: need at least 0 and less than 1")
        for name in ("cut", "settle", "leak_until", "teaching"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name}={getattr(self, name)!r}: need a number from 0 to 1")
        for name in ("decay", "mixup", "average", "clip"):
            if not 0 <= getattr(self, name) < float("inf"):
                raise ValueError(f"{name}={getattr(self, name)!r}: need 0 or more")
        if self.sparse not in ("", SPARSE):
            raise ValueError(f"sparse={self.sparse!r}: need {SPARSE!r}, or '' for dense weights")
        if not 0 < self.rate < float("inf"):
            raise ValueError(f"rate={self.rate!r}: need more than 0")

    def to_dict(self) -> Record:
        """The fields as JSON values; `Recipe(**value)` reads them back."""
        return asdict(self)


def _whole(name: str, value: object, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ValueError(f"{name}={value!r}: need a whole number, {least} or more")
