"""The network in PyTorch: eager or through torch.compile, in any of its precisions, channels first or last."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import torch
import torch.nn.functional as F
from energy import done

from charcnn.config import Config
from charcnn.layers import Network
from charcnn.model.pytorch import attribute, function, inward
from libraries import Network as Face

DTYPES = {"float32": torch.float32, "tf32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}


class Model(torch.nn.Module):
    """Token ids (N, L) uint8 -> logits (N, classes).

    Args:
        params: name -> float32 array.
        config: the sizes.
        channels_last: (N, 1, L, C) in memory, and one-hot channels padded to a multiple of 8, as cuDNN's tensor-core
            kernels want them.
        conv1: "dense" on one-hot columns; "gather", a sum of rows of a table of (tap, id), which torch.compile fuses;
            or "bag", the same through embedding_bag.
    """

    def __init__(self, params: Mapping[str, np.ndarray], config: Config, channels_last: bool, conv1: str) -> None:
        super().__init__()
        self.channels_last, self.conv1 = channels_last, conv1
        weight, bias = (torch.from_numpy(params[f"conv1.{part}"]) for part in ("weight", "bias"))
        _, depth, taps = weight.shape
        if conv1 == "dense":
            width = -(-depth // 8) * 8 if channels_last else depth
            params = {**params, "conv1.weight": F.pad(weight, (0, 0, 0, width - depth)).numpy()}
            self._keep("table", torch.eye(depth + 1, width) * (torch.arange(width) < depth))
        else:
            rows = F.pad(weight.permute(2, 1, 0), (0, 0, 0, 1))  # (K, depth + 1, C), a row of zeros for a blank
            rows[0] += bias
            self._keep("table", rows.flatten(0, 1))
            self.register_buffer("taps", torch.arange(taps, dtype=torch.int32) * (depth + 1))
        self._steps = []
        for node in config.nodes[1 if conv1 == "dense" else 2 :]:  # what reads one-hot columns, or conv1's result
            for name in node.parameters:
                value = torch.from_numpy(params[name])
                self._keep(name, inward(node, value) if channels_last else value)
            names = [attribute(name) for name in node.parameters]
            self._steps.append((function(node.layer, channels_last), names))

    def _keep(self, name: str, tensor: torch.Tensor) -> None:
        # Parameters, as torch.compile's CUDA graphs take those for fixed and copy any other tensor at each call.
        self.register_parameter(attribute(name), torch.nn.Parameter(tensor.clone(), requires_grad=False))

    def _first(self, ids: torch.Tensor) -> torch.Tensor:
        """One-hot columns, or conv1's result: (N, C, L) or (N, C, 1, L)."""
        if self.conv1 == "dense":
            y = F.embedding(ids.int(), self.table)
        else:
            windows = ids.int().unfold(1, len(self.taps), 1) + self.taps  # (N, L, K)
            if self.conv1 == "bag":
                y = F.embedding_bag(windows.flatten(0, 1), self.table, mode="sum").unflatten(0, windows.shape[:2])
            else:
                y = sum(F.embedding(windows[:, :, tap], self.table) for tap in range(len(self.taps)))
        y = y.transpose(1, 2)
        if self.channels_last:
            return y.unsqueeze(2)
        return y if self.conv1 == "dense" else y.contiguous()

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Token ids -> logits."""
        x = self._first(ids)
        for compute, names in self._steps:
            x = compute(x, *[getattr(self, name) for name in names])
        return x


class ImageModel(torch.nn.Module):
    """Bytes (N, C * H * W) -> results: a network of images, its features channels first or last in memory."""

    def __init__(self, params: Mapping[str, np.ndarray], network: Network, channels_last: bool) -> None:
        super().__init__()
        self._last, self._steps = channels_last, []
        for node in network.nodes:
            for name in node.parameters:
                value = torch.nn.Parameter(torch.from_numpy(params[name]).clone(), requires_grad=False)
                self.register_parameter(attribute(name), value)
            self._steps.append((function(node.layer, False), [attribute(name) for name in node.parameters]))

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """Bytes -> results."""
        x = rows.to(next(self.parameters()).dtype)
        for place, (compute, names) in enumerate(self._steps):
            x = compute(x, *[getattr(self, name) for name in names])
            if place == 0 and self._last:
                x = x.contiguous(memory_format=torch.channels_last)
        return x


class Torch(Face):
    """PyTorch's `Network`."""

    def __init__(self, model: Model | ImageModel, compiled: bool, tf32: bool, threads: int) -> None:
        self._model = torch.compile(model, mode="max-autotune", dynamic=False) if compiled else model
        self._device, self._tf32, self._threads = next(model.parameters()).device, tf32, threads
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
    def start(self, times: int) -> Callable[[], object]:
        """Compute the logits of the loaded ids, on a GPU queued."""
        for _ in range(times):
            self._logits = self._model(self._ids)
        if self._device.type != "cuda":
            return done
        event = torch.cuda.Event()
        event.record()
        return event.synchronize

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
    config: Network,
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
    if isinstance(config, Config):
        model: Model | ImageModel = Model(params, config, channels_last, conv1)
    else:
        model = ImageModel(params, config, channels_last)
    memory = {"memory_format": torch.channels_last} if channels_last and not isinstance(config, Config) else {}
    model = model.to(device, DTYPES[precision], **memory)
    return Torch(model.eval(), compiled, precision == "tf32", threads)
