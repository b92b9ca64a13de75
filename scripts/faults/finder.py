"""Find the single-line faults that can be put into a file."""

from __future__ import annotations

import ast
import copy
import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent.parent

SWAPPED = [
    ("min", "max"), ("minimum", "maximum"), ("amin", "amax"), ("argmin", "argmax"), ("clamp_min", "clamp_max"),
    ("sum", "mean"), ("any", "all"), ("floor", "ceil"), ("zeros", "ones"), ("zeros_like", "ones_like"),
    ("new_zeros", "new_ones"), ("append", "appendleft"), ("pop", "popleft"), ("sin", "cos"), ("std", "var"),
]  # fmt: skip
OTHER_NAME = {a: b for pair in SWAPPED for a, b in (pair, pair[::-1])}
OTHER_OPERATOR: dict[type, tuple[type, ...]] = {
    ast.Add: (ast.Sub,), ast.Sub: (ast.Add,), ast.Mult: (ast.Div,), ast.Div: (ast.Mult,), ast.Pow: (ast.Mult,),
    ast.BitAnd: (ast.BitOr,), ast.BitOr: (ast.BitAnd,), ast.LShift: (ast.RShift,), ast.RShift: (ast.LShift,),
    ast.Lt: (ast.LtE, ast.GtE), ast.LtE: (ast.Lt, ast.Gt), ast.Gt: (ast.GtE, ast.LtE), ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,), ast.NotEq: (ast.Eq,), ast.Is: (ast.IsNot,), ast.IsNot: (ast.Is,),
    ast.In: (ast.NotIn,), ast.NotIn: (ast.In,), ast.And: (ast.Or,), ast.Or: (ast.And,),
}  # fmt: skip
DROPPED = {  # x.name(...) and name(x, ...) become x
    "detach", "clamp", "clamp_", "clamp_min", "clamp_max", "clip", "abs", "sqrt", "square", "exp", "log", "flip",
    "masked_fill", "nan_to_num", "round", "forbid", "reversed", "sorted", "softmax", "tanh", "deepcopy",
}  # fmt: skip
NO_FAULT_IN = {
    "isinstance",
    "issubclass",
    "cast",
    "TypeVar",
    "print",
    "warn",
    "log",
    "debug",
    "info",
    "warning",
    "get_args",
}
NO_FAULT_OF = {"strict", "device", "non_blocking", "stacklevel", "name", "file", "flush", "out"}  # keywords
SPEED = re.compile(r"TYPE_CHECKING|fast\.ENABLED")  # conditions that change no result
SETTINGS = {"cfg", "config", "rules"}  # what a configuration is called


@dataclass(frozen=True)
class Fault:
    """Bytes ``start`` to ``end`` of ``path`` replaced by ``text``; ``name`` says so in words, whatever the line."""

    path: str
    function: str
    line: int
    name: str
    start: int
    end: int
    text: str

    @property
    def key(self) -> str:
        return f"{self.path}::{self.function}::{self.name}"


class Finder(ast.NodeVisitor):
    """All faults of one file."""

    def __init__(self, path: str, source: bytes) -> None:
        self.path, self.source = path, source
        self.starts = [0]
        for line in source.splitlines(keepends=True):
            self.starts.append(self.starts[-1] + len(line))
        self.scope: list[str] = []
        self.found: list[Fault] = []
        self.seen: Counter[str] = Counter()

    def add(self, node: Any, new: ast.AST | str) -> None:
        text = new if isinstance(new, str) else ast.unparse(new)
        before = " ".join(ast.unparse(node).split())
        name = f"{before} -> {' '.join(text.split())}"
        function = ".".join(self.scope)
        self.seen[f"{function}::{name}"] += 1
        if (count := self.seen[f"{function}::{name}"]) > 1:
            name += f" #{count}"
        start = self.starts[node.lineno - 1] + node.col_offset
        end = self.starts[node.end_lineno - 1] + node.end_col_offset
        text = f"({text})" if isinstance(node, ast.expr) else text
        self.found.append(Fault(self.path, function, node.lineno, name, start, end, text))

    def changed(self, node: Any, **fields: Any) -> Any:
        new = copy.copy(node)
        for name, value in fields.items():
            setattr(new, name, value)
        return new

    # What is never faulty
    def visit_JoinedStr(self, node: ast.JoinedStr) -> None: ...
    def visit_Raise(self, node: ast.Raise) -> None: ...
    def visit_Assert(self, node: ast.Assert) -> None: ...
    def visit_Import(self, node: ast.Import) -> None: ...
    def visit_ImportFrom(self, node: ast.ImportFrom) -> None: ...

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self.scope.append(node.name)
        for child in node.body:  # not the defaults of fields, nor those of arguments: a test could only say them again
            if isinstance(child, (ast.FunctionDef, ast.ClassDef)):
                self.visit(child)
        self.scope.pop()

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        if node.name in ("__repr__", "__str__"):
            return
        self.scope.append(node.name)
        for child in node.body:
            self.visit(child)
        self.scope.pop()

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None and "Preset" not in ast.unparse(node.annotation):  # the papers' values
            self.visit(node.value)

    def visit_Assign(self, node: ast.Assign) -> None:
        union = isinstance(node.value, ast.BinOp) and isinstance(node.value.op, ast.BitOr)
        if not self.scope and (union or isinstance(node.value, ast.Subscript)):
            return  # a name for a type
        if not self.scope:  # a constant: what mentions its name has the tests
            self.scope.append(_name(node.targets[0]) or "?")
            self.visit(node.value)
            self.scope.pop()
            return
        if any(isinstance(t, ast.Attribute) for t in node.targets) and self.scope[-1:] != ["__init__"]:
            self.add(node, "pass")
        self.generic_visit(node)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        self.add(node, "pass")
        for other in OTHER_OPERATOR.get(type(node.op), ()):
            self.add(node, self.changed(node, op=other()))
        self.visit(node.value)

    def visit_Expr(self, node: ast.Expr) -> None:
        if "_check." in ast.unparse(node):  # refuses arguments
            return
        if isinstance(node.value, ast.Call) and _name(node.value.func) not in NO_FAULT_IN:
            self.add(node, "pass")
        if not isinstance(node.value, ast.Constant):
            self.visit(node.value)

    def visit_If(self, node: ast.If) -> None:
        refusal = len(node.body) == 1 and isinstance(node.body[0], ast.Raise)
        if not refusal and not SPEED.search(ast.unparse(node.test)):
            self.condition(node.test)
            self.visit(node.test)
        for child in [*node.body, *node.orelse]:
            self.visit(child)

    def visit_IfExp(self, node: ast.IfExp) -> None:
        if SPEED.search(ast.unparse(node.test)):
            self.visit(node.body)
            self.visit(node.orelse)
        else:
            self.condition(node.test)
            self.generic_visit(node)

    def visit_comprehension(self, node: ast.comprehension) -> None:
        for test in node.ifs:
            self.add(test, "True")
        self.generic_visit(node)

    def condition(self, test: ast.expr) -> None:
        self.add(test, "True")
        self.add(test, "False")

    def visit_BinOp(self, node: ast.BinOp) -> None:
        if any(
            isinstance(side, (ast.JoinedStr, ast.List, ast.Tuple)) or _text(side) for side in (node.left, node.right)
        ):
            self.generic_visit(node)
            return
        for other in OTHER_OPERATOR.get(type(node.op), ()):
            self.add(node, self.changed(node, op=other()))
        self.add(node, node.left)
        if isinstance(node.op, (ast.Add, ast.Mult, ast.BitAnd, ast.BitOr, ast.Sub)):
            self.add(node, node.right)
        if isinstance(node.op, ast.FloorDiv):
            self.add(node, f"-(-({ast.unparse(node.left)}) // ({ast.unparse(node.right)}))")
        self.generic_visit(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        self.add(node, self.changed(node, op=OTHER_OPERATOR[type(node.op)][0]()))
        for i in range(len(node.values)):
            left = node.values[:i] + node.values[i + 1 :]
            self.add(node, left[0] if len(left) == 1 else self.changed(node, values=left))
        self.generic_visit(node)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> None:
        self.add(node, node.operand)
        self.generic_visit(node)

    def visit_Compare(self, node: ast.Compare) -> None:
        for i, op in enumerate(node.ops):
            for other in OTHER_OPERATOR.get(type(op), ()):
                self.add(node, self.changed(node, ops=[*node.ops[:i], other(), *node.ops[i + 1 :]]))
        self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        if isinstance(node.value, bool):
            self.add(node, str(not node.value))
        elif isinstance(node.value, int):
            self.add(node, str(node.value + 1))
            self.add(node, str(node.value - 1))
        elif isinstance(node.value, float):
            self.add(node, repr(2.0 * node.value or 1.0))

    def visit_Attribute(self, node: ast.Attribute) -> None:
        if _name(node.value) in SETTINGS and isinstance(node.ctx, ast.Load):
            self.add(node, f"type({ast.unparse(node.value)}).{node.attr}")
        self.generic_visit(node)

    def visit_Dict(self, node: ast.Dict) -> None:
        if self.scope[-1:] in (["state_dict"], ["__getstate__"]):
            for i in range(len(node.keys)):
                self.add(node, self.changed(node, keys=node.keys[:i] + node.keys[i + 1 :],
                                            values=node.values[:i] + node.values[i + 1 :]))  # fmt: skip
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        name, func = _name(node.func), node.func
        if name in NO_FAULT_IN:
            return
        if name in OTHER_NAME:
            other = OTHER_NAME[name]
            new = ast.Name(other) if isinstance(func, ast.Name) else self.changed(func, attr=other)
            self.add(node, self.changed(node, func=new))
        module = isinstance(func, ast.Attribute) and _name(func.value) in ("np", "torch", "math", "copy")
        if name in DROPPED:
            if isinstance(func, ast.Attribute) and not module:
                self.add(node, func.value)
            elif node.args:
                self.add(node, node.args[0])
        if name in ("min", "max", "minimum", "maximum") and len(node.args) == 2:
            self.add(node, node.args[0])
            self.add(node, node.args[1])
        if name == "where" and len(node.args) == 3:
            self.add(node, node.args[1])
            self.add(node, node.args[2])
        for i, keyword in enumerate(node.keywords):
            if keyword.arg is not None and keyword.arg not in NO_FAULT_OF:
                self.add(node, self.changed(node, keywords=node.keywords[:i] + node.keywords[i + 1 :]))
        if isinstance(func, ast.Attribute):  # a method is called: no setting
            self.visit(func.value)
        for child in [*node.args, *(k.value for k in node.keywords if k.arg not in NO_FAULT_OF)]:
            if isinstance(child, ast.UnaryOp) and isinstance(child.operand, ast.Constant):
                self.visit(child.operand)  # the last axis is often the second one too
            else:
                self.visit(child)


def _name(node: ast.AST) -> str:
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""


def _text(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, (str, bytes))


def faults_of(path: str) -> list[Fault]:
    source = (ROOT / path).read_bytes()
    finder = Finder(path, source)
    for child in ast.parse(source).body:
        finder.visit(child)
    return finder.found
