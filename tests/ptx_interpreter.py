"""PTX of a few instructions, run on a warp's registers in NumPy: what stands in for others on older GPUs."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

import numpy as np

LANES = 32

Registers = dict[str, np.ndarray]
"""By name, of each lane its bits, or a predicate."""


class Warp:
    """Runs the text of an instruction of `ptx`.

    Args:
        operands: by name, as $1, the bits of each lane; or one number for all.
        memory: words of global memory by their addresses.
    """

    def __init__(self, operands: Mapping[str, np.ndarray | int], memory: Mapping[int, int] | None = None) -> None:
        self.registers: Registers = {
            name: np.full(LANES, value, np.int64) if isinstance(value, int) else np.asarray(value)
            for name, value in operands.items()
        }
        self.memory, self.shared = memory or {}, {}

    def run(self, text: str) -> Warp:
        """All statements, one after another."""
        for statement in filter(None, (line.strip(" \n") for line in _body(text).split(";"))):
            if not statement.startswith(".reg"):
                self._run(statement)
        return self

    def _run(self, statement: str) -> None:
        guard, name, rest = re.fullmatch(r"(?:@(\w+) )?(\S+) (.*)", statement).groups()
        to, *given = re.findall(r"\{[^}]*\}|\[[^\]]*\]|[^,\s]+", rest)
        kind = name.rpartition(".")[2]
        if name.startswith("mma"):
            self._multiply(to, *given)
        elif name.startswith("st.shared"):
            address, words = int(self._get(to)[0]), given[0].strip("{}").split(", ")
            self.shared |= {address + 4 * i: int(self.registers[word][0]) for i, word in enumerate(words)}
        elif name == "ld.global.b32":
            if self.registers[guard][0]:
                self.registers[to] = np.full(LANES, self.memory[int(self._get(given[0])[0])], np.uint32)
        elif name.startswith("setp") and kind == "f16x2":
            pairs = [np.asarray(self._get(one), np.uint32).view(np.float16).reshape(LANES, 2) for one in given]
            for half, predicate in enumerate(to.split("|")):
                self.registers[predicate] = _compared(name, *(pair[:, half] for pair in pairs))
        elif name.startswith("setp"):
            self.registers[to] = _compared(name, *(self._number(one, kind) for one in given))
        elif name.startswith("selp"):
            self.registers[to] = np.where(self._get(given[2]), self._get(given[0]), self._get(given[1]))
        elif name == "mov.b32":
            self._set(to, self._get(given[0]))
        else:
            self.registers[to] = _computed(name, *(self._number(one, kind) for one in given))

    def _get(self, operand: str) -> np.ndarray:
        if operand.startswith("{"):
            low, high = (self.registers[name] for name in operand.strip("{}").split(", "))
            return np.asarray(low, np.uint32) | np.asarray(high, np.uint32) << np.uint32(16)
        if operand.startswith("["):
            name, _, behind = operand.strip("[]").partition("+")
            return np.asarray(self.registers[name] + int(behind or 0))
        if operand in self.registers:
            return self.registers[operand]
        return np.full(LANES, int(operand.removeprefix("0f"), 16 if operand.startswith("0f") else 10), np.uint32)

    def _set(self, to: str, bits: np.ndarray) -> None:
        if to.startswith("{"):
            low, high = to.strip("{}").split(", ")
            self.registers |= {low: bits & np.uint32(0xFFFF), high: bits >> np.uint32(16)}
        else:
            self.registers[to] = bits

    def _number(self, operand: str, kind: str) -> np.ndarray:
        bits = np.asarray(self._get(operand), np.uint32)
        return bits.view(np.float32) if kind == "f32" else bits

    def _multiply(self, to: str, *given: str) -> None:
        """m16n8k8 of f16: PTX ISA, "Matrix Fragments for mma.m16n8k8"."""
        (a, b, c), lanes = (one.strip("{}").split(", ") for one in given), np.arange(LANES)
        row, pair = lanes // 4, lanes % 4 * 2
        left, right, sums = np.zeros((16, 8)), np.zeros((8, 8)), np.zeros((16, 8), np.float32)
        for half in range(2):
            for word, below in zip(a, (0, 8), strict=True):
                left[row + below, pair + half] = _halves(self._get(word))[:, half]
            right[pair + half, row] = _halves(self._get(b[0]))[:, half]
        places = [(row + below, pair + half) for below in (0, 8) for half in range(2)]
        for word, place in zip(c, places, strict=True):
            sums[place] = self._number(word, "f32")
        sums = (left @ right + sums).astype(np.float32)
        for word, place in zip(to.strip("{}").split(", "), places, strict=True):
            self.registers[word] = sums[place].view(np.uint32)


def _body(text: str) -> str:
    """Without the braces around it."""
    return text[1:-1] if text.startswith("{") else text


def _halves(words: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(words, np.uint32).view(np.float16).reshape(LANES, 2)


def _compared(name: str, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    how = name.split(".")[1]
    unordered = np.isnan(a) | np.isnan(b) if a.dtype.kind == "f" else np.zeros(LANES, bool)
    with np.errstate(invalid="ignore"):
        found = {"nan": unordered, "lt": a < b, "gt": a > b, "gtu": (a > b) | unordered}[how]
    return np.asarray(found)


def _computed(name: str, a: np.ndarray, b: np.ndarray | None = None) -> np.ndarray:
    with np.errstate(all="ignore"):
        if name == "cvt.rn.f16.f32":
            return a.astype(np.float16).view(np.uint16)
        made = {"max.f32": np.fmax, "add.rn.f32": np.add}[name](a, b)
    return np.asarray(made, np.float32).view(np.uint32)


def values() -> Iterator[tuple[float, float]]:
    """Pairs of numbers, infinities, zeros and NaN."""
    special = (0.0, -0.0, 1.0, -1.5, np.inf, -np.inf, np.nan, 65504.0, 1e6, 1e-9, 0.1)
    yield from ((a, b) for a in special for b in special)
