"""Makes the models beside this file with Python's onnx and safetensors' layout, and what onnx's own evaluator says that they compute.

Those that torch itself exported come from export.py.

    python make.py      # needs onnx and numpy; the same bytes each time
"""

import json
import struct
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

HERE = Path(__file__).parent
INPUTS = 6
RNG = np.random.default_rng(7)


def weights(outputs, inputs):
    return RNG.normal(0, 0.6, (outputs, inputs)).astype(np.float32), RNG.normal(0, 0.3, outputs).astype(np.float32)


def tensor(name, array):
    return numpy_helper.from_array(np.ascontiguousarray(array), name)


def model(nodes, tensors, inputs=("x",), outputs=("y",), opset=17):
    value = lambda name: helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, None])
    graph = helper.make_graph(nodes, "policy", [value(n) for n in inputs], [value(n) for n in outputs], tensors)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], producer_name="make.py")
    made.ir_version = 8
    return made


def node(operator, inputs, outputs, **attributes):
    return helper.make_node(operator, inputs, outputs, name=f"/{outputs[0]}/{operator}", **attributes)


def torch_like():
    """As torch exports a Sequential of Linear and Tanh: Gemm with transB."""
    (w0, b0), (w1, b1), (w2, b2) = weights(8, INPUTS), weights(5, 8), weights(1, 5)
    gemm = lambda n, x, y: node("Gemm", [x, f"{n}.weight", f"{n}.bias"], [y], alpha=1.0, beta=1.0, transB=1)
    nodes = [
        node("Flatten", ["x"], ["f"], axis=1),
        gemm(0, "f", "a"), node("Tanh", ["a"], ["b"]),
        gemm(2, "b", "c"), node("Tanh", ["c"], ["d"]),
        gemm(4, "d", "e"), node("Identity", ["e"], ["y"]),
    ]
    arrays = {"0.weight": w0, "0.bias": b0, "2.weight": w1, "2.bias": b1, "4.weight": w2, "4.bias": b2}
    return model(nodes, [tensor(n, a) for n, a in arrays.items()])


def keras_like():
    """As tf2onnx exports Keras's Dense layers: MatMul by the weights as they are, then Add, the bias first in one; one Constant node."""
    (w0, b0), (w1, b1) = weights(7, INPUTS), weights(1, 7)
    nodes = [
        node("MatMul", ["x", "w0"], ["a"]), node("Add", ["a", "b0"], ["b"]), node("Relu", ["b"], ["c"]),
        node("Constant", [], ["b1"], value=tensor("", b1)),
        node("MatMul", ["c", "w1"], ["d"]), node("Add", ["b1", "d"], ["y"]),
    ]
    return model(nodes, [tensor("w0", w0.T), tensor("b0", b0), tensor("w1", w1.T)])


def with_nodes(*nodes):
    (w0, b0), (w1, b1) = weights(4, INPUTS), weights(1, 4)
    arrays = {"w0": w0, "b0": b0, "w1": w1, "b1": b1}
    return model(list(nodes), [tensor(n, a) for n, a in arrays.items()])


def gemm(x, n, y, **attributes):
    return node("Gemm", [x, f"w{n}", f"b{n}"], [y], transB=1, **attributes)


def refused():
    yield "softmax", with_nodes(gemm("x", 0, "a"), node("Softmax", ["a"], ["b"]), gemm("b", 1, "y"))
    yield "sigmoid", with_nodes(gemm("x", 0, "a"), node("Sigmoid", ["a"], ["b"]), gemm("b", 1, "y"))
    yield "branch", with_nodes(
        gemm("x", 0, "a"), node("Tanh", ["a"], ["b"]), node("Relu", ["a"], ["c"]),
        node("Add", ["b", "c"], ["d"]), gemm("d", 1, "y"))
    yield "scaled", with_nodes(gemm("x", 0, "a", alpha=0.5), node("Tanh", ["a"], ["b"]), gemm("b", 1, "y"))
    yield "linear", with_nodes(gemm("x", 0, "a"), gemm("a", 1, "y"))
    yield "wide", with_nodes(gemm("x", 0, "y"))
    yield "tanh-output", with_nodes(
        gemm("x", 0, "a"), node("Tanh", ["a"], ["b"]), gemm("b", 1, "c"), node("Tanh", ["c"], ["y"]))
    yield "half", model([node("Gemm", ["x", "w", "b"], ["y"], transB=1)],
                        [tensor("w", np.ones((1, INPUTS), np.float16)), tensor("b", np.ones(1, np.float16))])


def state_dict():
    """A safetensors file, by its published layout: length of the header, header, bytes."""
    arrays, header, data = {}, {"__metadata__": {"format": "pt"}}, b""
    for n, (outputs, inputs) in enumerate([(8, INPUTS), (5, 8), (1, 5)]):
        # torch counts the activations between, so that a tenth comes after a second.
        index = [2, 4, 10][n]
        arrays[f"pi.{index}.weight"], arrays[f"pi.{index}.bias"] = weights(outputs, inputs)
    arrays["vf.0.weight"], arrays["vf.0.bias"] = weights(3, INPUTS)
    for name in sorted(arrays):
        raw = arrays[name].tobytes()
        header[name] = {"dtype": "F32", "shape": list(arrays[name].shape), "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    (HERE / "pi.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + data)
    return arrays


def main():
    observations = RNG.uniform(-1, 1, (16, INPUTS)).astype(np.float32)
    expected = {"observations": observations.tolist(), "outputs": {}}
    for name, made in [("like-torch", torch_like()), ("like-keras", keras_like())]:
        onnx.checker.check_model(made)
        (HERE / f"{name}.onnx").write_bytes(made.SerializeToString(deterministic=True))
        evaluator = ReferenceEvaluator(made)
        expected["outputs"][name] = [float(evaluator.run(None, {"x": x[None]})[0][0, 0]) for x in observations]
    for name, made in refused():
        (HERE / f"refused-{name}.onnx").write_bytes(made.SerializeToString(deterministic=True))
    arrays, outputs = state_dict(), []
    for x in observations:
        h = np.maximum(arrays["pi.2.weight"] @ x + arrays["pi.2.bias"], 0)
        h = np.maximum(arrays["pi.4.weight"] @ h + arrays["pi.4.bias"], 0)
        outputs.append(float((arrays["pi.10.weight"] @ h + arrays["pi.10.bias"])[0]))
    expected["outputs"]["pi"] = outputs
    (HERE / "expected.json").write_text(json.dumps(expected, indent=1) + "\n")


if __name__ == "__main__":
    main()
