"""What a model's own Python does besides computing values, read from its bytecode.

A symbolic trace runs this code once, with stand-ins for values. What it reads elsewhere is read then, and a comparison
by `is` is decided then, without asking the stand-in.
"""

import dis
import sys
import sysconfig
import types

_STANDARD = sysconfig.get_paths()["stdlib"]
_SKIPPED = ("CACHE", "EXTENDED_ARG", "NOT_TAKEN", "PRECALL", "TO_BOOL")


def _instructions(code):
    return [each for each in dis.get_instructions(code) if each.opname not in _SKIPPED]


def is_assertion(frame):
    """True if what the frame is about to decide is whether an assertion holds."""
    following = [each for each in _instructions(frame.f_code) if each.offset >= frame.f_lasti]
    following = following[following[0].opname == "COMPARE_OP":][:2]  # which may decide by itself, before the jump
    return (len(following) == 2 and "JUMP" in following[0].opname and following[0].opname.endswith("IF_TRUE")
            and (following[1].opname == "LOAD_ASSERTION_ERROR" or following[1].argval == "AssertionError"))


def _operand(instructions, last, this, inputs):
    """(kind, the last instruction before it) of what the instructions up to `last` load. 'none': None itself; 'fixed':
    an attribute of the module or a global variable; 'input': an argument that never is None; 'value': anything else."""
    if instructions[last].opname == "LOAD_CONST" and instructions[last].argval is None:
        return "none", last - 1
    begin = last
    while begin > 0 and instructions[begin].opname == "LOAD_ATTR":
        begin -= 1
    loaded = instructions[begin]
    if loaded.opname.startswith("LOAD_GLOBAL"):
        return "fixed", begin - 1
    if not loaded.opname.startswith(("LOAD_FAST", "LOAD_DEREF")):
        return "value", begin - 1
    # One instruction may load two variables.
    name, before = (loaded.argval[-1], begin) if isinstance(loaded.argval, tuple) else (loaded.argval, begin - 1)
    if begin < last and name == this:
        return "fixed", before
    return "input" if begin == last and name in inputs else "value", before


def _identity_tests(code, this, inputs):
    """(kind, kind) of everything that is compared by `is`."""
    instructions = _instructions(code)
    for at, each in enumerate(instructions):
        if "JUMP" in each.opname and "NONE" in each.opname:
            yield _operand(instructions, at - 1, this, inputs)[0], "none"
        elif each.opname == "IS_OP" or (each.opname == "COMPARE_OP" and each.argval in ("is", "is not")):
            right, before = _operand(instructions, at - 1, this, inputs)
            left = _operand(instructions, before, this, inputs)[0]
            yield "value" if isinstance(instructions[before].argval, tuple) else left, right


def _unchanged_arguments(code):
    stored = set()
    for each in dis.get_instructions(code):
        if each.opname.startswith(("STORE_FAST", "STORE_DEREF")):
            stored.update(each.argval if isinstance(each.argval, tuple) else (each.argval,))
    return [name for name in code.co_varnames[:code.co_argcount + code.co_kwonlyargcount] if name not in stored]


def _is_pytorchs(name):
    return name is not None and (name == "torch" or name.startswith("torch."))


def _globals_read(code, names):
    """(owner, name, value) of the global variables that the code reads, and of what it reads in other modules. owner is
    the module it is found in, or None."""
    instructions = _instructions(code)
    module = sys.modules.get(names.get("__name__"))
    module = module if getattr(module, "__dict__", None) is names else None
    for at, each in enumerate(instructions):
        if each.opname != "LOAD_GLOBAL" or each.argval not in names:
            continue
        owner, name, value = module, each.argval, names[each.argval]
        while isinstance(value, types.ModuleType) and instructions[at + 1].opname in ("LOAD_ATTR", "LOAD_METHOD"):
            at += 1
            owner, name = value, instructions[at].argval
            value = getattr(value, name, None)
        if not (isinstance(value, types.ModuleType) or _is_pytorchs(getattr(owner, "__name__", None))):
            yield owner, name, value


def _is_standard(code):
    """True for code of Python's own library."""
    file = code.co_filename
    return file.startswith("<frozen ") or (file.startswith(_STANDARD) and "site-packages" not in file)


def _catches(instruction):
    return instruction.opname in ("CHECK_EXC_MATCH", "JUMP_IF_NOT_EXC_MATCH") or (
        instruction.opname == "COMPARE_OP" and instruction.argval == "exception match")


def examine(codes, forward, may_be_none, is_constant):
    """(why a trace that ran this code is not the code itself, or None; {(module, name): value that it was traced with})

    codes         {code: (its globals, {variable of an enclosing function: value})}
    forward       the one whose arguments are a trace's inputs, none of which is None
    may_be_none   there are other values that a trace cannot tell from None
    is_constant   tells of a value whether it can change
    """
    read = {}
    for code, (names, enclosing) in codes.items():
        if _is_standard(code):
            continue
        why = _examine_one(code, codes, is_constant, read)
        inputs = _unchanged_arguments(code) if code is forward else ()
        this = code.co_varnames[0] if code is forward else "self"
        for kinds in _identity_tests(code, this, inputs):
            if kinds == ("value", "none") and may_be_none or kinds not in (
                    ("value", "none"), ("fixed", "fixed"), ("fixed", "none"), ("input", "none")):
                why = why or "it compares a value by `is`"
        if why:
            return "%s, in %s" % (why, code.co_name), read
    return None, read


def _examine_one(code, codes, is_constant, read):
    """The same of one code, but for comparisons."""
    names, enclosing = codes[code]
    # Variables of a function that was run, too, are as good as its own.
    traced = {name for other in codes if code in other.co_consts for name in other.co_cellvars}
    for each in _instructions(code):
        if each.opname in ("STORE_GLOBAL", "DELETE_GLOBAL"):
            return "it sets the global variable %s" % each.argval
        if each.opname == "STORE_DEREF" and each.argval in enclosing and each.argval not in traced:
            return "it sets the variable %s of an enclosing function" % each.argval
        if _catches(each):
            return "it catches exceptions"
    outer = [(None, name, value) for name, value in enclosing.items() if name not in traced]
    for owner, name, value in outer + list(_globals_read(code, names)):
        if not (is_constant(value) or isinstance(value, types.ModuleType)):
            return "it reads the variable %s, which may change: its type is %s" % (name, type(value).__name__)
        if owner is not None and not _is_pytorchs(getattr(value, "__module__", None)):
            read[owner, name] = value
    return None
