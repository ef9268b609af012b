"""The stubs say what the extension module has, and no more; everything public has a doc string."""

import ast
import importlib
import inspect
import pkgutil

import ccplane
from ccplane import _native


def test_stubs_and_module_name_the_same_things(root):
    stubs = ast.parse((root / "experiments/python/python/ccplane/_native.pyi").read_text())
    declared = {}
    for node in stubs.body:
        if isinstance(node, ast.ClassDef):
            declared[node.name] = {
                part.target.id if isinstance(part, ast.AnnAssign) else part.name
                for part in node.body
                if isinstance(part, ast.AnnAssign | ast.FunctionDef)
            } - {"__new__", "__init__"}
        elif isinstance(node, ast.FunctionDef):
            declared[node.name] = set()
    found = {
        name: {n for n in vars(value) if not n.startswith("_")} if inspect.isclass(value) else set()
        for name, value in vars(_native).items()
        if not name.startswith("_")
    }
    assert found == declared


def test_everything_public_has_a_doc_string():
    without = []
    for info in pkgutil.iter_modules(ccplane.__path__):
        if info.name in ("_native", "sb3"):
            continue
        module = importlib.import_module(f"ccplane.{info.name}")
        public = [(n, v) for n, v in vars(module).items() if getattr(v, "__module__", "") == module.__name__]
        for name, value in public:
            if name.startswith("_"):
                continue
            members = vars(value).items() if inspect.isclass(value) else ()
            parts = [(f"{name}.{n}", v) for n, v in members if inspect.isfunction(v) and not n.startswith("_")]
            without += [n for n, v in [(name, value), *parts] if not inspect.getdoc(v)]
    assert without == []
