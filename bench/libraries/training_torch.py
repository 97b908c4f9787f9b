"""Training steps in PyTorch: bf16 forward and back, AdamW fused, in several forms of the network and ways to run it."""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping
from functools import partial

import numpy as np
import torch
import torch.nn.functional as F

from charcnn.config import Config
from charcnn.model.pytorch import attribute, function
from charcnn.training.network import TrainableNetwork
from libraries.training import Task

WARM = 3
"""Steps before a capture."""


class Gathered(TrainableNetwork):
    """The first convolution as a sum of rows of its weights, which torch.compile fuses to one kernel."""

    def gathers(self, ids: torch.Tensor) -> bool:
        """On any device, in any arithmetic."""
        return True

    def gathered(self, ids: torch.Tensor) -> torch.Tensor:
        """A lookup for each tap."""
        rows, bias = self.rows().to(self.dtype), self.get_parameter(attribute("conv1.bias")).to(self.dtype)
        length, ids = ids.shape[1] - len(rows) + 1, ids.int()
        sums = sum((F.embedding(ids[:, tap : tap + length], rows[tap]) for tap in range(len(rows))), bias)
        return sums.transpose(1, 2).unsqueeze(2)


class First(torch.nn.Module):
    """The network with PyTorch's own memory format: conv1d on one-hot columns, channels first."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self._nodes, self._shapes = config.nodes, config.parameter_shapes
        for name, shape in self._shapes.items():
            self.register_parameter(attribute(name), torch.nn.Parameter(torch.empty(shape)))
        self.register_buffer("one_hot", torch.eye(config.alphabet + 1, config.alphabet))
        self._functions = [function(node.layer, False) for node in self._nodes[1:]]

    def load(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Take the parameters."""
        with torch.no_grad():
            for name in self._shapes:
                self.get_parameter(attribute(name)).copy_(torch.from_numpy(arrays[name]))

    def arrays(self, values: Mapping[str, torch.Tensor]) -> dict[str, np.ndarray]:
        """Values by attribute, by the names of parameters."""
        return {name: values[attribute(name)].float().cpu().numpy() for name in self._shapes}

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Token ids -> logits."""
        x = F.embedding(ids.int(), self.one_hot).transpose(1, 2)
        for node, compute in zip(self._nodes[1:], self._functions, strict=True):
            x = compute(x, *[self.get_parameter(attribute(name)) for name in node.parameters])
        return x


HALF, FLOAT = torch.bfloat16, torch.float32
FORMS: dict[str, tuple[Callable[[Config], torch.nn.Module], bool]] = {
    "first": (First, True),
    "last": (partial(TrainableNetwork, dropout=0.0, dtype=FLOAT), True),
    "gather": (partial(Gathered, dropout=0.0, dtype=FLOAT), True),
    "cast": (partial(TrainableNetwork, dropout=0.0, dtype=HALF), False),
    "cast-gather": (partial(Gathered, dropout=0.0, dtype=HALF), False),
}
"""The network, and whether autocast makes it bf16. Where it does not, weights are cast by hand, and norms and sums
between layers are bf16, too."""


class Torch:
    """`Steps` in a form, run in a mode: eager, one of torch.compile's, or graphed, compiled and captured whole.

    Args:
        task: what is trained.
        mode: of MODES in bench/training.py.
        form: of FORMS.
    """

    clips_always = False

    def __init__(self, task: Task, mode: str, form: str) -> None:
        self._cuda, self._mode = task.device == "cuda", mode
        if self._cuda and not torch.cuda.is_available():
            raise RuntimeError("this PyTorch sees no GPU")
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
        torch.backends.cudnn.benchmark = not task.early
        if self._cuda:
            torch.cuda.reset_peak_memory_stats()
        make, cast = FORMS[form]
        self._network = make(task.config).eval()  # no dropout, as ours
        self._network.load(task.params)
        self._network.to(task.device)
        self._task, self._parameters = task, [*self._network.parameters()]

        def mean(ids: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
            with torch.autocast(task.device, HALF, enabled=cast):
                logits = self._network(ids)
            return F.cross_entropy(logits.float(), targets)

        compiled = {"eager": None, "graphed": "default"}.get(mode, mode)
        self._mean = torch.compile(mean, mode=compiled, dynamic=False) if compiled else mean
        group = task.group
        self._optimiser = torch.optim.AdamW(
            self._parameters, lr=group.lr * task.rate, betas=group.betas, eps=group.eps,
            weight_decay=group.weight_decay, fused=True, capturable=mode == "graphed",
        )  # fmt: skip
        self.versions = {"torch": torch.__version__}
        if self._cuda:
            self.versions |= {"cuda": str(torch.version.cuda), "cudnn": str(torch.backends.cudnn.version())}

    def load(self, rows: np.ndarray, targets: np.ndarray) -> None:
        """Copy both to the device."""
        self._ids, self._targets = (torch.from_numpy(array).to(self._task.device) for array in (rows, targets))

    def loss_and_gradients(self) -> tuple[float, dict[str, np.ndarray]]:
        """Of what is loaded."""
        loss = self._backward()
        found = {name: parameter.grad.detach() for name, parameter in self._network.named_parameters()}
        return float(loss), self._network.arrays(found)

    def start(self, clip: bool) -> int:
        """Capture a step where the mode says so."""
        self._run: Callable[[], object] = partial(self._step, clip)
        if self._mode != "graphed":
            return 0
        side = torch.cuda.Stream()  # a capture needs what ran before to have run on no default stream
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(WARM):
                self._step(clip)
        torch.cuda.current_stream().wait_stream(side)
        self._optimiser.zero_grad(set_to_none=True)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self._step(clip)
        self._run = graph.replay
        return WARM

    def step(self) -> None:
        """Queue a step."""
        self._run()

    def loss(self) -> float:
        """The loss before the last step."""
        return float(self._last)

    def memory(self) -> int | None:
        """The most that PyTorch had allocated, with what compiling took."""
        return torch.cuda.max_memory_allocated() if self._cuda else None

    def close(self) -> None:
        """Drop what was compiled, and give memory back to the GPU."""
        vars(self).clear()
        torch.compiler.reset()
        gc.collect()
        if torch.cuda.is_initialized():
            torch.cuda.empty_cache()

    def _backward(self) -> torch.Tensor:
        self._optimiser.zero_grad(set_to_none=True)
        torch.compiler.cudagraph_mark_step_begin()
        loss = self._mean(self._ids, self._targets)
        loss.backward()
        return loss.detach()

    def _step(self, clip: bool) -> None:
        self._last = self._backward()
        if clip:
            torch.nn.utils.clip_grad_norm_(self._parameters, self._task.clip, foreach=True)
        self._optimiser.step()
