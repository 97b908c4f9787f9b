"""Texts to token ids, by a tokenizer.json of Hugging Face's."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from charcnn.host.install import pip_install
from charcnn.networks.encoder import EncoderNetwork
from charcnn.networks.encoder.files import TOKENIZER


class TextTokenizer:
    """What cuts texts to tokens of a network. Threads may share one.

    Args:
        path: a tokenizer.json, read by the package tokenizers.
        network: its S and its vocabulary.
        called: what errors call the path.

    Raises:
        ValueError: the package is missing, the file is missing or no tokenizer, or S leaves no room for a text.
        OSError: the file cannot be read.
    """

    def __init__(self, path: Path, network: EncoderNetwork, called: str = "tokenizer") -> None:
        try:
            from tokenizers import Tokenizer
        except ImportError as error:
            raise ValueError(f"{path}: needs the package tokenizers: {pip_install('encoder')}") from error
        if not path.is_file():
            raise ValueError(f"{called} {path}: there is no such file: need the model's {TOKENIZER}")
        said = path.read_bytes()
        try:
            self._made = Tokenizer.from_str(said.decode())
        except Exception as error:  # of no class of its own
            raise ValueError(f"{path}: is no tokenizer.json: {' '.join(str(error).split())}") from error
        if network.tokens <= (around := self._made.num_special_tokens_to_add(False)):
            raise ValueError(f"tokens={network.tokens}: need at least {around + 1}, as {around} stand around each text")
        self._made.no_padding()
        self._made.enable_truncation(network.tokens)
        self._path, self._network = path, network

    def __call__(self, texts: Sequence[bytes], first: int = 0) -> tuple[np.ndarray, int]:
        """Texts in UTF-8 as token ids int32 (N, S), -1 behind the last one; and how many texts are cut to S tokens.

        Args:
            texts: N of them.
            first: what errors call the first one's index.

        Raises:
            ValueError: a text is empty or not UTF-8, or gets an id that the network does not have; names its index.
        """
        network = self._network
        rows, cut = np.full((len(texts), network.tokens), -1, np.int32), 0
        for row, found in zip(rows, self._made.encode_batch(_decoded(texts, first)), strict=True):
            row[: len(found.ids)] = found.ids
            cut += bool(found.overflowing)
        if (greatest := rows.max(initial=-1)) >= network.vocabulary:
            need = f"need ids below {network.vocabulary}, the network's vocabulary"
            raise ValueError(f"{self._path}: gives id {greatest}: {need}")
        return rows, cut


def _decoded(texts: Sequence[bytes], first: int) -> list[str]:
    """Texts as str: tokenizers drop what is no character, and with it parts of words."""
    found = []
    for index, text in enumerate(texts, first):
        if not text.strip():
            raise ValueError(f"texts[{index}] is {text!r}: need a text with more than white space")
        try:
            found.append(text.decode())
        except UnicodeDecodeError as error:
            wrong = f"byte 0x{text[error.start]:02X} at {error.start}"
            need = "need UTF-8 (of a file in Latin-1: iconv -f LATIN1 -t UTF-8)"
            raise ValueError(f"texts[{index}] is not UTF-8, {wrong}: {need}") from error
    return found
