"""The network as an ONNX graph, run by ONNX Runtime or OpenVINO on the CPU in float32."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import onnx

from charcnn.model.layers import Network
from charcnn.model.onnx_graph import graph


class _OnHost:
    """A `Network` that a graph makes: a call waits for its result."""

    timed = "host to host"
    versions: dict[str, str]

    def __init__(self, params: Mapping[str, np.ndarray], config: Network, conv1: str) -> None:
        self._graph = lambda batch: graph(params, config, batch, conv1)

    def load(self, ids: np.ndarray) -> None:
        """Compile for so many inputs."""
        self._ids, self._infer = ids, self._compile(self._graph(len(ids)))

    def prepare(self, times: int) -> None:
        """Nothing to make ready."""

    def run(self, times: int) -> None:
        """Compute the logits of the loaded ids."""
        for _ in range(times):
            self._logits = self._infer(self._ids)

    def logits(self) -> np.ndarray:
        """What the last run left."""
        return np.array(self._logits)

    def close(self) -> None:
        """Drop what was compiled."""
        del self._infer, self._logits

    def _compile(self, model: bytes) -> Callable[[np.ndarray], Any]:
        raise NotImplementedError


class OnnxRuntime(_OnHost):
    """The graph in ONNX Runtime, on the CPU."""

    def __init__(
        self, params: Mapping[str, np.ndarray], config: Network, *, threads: int, conv1: str = "dense"
    ) -> None:
        import onnxruntime

        super().__init__(params, config, conv1)
        self._library, self._options = onnxruntime, onnxruntime.SessionOptions()
        self._options.intra_op_num_threads = threads
        self.versions = {"onnxruntime": onnxruntime.__version__, "onnx": onnx.__version__}

    def _compile(self, model: bytes) -> Callable[[np.ndarray], Any]:
        session = self._library.InferenceSession(model, self._options, providers=["CPUExecutionProvider"])
        return lambda ids: session.run(None, {"ids": ids})[0]


class OpenVino(_OnHost):
    """The graph in OpenVINO, on the CPU."""

    def __init__(
        self, params: Mapping[str, np.ndarray], config: Network, *, threads: int, conv1: str = "dense"
    ) -> None:
        import openvino

        super().__init__(params, config, conv1)
        self._core = openvino.Core()
        self._settings = {
            "INFERENCE_NUM_THREADS": threads,
            "NUM_STREAMS": 1,  # one batch at a time, by all threads
            "INFERENCE_PRECISION_HINT": "f32",  # else bfloat16 where the processor has it
        }
        self.versions = {"openvino": openvino.__version__.partition("-")[0], "onnx": onnx.__version__}

    def _compile(self, model: bytes) -> Callable[[np.ndarray], Any]:
        compiled = self._core.compile_model(self._core.read_model(model), "CPU", self._settings)
        request = compiled.create_infer_request()
        return lambda ids: request.infer([ids], share_inputs=True, share_outputs=True)[0]
