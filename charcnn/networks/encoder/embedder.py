"""Texts in, embeddings out."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import numpy as np

from charcnn import files as paths
from charcnn.aliases import Argument, Record, Texts
from charcnn.catalog import ENCODER_TECHNIQUES, Program, encoder, encoder_technique
from charcnn.catalog.encoders import EncoderRow, EncoderTechnique
from charcnn.gpu import device, simulator
from charcnn.host.forks import Home
from charcnn.layers.windows import at_least
from charcnn.levels.runner.options import check_machine, serves
from charcnn.networks.encoder import EncoderNetwork, files
from charcnn.networks.encoder.tokens import TextTokenizer
from charcnn.runtime.ordered import ordered
from charcnn.runtime.run import BatchRun, Run
from charcnn.text.columns import columns
from charcnn.text.strings import PackedStrings

CPU = "cpu_gemm"
"""The technique where none is asked for and there is no GPU."""

ROWS = 8192
"""Texts that are cut to tokens while those before them are embedded."""


def fastest(row: EncoderRow, precision: str | None) -> EncoderTechnique:
    """The technique where none is asked for: on a GPU the first of the row's in this precision, else the CPU's.

    Where none computes in it, the first, which says so.
    """
    names = () if device.SIMULATED or not simulator.gpu_present() else row.on_gpu
    ways = [encoder_technique(name) for name in (*names, CPU)]
    return next((way for way in ways if serves(way, precision)), ways[0])


def check_size(technique: Program, network: EncoderNetwork, ways_out: str) -> None:
    """Raise ValueError where a GPU's technique would compute a whole network in the simulator."""
    if technique.device == "cuda" and device.SIMULATED and network.variant != "tiny":
        raise ValueError(
            f"no GPU in use, and {network.flops:,} FLOP a text would take the simulator hours: {ways_out}, or run on a "
            "machine with an NVIDIA GPU"
        )


def truncated(count: int, of: int, network: EncoderNetwork) -> str:
    """That so many texts are cut; how to keep them whole."""
    return f"{count:,} of {of:,} texts have more than {network.tokens} tokens, of which the first count: see tokens"


class Embedder:
    """A BERT with its tokenizer, by the fastest technique that runs here: texts in, embeddings out.

        embedder = Embedder("all-MiniLM-L6-v2")
        a, b = embedder.encode(["Rain falls.", "Ships sail."])
        a @ b                                            # the cosine, as embeddings have length 1

    Nothing is downloaded. Threads may share an embedder, and `with` closes it. A pickle holds the folder's name and the
    options, and makes the embedder again where it is read. In a fork of its process each call raises
    charcnn.host.forks.ForkedError.

    Args:
        folder: one like Hugging Face's, with model.safetensors, config.json and tokenizer.json; or a file of weights
            whose folder has the other two.
        technique: one of charcnn.catalog.ENCODER_TECHNIQUES, "cpu_gemm" on a CPU; None for the fastest that runs here:
            on a GPU where there is one that can be used.
        precision: one of charcnn.catalog.PRECISIONS; None for the technique's first: fp16 on tensor cores, else fp32.
            fp8, of wgmma, is calibrated with the sample of texts that ships.
        tokens: a text's tokens at most; what comes behind is left out. None for what sentence_bert_config.json in the
            folder says, else for 128, or the model's positions where those are fewer.
        tokenizer: a tokenizer.json other than the folder's.
        batch: texts that are computed at once, at most; None for the technique's own number.
        gpus: how many GPUs, or which; None for all.

    Raises:
        ValueError: a file does not fit, as of another kind of model; or no technique computes so.
        OSError: a file is missing, or cannot be read.
        charcnn.gpu.device.DeviceError: the machine cannot run the technique.
    """

    def __init__(
        self,
        folder: paths.Path,
        *,
        technique: str | None = None,
        precision: str | None = None,
        tokens: int | None = None,
        tokenizer: paths.Path | None = None,
        batch: int | None = None,
        gpus: int | Sequence[int] | None = None,
    ) -> None:
        row, own = encoder("bert"), files.weights_at(folder).with_name(files.TOKENIZER)
        self._folder = folder
        self._options: Record = {
            "technique": technique, "precision": precision, "tokens": tokens, "tokenizer": tokenizer, "batch": batch,
            "gpus": gpus,
        }  # fmt: skip
        for name, value in (("tokens", tokens), ("batch", batch)):
            if value is not None:
                at_least(name, value, 1)
        if technique not in (None, *(known := [way.name for way in ENCODER_TECHNIQUES])):
            raise ValueError(f"technique={technique!r}: need one of {', '.join(known)}")
        self.technique = fastest(row, precision) if technique is None else encoder_technique(technique)
        self.precision: str = self.technique.precision(precision)
        self.params = files.load(folder, row.name, None, tokens)
        self.config: EncoderNetwork = self.params.config
        path = Path(tokenizer or own)
        self._tokenizer = TextTokenizer(path, self.config)
        if gpus is not None and self.technique.device == "cpu":
            raise ValueError(f"gpus={gpus}: {self.technique.name} runs on the CPU")
        check_machine(self.technique, precision, gpus)
        check_size(self.technique, self.config, f"use technique={CPU!r}")
        options: Record = {"gpus": gpus} | ({"batch": batch} if batch else {}) | self.technique.build_options(precision)
        options |= {"tokenizer": path} if self.precision == "fp8" else {}
        self._run: Run | None = self.technique.build(self.technique.name, self.params, self.config, **options)
        self._one_call, self._home = threading.Lock(), Home("this embedder")

    def encode(self, texts: Texts) -> np.ndarray:
        """Each text's embedding: the mean of its tokens' last features, of length 1.

        Memory does not grow with the number of texts, except for the results. Other texts change a result by no more
        than rounding. A UserWarning says how many texts have more tokens than `tokens`.

        Args:
            texts: str, or bytes in UTF-8, in a list, a tuple, a NumPy array, an Arrow, pandas or polars column, or any
                iterable; or one str. Half of a surrogate pair in a str is read as U+FFFD.

        Returns:
            float32 (N, H); for one str, (H,).

        Raises:
            ValueError: a text is missing, empty, not UTF-8, or no text; names its index. Or the embedder is closed.
        """
        if isinstance(texts, str):
            one: np.ndarray = self.encode([texts])[0]
            return one
        self._home.check()
        few = isinstance(texts, (list, tuple)) and len(texts) <= ROWS  # sooner done here than threads are started
        cut, found = 0, [np.empty((0, self.config.classes), np.float32)]
        for ids, more in map(self._ids, _numbered(texts)) if few else ordered(_numbered(texts), self._ids, 1):
            with self._one_call:
                if self._run is None:
                    raise ValueError("the embedder is closed: make another")
                found.append(self._run(ids.view(np.uint8)))
            cut += more
        embeddings = np.concatenate(found)
        if cut:
            warnings.warn(truncated(cut, len(embeddings), self.config), stacklevel=2)
        return embeddings

    def _ids(self, block: tuple[PackedStrings, int]) -> tuple[np.ndarray, int]:
        return self._tokenizer(block[0].tolist(), block[1])

    def __reduce__(self) -> tuple[Argument, ...]:
        return partial(type(self), **self._options), (self._folder,)

    def __enter__(self) -> Embedder:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        where = "CPU" if self.technique.device == "cpu" else "GPU"
        return f"Embedder({self.config.variant}; {self.technique.name} ({where}, {self.precision}))"

    def close(self) -> None:
        """End its threads. Later calls of `encode` are errors."""
        with self._one_call:
            if isinstance(self._run, BatchRun):
                self._run.close()
            self._run = None


def _numbered(texts: Texts) -> Iterator[tuple[PackedStrings, int]]:
    """Blocks of texts, each with how many come before it."""
    first = 0
    for block in columns(texts, ROWS):
        yield block, first
        first += len(block)
