"""A kernel's function, rewritten so that it runs once for all threads: each variable has the values of all.

What threads decide for themselves becomes a mask: both branches run, each for its threads, and variables are joined
behind. Where all decide alike, Python's own statement runs. Files and lines are not kept: a kernel with a mistake runs
again, a thread after another.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Iterable, Sequence
from types import CodeType, FunctionType

from charcnn.aliases import Function, Value

HELPER = "_lockstep"
"""What the rewritten function calls the batch of threads."""

FILE = "<lockstep>"

_PLACES = ("threadIdx", "blockIdx", "blockDim", "gridDim")
_OPERATORS = {
    ast.Add: "add", ast.Sub: "sub", ast.Mult: "mul", ast.Div: "truediv", ast.FloorDiv: "floordiv", ast.Mod: "mod",
    ast.BitAnd: "and_", ast.BitOr: "or_", ast.BitXor: "xor", ast.LShift: "lshift", ast.RShift: "rshift",
    ast.Pow: "pow",
}  # fmt: skip


class Unsupported(Exception):
    """Threads are to run one after another."""


_codes: dict[CodeType, CodeType] = {}


def rewritten(function: Function, batch: Value) -> Function:
    """The function for all threads of the batch.

    Raises:
        Unsupported: it has no source, or statements that kernels have no use for.
    """
    if not isinstance(function, FunctionType):
        raise Unsupported(f"no Python function: {function}")
    code = function.__code__
    if code not in _codes:
        _codes[code] = _rewrite(function)
    made: dict[str, Value] = {}
    exec(_codes[code], function.__globals__, made)
    cells = [cell.cell_contents for cell in function.__closure__ or ()]
    found: Function = made["_bound"](batch, *cells)
    found.__defaults__, found.__kwdefaults__ = function.__defaults__, function.__kwdefaults__
    return found


def _rewrite(function: FunctionType) -> CodeType:
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function))).body[0]
    except (OSError, SyntaxError, IndexError) as error:
        raise Unsupported(f"no source: {error}") from None
    if not isinstance(tree, ast.FunctionDef):
        raise Unsupported("no function of its own lines")
    made = _Rewriter().function(tree)
    names = [HELPER, *function.__code__.co_freevars]
    outer = ast.parse(f"def _bound({', '.join(names)}):\n    return {made.name}")
    body = outer.body[0]
    assert isinstance(body, ast.FunctionDef)
    body.body.insert(0, made)
    return compile(ast.fix_missing_locations(outer), FILE, "exec")


def _assigned(statements: Iterable[ast.AST]) -> list[str]:
    """Names that statements assign, in order; not those within functions of their own."""
    found: dict[str, None] = {}
    waiting = list(statements)[::-1]
    while waiting:
        node = waiting.pop()
        if isinstance(node, (ast.FunctionDef, ast.Lambda)):
            continue
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found[node.id] = None
        waiting.extend(reversed(list(ast.iter_child_nodes(node))))
    return list(found)


def _ends(node: ast.AST) -> bool:
    """Whether a return, break or continue in it may leave fewer threads for what follows."""
    if isinstance(node, (ast.FunctionDef, ast.Lambda)):
        return False
    if isinstance(node, (ast.Return, ast.Break, ast.Continue)):
        return True
    if isinstance(node, (ast.For, ast.While)):  # its own break and continue end there
        return any(isinstance(inner, ast.Return) for inner in ast.walk(node))
    return any(map(_ends, ast.iter_child_nodes(node)))


def _names(names: Sequence[str], context: ast.expr_context) -> ast.expr:
    return ast.Tuple([ast.Name(name, context) for name in names], context)


def _call(name: str, *arguments: ast.expr) -> ast.Call:
    helper = ast.Attribute(ast.Name(HELPER, ast.Load()), name, ast.Load())
    return ast.Call(helper, list(arguments), [])


def _later(value: ast.expr) -> ast.expr:
    nothing = ast.arguments(posonlyargs=[], args=[], kwonlyargs=[], kw_defaults=[], defaults=[])
    return ast.Lambda(nothing, value)


def _set(name: str, value: ast.expr) -> ast.stmt:
    return ast.Assign([ast.Name(name, ast.Store())], value)


class _Rewriter(ast.NodeTransformer):
    """Statements and expressions of one function, and of those within."""

    def __init__(self) -> None:
        self._count = 0
        self._returns = False

    def _name(self) -> str:
        self._count += 1
        return f"_{self._count}_"

    # Functions.

    def function(self, node: ast.FunctionDef) -> ast.FunctionDef:
        """All of it, without decorators."""
        outer, arguments = self._returns, node.args
        if any(isinstance(inner, (ast.Nonlocal, ast.Global, ast.Try, ast.With, ast.Yield)) for inner in ast.walk(node)):
            raise Unsupported("a statement that kernels do not have")
        *before, last = node.body
        self._returns = any(map(_ends, before)) or (not isinstance(last, ast.Return) and _ends(last))
        given = {one.arg for one in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)}
        body = self._block(node.body)
        if self._returns:
            frame = self._name()
            body = [_set(frame, _call("begin")), *body, ast.Return(_call("end", ast.Name(frame, ast.Load())))]
        names = [name for name in _assigned(node.body) if name not in given]
        missing = [_set(name, ast.Attribute(ast.Name(HELPER, ast.Load()), "missing", ast.Load())) for name in names]
        made = ast.FunctionDef(node.name, arguments, [*missing, *body], [])
        for one in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs):
            one.annotation = None
        self._returns = outer
        return made

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.stmt:
        return self.function(node)

    # Statements.

    def _block(self, statements: Sequence[ast.stmt]) -> list[ast.stmt]:
        made: list[ast.stmt] = []
        for i, statement in enumerate(statements):
            found = self.visit(statement)
            made += found if isinstance(found, list) else [found]
            rest = statements[i + 1 :]
            if _ends(statement) and rest:
                made += self._region(_call("rest"), rest)
                break
        return made or [ast.Pass()]

    def _region(self, opened: ast.expr, statements: Sequence[ast.stmt]) -> list[ast.stmt]:
        """Statements for threads of a mask, if there are some, and what they assign joined with what others have."""
        mark, before, names = self._name(), self._name(), _assigned(statements)
        body = [_set(before, _names(names, ast.Load())), *self._block(statements)]
        left = _call("leave", ast.Name(mark, ast.Load()), ast.Name(before, ast.Load()), _names(names, ast.Load()))
        body.append(ast.Assign([_names(names, ast.Store())], left) if names else ast.Expr(left))
        return [_set(mark, opened), ast.If(ast.Name(mark, ast.Load()), body, [])]

    def visit_If(self, node: ast.If) -> list[ast.stmt]:
        branch = self._name()
        made = [_set(branch, _call("branch", self.visit(node.test)))]
        for taken, statements in ((True, node.body), (False, node.orelse)):
            if statements:
                opened = _call("enter", ast.Name(branch, ast.Load()), ast.Constant(taken))
                made += self._region(opened, statements)
        return made

    def _loop(self, node: ast.For | ast.While, loop: str) -> list[ast.stmt]:
        if node.orelse:
            raise Unsupported("a loop with an else")
        before, held = self._name(), ast.Name(loop, ast.Load())
        names = _assigned(node.body)
        again = _call("again", held, ast.Name(before, ast.Load()), _names(names, ast.Load()))
        joined = ast.Assign([_names(names, ast.Store())], again) if names else ast.Expr(again)
        return [_set(before, _names(names, ast.Load())), *self._block(node.body), joined]

    def visit_While(self, node: ast.While) -> list[ast.stmt]:
        loop = self._name()
        test = _call("goes", ast.Name(loop, ast.Load()), _later(self.visit(node.test)))
        whole = ast.While(test, self._loop(node, loop), [])
        return [_set(loop, _call("loop")), whole, ast.Expr(_call("done", ast.Name(loop, ast.Load())))]

    def visit_For(self, node: ast.For) -> list[ast.stmt]:
        loop, over = self._name(), node.iter
        held = ast.Name(loop, ast.Load())
        if isinstance(over, ast.Call) and isinstance(over.func, ast.Name) and over.func.id == "range":
            steps = _call("steps", held, *(self.visit(one) for one in over.args))
        else:
            steps = _call("over", held, self.visit(over))
        whole = ast.For(node.target, steps, self._loop(node, loop), [])
        return [_set(loop, _call("loop")), whole, ast.Expr(_call("done", held))]

    def visit_Return(self, node: ast.Return) -> ast.stmt:
        value = self.visit(node.value) if node.value else ast.Constant(None)
        return ast.Expr(_call("returned", value)) if self._returns else ast.Return(value)

    def visit_Break(self, node: ast.Break) -> ast.stmt:
        return ast.Expr(_call("broken"))

    def visit_Continue(self, node: ast.Continue) -> ast.stmt:
        return ast.Expr(_call("skipped"))

    def _stored(self, target: ast.expr, value: ast.expr) -> list[ast.stmt]:
        if isinstance(target, ast.Subscript):
            return [ast.Expr(_call("store", self.visit(target.value), self.visit(target.slice), value))]
        if isinstance(target, ast.Name):
            return [ast.Assign([target], value)]
        if not isinstance(target, ast.Tuple):
            raise Unsupported(f"an assignment to {ast.unparse(target)}")
        if all(isinstance(one, ast.Name) for one in target.elts):
            return [ast.Assign([target], value)]
        held = self._name()
        made: list[ast.stmt] = [_set(held, ast.Call(ast.Name("tuple", ast.Load()), [value], []))]
        for i, one in enumerate(target.elts):
            made += self._stored(one, ast.Subscript(ast.Name(held, ast.Load()), ast.Constant(i), ast.Load()))
        return made

    def visit_Assign(self, node: ast.Assign) -> list[ast.stmt]:
        value = self.visit(node.value)
        if len(node.targets) == 1:
            return self._stored(node.targets[0], value)
        held = self._name()
        made = [_set(held, value)]
        return made + [one for target in node.targets for one in self._stored(target, ast.Name(held, ast.Load()))]

    def visit_AugAssign(self, node: ast.AugAssign) -> list[ast.stmt]:
        read = ast.parse(ast.unparse(node.target), mode="eval").body
        return self._stored(node.target, self.visit(ast.BinOp(read, node.op, node.value)))

    # Expressions.

    def visit_BinOp(self, node: ast.BinOp) -> ast.expr:
        left, right = self.visit(node.left), self.visit(node.right)
        if type(node.op) not in _OPERATORS:
            raise Unsupported(ast.unparse(node))
        return _call("operate", ast.Constant(_OPERATORS[type(node.op)]), left, right)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.expr:
        value = self.visit(node.operand)
        if isinstance(node.op, ast.Not):
            return _call("negated", value)
        if isinstance(node.op, ast.Invert):
            return _call("operate", ast.Constant("xor"), value, ast.Constant(-1))
        return ast.UnaryOp(node.op, value)

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.expr:
        made, name = self.visit(node.values[-1]), "both" if isinstance(node.op, ast.And) else "either"
        for value in reversed(node.values[:-1]):
            made = _call(name, self.visit(value), _later(made))
        return made

    def visit_Compare(self, node: ast.Compare) -> ast.expr:
        if len(node.ops) == 1:
            return ast.Compare(self.visit(node.left), node.ops, [self.visit(node.comparators[0])])
        sides = [node.left, *node.comparators]
        pairs: list[ast.expr] = [ast.Compare(sides[i], [op], [sides[i + 1]]) for i, op in enumerate(node.ops)]
        return self.visit_BoolOp(ast.BoolOp(ast.And(), pairs))

    def visit_IfExp(self, node: ast.IfExp) -> ast.expr:
        return _call("chosen", self.visit(node.test), _later(self.visit(node.body)), _later(self.visit(node.orelse)))

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        if isinstance(node.value, ast.Attribute) and node.value.attr in _PLACES:
            return _call("place", ast.Constant(node.value.attr), ast.Constant(node.attr))
        return ast.Attribute(self.visit(node.value), node.attr, node.ctx)

    def visit_Subscript(self, node: ast.Subscript) -> ast.expr:
        return _call("load", self.visit(node.value), self.visit(node.slice))

    def visit_Call(self, node: ast.Call) -> ast.expr:
        self._count += 1  # which of the source, for shared arrays
        place = ast.Constant(self._count)
        return ast.Call(
            ast.Attribute(ast.Name(HELPER, ast.Load()), "call", ast.Load()),
            [place, self.visit(node.func), *(self.visit(one) for one in node.args)],
            [ast.keyword(one.arg, self.visit(one.value)) for one in node.keywords],
        )

    def generic_visit(self, node: ast.AST) -> ast.AST:
        if isinstance(node, (ast.Slice, ast.ListComp, ast.GeneratorExp, ast.DictComp, ast.Lambda, ast.NamedExpr)):
            raise Unsupported(type(node).__name__)
        return super().generic_visit(node)
