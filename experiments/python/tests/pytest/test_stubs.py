"""The stubs say what the extension module has, and no more; everything public has a doc string."""

import ast
import importlib
import inspect
import pkgutil
import re

import ccplane
from ccplane import _native


#: An array's shape: the names of its axes, or a length.
SHAPE = re.compile(r"\((?:1|[a-z_]+)(?:, (?:1|[a-z_]+))*,?\)")
UNITS = ("no unit", "bytes", "per second", "seconds", "millionths")


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


def _parameters(function: ast.FunctionDef, is_method: bool) -> list[tuple[str, str | None]]:
    """Names and defaults of a stub's parameters, as in the source."""
    arguments = function.args
    names = [argument.arg for argument in arguments.args]
    defaults = [None] * (len(names) - len(arguments.defaults)) + [ast.unparse(one) for one in arguments.defaults]
    further = [(f"**{arguments.kwarg.arg}", None)] if arguments.kwarg else []
    return [*zip(names, defaults, strict=True)][is_method:] + further


def _found(value: object) -> list[tuple[str, str | None]]:
    """The same of what the extension module has."""
    parameters = inspect.signature(value).parameters.values()
    return [
        (f"**{one.name}" if one.kind is one.VAR_KEYWORD else one.name, None if one.default is one.empty else repr(one.default))
        for one in parameters
        if one.name != "self"
    ]


def test_stubs_and_module_take_the_same_parameters(root):
    stubs = ast.parse((root / "experiments/python/python/ccplane/_native.pyi").read_text())
    compared, differ = 0, []
    for node in stubs.body:
        of = getattr(_native, node.name, None) if isinstance(node, ast.ClassDef | ast.FunctionDef) else None
        if isinstance(node, ast.FunctionDef):
            parts = [(node.name, node, of, False)]
        else:
            methods = [part for part in getattr(node, "body", ()) if isinstance(part, ast.FunctionDef)]
            # What makes an object is asked of the class itself; a property has no parameters.
            parts = [
                (f"{node.name}.{m.name}", m, of if m.name == "__new__" else getattr(of, m.name), not _is(m, "staticmethod"))
                for m in methods
                if not _is(m, "property")
            ]
        for name, stub, found, is_method in parts:
            compared += 1
            if _parameters(stub, is_method) != _found(found):
                differ.append((name, _parameters(stub, is_method), _found(found)))
    assert differ == [] and compared > 15


def _is(function: ast.FunctionDef, decorator: str) -> bool:
    return any(ast.unparse(one) == decorator for one in function.decorator_list)


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
