"""Time BERT on a CPU, relative to PyTorch, ONNX Runtime and OpenVINO, with the weights of a folder of Hugging Face's.

It needs PyTorch and the package transformers; onnx with onnxruntime, and openvino, where they are to be measured. For
each case all take turns, from token ids to embeddings: means of the last features, of length 1. All embeddings are
compared with the float64 reference first. Ours pack the tokens; peers get texts padded to the longest, and a mask.
ONNX Runtime's int8 is its dynamic quantisation. Each has the threads that Numba has. Where other work loads the
machine, --cpu-time with NUMBA_NUM_THREADS=1 counts seconds of one core: pools of several threads spin while they wait.

It writes MACHINE-bert.json to --results-dir. Exit status: 0 measured, 1 a result is wrong.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import energy
import numba
import numpy as np
import raw
from turns import Ready, by_turns

from charcnn.catalog import encoder_technique
from charcnn.host import machine
from charcnn.host.arguments import HelpFormatter
from charcnn.layers import place
from charcnn.levels.runner.options import serves
from charcnn.model.sequences import run as reference
from charcnn.networks.encoder import files

TOLERANCES = {"fp32": 1e-5, "bf16": 3e-2, "int8": 0.3}
"""The greatest ||y - ref|| of an embedding, whose length is 1."""

TECHNIQUE = "cpu_gemm"

CHECKED = 4
"""Texts that are compared with the float64 reference; the others with PyTorch's."""


class Case(NamedTuple):
    """A batch of texts of `least` to `tokens` tokens."""

    n: int
    tokens: int
    least: int


CASES = (Case(1, 128, 128), Case(32, 128, 128), Case(1, 12, 12), Case(32, 40, 8))
"""Full texts, and texts as headlines are: one, and a batch."""


class Drawn:
    """Token ids of a case, and the right embeddings."""

    def __init__(self, case: Case, held: Any, model: Callable[..., Any]) -> None:
        rng, network = np.random.default_rng(0), held.config
        self.case, self.lengths = case, rng.integers(case.least, case.tokens + 1, case.n)
        self.lengths[0] = case.tokens
        self.ids = np.full((case.n, network.tokens), -1, np.int32)
        drawn = rng.integers(min(1000, network.vocabulary // 2), network.vocabulary, (case.n, case.tokens), np.int32)
        self.ids[:, : case.tokens] = np.where(np.arange(case.tokens) < self.lengths[:, None], drawn, -1)
        given = self.ids[:, : case.tokens].astype(np.int64)
        self.given = {"ids": np.maximum(given, 0), "mask": (given >= 0).astype(np.int64)}
        self.right = model(**self.given)
        first = reference(network.nodes, self.ids[:CHECKED], held)
        if (off := float(np.linalg.norm(self.right[:CHECKED] - first, axis=1).max())) > TOLERANCES["fp32"]:
            raise SystemExit(f"bert_cpu: BertModel in float32, {case}: off by {off:.2g}")
        nodes = [place(network.layers, (int(length),)) for length in self.lengths]
        self.flop = sum(node.flops for one in nodes for node in one)

    def ready(self, name: str, precision: str, call: Callable[[], np.ndarray], **versions: str) -> Ready:
        """What takes turns, if its embeddings are right.

        Raises:
            SystemExit: they are not.
        """
        error = float(np.linalg.norm(call() - self.right, axis=1).max())
        if not error <= TOLERANCES[precision]:
            raise SystemExit(f"bert_cpu: {name} {precision}, {self.case}: off by {error:.2g}")
        row = {"made": name, "precision": precision, "error": error, "versions": versions}
        return Ready(f"{name} {precision}", call, self.flop, row, items=self.case.n)


def pytorch(folder: Path) -> Any:
    """A module from ids and mask to embeddings."""
    import torch
    from transformers import BertModel

    class Embeds(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bert = BertModel.from_pretrained(folder, add_pooling_layer=False).eval()

        def forward(self, ids: Any, mask: Any) -> Any:
            x = self.bert(input_ids=ids, attention_mask=mask).last_hidden_state
            weight = mask[..., None].to(x.dtype)
            return torch.nn.functional.normalize((x * weight).sum(1) / weight.sum(1), dim=1)

    return Embeds().eval()


def inferred(module: Any) -> Callable[..., np.ndarray]:
    """The module called with arrays."""
    import torch

    def call(**given: np.ndarray) -> np.ndarray:
        with torch.inference_mode():
            found: np.ndarray = module(*(torch.from_numpy(one) for one in given.values())).numpy()
        return found

    return call


def exported(module: Any, folder: Path) -> dict[str, Path]:
    """The module as ONNX files of any batch and length, by precision: fp32, and int8 where ONNX Runtime is there."""
    import torch

    found, axes = {"fp32": folder / "fp32.onnx"}, {"ids": {0: "n", 1: "s"}, "mask": {0: "n", 1: "s"}, "y": {0: "n"}}
    example = tuple(torch.ones((2, 16), dtype=torch.int64) for _ in range(2))
    how: dict[str, Any] = {
        "input_names": ["ids", "mask"],
        "output_names": ["y"],
        "dynamic_axes": axes,
        "opset_version": 17,
    }
    torch.onnx.export(module, example, found["fp32"], dynamo=False, **how)
    if find_spec("onnxruntime") is not None:
        from onnxruntime.quantization import quantize_dynamic

        found["int8"] = folder / "int8.onnx"
        quantize_dynamic(found["fp32"], found["int8"], per_channel=True)
    return found


def libraries(onnx: dict[str, Path], threads: int) -> Iterator[tuple[str, str, Callable[..., np.ndarray], str]]:
    """Name, precision, call and version of those that are installed."""
    if find_spec("onnxruntime") is not None:
        import onnxruntime

        for precision, file in onnx.items():
            options = onnxruntime.SessionOptions()
            options.intra_op_num_threads = threads
            session = onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])
            yield (
                "ONNX Runtime", precision, lambda session=session, **given: session.run(None, given)[0],
                onnxruntime.__version__,
            )  # fmt: skip
    if find_spec("openvino") is not None:
        import openvino

        how = {"INFERENCE_NUM_THREADS": threads, "PERFORMANCE_HINT": "LATENCY", "INFERENCE_PRECISION_HINT": "f32"}
        request = openvino.Core().compile_model(onnx["fp32"], "CPU", how).create_infer_request()
        version = openvino.__version__.partition("-")[0]
        yield "OpenVINO", "fp32", lambda **given: request.infer(given)["y"].copy(), version


def main(argv: Sequence[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=HelpFormatter)
    parser.add_argument("--params", type=Path, required=True, metavar="FOLDER", help="a folder of Hugging Face's")
    parser.add_argument("--cases", metavar="I,...", help="only these, from 0 (default: all)")
    parser.add_argument("--rounds", type=int, default=7, metavar="R", help="turns of each (default 7)")
    parser.add_argument("--cpu-time", action="store_true", help="seconds that the process computed, of all its threads")
    parser.add_argument("--note", default="", metavar="TEXT", help="what the result says of the machine besides")
    energy.add_option(parser.add_argument)
    parser.add_argument("--results-dir", type=Path, default=raw.RESULTS, metavar="DIR", help="default: bench/results")
    options = parser.parse_args(argv)
    import torch

    threads, now = numba.get_num_threads(), time.process_time if options.cpu_time else time.perf_counter
    torch.set_num_threads(threads)
    meter = energy.meter(options.joules, "cpu")
    row, rows, module = encoder_technique(TECHNIQUE), [], pytorch(options.params)
    held = files.load(options.params, "bert", None, None)
    wanted = [int(one) for one in options.cases.split(",")] if options.cases else range(len(CASES))
    with tempfile.TemporaryDirectory() as folder:
        peers = [
            ("BertModel, eager", "fp32", inferred(module), torch.__version__),
            *libraries(exported(module, Path(folder)), threads),
        ]
        for case in (CASES[one] for one in wanted):
            drawn, ready = Drawn(case, held, peers[0][2]), []
            for precision in row.precisions:
                if serves(row, precision):
                    run = row.build(TECHNIQUE, held, held.config, batch=case.n, precision=precision)
                    given = drawn.ids.view(np.uint8)
                    ready.append(drawn.ready(TECHNIQUE, precision, partial(run, given)))
            for name, precision, call, version in peers:
                ready.append(drawn.ready(name, precision, partial(call, **drawn.given), version=version))
            print(case, flush=True)
            least = 0 if case.least == case.tokens else case.least  # as bert.py says that all have as many
            said = {"variant": held.config.variant, **case._replace(least=least)._asdict()}
            more = {"case": said, "all_tokens": int(drawn.lengths.sum())}
            rows += [more | one for one in by_turns(ready, now, options.rounds, meter)]
    here = machine.describe()
    result = {"bert": rows, "data": "random ids, seed 0", "threads": threads, "clock": now.__name__}
    result |= {"machine": here, "commit": machine.commit()}
    result |= {"note": options.note} if options.note else {}
    raw.write(options.results_dir / f"{machine.name(here)}-bert.json", "bert", result)
    return 0


if __name__ == "__main__":
    sys.exit(main())
