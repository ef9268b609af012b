"""Types: the stubs say what the extension module has and returns; the package and its programs pass mypy, strictly."""

import __future__

import inspect
import os
import subprocess
import sys
import types
import typing
from pathlib import Path

import numpy as np
import pytest

import ccplane
from ccplane import _native

#: Where the package lies that is tested: mypy looks for it in the current folder.
FOLDER = Path(ccplane.__file__).resolve().parents[1]
PLAN = """
title = "A link"
duration_s = 1
repeats = 1
[[link]]
rate_mbit = 12
delay_ms = 20
queue_packets = 40
[[algorithm]]
algorithm = "{}"
datapath = "sim"
"""
OBSERVATION, ROWS = np.zeros(30, np.float32), np.zeros((1, 30), np.float32)


def _passes(*command):
    done = subprocess.run([sys.executable, "-m", *command], cwd=FOLDER, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_stubs_and_module_have_the_same_names_and_parameters():
    _passes("mypy.stubtest", "ccplane._native", "--concise")


def _mypy(root, *arguments):
    settings = ["--config-file", root / "experiments/python/pyproject.toml", "--cache-dir", os.devnull]
    _passes("mypy", *settings, *arguments)


def test_the_package_passes_mypy(root):
    _mypy(root, "-p", "ccplane")


def test_programs_pass_mypy(root):
    folder = root / "experiments/python"
    programs = [*folder.glob("*.py"), *folder.glob("examples/*.py")]
    assert len(programs) >= 4
    _mypy(root, *programs)


@pytest.fixture
def stubs(root):
    """What the stubs define, by name."""
    path = root / "experiments/python/python/ccplane/_native.pyi"
    flags = __future__.annotations.compiler_flag
    defined: dict[str, typing.Any] = {}
    exec(compile(path.read_text(encoding="utf-8"), str(path), "exec", flags), defined)
    return defined


def _is(value, hint) -> bool:
    """Whether a value is of a type that the stubs name: a float is no int, an array has just that type of numbers."""
    origin, parts = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return any(_is(value, part) for part in parts)
    if origin is list:
        return isinstance(value, list) and all(_is(one, parts[0]) for one in value)
    if origin is tuple:
        return isinstance(value, tuple) and len(value) == len(parts) and all(map(_is, value, parts))
    if origin is np.ndarray:
        return isinstance(value, np.ndarray) and value.dtype == typing.get_args(parts[1])[0]
    return type(value) is hint


def _declared(stubs):
    """Functions, methods and fields of the stubs by name, each with the type of what it returns or is."""
    # An object that comes back is one of the module's own.
    names = stubs | {name: getattr(_native, name) for name in stubs["__all__"]}
    for name in stubs["__all__"]:
        of = stubs[name]
        if not inspect.isclass(of):
            yield name, typing.get_type_hints(of, names)["return"]
            continue
        yield from ((f"{name}.{field}", hint) for field, hint in typing.get_type_hints(of, names).items())
        for part, value in vars(of).items():
            function = value.fget if isinstance(value, property) else getattr(value, "__func__", value)
            if inspect.isfunction(function) and part != "__new__":
                yield f"{name}.{part}", typing.get_type_hints(function, names)["return"]


class Controls(ccplane.Algorithm):
    """Keeps what its flow's calls return."""

    name = "py-controls"
    programs = {"all": "(def (Report (acked 0))) (when true (:= Report.acked Ack.bytes_acked) (report))"}

    def __init__(self):
        self.returned = {}

    def flow(self, info, control):
        self.returned["Control.set_program"] = [control.set_program("all")]
        return self

    def on_report(self, now_us, program, report, control):
        self.returned["Control.update"] = [control.update(Cwnd=100_000)]


def _returned(root, folder):
    """What each function and method returned, once in each of its ways, and what each field is."""
    controls = Controls()
    simulated = _native.simulate(PLAN.format("py-controls"), [controls.hosted()])
    unknown = _native.simulate(PLAN.format("reno"), [], None, 1, 2)
    (folder / "one.toml").write_text(PLAN.format("reno"), encoding="utf-8")
    code = _native.command(["run", str(folder / "one.toml"), "--results", str(folder)], [])
    (results,) = folder.glob("*.jsonl")
    flows, vector = _native.Flows("aurora"), _native.Vector("aurora", 1, 5)
    started = flows.start(1, 3, OBSERVATION)
    steps = [flows.step(0.0, OBSERVATION) for _ in range(4)]
    shipped = root / "algs/policies/aurora.safetensors"
    actor, critic, activation, log_std, algorithm = _native.read_policy(shipped)
    content = _native.policy_to_bytes(algorithm, actor, critic, activation, log_std, 1, 2, "a test")
    numbers = np.zeros(1)
    return controls.returned | {
        "Flows.features": [flows.features],
        "Flows.bound": [flows.bound],
        "Flows.agents": [flows.agents],
        "Flows.start": [started],
        "Flows.step": steps,
        "Hosted.echo": [_native.Hosted.echo()],
        "Hosted.errors": [controls.hosted().errors],
        "Vector.reset": [vector.reset([1], ROWS)],
        "Vector.step": [vector.step(OBSERVATION[:1], ROWS, numbers, np.zeros(1, np.bool_))],
        "algorithms": [_native.algorithms()],
        "command": [code],
        "play_links": [_native.play_links(["steady/validation/0"], ["reno"], [], 1)],
        "policy_from_bytes": [_native.policy_from_bytes(content)],
        "policy_to_bytes": [content],
        "read_policy": [(actor, critic, activation, log_std, algorithm)],
        "read_results": [_native.read_results(results)],
        "run_in_rust": [_native.run_in_rust("aurora", None, [1], 3)],
        "simulate": [simulated, unknown],
    }


def test_what_the_module_returns_is_what_its_stubs_say(stubs, root, tmp_path):
    declared, returned = dict(_declared(stubs)), _returned(root, tmp_path)
    assert sorted(returned) == sorted(declared)
    others = {name: (values, declared[name]) for name, values in returned.items() if not all(_is(v, declared[name]) for v in values)}
    assert others == {}
