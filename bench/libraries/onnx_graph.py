"""The network as an ONNX graph, run by ONNX Runtime or OpenVINO on the CPU in float32, bf16 or int8."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from energy import done

from charcnn.layers import Network
from charcnn.model.onnx_graph import graph
from libraries import Network as Face


class _Once:
    """What `quantize_static` reads its inputs from: these, then nothing."""

    def __init__(self, ids: np.ndarray) -> None:
        self._left = [{"ids": ids}]

    def get_next(self) -> dict[str, np.ndarray] | None:
        return self._left.pop() if self._left else None


def quantised(model: bytes, ids: np.ndarray) -> bytes:
    """The graph in int8 with its scales: u8 features, s8 weights with a scale an output channel (QDQ)."""
    from onnxruntime.quantization import QuantFormat, QuantType, quantize_static

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "int8.onnx"
        quantize_static(
            onnx.load_from_string(model),
            path,
            _Once(ids),
            quant_format=QuantFormat.QDQ,
            activation_type=QuantType.QUInt8,
            weight_type=QuantType.QInt8,
            per_channel=True,
            op_types_to_quantize=["Conv", "Gemm", "Relu", "MaxPool"],
        )
        return path.read_bytes()


class _OnHost(Face):
    """A `Network` that a graph makes: a call waits for its result."""

    timed = "host to host"
    versions: dict[str, str]

    def __init__(self, params: Mapping[str, np.ndarray], config: Network, conv1: str, precision: str) -> None:
        self._graph = lambda batch: graph(params, config, batch, conv1)
        self._precision = precision

    def load(self, ids: np.ndarray) -> None:
        """Compile for so many inputs; int8's scales are these inputs' own."""
        model = self._graph(len(ids))
        self._ids, self._infer = ids, self._compile(quantised(model, ids) if self._precision == "int8" else model)

    def prepare(self, times: int) -> None:
        """Nothing to make ready."""

    def start(self, times: int) -> Callable[[], object]:
        """Compute the logits of the loaded ids; they are there when it returns."""
        for _ in range(times):
            self._logits = self._infer(self._ids)
        return done

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
        self,
        params: Mapping[str, np.ndarray],
        config: Network,
        *,
        threads: int,
        conv1: str = "dense",
        precision: str = "float32",
    ) -> None:
        import onnxruntime

        super().__init__(params, config, conv1, precision)
        self._library, self._options = onnxruntime, onnxruntime.SessionOptions()
        self._options.intra_op_num_threads = threads
        self.versions = {"onnxruntime": onnxruntime.__version__, "onnx": onnx.__version__}

    def _compile(self, model: bytes) -> Callable[[np.ndarray], Any]:
        session = self._library.InferenceSession(model, self._options, providers=["CPUExecutionProvider"])
        return lambda ids: session.run(None, {"ids": ids})[0]


class OpenVino(_OnHost):
    """The graph in OpenVINO, on the CPU."""

    def __init__(
        self,
        params: Mapping[str, np.ndarray],
        config: Network,
        *,
        threads: int,
        conv1: str = "dense",
        precision: str = "float32",
    ) -> None:
        import openvino

        super().__init__(params, config, conv1, precision)
        self._core = openvino.Core()
        self._settings = {
            "INFERENCE_NUM_THREADS": threads,
            "NUM_STREAMS": 1,  # one batch at a time, by all threads
            "INFERENCE_PRECISION_HINT": "bf16" if precision == "bf16" else "f32",  # of what is not quantised
        }
        self.versions = {"openvino": openvino.__version__.partition("-")[0], "onnx": onnx.__version__}

    def _compile(self, model: bytes) -> Callable[[np.ndarray], Any]:
        compiled = self._core.compile_model(self._core.read_model(model), "CPU", self._settings)
        request = compiled.create_infer_request()
        return lambda ids: request.infer([ids], share_inputs=True, share_outputs=True)[0]
