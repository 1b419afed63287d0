"""Checks with inputs of other sizes, other layouts and other types than the problem's own.

Only what the reference itself accepts counts. Sizes and strides must work; another type, or a batch without rows, may
be refused with an error, but not answered wrongly.
"""

import torch

from onepass.judge import compare, inputs, launch
from onepass.judge.checks import Group
from onepass.judge.runner import leaves
from onepass.judge.session import Unusable

TYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16]
MANY_ROWS, MOST_ROWS, MANY_BYTES = 1537, 4096, 4 << 20  # of a large batch: at least, at most, and what it aims at
LAYOUTS = ["transposed", "sliced", "offset", "expanded"]
OTHER_TYPES = compare.FACTOR  # more tolerance there: a program may round more often where it was not made for a type


class Variety:
    """Runs on what a Checks object has opened and drawn."""

    def __init__(self, checks):
        self.checks, self.session, self.report = checks, checks.session, checks.report
        self.train = checks.modes[0]

    def run(self):
        if self.checks.options.plain_inputs:
            for name in ("shapes", "strides", "dtypes"):
                self.report[name].skip("--plain-inputs")
        else:
            self.shapes()
            self.strides()
            self.dtypes()
        self.hidden()

    def base(self):
        """The problem's draws, or a few rows of them where they are large."""
        values = [self.session.values[name] for name in self.checks.draws]
        if self.checks.large:
            values = [self.checks.few_rows(value) for value in values]
        return values

    def case(self, blame, label, values, again=None, layout=None, slots=("model", "exact"), tolerant=False,
             lenient=False):
        """Forward and backward on one set of inputs: 'ok', 'failed', or why it does not count. again: other values of
        the same shape, for more samples of the reference's own error."""
        session, checks, report = self.session, self.checks, self.report
        slack = OTHER_TYPES if lenient else 0.0
        before = report[blame].status
        others = [report[name] for name in ("gradients", "buffers") if report[name].status != "fail"]
        kept = [(check, check.status, check.text) for check in others]
        session.put("case", values, layout)

        def more():
            session.reference.ask("put", name="more", values=inputs.cast(again(), session.dtype),
                                  dtype=session.dtype, layout=layout)
        try:
            for train in [self.train] + ([False] if self.train and False in checks.modes else []):
                group = Group(label, ["case"], train, None, slack, slots, lenient)
                if checks.run_group(group, blame, more if again else None, finite=False, tolerant=tolerant):
                    break
                if not group.refused:
                    return "failed"
            else:
                return group.refused
            if checks.backward:
                upstream = checks.upstream("upstream", group.evaluations[0])
                backward = Group(label, ["case"], train, upstream, slack, slots, lenient)
                if not checks.run_group(backward, blame, more if again else None, False, tolerant):
                    return backward.refused and "gradients: " + backward.refused or "failed"
            return "ok" if before == "fail" or not any(check.status == "fail" for check in others + [report[blame]]) \
                else "failed"
        finally:
            for check, status, text in kept:
                # What is wrong here and was right on the problem's own inputs is this check's finding.
                if check.status == "fail":
                    report[blame].fail(check.text)
                check.status, check.text = status, text
            session.drop("case")
            checks.groups = [group for group in checks.groups if group.names != ["case"]]

    def conclude(self, name, outcomes):
        good = [label for label, outcome in outcomes if outcome == "ok"]
        other = ["%s: %s" % pair for pair in outcomes if pair[1] not in ("ok", "failed")]
        self.report[name].details["cases"] = [{"case": label, "outcome": outcome} for label, outcome in outcomes]
        if not good and self.report[name].status != "fail":
            self.report[name].skip("nothing the reference accepts" + (": " + "; ".join(other) if other else ""))
            return
        refused = [text for text in other if "candidate refuses" in text]
        if refused:
            self.report[name].note("%s; %s" % (", ".join(good), "; ".join(refused)))
        self.report[name].passed(", ".join(good) + ("; does not count: " + "; ".join(other) if other else ""))

    # ---- sizes -------------------------------------------------------------------------------------------------------

    def shapes(self):
        checks, session = self.checks, self.session
        checks.progress("shapes")
        values = self.base()
        batch, outcomes = inputs.batch_of(values[0]), []
        if batch is not None and batch > 1:
            many = self.many_rows(values[0], batch)
            sizes = sorted(set(size for size in (1, 3, batch - 1, batch + 5, many, 0) if size != batch), reverse=True)
            for size in sizes:
                def again(size=size):
                    return inputs.with_rows(values, size, session.generator())
                label = "%d rows" % size
                outcomes.append((label, self.case("shapes", label, again(),
                                                  None if size in (0, many) else again, tolerant=size == 0,
                                                  lenient=size == many)))
        widths = set(tensor.shape[-1] for tensor in leaves(values[0]) if tensor.dim() >= 2)
        if not checks.description["parameters"] and len(widths) == 1:
            width = widths.pop()
            wide = self.more_columns(values, width)
            sizes = sorted(set(size for size in (wide, width - 3, width // 2 + 1, 1) if size > 0 and size != width),
                           reverse=True)
            for size in sizes:
                def again(size=size):
                    order = torch.randperm(len(values), generator=session.generator())
                    return inputs.with_columns([values[int(number)] for number in order], size)
                label = "%d columns" % size
                outcomes.append((label, self.case("shapes", label, again(), again, lenient=size == wide)))
        self.conclude("shapes", outcomes)

    def many_rows(self, values, batch):
        """A batch larger than the problem's own, beyond a thousand rows: some programs have another way for those."""
        row = sum(tensor.numel() * tensor.element_size() for tensor in leaves(values)) // batch
        many = max(MANY_ROWS, 2 * batch + 1, min(MOST_ROWS, MANY_BYTES // max(1, row)))
        return many if many * row <= 8 * MANY_BYTES else batch

    def more_columns(self, values, width):
        """A width beyond the problem's own, which is no multiple of anything."""
        wide = 2 * width + 3
        size = sum(tensor.numel() * tensor.element_size() for tensor in leaves(values[0]))
        return wide if wide <= len(values) * width and size // width * wide <= 8 * MANY_BYTES else width

    def hidden(self):
        """Cases that the reference's file brings: get_hidden_inputs(), and get_hidden_cases() with a model for each."""
        checks, session, outcomes = self.checks, self.session, []
        if "get_hidden_inputs" in checks.file_names:
            for number, values in enumerate(self.hidden_inputs()):
                def again(number=number):
                    return list(self.from_file("get_hidden_inputs")[number])
                label = "hidden inputs %d" % number
                outcomes.append((label, self.case("shapes", label, list(values), again)))
        if "get_hidden_cases" in checks.file_names:
            for number, (init, values) in enumerate(self.hidden_cases()):
                def again(number=number):
                    return list(self.from_file("get_hidden_cases")[number][1])
                label = "hidden case %d" % number
                checks.progress(label)
                slots = ("hidden", "hidden exact")
                fault = self.build_pair(slots, list(init), session.dtype)
                if fault:
                    self.report["shapes"].fail("%s: %s" % (label, fault))
                    continue
                if session.low:
                    self.build_low(list(init), session.reference.ask("state", limit=1 << 40, slot=slots[0]))
                outcomes.append((label, self.case("shapes", label, list(values), again, slots=slots)))
            if session.low:
                self.build_low(checks.init, checks.state)
        if outcomes:
            earlier = self.report["shapes"].details.get("cases", [])
            self.conclude("shapes", [(case["case"], case["outcome"]) for case in earlier] + outcomes)

    def hidden_inputs(self):
        many = self.from_file("get_hidden_inputs")
        if not isinstance(many, (list, tuple)) or not all(isinstance(values, (list, tuple)) for values in many):
            raise Unusable("get_hidden_inputs() returns no list of lists of inputs")
        return many

    def hidden_cases(self):
        cases = self.from_file("get_hidden_cases")
        if not isinstance(cases, (list, tuple)) or not all(isinstance(case, (list, tuple)) and len(case) == 2
                                                           for case in cases):
            raise Unusable("get_hidden_cases() returns no list of pairs of constructor arguments and inputs")
        return cases

    def from_file(self, function):
        return self.session.reference.ask("get", limit=1 << 38, function=function, seed=self.session.seed())

    def build_pair(self, slots, init, dtype, state=None):
        """Models of both sides in the same state; words if the candidate cannot."""
        session, seed = self.session, self.session.seed()
        session.reference.ask("build", slot=slots[0], init=init, seed=seed, dtype=dtype)
        session.reference.ask("build", slot=slots[1], init=init, seed=seed, dtype=torch.float64)
        if state is None:
            state = session.reference.ask("state", limit=1 << 40, slot=slots[0])
        for slot in slots:
            session.reference.ask("load_state", slot=slot, state=state)
        try:
            session.candidate.ask("build", slot=slots[0], init=init, seed=seed, dtype=dtype)
            session.candidate.ask("load_state", slot=slots[0], state=state)
        except launch.Raised as raised:
            return "it raises %s" % raised.reason
        return None

    def build_low(self, init, state):
        """The reference in single precision, whose errors stand in for those of double precision."""
        self.session.reference.ask("build", slot="low", init=init, seed=1, dtype=torch.float32)
        self.session.reference.ask("load_state", slot="low", state=state)

    # ---- layouts and types -------------------------------------------------------------------------------------------

    def strides(self):
        checks, session, outcomes = self.checks, self.session, []
        values = self.base()
        for layout in LAYOUTS:
            checks.progress("strides")
            made = [inputs.equal_rows(value) if layout == "expanded" else value for value in values]

            def again(made=made):
                return made[int(torch.randint(len(made), (1,), generator=session.generator()))]
            outcomes.append((layout, self.case("strides", layout + " layout", made[0], again, layout=layout)))
        self.conclude("strides", outcomes)

    def survives(self, dtype, values):
        """Whether a process lives through products and through the reference's model in that type. Not every machine
        has the instructions that PyTorch finds there; the reference's own process, and the candidate's, are not to die
        of it. Looked at on the CPU only, where a process is had at once, and for the small types."""
        if self.session.device.startswith("cuda") or dtype in (torch.float32, torch.float64):
            return True
        spare = self.session.spare()
        try:
            spare.ask("load", **self.checks.reference_file)
            spare.ask("multiply", dtype=dtype)
            spare.ask("build", slot="model", init=self.checks.init, seed=1, dtype=dtype)
            spare.ask("put", name="case", values=values, dtype=dtype)
            spare.call("model", "case", self.train)
        except launch.Raised:
            pass  # as it may
        except Unusable:
            return False
        finally:
            spare.worker.stop()
        return True

    def dtypes(self):
        """Models and inputs in the other types; the weights rounded to each."""
        checks, session, outcomes = self.checks, self.session, []
        values, slots = self.base(), ("other", "other exact")
        own = session.dtype, session.low, session.own_scale
        for dtype in [dtype for dtype in TYPES if dtype is not own[0]]:
            checks.progress("dtypes")
            label = str(dtype)[6:]
            if not self.survives(dtype, values[0]):
                outcomes.append((label, "this machine cannot do it: PyTorch's own process ends"))
                continue
            state = {name: tensor.to(dtype) if tensor.is_floating_point() else tensor
                     for name, tensor in checks.state.items()}
            try:
                fault = self.build_pair(slots, checks.init, dtype, state)
            except launch.Raised as raised:
                outcomes.append((label, "the reference refuses: %s" % raised.reason))
                continue
            if fault:
                outcomes.append((label, "the candidate refuses: %s" % fault))
                continue
            session.dtype, session.low = dtype, dtype is torch.float64
            session.own_scale = 2.0 ** -29 if session.low else 1.0
            try:
                if session.low:
                    self.build_low(checks.init, state)

                def again():
                    return values[int(torch.randint(len(values), (1,), generator=session.generator()))]
                outcomes.append((label, self.case("dtypes", label, values[0], again, slots=slots, tolerant=True,
                                                  lenient=True)))
            finally:
                session.dtype, session.low, session.own_scale = own
        for slot in slots:
            session.reference.ask("free", slot=slot)
        session.candidate.ask("free", slot=slots[0])
        if session.low:
            self.build_low(checks.init, checks.state)
        self.conclude("dtypes", outcomes)
