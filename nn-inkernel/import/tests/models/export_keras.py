"""Exports networks by Keras's own exporter, beside this file, with what Keras says that they compute.

    KERAS_BACKEND=tensorflow python export_keras.py      # needs keras, tensorflow-cpu and tf2onnx
    KERAS_BACKEND=jax python export_keras.py             # needs keras, jax and jax2onnx

Both backends have the same numbers, and an exporter each.
"""

import json
from pathlib import Path

import keras
import numpy as np
from keras import layers

HERE = Path(__file__).parent
EXPECTED = HERE / "keras.json"
INPUTS = 6


def sequential() -> keras.Model:
    return keras.Sequential(
        [
            keras.Input((INPUTS,), name="observation"),
            layers.Dense(8, activation="tanh"),
            layers.Dense(5, activation="tanh"),
            layers.Dense(1),
        ]
    )


def functional() -> keras.Model:
    """A policy as people write them by the functional API, with what only training needs, and activations as layers."""
    observation = keras.Input((INPUTS,), name="observation")
    hidden = layers.Dense(7)(layers.Flatten()(observation))
    hidden = layers.Dropout(0.1)(layers.ReLU()(hidden))
    return keras.Model(observation, layers.Dense(1, use_bias=False, name="action")(hidden))


def main() -> None:
    rng = np.random.default_rng(7)
    observations = rng.uniform(-1, 1, (16, INPUTS)).astype(np.float32)
    made = json.loads(EXPECTED.read_text()) if EXPECTED.exists() else {"keras": keras.__version__, "outputs": {}}
    made["observations"] = observations.tolist()
    for name, network in {"sequential": sequential(), "functional": functional()}.items():
        network.set_weights([rng.normal(0, 0.6, numbers.shape).astype(np.float32) for numbers in network.get_weights()])
        named = f"{name}-{keras.backend.backend()}"
        made["outputs"][named] = np.asarray(network(observations))[:, 0].tolist()
        network.export(str(HERE / f"keras-{named}.onnx"), format="onnx", verbose=False)
    EXPECTED.write_text(json.dumps(made, indent=1) + "\n")


if __name__ == "__main__":
    main()
