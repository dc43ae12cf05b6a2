"""Runs of ONNX graphs in ONNX Runtime and OpenVINO, with as many threads as there are cores."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from benchmarks.peers.rows import CORES, Run, library

OPSET, IR_VERSION = 20, 9


Arrays = Mapping[str, np.ndarray]


def model(nodes: Sequence[Any], inputs: Arrays, output: str, shape: Sequence[int], weights: Arrays) -> bytes:
    """A graph with one output, float32."""
    onnx = library("onnx")
    helper, types = onnx.helper, onnx.TensorProto
    given = [helper.make_tensor_value_info(name, _type(x), x.shape) for name, x in inputs.items()]
    returned = [helper.make_tensor_value_info(output, types.FLOAT, list(shape))]
    constants = [onnx.numpy_helper.from_array(value, name) for name, value in weights.items()]
    graph = helper.make_graph(list(nodes), "graph", given, returned, constants)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION)
    onnx.checker.check_model(made)
    return made.SerializeToString()


def _type(x: np.ndarray) -> int:
    return int(library("onnx").helper.np_dtype_to_tensor_dtype(x.dtype))


def onnx_runtime(made: Callable[[], bytes], inputs: Arrays) -> Run:
    """A run in ONNX Runtime."""
    ort = library("onnxruntime")
    options = ort.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = CORES, 3
    session = ort.InferenceSession(made(), options, providers=["CPUExecutionProvider"])
    return lambda: session.run(None, dict(inputs))[0]


def openvino(made: Callable[[], bytes], inputs: Arrays) -> Run:
    """A run in OpenVINO, for latency."""
    core = library("openvino").Core()
    hints = {"PERFORMANCE_HINT": "LATENCY", "INFERENCE_NUM_THREADS": CORES, "INFERENCE_PRECISION_HINT": "f32"}
    request = core.compile_model(core.read_model(made()), "CPU", hints).create_infer_request()
    return lambda: np.array(request.infer(dict(inputs))[0])


def runs(made: Callable[[], bytes], inputs: Arrays) -> dict[str, Callable[[], Run]]:
    """The runs of a graph in all systems that read it."""
    return {
        "ONNX Runtime": partial(onnx_runtime, made, inputs),
        "OpenVINO": partial(openvino, made, inputs),
    }
