"""The checks of values, gradients and state: what a candidate computes.

Inputs come in groups (fresh, planted, ...). A group is run through candidate, reference and double precision; the
reference's errors over the whole group make the tolerance, and the candidate is compared with it, result by result.
"""

import torch

from onepass.judge import compare, inputs, launch
from onepass.judge.runner import leaves, rebuild
from onepass.judge.session import Unusable, count

DRAWS = 3
FEW = 64            # a group with fewer elements of a result gets more samples of the reference's error
SAMPLES = 4
NEAR = 8            # runs of the reference next to inputs on which a result seems wrong
LUCK = 1000         # tolerances beyond which no luck of the reference explains a difference
LARGE = 256 << 20   # bytes of inputs above which some work is done once instead of several times
LARGE_BATCH = 64    # rows that are taken of such inputs then
SERIAL = 16 << 20   # bytes of inputs up to which one thread does a call sooner than several can agree on it
STEPS = 5
IMPORT = 5          # times the timeout for the import of a candidate, which may compile
DESCRIPTION = {"training": bool, "parameters": [list], "buffers": [list], "state": [str]}
OUTPUTS = ("values", "eval", "rows", "cancellation", "special")  # checks of outputs; gradients have one of their own
SMALLER = {torch.float64: torch.float32, torch.float32: torch.bfloat16}


class Group:
    """Sets of inputs of one kind, in one mode. slots: the reference's models in the dtype under judgement and in
    double precision."""

    def __init__(self, label, names, train, grad=None, slack=0.0, slots=("model", "exact"), lenient=False,
                 restore=True, buffers=True, switch=""):
        """buffers: compare them, too. lenient: what is right as a whole, in the Euclidean norm, is not wrong for the
        sake of single elements. restore: with the weights that were loaded; otherwise with what calls before have made
        of them. switch: how the model gets into its mode, if not by train(True) or eval(): see Runner.switch."""
        self.label, self.names, self.train, self.grad, self.slack = label, names, train, grad, slack
        self.slots, self.lenient, self.restore, self.buffers = slots, lenient, restore, buffers
        self.switch = train if switch == "" else switch
        self.backward = bool(grad) and "inference" not in grad
        self.evaluations, self.envelopes, self.refused = [], {}, None

    @property
    def where(self):
        return "%s inputs, %s mode%s" % (self.label, "training" if self.train else "evaluation",
                                         ", backward" if self.backward else "")


def nice(key):
    """A result's name in words."""
    for prefix, words in (("out.", "output "), ("grad.input.", "gradient of input "), ("grad.", "gradient of "),
                          ("second.input.", "second gradient of input "), ("second.", "second gradient of "),
                          ("buffer.", "buffer "), ("state.", "")):
        if key.startswith(prefix):
            return words + key[len(prefix):]
    return key


class Checks:
    def __init__(self, session, report, options, progress):
        self.session, self.report, self.options, self.progress = session, report, options, progress
        self.groups, self.modes = [], [True, False]
        self.deterministic = True  # the reference repeats its bits
        self.random_training = False
        self.moody = True          # and gives other values in evaluation mode
        self.init, self.description, self.state = [], None, {}
        self.timed_gradients, self.file_names = None, []
        self.backward = not options.forward_only
        self.moved_random = 0       # calls in which the candidate drew random numbers or set their seed, unasked
        self.step_arguments = None  # of the training steps that were compared

    # ---- opening -----------------------------------------------------------------------------------------------------

    def open(self, reference, candidate):
        """Imports both files and brings both models into the same state. False: there is nothing to go on with."""
        session, options = self.session, self.options
        where = {"device": options.device, "dtype": session.dtype, "size": options.size}
        self.reference_file = dict(where, path=reference, model="Model")
        try:
            loaded = session.reference.ask("load", **self.reference_file)
        except launch.Raised as raised:
            raise Unusable("the reference cannot be imported: %s" % raised.reason)
        self.file_names, self.timed_gradients = loaded["names"], loaded["timed_gradients"]
        missing = [name for name in ("Model", "get_inputs") if name not in self.file_names]
        if missing:
            raise Unusable("%s has no %s" % (reference, " and no ".join(missing)))
        self.report.about.update(torch=loaded["version"], threads=loaded["threads"])
        try:
            if "get_init_inputs" in self.file_names:
                self.init = session.reference.ask("get", limit=1 << 36, function="get_init_inputs", seed=session.seed())
            seed = session.seed()
            self.description = self.build_reference(seed)
        except launch.Raised as raised:
            raise Unusable("the reference's model cannot be built: %s" % raised.reason)
        return self.open_candidate(reference, candidate, where, seed) and self.share_weights(seed)

    def build_reference(self, seed):
        ask = self.session.reference.ask
        description = ask("build", slot="model", init=self.init, seed=seed)
        ask("build", slot="exact", init=self.init, seed=seed, dtype=torch.float64)
        if self.session.low:
            ask("build", slot="low", init=self.init, seed=seed, dtype=torch.float32)
        return description

    def open_candidate(self, reference, candidate, where, seed):
        check, side = self.report["import"], self.session.candidate
        rewrite = candidate is None and "ModelNew" not in self.file_names
        try:
            patience = IMPORT * self.options.timeout
            found = side.ask("load", path=candidate or reference, model="Model" if rewrite else "ModelNew",
                             rewrite=rewrite, pattern={"names": [str]}, timeout=patience, **where)
            if not rewrite and "ModelNew" not in found["names"]:
                check.fail("%s has no class ModelNew" % candidate)
                return False
            self.candidate_description = side.ask("build", slot="model", init=self.init, seed=seed, timeout=patience,
                                                  pattern=DESCRIPTION)
            if rewrite:
                report = side.ask("rewriting", pattern={"text": str, "replaced": bool})
                self.report.about.update(rewriting=report["text"], candidate="Model, by onepass.torch.rewrite")
                if not report["replaced"]:
                    raise Unusable("no candidate was given, the reference has no ModelNew, and onepass.torch.rewrite "
                                   "found nothing to replace: %s" % report["text"])
        except launch.Raised as raised:
            if rewrite and raised.kind in ("ImportError", "ModuleNotFoundError"):
                raise Unusable("no candidate was given, the reference has no ModelNew, and onepass.torch.rewrite is "
                               "not there: %s" % raised.reason)
            check.fail("it raises %s" % raised.reason)
            check.details["traceback"] = raised.trace
            return False
        check.passed("built by onepass.torch.rewrite" if rewrite else "ModelNew is built with %d constructor arguments"
                     % len(self.init))
        return True

    def share_weights(self, seed):
        check, session = self.report["weights"], self.session
        ours, theirs = self.candidate_description, self.description
        for kind in ("parameters", "buffers", "state"):
            if ours[kind] != theirs[kind]:
                missing = [entry for entry in theirs[kind] if entry not in ours[kind]]
                extra = [entry for entry in ours[kind] if entry not in theirs[kind]]
                check.fail("%s differ: %s" % (kind, "; ".join(
                    (["missing " + str(missing[0])] if missing else []) + (["added " + str(extra[0])] if extra else [])
                    or ["in another order"])))
                return False
        if ours["training"] != theirs["training"]:
            check.fail("a new model is in %s mode, the reference's in %s mode" % tuple(
                "training" if side["training"] else "evaluation" for side in (ours, theirs)))
        state = session.reference.ask("state", limit=1 << 40, slot="model")
        size = sum(tensor.numel() * tensor.element_size() for tensor in leaves(state))
        got = session.candidate.ask("state", limit=size, slot="model", pattern=dict.fromkeys(state, torch.Tensor))
        for name, tensor in leaves_named(state):
            if not compare.same_bits(tensor, got[name]):
                check.fail("with the same seed, %s starts with other values than the reference's" % name)
                break
        try:
            session.candidate.ask("load_state", slot="model", state=state)
            session.reference.ask("load_state", slot="model", state=got)
        except launch.Raised as raised:
            check.fail("a state_dict cannot be loaded: %s" % raised.reason)
            return False
        self.state = state
        self.settle()
        check.passed("%d parameters, %d buffers" % (len(theirs["parameters"]), len(theirs["buffers"])))
        return True

    def weights_at_the_end(self):
        """What the model is made of, after all that was done with it."""
        now = [side.ask("describe", slot="model", pattern=DESCRIPTION)
               for side in (self.session.candidate, self.session.reference)]
        for kind in ("parameters", "buffers", "state"):
            if now[0][kind] != now[1][kind] and now[1][kind] == self.description[kind]:
                self.report["weights"].fail("after some calls its %s are no longer those it was built with" % kind)

    def settle(self):
        """Looks at the reference alone: moves its weights away from special values such as 1 and 0, and finds out
        whether it repeats itself. Then both sides get these weights."""
        session = self.session
        session.reference.ask("draw", limit=1 << 40, name="probe", seed=session.seed())
        moved = inputs.perturbed(self.state, session.generator())
        for state in (moved, self.state):
            self.tell_everywhere("load_state", state, session.reference)
            try:
                outputs = [self.reference_only("probe", train, seed) for train in (True, False) for seed in (1, 1, 2)]
            except launch.Raised as raised:
                if state is moved and self.state:
                    continue
                raise Unusable("the reference fails on its own inputs: %s" % raised.reason)
            if not any(tensor.numel() for run in outputs for tensor in run):
                raise Unusable("the reference returns no tensor and no number, or only empty ones: there is nothing to "
                               "compare")
            if all(bool(torch.isfinite(t.double()).all()) for run in outputs for t in run if not t.is_complex()):
                break
        else:
            raise Unusable("the reference's outputs on its own inputs are not all finite")
        self.tell_everywhere("load_state", state, session.candidate)
        self.state = state

        def same(first, second):
            return all(compare.same_bits(a, b) for a, b in zip(outputs[first], outputs[second]))
        self.deterministic = same(0, 1) and same(3, 4)
        self.moody = not same(0, 3)
        if not same(0, 1) or not same(0, 2):
            self.report["values"].note("the reference is random in training mode: single calls are compared in "
                                       "evaluation mode, many by their statistics in training mode")
            self.report.left_out.append("single calls in training mode, which is random")
            self.modes, self.random_training = [False], True
        if not same(3, 5) and self.deterministic:
            raise Unusable("the reference is random even in evaluation mode: there is no value to compare with")
        session.reference.ask("drop", names=["probe"])

    def tell_everywhere(self, request, state, side, **how):
        """A state to all models of a side: by load_state or change_state."""
        slots = ["model"] + (["exact"] + (["low"] if self.session.low else []) if side.trusted else [])
        for slot in slots:
            side.ask(request, slot=slot, state=state, **how)

    def reference_only(self, name, train, seed=0, slot="model", dtype=None, whole=False):
        """Outputs of the reference for inputs that only its process has; pieces of large ones, unless `whole`."""
        side = self.session.reference
        call = side.call(slot, name, train, seed=seed, dtype=dtype)
        found = side.fetch(call.named("out."), self.session.ranges(call.named("out."), whole))
        return [found[key] for key in call.named("out.")]

    # ---- groups ------------------------------------------------------------------------------------------------------

    def run_group(self, group, blame, more=None, finite=True, tolerant=False):
        """Evaluates a group and compares. blame: the check that wrong outputs fail. more(): puts other inputs of the
        kind under the name "more" on the reference's side, for samples of its error. finite: leave the group out if
        exact values are not finite. tolerant: the candidate may raise, or may if a text is in what it raises. True if
        the group could be used."""
        raises = "gradients" if group.grad and blame in OUTPUTS else blame
        session, report = self.session, self.report
        for name in group.names:
            evaluation = session.evaluate(name, group.switch, group.grad, group.slots, restore=group.restore,
                                          whole=group.label == "fresh" and name == group.names[0])
            if evaluation.refused:
                group.refused = evaluation.refused.reason
                return False
            if evaluation.raised:
                if "out of memory" in evaluation.raised.text.lower():
                    raise Unusable("there is too little memory for this size of the problem: %s"
                                   % evaluation.raised.reason)
                if tolerant is True or tolerant and tolerant in evaluation.raised.text:
                    group.refused = "the candidate refuses: " + evaluation.raised.reason
                    return False
                report[raises].fail("%s: it raises %s" % (group.where, evaluation.raised.reason))
                report[raises].details["traceback"] = evaluation.raised.trace
                return False
            self.moved_random += evaluation.candidate.moved_random and not evaluation.reference.moved_random
            if self.moved_random > 1:  # once: something was compiled or tuned
                report["tampering"].fail("%s: it changes the state of random numbers, which the reference does not"
                                         % group.where)
            if evaluation.mutated:
                report["inputs"].fail("%s: %s" % (group.where, evaluation.mutated))
                session.candidate.ask("put", name=name, values=session.values[name])
            if evaluation.fault:
                report["output" if blame == "values" else blame].fail("%s: %s" % (group.where, evaluation.fault))
                return False
            if finite and not all(bool(torch.isfinite(x).all()) for x in evaluation.x.values()
                                  if compare.holds_fractions(x)):
                group.refused = "the reference's values are not finite there"
                return False
            if not group.buffers:
                evaluation.r = {key: value for key, value in evaluation.r.items() if not key.startswith("buffer.")}
                evaluation.x = {key: evaluation.x[key] for key in evaluation.r}
            group.evaluations.append(evaluation)
        for other in self.groups:
            # The outputs of a call with gradients are those of one without: their errors are known.
            if group.grad and (other.label, other.names, other.train) == (group.label, group.names, group.train):
                group.envelopes.update((key, value) for key, value in other.envelopes.items() if key.startswith("out."))
        self.measure_own(group, more)
        for name, evaluation in zip(group.names, group.evaluations):
            self.compare_all(group, name, evaluation, blame)
        self.groups.append(group)
        return True

    def measure_own(self, group, more):
        session = self.session
        for evaluation in group.evaluations:
            for key, exact in evaluation.x.items():
                if not compare.holds_fractions(exact):
                    continue
                if key not in group.envelopes:
                    group.envelopes[key] = session.envelope(evaluation.r[key].dtype)
                group.envelopes[key].add(evaluation.own[key], exact, session.own_scale)
        few = {key: envelope for key, envelope in group.envelopes.items() if envelope.elements < FEW}
        for _ in range(SAMPLES if few else 0):
            bases = self.draws if group.label == "fresh" else group.names
            try:
                if more is not None:
                    more()
                else:
                    bases = bases if len(bases) > 1 else bases + self.draws
                    session.reference.ask("blend", name="more", bases=bases, weights=self.weights(bases))
                session.own_errors("more", group.switch, few, group.grad, group.slots, group.restore)
            except launch.Raised:  # these inputs have another shape, or the reference refuses them
                break

    def weights(self, names):
        """A share of each set of inputs, for each tensor anew."""
        rows = []
        for _ in leaves(self.session.values[names[0]]):
            shares = [self.session.random.uniform(0.2, 1.0) for _ in names]
            rows.append([share / sum(shares) for share in shares])
        return rows

    def measure_near(self, group, name):
        """Adds the reference's errors on inputs a few roundings away from those of that name: they are as badly
        conditioned, column by column, and the reference is not as lucky with all of them."""
        for number in range(NEAR):
            self.put_near("more", name, number)
            try:
                self.session.own_errors("more", group.switch, group.envelopes, group.grad, group.slots, group.restore)
            except launch.Raised:  # the reference has rules for its inputs that these break
                break

    def put_near(self, name, other, number):
        """Inputs a few roundings away from others, on the reference's side."""
        session = self.session
        eps = torch.finfo(torch.float32 if session.low else session.dtype).eps
        values = inputs.near(session.values[other], eps, session.generator(), alike=number % 2 == 1)
        session.reference.ask("put", name=name, values=values, dtype=session.dtype)

    def compare_all(self, group, name, evaluation, blame):
        """Each result of the inputs of that name into its check."""
        measured = False
        for key, reference in evaluation.r.items():
            check = self.report["gradients" if key.startswith("grad.") else "double_backward"
                                if key.startswith("second.") else "buffers" if key.startswith("buffer.") else blame]
            if key not in evaluation.c:
                exact = evaluation.x[key]
                zero = compare.compare(torch.zeros_like(exact), reference, exact, group.envelopes[key])
                if key.startswith("second."):
                    check.note("%s is missing, without an error" % nice(key))
                elif not zero.ok:
                    check.fail("%s: there is no %s" % (group.where, nice(key)))
                continue
            if key not in group.envelopes:
                if not compare.same_bits(evaluation.c[key], reference):
                    check.fail("%s: %s is not the reference's" % (group.where, nice(key)))
                continue
            if evaluation.c[key].dtype != reference.dtype or evaluation.c[key].shape != reference.shape:
                check.fail("%s: %s has type %s and %d elements, the reference's %s and %d" % (
                    group.where, nice(key), evaluation.c[key].dtype, evaluation.c[key].numel(), reference.dtype,
                    reference.numel()))
                continue
            ours, drawn = evaluation.c[key], in_histogram(group, key)
            if group.lenient and group.label == "float16":  # which is not the type under judgement
                ours = self.without_overflow(group, key, ours, reference, blame)
            if group.label.startswith("sparse") and key.startswith("grad.input."):
                ours = self.without_conventions(group, key, ours, reference)
            difference = compare.compare(ours, reference, evaluation.x[key], group.envelopes[key], group.slack, drawn)
            if not difference.ok and difference.worst < LUCK and not measured:
                self.measure_near(group, name)
                measured = True
                difference = compare.compare(ours, reference, evaluation.x[key], group.envelopes[key], group.slack,
                                             drawn)
            self.keep_error(group, key, difference)
            if difference.ok:
                continue
            words = "%s: %s: %s" % (group.where, nice(key), difference.words())
            if difference.mild or group.lenient and difference.near:
                self.report[blame].note(words + "; within the rounding of the whole")
            else:
                check.fail(words)
        if group.grad and any(output["requires_grad"] for output in evaluation.reference.outputs):
            cut = [number for number, output in enumerate(evaluation.candidate.outputs)
                   if evaluation.reference.outputs[number]["requires_grad"] and not output["requires_grad"]]
            if cut:
                self.report["gradients"].fail("output %d does not require a gradient: it is cut off from its inputs" %
                                              cut[0])

    def without_overflow(self, group, key, ours, reference, blame):
        """Half precision ends at 65504: who was not asked for it may overflow sooner than the reference does."""
        over = ~torch.isfinite(ours) & torch.isfinite(reference)
        if bool(over.any()):
            self.report[blame].note("%s: %s overflows in %d places, the reference's does not" % (
                group.where, nice(key), int(over.sum())))
        return torch.where(over, reference, ours)

    def without_conventions(self, group, key, ours, reference):
        """The gradient to an input where that input is exactly 0 is a convention, and PyTorch's versions have had
        several (0, NaN, a one-sided limit): the reference's is put in its place."""
        tensor = leaves(self.session.values[group.names[0]])[int(key.rsplit(".", 1)[1])].reshape(-1)
        if tensor.numel() != ours.numel():
            return ours
        edge = (tensor == 0) | torch.isinf(tensor)
        if bool((edge & ~torch.isfinite(ours) & torch.isfinite(reference)).any()):
            self.report["special"].note("%s is not finite where the input is 0; the reference's is" % nice(key))
        return torch.where(edge, reference, ours)

    def keep_error(self, group, key, difference):
        """One row a result and kind of inputs; of several sets of inputs the worst."""
        label = group.label + ("" if group.train else ", evaluation") + (", backward" if group.backward else "")
        row = {"key": key, "result": nice(key), "inputs": label, "candidate": difference.error,
               "reference": difference.reference_error, "candidate_ulps": difference.error_ulps,
               "reference_ulps": difference.reference_ulps, "used": difference.worst, "elements": difference.elements,
               "wrong": difference.wrong, "zero": difference.ok and difference.reference_error >= 1}
        if in_histogram(group, key):
            row["histogram"] = {side: counts.tolist() for side, counts in zip(("candidate", "reference"),
                                                                              difference.histogram)}
        for index, other in enumerate(self.report.errors):
            if (other["key"], other["inputs"]) == (key, label):
                if difference.worst > other["used"]:
                    self.report.errors[index] = row
                return
        self.report.errors.append(row)

    # ---- values and gradients ----------------------------------------------------------------------------------------

    def upstream(self, name, evaluation):
        """Random upstream gradients for outputs like those of an evaluation."""
        shapes = [output["shape"] if "float" in output["dtype"] else [] for output in evaluation.reference.outputs]
        self.session.noise(name, shapes)
        return {"inputs": None, "upstream": name}

    def fresh(self):
        """output, inputs, values, eval, buffers, gradients on the problem's own inputs."""
        session, report = self.session, self.report
        self.draws = ["draw%d" % number for number in range(DRAWS)]
        for name in self.draws:
            self.progress("drawing inputs")
            session.draw(name)
        self.large = session.bytes_of(self.draws[0]) > LARGE
        self.threads = 1 if session.bytes_of(self.draws[0]) <= SERIAL else 0
        session.threads(self.threads)
        for train in self.modes:
            blame = "values" if train or len(self.modes) == 1 else "eval"
            self.progress(blame)
            names = self.draws[:1] if blame == "eval" and (self.large or not self.moody) else self.draws
            group = Group("fresh", names, train)
            if not self.run_group(group, blame, finite=False):
                if group.refused:
                    raise Unusable("the reference fails on its own inputs: %s" % group.refused)
                return False
            self.check_strides(group.evaluations[0])
            if self.backward:
                self.progress("gradients")
                grad = self.upstream("upstream", group.evaluations[0])
                backward = Group("fresh", names, train, grad)
                if not self.run_group(backward, blame, finite=False):
                    if backward.refused:
                        report["gradients"].skip("the reference has no gradients: %s" % backward.refused)
                        report.left_out.append("gradients, where the reference raises")
                    self.backward = False  # nothing is asked of them any more
            self.pass_if_quiet(blame, group, "out.")
        if self.backward:
            self.pass_if_quiet("gradients", [g for g in self.groups if g.grad][0], "grad.")
            if not any(key.startswith("grad.") for g in self.groups for key in g.envelopes):
                report["gradients"].skip("the reference's outputs depend on nothing that has a gradient")
                self.backward = False
        elif self.options.forward_only:
            report["gradients"].skip("--forward-only")
        for name in ("output", "inputs"):
            report[name].passed("%d calls" % (DRAWS * len(self.modes)))
        if self.description["buffers"]:
            self.pass_if_quiet("buffers", self.groups[0], "buffer.")
        else:
            report["buffers"].skip("the model has no buffers")
        return True

    def pass_if_quiet(self, name, group, prefix):
        """A check that has not failed passes, with the largest share of the tolerance that was used."""
        used = [row["used"] for row in self.report.errors if row["key"].startswith(prefix)
                and row["inputs"].split(",")[0] == group.label]
        self.report[name].passed("%d results, %.2g of the tolerance used" % (len(used), max(used)) if used else "equal")

    def check_strides(self, evaluation):
        for number, (ours, theirs) in enumerate(zip(evaluation.candidate.outputs, evaluation.reference.outputs)):
            pairs = [(a, b) for a, b, size in zip(ours["strides"], theirs["strides"], ours["shape"]) if size > 1]
            if any(a != b for a, b in pairs):
                self.report["output"].fail("output %d has strides %s, the reference's %s" % (
                    number, ours["strides"], theirs["strides"]))

    def harder(self):
        """rows, cancellation, special: inputs derived from the fresh ones."""
        report, session = self.report, self.session
        if self.options.plain_inputs:
            for name in ("rows", "cancellation", "special"):
                report[name].skip("--plain-inputs")
            return
        values = whole = [session.values[name] for name in self.draws]
        if self.large:  # all of the rows where leaving some out would pay, a few of them elsewhere
            values = [self.few_rows(value) for value in whole]
        plans = [("rows", "permuted", inputs.permuted, 2), ("rows", "planted", inputs.planted, DRAWS),
                 ("rows", "heavy", inputs.heavy, 2), ("cancellation", "contracted", inputs.contracted, DRAWS)]
        plans += [("special", "sparse (input %d)" % number, lambda v, g, n=number: inputs.sparse(v, g, n), 1)
                  for number, tensor in enumerate(leaves(values[0])) if inputs.kind_of(tensor) != "fixed"]
        done = {}
        for blame, label, change, repeats in plans:
            self.progress(label)
            if inputs.batch_of(values[0]) is None and blame != "cancellation":
                report[blame].skip("the inputs have no rows")
                continue
            everything = self.large and label == "planted"
            repeats = 1 if everything else min(repeats, 2 if self.large else repeats)
            names = ["%s%d" % (label, number) for number in range(repeats)]
            for name, value in zip(names, whole if everything else values):
                session.put(name, change(value, session.generator()))

            def more():
                value = change(values[session.random.randrange(DRAWS)], session.generator())
                session.reference.ask("put", name="more", values=value)
            used = self.hard_group(blame, label, names, more if len(names) == 1 and not everything else None)
            done.setdefault(blame, []).append(label if used is None else "%s: left out (%s)" % (label, used))
            keep = ["planted0"] if label == "planted" else []
            session.drop(*[name for name in names if name not in keep])
        for blame, labels in done.items():
            rows = [row for row in report.errors if any(row["inputs"].startswith(label) for label in labels)]
            worst = max([row["used"] for row in rows] or [0.0])
            report[blame].passed("%s; %.2g of the tolerance used" % (", ".join(labels), worst))
        for blame in ("rows", "cancellation", "special"):
            report[blame].skip("nothing in the inputs can be varied this way")

    def few_rows(self, value):
        """Inputs of the same problem that take no time to make and to send."""
        some = inputs.with_rows([value], LARGE_BATCH, self.session.generator())
        return value if some is None else some

    def hard_group(self, blame, label, names, more):
        """None, or why the group could not be used."""
        train = self.modes[0]
        group = Group(label, names, train)
        finite = blame != "special"
        if not self.run_group(group, blame, more=more, finite=finite):
            return group.refused
        if self.backward:
            backward = Group(label, names, train, self.upstream("upstream", group.evaluations[0]))
            if not self.run_group(backward, blame, more=more, finite=finite):
                return backward.refused and "gradients: " + backward.refused
        return None

    # ---- would anything less be noticed? -----------------------------------------------------------------------------

    def power(self):
        """Runs what a cheat would return through the same comparison; each must be found out by some group."""
        self.progress("power")
        check, session = self.report["power"], self.session
        groups = [group for group in self.groups if group.train == self.modes[0] and not group.grad
                  and not group.label.startswith("sparse")]
        found = {}
        for group in groups:
            evaluation = group.evaluations[0]
            outputs = [key for key in evaluation.x if key.startswith("out.") and key in group.envelopes
                       and evaluation.x[key].numel() and not evaluation.x[key].is_complex()]
            for label, fakes in self.fakes(group, evaluation, outputs):
                for key, fake in zip(outputs, fakes):
                    if fake is None:
                        continue
                    exact = evaluation.x[key]
                    distance = compare.compare(fake.to(evaluation.r[key].dtype), evaluation.r[key], exact,
                                               group.envelopes[key])
                    best = found.get((label, key), (0.0, None))
                    found[label, key] = max(best, (0.0 if distance.ok else distance.worst, group.label),
                                            key=lambda pair: pair[0])
        check.details["fakes"] = [{"fake": label, "result": nice(key), "tolerances": distance, "inputs": where}
                                  for (label, key), (distance, where) in found.items()]
        if not found:
            check.skip("no output holds fractions")
            return
        blind = sorted(set(label for (label, key), (distance, _) in found.items() if distance == 0.0))
        hopeless = [label for label in ("zeros", "a constant", "an old answer") if (label, "out.0") in found
                    and all(found[pair][0] == 0.0 for pair in found if pair[0] == label)]
        if hopeless:
            raise Unusable("no input that could be found tells the reference's outputs from %s: there is nothing to "
                           "judge" % hopeless[0])
        nearest = min((distance, label) for (label, key), (distance, _) in found.items() if distance > 0)
        if blind:
            check.note("not noticed here: %s" % ", ".join(blind))
        check.passed("the nearest of %d, %s, is %s tolerances away" % (len(found), nearest[1], "%.3g" % nearest[0]))

    def fakes(self, group, evaluation, outputs):
        """(what, [a fake of each output, or None])."""
        session = self.session
        values = session.values.get(group.names[0])
        yield "zeros", [torch.zeros_like(evaluation.x[key]) for key in outputs]
        yield "a constant", [torch.full_like(evaluation.x[key], float(evaluation.x[key].mean()))
                             if evaluation.x[key].numel() > 1 else None for key in outputs]
        if len(group.evaluations) > 1:
            yield "an old answer", [old_answer(*group.evaluations[:2], key) for key in outputs]
        if values is None or (self.large and group.label != "fresh"):
            return
        for number, tensor in enumerate(leaves(values)):
            if tensor.is_floating_point():
                yield "input %d" % number, [tensor.reshape(-1) if evaluation.x[key].numel() == tensor.numel()
                                            and evaluation.reference.shapes[key][1] == tuple(tensor.shape) else None
                                            for key in outputs]
        emulated = []
        if inputs.batch_of(values):
            emulated += [("half of the rows", lambda: inputs.half_repeated(values, 0)),
                         ("half of the columns", lambda: inputs.half_repeated(values, -1))]
        if session.dtype in SMALLER:
            emulated.append(("inputs in %s" % str(SMALLER[session.dtype])[6:],
                             lambda: inputs.rounded(values, SMALLER[session.dtype])))
        for label, make in emulated:
            try:
                session.reference.ask("put", name="fake", values=make())
                sizes = [count(evaluation.reference.shapes[key][1]) for key in outputs]
                whole = all(evaluation.x[key].numel() == size for key, size in zip(outputs, sizes))
                results = self.reference_only("fake", group.train, slot="exact", dtype=torch.float64, whole=whole)
            except launch.Raised:
                continue
            fakes = [results[int(key[4:])] for key in outputs]
            yield label, [fake if fake.numel() == evaluation.x[key].numel() == size else None
                          for key, fake, size in zip(outputs, fakes, sizes)]

    # ---- second gradients and steps ----------------------------------------------------------------------------------

    def double_backward(self):
        check, session = self.report["double_backward"], self.session
        name = self.draws[0]
        tensors = [tensor for tensor in leaves(session.values[name]) if tensor.is_floating_point()]
        shapes = [list(tensor.shape) for tensor in tensors]
        shapes += [entry[1] for entry in self.description["parameters"] if entry[3]]
        if not self.backward or sum(map(count, shapes)) > 1 << 24:
            check.skip("no gradients" if not self.backward else "too large: tried on small problems only")
            return
        self.progress("double_backward")
        self.vectors = session.noise("vectors", shapes)
        grad = {"inputs": None, "upstream": "upstream", "again": "vectors"}
        first = [group for group in self.groups if group.label == "fresh" and not group.grad][0].evaluations[0]
        self.upstream("upstream", first)
        evaluation = session.evaluate(name, self.modes[0], grad)
        if evaluation.refused or not evaluation.reference.named("second."):
            check.skip("the reference has none")
            return
        if evaluation.raised:
            check.note("refused, as is allowed: %s" % evaluation.raised.reason)
            return
        if not any(key.startswith("second.") for key in evaluation.c):
            check.note("missing: its gradients are constants, without an error")
            return
        if not self.differences_agree(name, grad, evaluation, tensors):
            check.skip("the reference's own second gradients are not the derivatives of its first")
            return
        group = Group("fresh", [name], self.modes[0], grad, lenient=True)
        group.evaluations.append(evaluation)
        self.measure_own(group, None)
        kept = {key: value for key, value in evaluation.r.items() if key.startswith("second.")}
        evaluation.r = kept
        self.compare_all(group, name, evaluation, "double_backward")
        check.passed("%d second gradients" % len(kept))

    def differences_agree(self, name, grad, evaluation, tensors):
        """Whether the reference's second gradients to its inputs are what finite differences of its first ones give.

        s = sum of <gradient, vector> over all inputs and parameters; along a direction d, ds/dt = <second gradient, d>.
        Some versions of PyTorch have operators (kl_div before 1.13) for which they are not."""
        session = self.session
        vectors = [vector.double() for vector in self.vectors]
        names = ["input.%d" % number for number, tensor in enumerate(leaves(session.values[name]))
                 if tensor.is_floating_point()]
        names += [entry[0] for entry in self.description["parameters"] if entry[3]]
        generator = session.generator()
        directions = [tensor.double() * (torch.rand(tensor.shape, generator=generator, dtype=torch.float64) - 0.5)
                      for tensor in tensors]
        step, sums = 1e-5, []
        for sign in (1, -1):
            moved = iter([tensor.double() + sign * step * d for tensor, d in zip(tensors, directions)])
            values = rebuild(session.values[name], iter([next(moved) if tensor.is_floating_point() else tensor
                                                         for tensor in leaves(session.values[name])]))
            session.reference.ask("put", name="moved", values=values, dtype=torch.float64)
            call = session.reference.call("exact", "moved", self.modes[0], grad={key: grad[key] for key in
                                                                                 ("inputs", "upstream")})
            found = session.reference.fetch(call.named("grad."))
            sums.append(sum(float((found["grad." + key] * vector.reshape(-1)).sum())
                            for key, vector in zip(names, vectors) if "grad." + key in found))
        expected = (sums[0] - sums[1]) / (2 * step)
        second = [evaluation.x.get("second.input.%d" % number) for number, tensor in
                  enumerate(leaves(session.values[name])) if tensor.is_floating_point()]
        parts = [float((value * d.reshape(-1)).sum()) for value, d in zip(second, directions) if value is not None]
        size = max([abs(part) for part in parts] + [abs(expected), 1e-300])
        return abs(sum(parts) - expected) <= 1e-3 * size

    def steps(self):
        """The state after several steps of an optimizer."""
        check, session = self.report["steps"], self.session
        trainable = [entry for entry in self.description["parameters"] if entry[3]]
        if not trainable or not self.backward:
            check.skip("no gradients" if trainable else "the model has no parameters")
            return
        self.progress("steps")
        group = [g for g in self.groups if g.label == "fresh" and g.grad][0]
        first = group.evaluations[0]
        weights = sum(float(self.state[entry[0]].double().norm()) ** 2 for entry in trainable if entry[0] in self.state)
        slopes = sum(float(first.x[key].double().norm()) ** 2 for key in first.x
                     if key.startswith("grad.") and not key.startswith("grad.input."))
        rate = 0.02 * (weights / slopes) ** 0.5 if slopes and weights else 0.01
        names = [self.draws[number % DRAWS] for number in range(STEPS)]
        arguments = {"inputs": names, "rate": rate, "train": self.modes[0]}
        self.upstream("steps upstream", first)
        arguments["upstream"] = ["steps upstream"] * STEPS
        self.step_arguments = arguments
        got = self.state_after("model", session.candidate, arguments, None)
        references = self.state_after("model", session.reference, arguments, None)
        envelopes = {key: session.envelope(value.dtype) for key, value in references.items()
                     if value.is_floating_point()}
        exacts = self.add_step_errors(envelopes, arguments, None if session.low else references)
        moved = measured = False
        for key, reference in references.items():
            if key not in got:
                check.fail("there is no %s" % nice(key))
            elif key not in envelopes:
                if not compare.same_bits(got[key], reference):
                    check.fail("%s is not the reference's after %d steps" % (nice(key), STEPS))
            elif got[key].shape != reference.shape:
                check.fail("%s has another size than the reference's" % nice(key))
            else:
                exact, envelope = exacts[key], envelopes[key]
                difference = compare.compare(got[key], reference, exact, envelope)
                if not difference.ok and difference.worst < LUCK and not measured:
                    self.measure_near_steps(envelopes, arguments)
                    measured = True
                    difference = compare.compare(got[key], reference, exact, envelope)
                self.keep_error(Group("after %d steps" % STEPS, [], True), key, difference)
                start = self.state.get(key[6:])
                moved = moved or (start is not None and start.numel() == exact.numel() and not compare.compare(
                    start.reshape(-1), reference, exact, envelope).ok)
                if not difference.ok:
                    check.fail("after %d steps %s: %s" % (STEPS, nice(key), difference.words()))
        if not moved:
            check.note("no parameter moved by more than the tolerance")
        check.passed("%d tensors compared after %d steps" % (len(references), STEPS))

    def add_step_errors(self, envelopes, arguments, own=None):
        """Adds the errors of the reference's state after steps; returns the exact states. own: that state, if known."""
        session = self.session
        exacts = self.state_after("exact", session.reference, arguments, torch.float64)
        if own is None:
            own = self.state_after("low", session.reference, arguments, torch.float32) if session.low else \
                self.state_after("model", session.reference, arguments, None)
        for key, envelope in envelopes.items():
            envelope.add(own[key], exacts[key], session.own_scale)
        return exacts

    def measure_near_steps(self, envelopes, arguments):
        """measure_near, for the state after steps."""
        for number in range(NEAR):
            for name in self.draws:
                self.put_near("near " + name, name, number)
            self.add_step_errors(envelopes, dict(arguments, inputs=["near " + name for name in arguments["inputs"]]))
        self.session.reference.ask("drop", names=["near " + name for name in self.draws])

    def state_after(self, slot, side, arguments, dtype):
        try:
            answer = side.ask("steps", slot=slot, dtype=dtype, pattern=[list], **arguments)
        except launch.Raised as raised:
            if side.trusted:
                raise Unusable("the reference fails in training steps: %s" % raised.reason)
            self.report["steps"].fail("it raises %s" % raised.reason)
            return {}
        known = self.description["parameters"] + self.description["buffers"]
        expected = {"state." + entry[0]: tuple(entry[1]) for entry in known}
        return side.fetch({name: (dtype, expected[name]) for name, (dtype, _) in side.shapes(answer).items()
                           if name in expected})


def in_histogram(group, key):
    """Whether a page shows how the errors of a result are distributed."""
    return group.label == "fresh" and key.startswith("out.") and not group.grad


def old_answer(evaluation, other, key):
    """What a second set of inputs gave, where the first one's answer should be."""
    found = evaluation.x[key].clone()
    if other.x[key].numel() == found.numel() and key not in other.ranges:
        return other.x[key]
    if key in evaluation.ranges or key not in other.ranges:
        return None  # pieces of both, from different places
    begin = 0
    for first, last in other.ranges[key]:
        found[first:last] = other.x[key][begin:begin + last - first]
        begin += last - first
    return found


def leaves_named(state):
    return [(name, tensor) for name, tensor in state.items() if isinstance(tensor, torch.Tensor)]
