"""Checks the source of a forward, and of every function it reaches, before torch.fx runs it.

torch.fx runs forward once, with proxies for its inputs, and records what is done to them. Whatever else the code does
is frozen into the graph or lost. So the code is parsed first, and only an allow-list passes: syntax that a trace sees
through, operations that it records, pure functions, and constants, which become guards. All else is refused.
"""

import ast
import builtins
import enum
import functools
import inspect
import linecache
import os
import symtable
import sys
import types

import torch
import torch.overrides


class Refused(Exception):
    """Why a forward is left alone."""


def _refuse(why):
    raise Refused(why)


_SYNTAX = tuple(getattr(ast, name) for name in (
    "Return Delete Assign AugAssign AnnAssign For While If With withitem Raise Assert Expr Pass Break Continue "
    "FunctionDef arguments arg Lambda Nonlocal BoolOp NamedExpr BinOp UnaryOp IfExp Dict Set ListComp SetComp DictComp "
    "GeneratorExp comprehension Compare Call keyword FormattedValue JoinedStr Constant Attribute Subscript Starred "
    "Name List Tuple Slice Index ExtSlice expr_context boolop operator unaryop cmpop").split() if hasattr(ast, name))
# In the condition of an assertion: syntax that decides nothing by itself.
_CONDITION = (ast.Compare, ast.Call, ast.Attribute, ast.Subscript, ast.Name, ast.Constant, ast.BinOp, ast.keyword,
              ast.expr_context,
              ast.operator, ast.Eq, ast.NotEq, ast.Lt, ast.LtE, ast.Gt, ast.GtE)
_WORDS = {"Try": "catches exceptions", "TryStar": "catches exceptions", "Import": "imports a module",
          "ImportFrom": "imports a module", "ClassDef": "defines a class"}

GRAD_CONTEXTS = (torch.no_grad, torch.enable_grad, torch.set_grad_enabled)
_BUILTINS = {getattr(builtins, name) for name in (
    "abs all any bool complex dict divmod enumerate filter float frozenset int iter len list map max min next pow "
    "range reversed round set slice sorted sum tuple zip").split()}
_PURE = _BUILTINS | {torch.device, torch.Size, torch.finfo, torch.iinfo, torch.jit.is_scripting,
                     torch.is_grad_enabled}
_CONSTANTS = (bool, int, float, complex, str, bytes, type(None), type(...), torch.dtype, torch.device, torch.Size,
              torch.layout, torch.memory_format, enum.Enum)
_FUNCTIONS = (types.FunctionType, types.BuiltinFunctionType, type(torch.Tensor.add))
_MISSING = object()


def is_constant(value):
    """True if the value cannot change while it is the same object."""
    if type(value) in (tuple, frozenset):
        return all(is_constant(part) for part in value)
    return isinstance(value, _CONSTANTS + _FUNCTIONS + (type,))


def is_torchs(name):
    """True for the name of a Python module of PyTorch's."""
    return (name or "").split(".")[0] == "torch"


def _is_plain_enum(cls):
    """True for an enumeration without methods of its own."""
    return issubclass(cls, enum.Enum) and not any(
        hasattr(type(value), "__get__") for name, value in vars(cls).items() if not (
            name.startswith("_") or name in cls.__members__))


@functools.lru_cache(maxsize=None)
def _recorded():
    """PyTorch's functions that torch.fx records when a proxy is among their arguments."""
    functions = set(torch.overrides.get_testing_overrides())
    return functions | {value for name, value in vars(torch).items() if name.endswith("_like")}


# ---- from a function to its source ----------------------------------------------------------------------------------


def _inside(code):
    yield code
    for part in code.co_consts:
        if isinstance(part, types.CodeType):
            yield from _inside(part)


def _scopes(table):
    yield table
    for child in table.get_children():
        yield from _scopes(child)


@functools.lru_cache(maxsize=16)
def _parsed(text, filename):
    """(syntax tree, symbol tables, code objects) of a file"""
    return (ast.parse(text), list(_scopes(symtable.symtable(text, filename, "exec"))),
            list(_inside(compile(text, filename, "exec", dont_inherit=True))))


def _definition(function):
    """(syntax tree, symbol table) of a function"""
    code = function.__code__
    linecache.checkcache(code.co_filename)
    text = "".join(linecache.getlines(code.co_filename, function.__globals__))
    try:
        tree, tables, codes = _parsed(text, code.co_filename)
    except (SyntaxError, ValueError):
        text = ""
    if not text:
        raise Refused("the source of %s is not available" % code.co_name)
    nodes = [node for node in ast.walk(tree) if isinstance(node, (ast.FunctionDef, ast.Lambda))
             and getattr(node, "name", "<lambda>") == code.co_name and code.co_firstlineno == min(
                 [node.lineno] + [each.lineno for each in getattr(node, "decorator_list", [])])]
    if not any(each.co_name == code.co_name and each.co_firstlineno == code.co_firstlineno and
               each.co_code == code.co_code and each.co_names == code.co_names for each in codes):
        raise Refused("the source of %s has changed since it was loaded" % code.co_name)
    name = code.co_name.strip("<>")
    tables = [each for each in tables if nodes and (each.get_type(), each.get_name(), each.get_lineno()) == (
        "function", name, nodes[0].lineno)]
    if len(nodes) != 1 or len(tables) != 1:
        raise Refused("not exactly one function begins on its line, %s:%d" % (
            os.path.basename(code.co_filename), code.co_firstlineno))
    return nodes[0], tables[0]


def _line(code, node):
    return "%s:%d" % (os.path.basename(code.co_filename), node.lineno)


# ---- what it may do -------------------------------------------------------------------------------------------------


class Source:
    """The functions that one forward reaches, and what they read besides their arguments."""

    def __init__(self):
        self.variables = {}           # {(owner's id, name): (owner, name, value)}: variables outside of the functions
        self.assertions = set()       # (file, line) of conditions that are only asserted
        self.reads_grad_mode = False
        self.tests_for_none = False   # whether a value that is neither an input nor an attribute is None
        self._seen = set()

    def check(self, function, cls=None, is_forward=False, is_bound_to_class=False):
        """Refuses what a trace would not reproduce. cls: the class of the module whose method it is, or None."""
        key = function, cls, is_forward, is_bound_to_class
        if key in self._seen:
            return
        self._seen.add(key)
        if is_torchs(function.__globals__.get("__name__")):
            if hasattr(function, "__wrapped__"):
                raise Refused("it is wrapped by a decorator, %s" % function.__code__.co_name)
            return
        for each in inspect.signature(function, follow_wrapped=False).parameters.values():
            if each.default is not each.empty:
                self.accept(each.default, "the default of " + each.name, _refuse)
        node, table = _definition(function)
        body = _Body(self, function, node, table, cls, is_forward, is_bound_to_class)
        for statement in node.body if isinstance(node.body, list) else [node.body]:
            body.visit(statement)

    def accept(self, value, name, refuse):
        """Refuses a value that is read under this name, if a trace cannot freeze it; checks a function's source."""
        if type(value) in (tuple, frozenset):
            for part in value:
                self.accept(part, name, refuse)
        elif isinstance(value, type):
            is_namedtuple = value.__bases__ == (tuple,) and hasattr(value, "_fields")
            is_exception = issubclass(value, BaseException) and value.__module__ == "builtins"
            if not (value in _PURE or is_namedtuple or is_exception or _is_plain_enum(value)):
                refuse("it uses the class %s, which a trace does not record" % name)
        elif isinstance(value, _FUNCTIONS):
            module = getattr(value, "__module__", None) or ""
            self.reads_grad_mode = self.reads_grad_mode or value is torch.is_grad_enabled
            if (value in _PURE or value in _recorded() or module in ("math", "_operator", "torch.nn.functional")
                    or module.startswith("onepass.")):
                return
            if not isinstance(value, types.FunctionType) or is_torchs(value.__globals__.get("__name__")):
                refuse("it uses %s, which a trace does not record" % name)
            self.check(value)
        elif not (_is_plain_enum(type(value)) if isinstance(value, enum.Enum) else is_constant(value)):
            refuse("it reads %s, which may change: its type is %s" % (name, type(value).__name__))


def _chain(node):
    """(what the first attribute is taken of, [names]) of a.b.c"""
    names = []
    while isinstance(node, ast.Attribute):
        names.insert(0, node.attr)
        node = node.value
    return node, names


class _Body(ast.NodeVisitor):
    """The body of one function, nested functions included."""

    def __init__(self, source, function, node, table, cls, is_forward, is_bound_to_class):
        self.source, self.function, self.cls = source, function, cls
        self.code = function.__code__
        self.cells = dict(zip(self.code.co_freevars, function.__closure__ or ()))
        self.outer = {symbol.get_name() for scope in _scopes(table) for symbol in scope.get_symbols()
                      if symbol.is_global()} | set(self.cells)
        arguments = [each.arg for each in node.args.args + node.args.kwonlyargs + node.args.posonlyargs]
        self.this = self.code.co_varnames[0] if cls is not None and self.code.co_argcount else None
        self.bound = cls if is_bound_to_class else None
        stored = {each.id for each in ast.walk(node) if isinstance(each, ast.Name)
                  and isinstance(each.ctx, ast.Store)}
        self.inputs = set(arguments) - stored if is_forward else set()

    def refuse(self, node, why):
        raise Refused("%s, %s" % (why, _line(self.code, node)))

    def visit(self, node):
        if not isinstance(node, _SYNTAX):
            name = type(node).__name__
            if isinstance(node, ast.Global):
                self.refuse(node, "it sets the global variable %s" % node.names[0])
            self.refuse(node, "it " + _WORDS.get(name, "contains syntax that is not followed: " + name))
        super().visit(node)

    # ---- names

    def _find(self, name):
        """(what holds the variable: a cell, a Python module, a dictionary or None; its name there; its value)"""
        try:
            if name in self.cells:
                return self.cells[name], "cell_contents", self.cells[name].cell_contents
        except ValueError:
            return None, name, _MISSING
        names = self.function.__globals__
        module = sys.modules.get(names.get("__name__"))
        if name in names:
            return module if getattr(module, "__dict__", None) is names else names, name, names[name]
        return None, name, getattr(builtins, name, _MISSING)

    def _resolve(self, expression):
        """What a.b.c stands for if a is a variable from outside; None if it is not."""
        root, names = _chain(expression)
        value = self._find(root.id)[2] if isinstance(root, ast.Name) and root.id in self.outer else None
        for name in names:
            value = getattr(value, name, None)
        return value

    def _read(self, node, holder, name, value, names):
        text = getattr(node, "id", name) if name == "cell_contents" else name
        while True:
            if not (holder is None or value is _MISSING or isinstance(value, types.ModuleType)
                    or is_torchs(getattr(holder, "__name__", None))):
                self.source.variables[id(holder), name] = holder, name, value
            if not names or not isinstance(value, (types.ModuleType, type)):
                break
            holder, name, names = value, names[0], names[1:]
            value = getattr(holder, name, _MISSING)
            text += "." + name
        if value is _MISSING or isinstance(value, types.ModuleType):
            return
        if names and isinstance(value, _FUNCTIONS):
            self.refuse(node, "it reads an attribute of the function %s" % text)
        self.source.accept(value, text, lambda why: self.refuse(node, why))

    def visit_Name(self, node):
        if node.id in self.outer:
            self._read(node, *self._find(node.id), [])

    def visit_Attribute(self, node):
        root, names = _chain(node)
        is_name = isinstance(root, ast.Name)
        if not isinstance(node.ctx, ast.Load):
            verb = "sets" if isinstance(node.ctx, ast.Store) else "deletes"
            self.refuse(node, "it %s %s" % (verb, ".".join([root.id if is_name else "..."] + names)))
        if any(name.startswith("__") for name in names):
            self.refuse(node, "it reads %s" % names[-1])
        if is_name and root.id in self.outer:
            return self._read(root, *self._find(root.id), names)
        if is_name and root.id == self.this and self.bound is not None:
            return self._read(root, None, root.id, self.bound, names)
        if isinstance(root, ast.Call) and not root.args and self._resolve(root.func) is super and self.cls:
            for base in self.cls.__mro__:
                found = base.__dict__.get(names[0])
                if isinstance(found, types.FunctionType) and not is_torchs(base.__module__):
                    self.source.check(found, self.cls)
            return None
        return self.visit(root)

    # ---- statements and operators

    def visit_With(self, node):
        self.source.reads_grad_mode = True
        for item in node.items:
            context = item.context_expr
            if not isinstance(context, ast.Call) or self._resolve(context.func) not in GRAD_CONTEXTS:
                root, names = _chain(getattr(context, "func", context))
                self.refuse(node, "it enters a context, %s" % (".".join(names) or getattr(root, "id", "...")))
            for part in context.args + context.keywords:
                self.visit(part)
        for statement in node.body:
            self.visit(statement)

    def visit_AugAssign(self, node):
        """self.tensor += 1 is recorded; the tracer refuses it of what is no tensor."""
        root, names = _chain(node.target)
        if names and not (isinstance(root, ast.Name) and root.id == self.this):
            self.refuse(node, "it sets an attribute of a value, %s" % names[-1])
        if not names:
            self.visit(node.target)
        self.visit(node.value)

    def visit_AnnAssign(self, node):
        self.visit(node.target)
        if node.value is not None:
            self.visit(node.value)

    def visit_arg(self, node):
        """Annotations mean nothing to a trace."""

    def visit_FunctionDef(self, node):
        if node.decorator_list:
            self.refuse(node, "it decorates a function")
        self.visit(node.args)
        for statement in node.body:
            self.visit(statement)

    def visit_Nonlocal(self, node):
        for name in self.cells:
            if name in node.names:
                self.refuse(node, "it sets the variable %s of an enclosing function" % name)

    def visit_Assert(self, node):
        if all(isinstance(each, _CONDITION) and not (isinstance(each, ast.Call) and isinstance(each.func, ast.Name))
               for each in ast.walk(node.test)):
            self.source.assertions.update(
                (self.code.co_filename, line) for line in range(node.lineno, node.test.end_lineno + 1))
        self.generic_visit(node)

    def visit_Compare(self, node):
        operands = [node.left] + node.comparators
        for op, left, right in zip(node.ops, operands, operands[1:]):
            if isinstance(op, (ast.Is, ast.IsNot)):
                self._compare_identity(node, self._kind(left), self._kind(right))
        self.generic_visit(node)

    def _kind(self, node):
        """'none', 'constant' (from outside), 'attribute' (of the module), 'input' (never None here), 'value', or 'part'
        (an attribute of a value, of which a proxy knows nothing)."""
        root, names = _chain(node)
        if isinstance(node, ast.Constant):
            return "none" if node.value is None else "constant"
        if isinstance(root, ast.Name):
            if root.id in self.outer:
                return "constant"
            if root.id == self.this and names:
                return "part" if len(names) > 1 and hasattr(torch.Tensor, names[-1]) else "attribute"
            if root.id in self.inputs and not names:
                return "input"
        return "part" if names else "value"

    def _compare_identity(self, node, *kinds):
        if set(kinds) == {"value", "none"}:
            self.source.tests_for_none = True
        elif {"value", "part"} & set(kinds) or kinds == ("attribute", "attribute") or (
                "input" in kinds and "none" not in kinds):
            self.refuse(node, "it compares a value by `is`")
