"""Time BERT on a GPU, relative to PyTorch: Hugging Face's BertModel, compiled or not, and nn.TransformerEncoder.

It needs a GPU, PyTorch, and the package transformers. For each case all take turns, from token ids on the GPU to
embeddings there, with the same random weights: means of the last features, of length 1. All embeddings are compared
with BertModel's in float32 first, and its first one with the float64 reference. Ours pack the tokens; peers get texts
padded to the longest, and a mask where they differ. TFLOP/s count the tokens that there are. In the run of fp16, ours
in FP8 takes turns with the others, by scales of random texts.

A run of all cases writes results/MACHINE-bert.json. Exit status: 0 measured, 1 a result is wrong, 2 unusable machine
or options.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import energy
import numpy as np
import raw
from turns import Ready, by_turns

from charcnn.catalog import encoder_technique
from charcnn.gpu import device
from charcnn.host import machine
from charcnn.host.arguments import HelpFormatter
from charcnn.layers import place
from charcnn.levels.runner.options import serves
from charcnn.model import params
from charcnn.model.sequences import run as reference
from charcnn.networks import bert
from charcnn.networks.encoder import EncoderNetwork
from charcnn.networks.encoder.sizes import SIZES


class Case(NamedTuple):
    """A batch."""

    variant: str
    n: int
    tokens: int
    """S: of each, or the most."""
    least: int = 0
    """Of an input at least, where lengths are drawn; 0: all have S."""

    def __str__(self) -> str:
        drawn = f"{self.least} to {self.tokens}" if self.least else str(self.tokens)
        return f"{self.variant}, N = {self.n}, {drawn} tokens"


CASES = (
    Case("base", 256, 128), Case("base", 64, 512), Case("base", 256, 64, 20), Case("base", 1, 128),
    Case("base", 1, 512), Case("minilm", 256, 128), Case("minilm", 256, 64, 20), Case("minilm", 1, 32),
)  # fmt: skip
"""The shapes of the literature, texts as headlines are, and one text alone."""

TECHNIQUES = ("mma", "wgmma")

GPU = "cuda"
"""Where PyTorch computes."""

TOLERANCES = {"fp16": 4e-3, "bf16": 3e-2, "fp8": 0.5}
"""The greatest ||y - ref|| of an embedding, whose length is 1."""

MODES = {"eager": None, "compiled": "reduce-overhead"}
"""Of BertModel: as it is, and by torch.compile, whose kernels are one CUDA graph."""


class Drawn:
    """Token ids of a case, with PyTorch on the GPU, weights, and the right embeddings."""

    def __init__(self, case: Case) -> None:
        import torch
        from transformers import BertConfig, BertModel

        self.case, sizes = case, SIZES[case.variant]
        self.network = EncoderNetwork("bert", case.variant, bert.layers(case.variant), case.tokens)
        self.params = params.init(self.network, 0)
        rng = np.random.default_rng(0)
        self.lengths = rng.integers(case.least or case.tokens, case.tokens + 1, case.n)
        self.lengths[0] = case.tokens
        self.ids = rng.integers(0, sizes.vocabulary, (case.n, case.tokens), np.int32)
        self.ids[np.arange(case.tokens) >= self.lengths[:, None]] = -1
        config = BertConfig(
            vocab_size=sizes.vocabulary, hidden_size=sizes.width, num_hidden_layers=sizes.blocks,
            num_attention_heads=sizes.heads, intermediate_size=sizes.hidden, max_position_embeddings=sizes.positions,
        )  # fmt: skip
        self.model = BertModel(config, add_pooling_layer=False).eval()
        self.model.load_state_dict({name: torch.from_numpy(value) for name, value in self.params.items()}, strict=False)
        self.given = torch.from_numpy(np.maximum(self.ids, 0)).long().to(GPU)
        self.mask = torch.from_numpy((self.ids >= 0).astype(np.int64)).to(GPU)
        with torch.inference_mode():
            self.right = self.pooled(self.model.to(GPU)(**self.inputs()).last_hidden_state.float())
        first = torch.from_numpy(reference(self.network.nodes, self.ids[:1], self.params))
        if (off := float((self.right[0].cpu() - first[0]).norm())) > 1e-5:
            raise SystemExit(f"bert: BertModel in float32, {case}: off by {off:.2g}")

    def inputs(self) -> dict[str, Any]:
        """What BertModel is called with."""
        return {"input_ids": self.given} | ({"attention_mask": self.mask} if self.case.least else {})

    def pooled(self, features: Any) -> Any:
        """Means over tokens, of length 1."""
        import torch

        weight = self.mask[..., None].to(features.dtype)
        return torch.nn.functional.normalize((features * weight).sum(1) / weight.sum(1), dim=1)

    @property
    def flop(self) -> int:
        """Of the tokens that there are."""
        layers = bert.layers(self.case.variant)
        return sum(sum(node.flops for node in place(layers, (int(length),))) for length in self.lengths)

    def check(self, name: str, y: Any, precision: str) -> float:
        """How far the worst embedding is off.

        Raises:
            SystemExit: too far, or not finite.
        """
        error = float((y.float() - self.right).norm(dim=1).max())
        if not error <= TOLERANCES[precision]:
            raise SystemExit(f"bert: {name} {precision}, {self.case}: off by {error:.2g}")
        return error


def own(drawn: Drawn, precision: str) -> Iterator[Ready]:
    """Our techniques that run here; beside fp16 those in FP8, too."""
    for how in (precision, *(["fp8"] if precision == "fp16" else [])):
        yield from in_precision(drawn, how)


def in_precision(drawn: Drawn, precision: str) -> Iterator[Ready]:
    """Our techniques that have this precision, and run here."""
    import torch

    for name in TECHNIQUES:
        row = encoder_technique(name)
        if not serves(row, precision):
            continue
        run = row.build(name, drawn.params, drawn.network, batch=drawn.case.n, streams=1, precision=precision)
        rows = drawn.ids.view(np.uint8)
        from_host = torch.from_numpy(run(rows)).to(GPU)
        error = drawn.check(name, from_host, precision)
        start = on_gpu(run, rows)
        drawn.check(name, torch.as_tensor(start().copy_to_host()).to(GPU), precision)
        yield Ready(f"{name} {precision}", start, drawn.flop, row_of(name, precision, error), run, items=drawn.case.n)


def on_gpu(run: Any, rows: np.ndarray) -> Callable[[], Any]:
    """A call that computes rows, which lie on the GPU, as those of the host are: with the sizes that they have."""
    from charcnn.networks.encoder.workers import sizes_of

    (worker,) = run._on_gpu.values()
    ids, sizes = device.to_device(rows), sizes_of(rows.view(np.int32))

    def start() -> Any:
        worker._sizes = sizes
        return run.on_device(ids)

    return start


def row_of(name: str, precision: str, error: float, **more: Any) -> dict[str, Any]:
    """What the result says of one of them."""
    return {"made": name, "precision": precision, "error": error, **more}


def peers(drawn: Drawn, precision: str, modes: Sequence[str]) -> Iterator[Ready]:
    """PyTorch's, in the precision."""
    import torch
    import transformers

    kind = {"fp16": torch.float16, "bf16": torch.bfloat16}[precision]
    versions = {"torch": torch.__version__, "transformers": transformers.__version__}
    model = drawn.model.to(kind)

    def embedded() -> Any:
        return drawn.pooled(model(**drawn.inputs()).last_hidden_state)

    for mode in modes:
        torch.compiler.reset()
        made = embedded if MODES[mode] is None else torch.compile(embedded, mode=MODES[mode])
        call = inferred(made)
        name = f"BertModel, {mode}"
        yield Ready(
            f"{name} {precision}", call, drawn.flop,
            row_of(name, precision, drawn.check(name, call(), precision), versions=versions), items=drawn.case.n,
        )  # fmt: skip
    call = inferred(fast_path(drawn, kind))
    name = "nn.TransformerEncoder"
    error = drawn.check(name, call(), precision)
    row = row_of(name, precision, error, versions=versions)
    yield Ready(f"{name} {precision}", call, drawn.flop, row, items=drawn.case.n)


def inferred(function: Callable[[], Any]) -> Callable[[], Any]:
    """The function, with no gradients kept; called twice, so that it is compiled and recorded."""
    import torch

    def call() -> Any:
        with torch.inference_mode():
            return function()

    for _ in range(3):
        call()
    return call


def fast_path(drawn: Drawn, kind: Any) -> Callable[[], Any]:
    """PyTorch's own encoder, whose layers in inference are one operator each, behind BertModel's embeddings."""
    import torch

    sizes, held = SIZES[drawn.case.variant], drawn.params
    layer = torch.nn.TransformerEncoderLayer(
        sizes.width, sizes.heads, sizes.hidden, activation="gelu", layer_norm_eps=sizes.eps, batch_first=True
    )
    encoder = torch.nn.TransformerEncoder(layer, sizes.blocks, enable_nested_tensor=True)
    for number, one in enumerate(encoder.layers):
        at = f"encoder.layer.{number}"
        names = [f"{at}.attention.self.{part}" for part in ("query", "key", "value")]
        whole = {part: np.concatenate([held[f"{name}.{part}"] for name in names]) for part in ("weight", "bias")}
        state = {"self_attn.in_proj_weight": whole["weight"], "self_attn.in_proj_bias": whole["bias"]}
        for there, here in (
            ("self_attn.out_proj", "attention.output.dense"), ("linear1", "intermediate.dense"),
            ("linear2", "output.dense"), ("norm1", "attention.output.LayerNorm"), ("norm2", "output.LayerNorm"),
        ):  # fmt: skip
            state |= {f"{there}.{part}": held[f"{at}.{here}.{part}"] for part in ("weight", "bias")}
        one.load_state_dict({name: torch.from_numpy(value) for name, value in state.items()})
    encoder = encoder.eval().to(kind).to(GPU)
    absent = (drawn.mask == 0) if drawn.case.least else None

    def embedded() -> Any:
        features = drawn.model.embeddings(input_ids=drawn.given)
        return drawn.pooled(encoder(features, src_key_padding_mask=absent))

    return embedded


def main(argv: Sequence[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=HelpFormatter)
    parser.add_argument("--precisions", metavar="NAME,...", default="fp16,bf16", help="default: fp16,bf16")
    parser.add_argument("--cases", metavar="I,...", help="only these, from 0 (default: all)")
    parser.add_argument("--modes", metavar="NAME;...", default=";".join(MODES), help=f"default: {';'.join(MODES)}")
    energy.add_option(parser.add_argument)
    parser.add_argument("--results-dir", type=Path, metavar="DIR", help="default: bench/results, for a run of all")
    options = parser.parse_args(argv)
    precisions, modes = options.precisions.split(","), [mode for mode in options.modes.split(";") if mode]
    if wrong := [name for name in precisions if name not in ("fp16", "bf16")]:
        parser.error(f"--precisions {wrong[0]!r}: need fp16 or bf16")
    if wrong := [mode for mode in modes if mode not in MODES]:
        parser.error(f"--modes {wrong[0]!r}: need some of {'; '.join(MODES)}")
    wanted = options.cases.split(",") if options.cases else [str(i) for i in range(len(CASES))]
    if wrong := [one for one in wanted if not (one.isdecimal() and int(one) < len(CASES))]:
        parser.error(f"--cases {wrong[0]!r}: need numbers from 0 to {len(CASES) - 1}")
    if missing := [name for name in ("torch", "transformers") if find_spec(name) is None]:
        print(f"bert: needs {' and '.join(missing)}, beside which it measures", file=sys.stderr)
        return 2
    try:
        device.choose(1)
        device.require_tensor_cores("bert", emulated=False)
    except device.DeviceError as error:
        print(f"bert: {error}", file=sys.stderr)
        return 2
    meter = energy.meter(options.joules)
    rows = []
    for case in (CASES[int(one)] for one in wanted):
        print(case, flush=True)
        for precision in precisions:
            drawn = Drawn(case)
            ready = [*own(drawn, precision), *peers(drawn, precision, modes)]
            tokens = int(drawn.lengths.sum())
            timed = by_turns(ready, meter=meter)
            rows += [{"case": case._asdict(), "all_tokens": tokens, **row} for row in timed]
    here = machine.describe()
    whole = len(wanted) == len(CASES) and precisions == ["fp16", "bf16"] and modes == [*MODES]
    folder = options.results_dir or (raw.RESULTS if whole else None)
    if folder is not None:
        result = {"bert": rows, "data": "random ids and weights, seed 0", "machine": here, "commit": machine.commit()}
        raw.write(folder / f"{machine.name(here)}-bert.json", "bert", result)
    return 0


if __name__ == "__main__":
    sys.exit(main())
