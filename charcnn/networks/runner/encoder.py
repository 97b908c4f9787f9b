"""An encoder as a command: what the runner of levels asks for, texts in, and embeddings out."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import NoReturn

import numpy as np

from charcnn import catalog, offload
from charcnn import files as paths
from charcnn.aliases import Function, Record
from charcnn.gpu import device
from charcnn.host.arguments import positive
from charcnn.host.terminal import printable, tell, wrote
from charcnn.layers import Node
from charcnn.levels.runner import command, options
from charcnn.levels.runner.options import SHOWN, SIMULATED_INPUTS, Job
from charcnn.model import params
from charcnn.model.rounding import Rounding
from charcnn.model.sequences import Exact, Rounded
from charcnn.model.sequences import run as reference
from charcnn.networks.encoder import EncoderNetwork, files
from charcnn.networks.encoder.embedder import CPU, check_size, fastest, truncated
from charcnn.networks.encoder.sizes import TOKENS
from charcnn.networks.encoder.tokens import TextTokenizer
from charcnn.networks.parts import over_group
from charcnn.text.columns import require_arrow
from charcnn.text.texts import read_texts

ROWS = 256
"""Random inputs, where no texts are named."""

DRAWS = 2
"""Times that errors of rounding are drawn: each is over as many values as an embedding has."""

COMPARED = 4096
"""Texts, up to which the report says which is nearest to the first ones."""


def main(name: str, argv: list[str] | None = None) -> NoReturn:
    """Run the encoder of this page as a command; ends the process."""
    command.run(EncoderCommand(name), argv)


def expected(
    rows: np.ndarray, held: params.Params, network: EncoderNetwork, rounding: Rounding
) -> tuple[np.ndarray, np.ndarray]:
    """Rows of bytes (N, 4 S) -> the float64 reference's embeddings (N, H), and the sigma of each input's."""
    ids = np.ascontiguousarray(rows).view(np.int32)
    exact = reference(network.nodes, ids, held, Exact())
    squares = np.zeros(len(ids))
    for draw in range(DRAWS):
        changed = reference(network.nodes, ids, held, Rounded(rounding, draw)) - exact
        squares += np.square(changed).mean(axis=1)
    return exact, np.broadcast_to(np.sqrt(squares / DRAWS)[:, None], exact.shape)


def _tokenizer(chosen: argparse.Namespace) -> Path | None:
    """The tokenizer.json of --tokenizer, or beside --params; None where neither is named."""
    beside = None if chosen.params is None else files.weights_at(chosen.params).with_name(files.TOKENIZER)
    return Path(chosen.tokenizer) if chosen.tokenizer else beside


class EncoderCommand:
    """An encoder, as `charcnn.levels.runner.command.Subject` says."""

    offload = staticmethod(offload.asynchronous)

    def __init__(self, name: str) -> None:
        self.name, self._row = name, catalog.encoder(name)
        self.page = self._row.module

    def parser(self, *, quiet: bool) -> argparse.ArgumentParser:
        """Its command line; `quiet` where another rank prints the help and the errors."""
        of = f"python -m charcnn.networks.{self.name}"
        found = options.parser(
            self.name,
            quiet=quiet,
            prog=of,
            description=self.page.__doc__,
            epilog=f"""examples:
  {of}                            random weights, random token ids
  {of} --as naive                 an operator a step
  {of} --params FOLDER --text news.txt --out news.npy
                                                     embeddings by a model of Hugging Face's
  mpiexec -n 4 {of}               texts shared by 4 processes

exit status: 0 results passed their check; 1 they did not, or a crash; 2 unusable options, files or machine""",
        )
        add = found.add_argument
        ways, on_gpu = [row.name for row in catalog.ENCODER_TECHNIQUES], ", ".join(self._row.on_gpu)
        how = f"technique: {', '.join(ways)} (default {CPU}; on a GPU the first of {on_gpu} that runs)"
        add("--as", dest="technique", choices=ways, metavar="T", help=how)
        sizes = "the network's sizes (default: those of --params, or minilm; tiny in the simulator)"
        add("--variant", choices=self.page.VARIANTS, help=sizes)
        precisions = (
            "fp16 (default), bf16, tf32, fp16x3 on tensor cores, fp8 of wgmma; of cpu_gemm also bf16, int8; else"
        )
        precisions += " fp32"
        options.add_work(add, "texts", "default: the technique's own", precisions)
        add(
            "--params",
            metavar="FILE",
            help="weights by Hugging Face's names: .safetensors, .pt, or a folder with model.safetensors; config.json "
            "beside them says the sizes (default: random ones from --seed)",
        )
        texts = "CSV, JSON Lines or Parquet, by the suffix, else one text per line (default: random token ids)"
        add("--text", metavar="FILE", help=texts)
        beside = f"of --text (default: {files.TOKENIZER} beside --params)"
        add("--tokenizer", metavar="FILE", help=f"a {files.TOKENIZER} {beside}")
        least = (
            f"what {files.LIMIT} beside --params says, or else {TOKENS}, or the model's positions where they are fewer"
        )
        most = f"tokens of a text at most; what is behind them is left out (default {least})"
        add("--tokens", type=positive, metavar="S", help=most)
        add("--out", metavar="FILE", help="write the embeddings here: .npy, or .parquet with a column `embedding`")
        options.add_offload(add, self.offload, "; tensor: a share of every layer per GPU")
        return found

    def program(self, chosen: argparse.Namespace) -> tuple[catalog.EncoderTechnique, Function]:
        """The technique that --as names, or else the fastest of the machine."""
        named = chosen.technique and catalog.encoder_technique(chosen.technique)
        technique = named or fastest(self._row, chosen.precision)
        build = partial(technique.build, technique.name)
        path = _tokenizer(chosen)
        if chosen.precision == "fp8" and path is not None and path.is_file():
            build = partial(build, tokenizer=path)
        return technique, over_group(build) if chosen.offload == "tensor" else build

    def reads(self, chosen: argparse.Namespace) -> paths.Paths:
        """The files that its options name; of --params each that is read, as results may lie in its folder."""
        params_of = {} if chosen.params is None else {"--params": files.beside(chosen.params)}
        return {**options.reads(chosen), **params_of}

    def prepare(self, program: catalog.Program, chosen: argparse.Namespace) -> Job:
        """Read weights and texts as the options say."""
        options.check(program, chosen)
        if chosen.offload == "pipeline":
            raise ValueError(f"--offload pipeline: {self.name} is not split into stages; networks of images are")
        if chosen.offload == "tensor" and program.device == "cpu":
            raise ValueError(f"--offload tensor: {program.name} runs on the CPU: need a technique of GPUs")
        self._check_out(chosen)
        simulated = program.device == "cuda" and device.SIMULATED
        held = self._weights(chosen, simulated=simulated)
        network: EncoderNetwork = held.config
        tiny = "take --variant tiny, or " if chosen.params is None else ""
        check_size(program, network, f"{tiny}compute on the CPU, with --as loops or {CPU}")
        ids, source, shown = self._inputs(network, chosen)
        count = chosen.inputs or (min(len(ids), SIMULATED_INPUTS) if simulated else len(ids))
        return Job(
            offload.Repeated(ids.view(np.uint8), count),
            source,
            held,
            network.variant,
            lambda rows, rounding: expected(rows, held, network, rounding),
            shown=shown,
            random=chosen.params is None,
            embeds=True,
        )

    def _check_out(self, chosen: argparse.Namespace) -> None:
        """Raise ValueError unless --out can be written, and --tokenizer is read."""
        if chosen.out is not None:
            if not chosen.out.endswith(files.RESULTS):
                raise ValueError(f"--out {chosen.out}: need a name that ends in {' or '.join(files.RESULTS)}")
            if chosen.out.endswith(".parquet"):
                require_arrow(f"--out {chosen.out}")
        if chosen.tokenizer is not None and chosen.text is None:
            raise ValueError(f"--tokenizer {chosen.tokenizer}: needs --text, whose texts it cuts to tokens")
        if chosen.text is not None and chosen.params is None and chosen.tokenizer is None:
            raise ValueError(f"--text {chosen.text}: needs --params with a {files.TOKENIZER} beside it, or --tokenizer")

    def _weights(self, chosen: argparse.Namespace, *, simulated: bool) -> params.Params:
        if chosen.params is not None:
            return files.load(chosen.params, self.name, chosen.variant, chosen.tokens, "--params")
        variant = chosen.variant or ("tiny" if simulated else None)
        return params.init(self._row.architecture(variant, chosen.tokens), chosen.seed)

    def _inputs(self, network: EncoderNetwork, chosen: argparse.Namespace) -> tuple[np.ndarray, str, list[str]]:
        """Token ids (N, S), where they come from, and the first texts."""
        if chosen.text is None:
            shape = ROWS, network.tokens
            ids = np.random.default_rng(chosen.seed).integers(0, network.vocabulary, shape, np.int32)
            return ids, f"{ROWS} random rows of {network.tokens} tokens", []
        path = _tokenizer(chosen)
        assert path is not None  # see _check_out
        tokenizer = TextTokenizer(path, network, "--tokenizer")
        read = read_texts(chosen.text, "bytes", labels=False)  # whose fields are joined in their order
        if read.said:
            tell(f"{chosen.text}: {read.said}")
        try:
            ids, cut = tokenizer(read.texts)
        except ValueError as error:
            raise ValueError(f"{chosen.text}: {error}") from error
        if cut:
            tell(f"{chosen.text}: {truncated(cut, len(ids), network)}")
        return ids, Path(chosen.text).name, [text.decode() for text in read.texts]

    def head(self, program: catalog.Program) -> Record:
        """What its report begins with."""
        return {"schema": "network", "network": self.name, "technique": program.name, "title": self.page.TITLE}

    def products(self, job: Job, stages: Sequence[str]) -> Mapping[str, Sequence[Node]]:
        """Of no stage: each is of all blocks."""
        return {}

    def closing(self, report: Record, job: Job, chosen: argparse.Namespace, results: np.ndarray) -> list[str]:
        """Which texts are nearest to the first ones; --out is written here."""
        found = []
        texts = job.shown[: len(results)]
        if 1 < len(texts) <= COMPARED:
            alike = results[:SHOWN] @ results[: len(texts)].T
            np.fill_diagonal(alike, -np.inf)
            for text, row in zip(texts, alike, strict=False):
                nearest = int(row.argmax())
                found.append(f"  {row[nearest]:.3f}: {printable(text[:60])} | {printable(texts[nearest][:60])}")
            found.insert(0, "nearest texts, by the cosine of their embeddings:")
        if chosen.out is not None:
            files.write(chosen.out, results, force=chosen.force)
            wrote(chosen.out)
        return found
