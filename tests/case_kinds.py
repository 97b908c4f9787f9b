"""What a case is: arguments of one call, made from sizes that are chosen by hand or drawn by hypothesis."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from hypothesis import strategies as st

from charcnn.ops.common.sparse import FOUR, pruned

Sizes = dict[str, int]


@dataclass(frozen=True)
class Case:
    """One call: arrays by argument name, and the other arguments."""

    inputs: dict[str, np.ndarray]
    options: dict[str, Any] = field(default_factory=dict)

    def oracle(self, reference: Callable[..., Any]) -> Any:
        """The reference's result, computed in float64: an array, or a tuple of them."""
        inputs = {
            name: array.astype(np.float64) if array.dtype == np.float32 else array
            for name, array in self.inputs.items()
        }
        return reference(**inputs, **self.options)


def built(row: Any, cases: Cases, sizes: Sizes, seed: int = 0, normal: bool = False) -> Case:
    """The arguments of these sizes as a row of the catalogue takes them: its weights may have to be 2:4 sparse."""
    case = cases.build(sizes, seed, normal)
    if not row.sparse:
        return case
    weight = case.inputs["weight"]
    whole = np.zeros((*weight.shape[:-2], -(-weight.shape[-2] // FOUR) * FOUR, weight.shape[-1]), np.float32)
    whole[..., : weight.shape[-2], :] = weight
    kept = np.ascontiguousarray(pruned(whole, -2)[..., : weight.shape[-2], :])
    return Case({**case.inputs, "weight": kept}, case.options)


def values(rng: np.random.Generator, *shape: int, normal: bool) -> np.ndarray:
    return np.asarray(rng.standard_normal(shape) if normal else rng.uniform(0.5, 1.5, shape), np.float32)


def weights(rng: np.random.Generator, c_out: int, *rest: int, normal: bool) -> tuple[np.ndarray, np.ndarray]:
    """Weight and bias; unless normal, those of one output have one sign, so that positive inputs can't cancel."""
    weight, bias = values(rng, c_out, *rest, normal=normal), values(rng, c_out, normal=normal)
    if not normal:
        signs = rng.choice(np.array([-1, 1], np.float32), c_out)
        weight *= signs.reshape(-1, *(1 for _ in rest))
        bias *= signs
    return weight, bias


DEFAULTS = {"stride": 1, "padding": 0, "dilation": 1}
"""Of what sizes may leave out."""


@dataclass(frozen=True)
class Cases:
    """How to make an operator's arguments from sizes, and which sizes."""

    make: Callable[..., Case]
    edges: tuple[Sizes, ...]
    """Small: the simulator runs them too."""
    large: tuple[Sizes, ...]
    """Off every tile boundary, for compiled code."""
    draw: dict[str, tuple[int, int, int]]
    """Each size's least value, and its greatest in the simulator and for compiled code."""
    fits: Callable[[Sizes], bool] = lambda sizes: True
    dtype: type = np.float32
    """Of the result, where that is no index."""
    compiled_in: tuple[str, ...] = ()
    """Sizes that are constants of some kernel. A GPU compiles for each that is new, for seconds: there they are drawn
    from those of `edges` and `large`, together, and the other sizes freely."""
    examples: int = 40
    """Sizes drawn for compiled code."""

    def build(self, sizes: Sizes, seed: int = 0, normal: bool = False) -> Case:
        """The arguments of these sizes."""
        return self.make(np.random.default_rng(seed), normal, **sizes)

    def fit(self, sizes: Sizes) -> bool:
        """Whether there is such a call."""
        return self.fits({**DEFAULTS, **sizes})

    def sizes(self, compiled: bool, gpu: bool = False) -> st.SearchStrategy[Sizes]:
        """Sizes that fit, for compiled code or the simulator."""
        bounds = {name: (least, most if compiled else few) for name, (least, few, most) in self.draw.items()}
        if not (gpu and compiled and self.compiled_in):
            drawn = {name: st.integers(*bound) for name, bound in bounds.items()}
            return st.fixed_dictionaries(drawn).filter(self.fits)
        constants = [{name: s[name] for name in self.compiled_in if name in s} for s in (*self.edges, *self.large)]
        free = {name: st.integers(*bound) for name, bound in bounds.items() if name not in self.compiled_in}
        both = st.tuples(st.sampled_from(constants), st.fixed_dictionaries(free)).map(lambda pair: pair[0] | pair[1])
        return both.filter(self.fit)
