"""Checks of other uses of a model than one call on fresh weights: what a program does that trains and evaluates it.

Gradients for some of the inputs and weights, for upstream gradients of other layouts, after another call, and twice;
evaluation after training steps and after load_state_dict; weights and inputs so large that a careless formula overflows
where the reference does not; labels that are to be ignored; numbers that are none.
"""

import re

import torch

from onepass.judge import inputs, launch
from onepass.judge.checks import Group
from onepass.judge.runner import leaves

LARGER = (8.0, 64.0)    # times the weights, times the inputs
COMPILED = "donated_buffer"  # in PyTorch's own words for one backward pass being all that its compiler has prepared
IGNORED = -100          # PyTorch's own choice for labels that do not count
KNOWS_IGNORED = re.compile(r"cross_entropy|CrossEntropyLoss|nll_loss|NLLLoss|ignore_index")


class Uses:
    """Runs on what a Checks object has opened and drawn."""

    def __init__(self, checks, reference):
        self.checks, self.session, self.report = checks, checks.session, checks.report
        self.train, self.reference = checks.modes[0], reference
        self.done = {}  # what was tried, by the check it is for

    def run(self):
        values = [self.session.values[name] for name in self.checks.draws[:2]]
        if self.checks.large:
            values = [self.checks.few_rows(value) for value in values]
        for name, value in zip(("use0", "use1"), values):
            self.session.put(name, value)
        self.gradients()
        self.inference()
        self.weights()
        if self.checks.options.plain_inputs:
            self.report["range"].skip("--plain-inputs")
        else:
            self.large_inputs(values[0])
            self.ignored_labels(values[0])
            self.no_numbers(values[0])
        for name, labels in self.done.items():
            check = self.report[name]
            check.passed(", ".join(([check.text] if check.status == "pass" else []) + sorted(set(labels))))
        self.report["range"].skip("nothing can be made larger without leaving where it comes from")
        self.session.drop("use0", "use1")

    def group(self, blame, label, train, grad=None, name="use0", tolerant=False, **how):
        """Runs one group and forgets it. None, or why it could not be used. how: of Group, how it is run."""
        group = Group(label, [name], train, grad, lenient=True, buffers=False, **how)
        used = self.checks.run_group(group, blame, tolerant=tolerant)
        self.checks.groups = [other for other in self.checks.groups if other is not group]
        return None if used else group.refused or "failed"

    # ---- gradients ---------------------------------------------------------------------------------------------------

    def gradients(self):
        checks = self.checks
        if not checks.backward:
            return
        checks.progress("other gradients")
        fresh = [group for group in checks.groups if group.label == "fresh" and group.grad][0].evaluations[0]
        numbers = sorted(int(key.rsplit(".", 1)[1]) for key in fresh.r if key.startswith("grad.input."))
        names = [entry[0] for entry in checks.description["parameters"] if "grad." + entry[0] in fresh.r]
        plans = [("the gradient of a sum", {"layout": "summed"}),
                 ("a transposed upstream gradient", {"layout": "transposed"}),
                 ("a sliced upstream gradient", {"layout": "sliced"}),
                 ("a call between forward and backward", {"between": "use1"}),
                 ("a second backward", {"twice": True})]
        if len(numbers) + len(names) > 1:
            plans += [("input %d alone" % number, {"inputs": [number], "parameters": []}) for number in numbers[:4]]
        if numbers and names:
            plans.append(("weights alone", {"inputs": []}))
        if numbers and names:
            plans.append(("all weights frozen", {"frozen": names}))
        if len(names) > 1:
            one = self.session.random.choice(names)
            plans.append(("%s alone" % one, {"inputs": [], "parameters": [one]}))
            frozen = self.session.random.sample(names, (len(names) + 1) // 2)
            plans.append(("%s frozen" % ", ".join(frozen[:3]), {"frozen": frozen}))
        for label, how in plans:
            self.checks.upstream("upstream", self.sample())
            refused = self.group("gradients", label, self.train, dict({"inputs": None, "upstream": "upstream"}, **how),
                                 tolerant=COMPILED if "twice" in how else False)
            if refused and COMPILED in refused:
                self.report["gradients"].note("%s: PyTorch's compiler refuses it" % label)

    def inference(self):
        """eval: in PyTorch's inference mode, in which most programs evaluate; and once more without it."""
        mode = self.checks.modes[-1]
        blame = "values" if mode or len(self.checks.modes) == 1 else "eval"
        self.checks.progress("inference mode")
        for label, grad in (("inference mode", {"inference": True}), ("after inference mode", None)):
            self.group(blame, label, mode, grad)
        if self.checks.backward:
            self.checks.upstream("upstream", self.sample())
            self.group(blame, "after inference mode", self.train, {"inputs": None, "upstream": "upstream"})

    def sample(self):
        """An evaluation with outputs of the sizes that these inputs give."""
        if not hasattr(self, "_sample"):
            group = Group("use", ["use0"], self.train)
            evaluation = self.session.evaluate("use0", self.train)
            group.evaluations.append(evaluation)
            self._sample = evaluation
        return self._sample

    # ---- weights -----------------------------------------------------------------------------------------------------

    def weights(self):
        """steps: evaluation after training, with other weights, with the old ones again, with weights that change while
        the model stays in its mode. range: with large weights."""
        checks, session = self.checks, self.session
        if not checks.state:
            return
        checks.progress("other weights")
        modes = [False] if False in checks.modes else [True]
        if checks.step_arguments and not modes[0]:
            self.after_steps()
        for label, state in (("other weights loaded", inputs.perturbed(checks.state, session.generator())),
                             ("the old weights loaded again", checks.state)):
            self.with_state("steps", label, state, modes)
        for train in checks.modes:
            self.without_switch(train)
        checks.progress("range")
        for factor in LARGER:
            trained = [entry[0] for entry in checks.description["parameters"]]
            state = {name: tensor * factor if name in trained and tensor.is_floating_point() else tensor
                     for name, tensor in checks.state.items()}
            self.with_state("range", "weights times %g" % factor, state, checks.modes)
        self.load(checks.state)

    def load(self, state):
        for side in (self.session.candidate, self.session.reference):
            self.checks.tell_everywhere("load_state", state, side)

    def with_state(self, blame, label, state, modes):
        try:
            self.load(state)
        except launch.Raised as raised:
            if not raised.trusted:
                self.report[blame].fail("%s: it raises %s" % (label, raised.reason))
            return
        for train in modes:
            if self.group(blame, label, train) is None:
                self.done.setdefault(blame, []).append(label)

    def after_steps(self):
        """The models as training leaves them: nothing is loaded or put back in between."""
        checks, session = self.checks, self.session
        plans = [(session.candidate, "model", None), (session.reference, "model", None),
                 (session.reference, "exact", torch.float64)]
        plans += [(session.reference, "low", torch.float32)] if session.low else []
        for side, slot, dtype in plans:
            checks.state_after(slot, side, checks.step_arguments, dtype)
        # Not by eval() first: what was prepared there before the steps must not be used.
        for switch in ("not train", False):
            self.group("steps", "evaluation after training", False, restore=False, switch=switch)

    def without_switch(self, train):
        """Weights that change while the model stays in its mode, and without a call of load_state_dict: what was
        prepared of them at train(), at eval(), at the first call or when they were loaded is of no use any more."""
        checks, session = self.checks, self.session
        if self.group("steps", "the weights that were loaded", train):
            return
        mode = "training" if train else "evaluation"
        for label, request, how in (("weights loaded in %s mode" % mode, "load_state", {}),
                                    ("weights written in place", "change_state", {"data": False}),
                                    ("weights written through .data", "change_state", {"data": True})):
            state = inputs.perturbed(checks.state, session.generator())
            try:
                for side in (session.candidate, session.reference):
                    checks.tell_everywhere(request, state, side, **how)
            except launch.Raised as raised:
                if raised.trusted:
                    return
                self.report["steps"].fail("%s: it raises %s" % (label, raised.reason))
                return
            grads = [None]
            if checks.backward:
                checks.upstream("upstream", self.sample())
                grads.append({"inputs": None, "upstream": "upstream"})
            for grad in grads:
                if self.group("steps", label, train, grad, restore=False, switch=None) is None:
                    self.done.setdefault("steps", []).append(label)

    # ---- values ------------------------------------------------------------------------------------------------------

    def put(self, change, values):
        """Changed values under the name of "use2"; False if nothing changed."""
        changed = inputs.changed(values, change)
        if all(torch.equal(a, b) for a, b in zip(leaves(values), leaves(changed))):
            return False
        self.session.put("use2", changed)
        return True

    def large_inputs(self, values):
        for factor in LARGER:
            self.checks.progress("range")
            def change(tensor):
                return tensor.double() * factor if inputs.kind_of(tensor) in ("signed", "positive") else tensor
            if not self.put(change, values):
                return
            label = "inputs times %g" % factor
            refused = self.group("range", label, self.train, name="use2")
            if refused is None and self.checks.backward:
                self.checks.upstream("upstream", self.sample())
                refused = self.group("range", label, self.train, {"inputs": None, "upstream": "upstream"}, "use2")
            if refused is None:
                self.done.setdefault("range", []).append(label)

    def ignored_labels(self, values):
        """special: labels of -100, if the reference's file speaks of a loss that has such. Not on a GPU, where an index
        that is none ends the process."""
        with open(self.reference, encoding="utf-8", errors="replace") as file:
            knows = KNOWS_IGNORED.search(file.read())
        if not knows or self.session.device.startswith("cuda"):
            return
        generator = self.session.generator()

        def change(tensor):
            if tensor.dtype is not torch.int64 or not tensor.dim():
                return tensor
            return tensor.masked_fill(torch.rand(tensor.shape, generator=generator) < 0.25, IGNORED)
        if self.put(change, values) and self.group("special", "labels to ignore", self.train, name="use2") is None:
            if self.checks.backward:
                self.checks.upstream("upstream", self.sample())
                self.group("special", "labels to ignore", self.train, {"inputs": None, "upstream": "upstream"}, "use2")

    def no_numbers(self, values):
        """special: one element that is NaN or infinite. What comes of it is noted, never held against anybody."""
        for odd in (float("nan"), float("inf")):
            def change(tensor):
                if not tensor.is_floating_point() or not tensor.numel():
                    return tensor
                tensor = tensor.clone()
                tensor.view(-1)[self.session.random.randrange(tensor.numel())] = odd
                return tensor
            changed = inputs.changed(values, change)
            self.session.put("use2", changed)
            evaluation = self.session.evaluate("use2", self.train)
            if evaluation.refused or evaluation.fault:
                continue
            if evaluation.raised:
                self.report["special"].note("with %g in its inputs it raises %s" % (odd, evaluation.raised.kind))
                continue
            for key, theirs in evaluation.r.items():
                ours = evaluation.c.get(key)
                if not key.startswith("out.") or not theirs.is_floating_point() or ours is None:
                    continue
                counts = [int((~torch.isfinite(value)).sum()) for value in (ours, theirs)]
                if counts[0] != counts[1]:
                    self.report["special"].note("with %g in its inputs %d elements of output %s are not finite, of the "
                                                "reference's %d" % (odd, counts[0], key[4:], counts[1]))
        self.session.drop("use2")
