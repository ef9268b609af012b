"""Everything public has a doc string, which says the shapes of arrays and units."""

import ast
import importlib
import inspect
import pkgutil
import re

import ccplane

#: An array's shape: the names of its axes, or a length.
SHAPE = re.compile(r"\((?:1|[a-z_]+)(?:, (?:1|[a-z_]+))*,?\)")
UNITS = ("no unit", "bytes", "per second", "seconds", "millionths")


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


def _arrays(path):
    """Public functions and fields of a file that have arrays: the name, what is said of it, and whether it returns one."""
    lines = path.read_text().splitlines()
    module = ast.parse("\n".join(lines)).body
    classes = [node for node in module if isinstance(node, ast.ClassDef)]
    for node in [*module, *(part for of in classes for part in of.body)]:
        if isinstance(node, ast.FunctionDef) and not node.name.startswith("_"):
            returned = ast.unparse(node.returns) if node.returns else ""
            if re.search(r"NDArray|\b_?Layers?\b", f"{ast.unparse(node.args)} {returned}"):
                yield node.name, ast.get_docstring(node) or "", "NDArray" in returned
        elif isinstance(node, ast.AnnAssign) and "NDArray" in ast.unparse(node.annotation):
            above = []
            for line in reversed(lines[: node.lineno - 1]):
                if not line.strip().startswith("#:"):
                    break
                above.append(line)
            yield ast.unparse(node.target), " ".join(reversed(above)), False


def test_doc_strings_say_shapes_and_what_is_returned_has_its_unit(root):
    found, without = 0, []
    for path in sorted((root / "experiments/python/python/ccplane").iterdir()):
        if path.suffix not in (".py", ".pyi"):
            continue
        for name, said, is_returned in _arrays(path):
            found += 1
            has_unit = not is_returned or any(unit in said for unit in UNITS)
            if not SHAPE.search(said) or not has_unit:
                without.append(f"{path.name}: {name}: {said}")
    assert without == [] and found > 20
