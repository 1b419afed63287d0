"""rewrite(model): the model with onepass's functions where it recognises what they do, and a report of it.

Modules are taken one by one. A torch.nn.KLDivLoss becomes an onepass.torch.KLDivLoss. The forward of every class that
is not PyTorch's own is traced (rewrite_trace.py), searched (rewrite_patterns.py) and, if something was found, replaced
for that module alone (rewrite_forward.py). docs/rewrite.md says what is recognised and when it is refused.
"""

from collections import namedtuple

import torch

from onepass.torch import rewrite_copy, rewrite_forward, rewrite_patterns
from onepass.torch.modules import KLDivLoss
from onepass.torch.rewrite_trace import Shadow, is_pytorchs

# where: the module's path, "" for the model itself; line: "file.py:12" where there is one
Replaced = namedtuple("Replaced", "where what by line")
Refused = namedtuple("Refused", "where what why line")

_Change = namedtuple("_Change", "module before after attributes")


class Report:
    """What rewrite did: `replaced`, a list of (where, what, by, line), and `refused`, of (where, what, why, line)."""

    def __init__(self):
        self.replaced = []
        self.refused = []
        self._changes = []
        self._inplace = False

    def __str__(self):
        places = {}
        for word, rows, sign in (("replaced", self.replaced, "->"), ("refused", self.refused, "-")):
            for where, what, rest, line in rows:
                text = "%s%s %s %s" % (what, " (%s)" % line if line else "", sign, rest)
                places.setdefault((word, text), []).append(where or "the model")
        lines = ["%d replaced, %d refused" % (len(self.replaced), len(self.refused))]
        for (word, text), where in places.items():
            more = " and %d more" % (len(where) - 1) if len(where) > 1 else ""
            lines.append("  %-8s  %s%s: %s" % (word, where[0], more, text))
        return "\n".join(lines)

    def __repr__(self):
        return "<onepass.torch.rewrite: %d replaced, %d refused>" % (len(self.replaced), len(self.refused))

    def undo(self):
        """Makes a model that was rewritten in place what it was. Copies of it stay as they are."""
        if not self._inplace:
            raise RuntimeError("rewrite: undo: the model was not rewritten in place; the original is as it was")
        for change in self._changes:
            if type(change.module) is not change.after:
                raise RuntimeError("rewrite: undo: the class of a %s was changed again since; undo that first" %
                                   change.before.__name__)
        for change in self._changes:
            change.module.__class__ = change.before
            for name in change.attributes:
                del change.module.__dict__[name]
        self._changes = []


def _plan(model, report):
    """[(module, its new class, attributes that come with it)]; fills the report."""
    shadow = None
    changes = []

    def record(path, replaced, refused):
        report.replaced += [Replaced(path, what, by, line) for line, what, by in replaced]
        report.refused += [Refused(path, what, why, line) for line, what, why in refused]

    for path, module in rewrite_copy.walk(model):
        name = type(module).__name__
        why = rewrite_copy.why_opaque(module)
        if why:
            record(path, [], [("", name, why)])
        elif type(module) is torch.nn.KLDivLoss:
            why = rewrite_patterns.why_not_loss(module)
            if why:
                record(path, [], [("", name, why)])
            else:
                record(path, [("", name, "onepass.torch.KLDivLoss")], [])
                changes.append((module, KLDivLoss, {"divisor": None, "semantics": rewrite_patterns.semantics_of(
                    module.log_target)}))
        elif not (is_pytorchs(module) or type(module).__module__.startswith("onepass.")
                  or rewrite_forward.is_rewritten(module)):
            shadow = shadow or Shadow(model)
            traces, replaced, refused = rewrite_forward.find(shadow, module)
            record(path, replaced, refused)
            if traces:
                changes.append((module, rewrite_forward.rewritten_class(type(module), traces), {}))
    report.replaced = list(dict.fromkeys(report.replaced))
    report.refused = list(dict.fromkeys(report.refused))
    return changes


def rewrite(model, inplace=False):
    """(the model with onepass's functions in it, a Report)

    model     any torch.nn.Module. It is not changed: the new model is a copy of its modules that shares its parameters
              and buffers, so that training either trains both, and a state_dict of one fits the other
    inplace   True: the model itself is changed and returned; report.undo() makes it what it was

    What is recognised is replaced per module, never in a class. Nothing is changed where the result could differ; the
    report says where that was and why. While rewrite runs, forward is run symbolically: no other thread may use models.
    """
    if not isinstance(model, torch.nn.Module):
        raise TypeError("rewrite: model: %s; it must be a torch.nn.Module" % type(model).__name__)
    report = Report()
    report._inplace = inplace
    changes = _plan(model, report)
    copies = {} if inplace else rewrite_copy.copy_modules(model)
    for module, after, attributes in changes:
        module = copies.get(id(module), module)
        report._changes.append(_Change(module, type(module), after, attributes))
        module.__class__ = after
        module.__dict__.update(attributes)
    return copies.get(id(model), model), report
