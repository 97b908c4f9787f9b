"""The network in PyTorch: eager or through torch.compile, in any of its precisions, channels first or last."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from charcnn.config import NORMALISED_BLOCKS, POOL_SIZE, POOLED_BLOCKS, Config

DTYPES = {"float32": torch.float32, "tf32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}


class Model(torch.nn.Module):
    """Token ids (N, L) uint8 -> logits (N, classes).

    Args:
        params: name -> float32 array.
        config: the sizes.
        channels_last: (N, 1, L, C) in memory, convolutions by conv2d of height 1. Norms' and fc1's parameters are
            transposed once, so that nothing is transposed in between, and one-hot channels padded to a multiple of 8,
            as cuDNN's tensor-core kernels want them.
        conv1: "dense" on one-hot columns; "gather", a sum of rows of a table of (tap, id), which torch.compile fuses;
            or "bag", the same through embedding_bag.
    """

    def __init__(self, params: Mapping[str, np.ndarray], config: Config, channels_last: bool, conv1: str) -> None:
        super().__init__()
        self.config, self.channels_last, self.conv1 = config, channels_last, conv1
        for name, value in params.items():
            tensor = torch.from_numpy(value)
            if channels_last and name.startswith("norm"):
                tensor = tensor.T
            if channels_last and name == "fc1.weight":
                tensor = tensor.reshape(len(tensor), config.channels, -1).transpose(1, 2).flatten(1)
            self._keep(name, tensor)
        width = config.alphabet
        if conv1 == "dense" and channels_last:
            width = -(-width // 8) * 8
            self._keep("conv1.weight", F.pad(self._of("conv1.weight"), (0, 0, 0, width - config.alphabet)))
        if conv1 == "dense":
            self._keep("table", torch.eye(config.alphabet + 1, width) * (torch.arange(width) < config.alphabet))
        else:
            blank = F.pad(self._of("conv1.weight").permute(2, 1, 0), (0, 0, 0, 1))  # (K, alphabet + 1, C), a zero row
            blank[0] += self._of("conv1.bias")
            self._keep("table", blank.flatten(0, 1))
            self.register_buffer("taps", torch.arange(len(blank), dtype=torch.int32) * (config.alphabet + 1))
        if channels_last:
            for block in range(1, 7):
                weight = self._of(f"conv{block}.weight").unsqueeze(2)
                self._keep(f"conv{block}.weight", weight, torch.channels_last)

    def _keep(self, name: str, tensor: torch.Tensor, layout: Any = torch.contiguous_format) -> None:
        # Parameters, as torch.compile's CUDA graphs take those for fixed and copy any other tensor at each call.
        value = tensor.clone(memory_format=layout)
        self.register_parameter(name.replace(".", "_"), torch.nn.Parameter(value, requires_grad=False))

    def _of(self, name: str) -> torch.Tensor:
        return getattr(self, name.replace(".", "_"))

    def _first(self, ids: torch.Tensor) -> torch.Tensor:
        """conv1's output, (N, C, L) or (N, C, 1, L)."""
        if self.conv1 == "dense":
            x = F.embedding(ids.int(), self._of("table")).transpose(1, 2)
            return self._convolved(x.unsqueeze(2) if self.channels_last else x, 1)
        windows = ids.int().unfold(1, len(self.taps), 1) + self.taps  # (N, L, K)
        if self.conv1 == "bag":
            y = F.embedding_bag(windows.flatten(0, 1), self._of("table"), mode="sum").unflatten(0, windows.shape[:2])
        else:
            y = sum(F.embedding(windows[:, :, tap], self._of("table")) for tap in range(len(self.taps)))
        y = y.transpose(1, 2)
        return y.unsqueeze(2) if self.channels_last else y.contiguous()

    def _convolved(self, x: torch.Tensor, block: int) -> torch.Tensor:
        weight, bias = self._of(f"conv{block}.weight"), self._of(f"conv{block}.bias")
        return F.conv2d(x, weight, bias) if self.channels_last else F.conv1d(x, weight, bias)

    def _normalised(self, x: torch.Tensor, block: int) -> torch.Tensor:
        gamma, beta = self._of(f"norm{block}.weight"), self._of(f"norm{block}.bias")
        if not self.channels_last:
            return F.layer_norm(x, gamma.shape, gamma, beta)
        rows = x.squeeze(2).transpose(1, 2)  # (N, L, C), contiguous
        return F.layer_norm(rows, gamma.shape, gamma, beta).transpose(1, 2).unsqueeze(2)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Token ids -> logits."""
        x = self._first(ids)
        for block in range(1, 7):
            x = x if block == 1 else self._convolved(x, block)
            if self.config.layernorm and block in NORMALISED_BLOCKS:
                x = self._normalised(x, block)
            x = F.relu(x)
            if block in POOLED_BLOCKS:
                x = F.max_pool2d(x, (1, POOL_SIZE)) if self.channels_last else F.max_pool1d(x, POOL_SIZE)
        x = x.squeeze(2).transpose(1, 2).flatten(1) if self.channels_last else x.flatten(1)
        x = F.relu(F.linear(x, self._of("fc1.weight"), self._of("fc1.bias")))
        x = F.relu(F.linear(x, self._of("fc2.weight"), self._of("fc2.bias")))
        return F.linear(x, self._of("fc3.weight"), self._of("fc3.bias"))


class Torch:
    """A `Network`."""

    def __init__(self, model: Model, compiled: bool, tf32: bool, threads: int) -> None:
        self._model = torch.compile(model, mode="max-autotune", dynamic=False) if compiled else model
        self._device, self._tf32, self._threads = model.table.device, tf32, threads
        self.versions, self.timed = {"torch": torch.__version__}, "host to host"
        if self._device.type == "cuda":
            self.timed = "device to device"
            self.versions |= {"cuda": str(torch.version.cuda), "cudnn": str(torch.backends.cudnn.version())}

    def load(self, ids: np.ndarray) -> None:
        """Copy the ids to the device."""
        self._ids = torch.from_numpy(ids).to(self._device)

    def prepare(self, times: int) -> None:
        """Settings of the whole process."""
        torch.set_num_threads(self._threads)
        if self._device.type == "cuda":
            torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = self._tf32
            torch.backends.cudnn.benchmark = True  # it tries its algorithms at the first call

    @torch.inference_mode()
    def run(self, times: int) -> None:
        """Compute the logits of the loaded ids."""
        for _ in range(times):
            self._logits = self._model(self._ids)
        if self._device.type == "cuda":
            torch.cuda.synchronize()

    def logits(self) -> np.ndarray:
        """What the last run left."""
        return self._logits.float().cpu().numpy()

    def close(self) -> None:
        """Drop what was compiled, and give memory back to the GPU."""
        del self._model, self._logits
        torch.compiler.reset()
        if self._device.type == "cuda":
            torch.cuda.empty_cache()


def build(
    params: Mapping[str, np.ndarray],
    config: Config,
    *,
    device: str,
    threads: int,
    precision: str = "float32",
    compiled: bool = False,
    channels_last: bool = False,
    conv1: str = "dense",
) -> Torch:
    """The network in PyTorch.

    Raises:
        RuntimeError: device is cuda, and this PyTorch sees no GPU.
    """
    if device == "cuda" and not torch.cuda.is_available():
        raise RuntimeError("this PyTorch sees no GPU")
    model = Model(params, config, channels_last, conv1).to(device, DTYPES[precision])
    return Torch(model.eval(), compiled, precision == "tf32", threads)
