"""Training steps by the plain operators, with the arguments of `charcnn.runtime.cpu_training.CpuTraining`.

It stands for that where it is missing.
"""

from __future__ import annotations

import math
import sys
from dataclasses import replace
from importlib.util import find_spec
from types import ModuleType

import numpy as np

from charcnn import layers
from charcnn.model import gradients, network
from charcnn.ops import reference
from charcnn.ops.adamw import AdamW, ParameterGroup

NAME = "charcnn.runtime.cpu_training"


class CpuTraining:
    def __init__(
        self, nodes, params, rows, *, group=ParameterGroup(0), clip=1.0, dropout=0.0, seed=0, multi_label=False,  # noqa: B008
    ):  # fmt: skip
        self._nodes, self._rows, self._dropout, self._seed = list(nodes), rows, dropout, seed
        self._multi_label = multi_label
        self._shapes = {name: shape for node in nodes for name, shape in node.parameters.items()}
        self.weights = np.concatenate([np.ravel(params[name]) for name in self._shapes]).astype(np.float32)
        self._averaged, self.steps = self.weights.copy(), 0
        self._optimiser = AdamW(self.weights, [replace(group, size=self.weights.size)], clip=clip)

    @property
    def params(self):
        return {name: part.copy() for name, part in self._parts(self.weights).items()}

    @property
    def averaged(self):
        return {name: part.copy() for name, part in self._parts(self._averaged).items()}

    def load(self, params):
        self.weights[:] = np.concatenate([np.ravel(params[name]) for name in self._shapes])

    def average(self, follows):
        self._averaged += np.float32(follows) * (self.weights - self._averaged)

    def fetched(self, array):
        return np.array(array)

    def state(self):
        return {"weights": self.weights.copy(), "average": self._averaged.copy(), "steps": self.steps} | {
            "optimiser": self._optimiser.state()
        }

    def restore(self, state):
        self.weights[:], self._averaged[:], self.steps = state["weights"], state["average"], state["steps"]
        self._optimiser.restore(state["optimiser"])

    def answers(self, x, params=None):
        params = self.params if params is None else params
        parts = [x[begin : begin + self._rows] for begin in range(0, len(x), self._rows)]
        return np.concatenate([network.run(self._nodes, part, params, np.float32) for part in parts])

    def live(self, x):
        found, last, params = {}, "", self.params
        for node in self._nodes:
            x = network.run([node], x, params, np.float32)
            if isinstance(node.layer, layers.Relu):
                found[last] = (x > 0).any(axis=(0, *range(2, x.ndim)))
            last = node.layer.name if node.parameters else last
        return found

    def step(self, x, targets, rate=1.0, *, leak=0.0, weights=None):
        assert x.dtype == np.uint8
        assert targets.dtype == np.float32
        assert len(x) <= self._rows
        nodes, params, read, kept, masks = [], self._parts(self.weights), x, [], {}
        for node in self._nodes:
            if leak and isinstance(node.layer, layers.Relu):
                node = replace(node, layer=layers.LeakyRelu(leak))
            if self._dropout and isinstance(node.layer, layers.Linear):
                rng = np.random.default_rng([self._seed, self.steps, len(nodes)])
                kept_share = np.float32(1 - self._dropout)
                masks[len(nodes)] = (rng.random(read.shape, np.float32) < kept_share) / kept_share
                read = read * masks[len(nodes)]
            nodes.append(node)
            kept.append(read)
            read = network.run([node], read, params, np.float32)
        self.logits, n = read, np.float32(len(x))
        own = np.ones(len(x), np.float32) if weights is None else weights
        if self._multi_label:
            likely = 1 / (1 + np.exp(-read))
            losses = (np.logaddexp(0, read) - targets * read).mean(axis=1)
            dy = (own / n)[:, None] * (likely - targets) / np.float32(targets.shape[1])
        else:
            losses = reference.softmax_cross_entropy(read, targets)
            dy = reference.softmax_cross_entropy_backward(own / n, read, targets)
        found = {}
        for at in reversed(range(len(nodes))):  # one layer at a time, as masks stand between them
            if at == 1:
                found |= gradients.backward(nodes[:2], kept[:2], dy, params, gradients.plain)
                break
            dy, given = gradients.gradient(nodes[at], dy, kept[at], params, gradients.plain)
            dy = dy * masks[at] if at in masks else dy
            found |= given
        flat = np.concatenate([np.ravel(found[name]) for name in self._shapes]).astype(np.float32)
        self._optimiser.step(flat, rate)
        self.steps += 1
        return (losses * own).astype(np.float32)

    def _parts(self, buffer):
        found, begin = {}, 0
        for name, shape in self._shapes.items():
            found[name] = buffer[begin : begin + math.prod(shape)].reshape(shape)
            begin += math.prod(shape)
        return found


def install():
    """Let this stand for what is missing."""
    if NAME not in sys.modules and not find_spec(NAME):
        sys.modules[NAME] = ModuleType(NAME)
        sys.modules[NAME].CpuTraining = CpuTraining
