"""What a worker can be asked to do. Each method do_NAME is one request; names of results are in do_call.

Functions of PyTorch that matter to an answer are bound here, before a candidate is imported. Inputs are kept under
names that the judge gives; a call takes them by name, and its results stay here until the judge fetches them, so that
the judge can choose what to look at after they exist.
"""

import contextlib
import ctypes
import dataclasses
import gc
import importlib.util
import math
import mmap
import os
import random
import sys
import time

import torch

from onepass import fp32
from onepass.judge import guard, wire

M_PERTURB, M_MMAP_THRESHOLD = -6, -3  # of glibc's mallopt: fill what malloc hands out; what gets pages of its own
PLAIN = (torch.Tensor, torch.nn.Parameter)

_take, _cat, _grad, _backward = torch.take, torch.cat, torch.autograd.grad, torch.autograd.backward
_no_grad, _enable_grad, _inference_mode = torch.no_grad, torch.enable_grad, torch.inference_mode
_cuda_synchronize, _current_stream, _Event = torch.cuda.synchronize, torch.cuda.current_stream, torch.cuda.Event
_memory_allocated, _reset_peak = torch.cuda.memory_allocated, torch.cuda.reset_peak_memory_stats
_peak, _empty_cache = torch.cuda.max_memory_allocated, torch.cuda.empty_cache
_sleep = getattr(torch.cuda, "_sleep", None)
_get_rng_state, _python_state = torch.get_rng_state, random.getstate
_mmap, _frombuffer, _stack = mmap.mmap, torch.frombuffer, torch.stack
BLOCK = 1 << 16  # elements of a result whose bits are added up
# Pages that are there when they are first touched; a number, as Python has a name for it since 3.10.
POPULATE = {"flags": mmap.MAP_SHARED | 0x8000} if sys.platform == "linux" else {}
INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def leaves(value):
    """The tensors in nested lists, tuples, dictionaries and dataclasses, in order."""
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, dict):
        value = list(value.values())
    elif is_dataclass(value):
        value = list(fields_of(value).values())
    if isinstance(value, (list, tuple)):
        return [leaf for item in value for leaf in leaves(item)]
    return []


def is_dataclass(value):
    return dataclasses.is_dataclass(value) and not isinstance(value, type)


def fields_of(value):
    return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}


def rebuild(value, tensors):
    """The same nesting with other tensors, taken from an iterator."""
    if isinstance(value, torch.Tensor):
        return next(tensors)
    if isinstance(value, dict):
        return {key: rebuild(item, tensors) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        items = [rebuild(item, tensors) for item in value]
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    return value


def with_numbers(value):
    """Outputs whose fractions are tensors: a number may be rounded as the elements of a tensor may."""
    if isinstance(value, float):
        return torch.tensor(value, dtype=torch.float64)
    if isinstance(value, dict):
        return {key: with_numbers(item) for key, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)([with_numbers(item) for item in value])
    return value


def structure(value, strange):
    """The nesting in words, without sizes. Types of which it is not known what they hold are put into the list."""
    if isinstance(value, torch.Tensor):
        return "tensor"
    if isinstance(value, dict):
        return "{%s}" % ", ".join("%r: %s" % (key, structure(item, strange)) for key, item in value.items())
    name = type(value).__name__
    if isinstance(value, (list, tuple)):
        return "%s(%s)" % (name, ", ".join(structure(item, strange) for item in value))
    if is_dataclass(value):
        return "%s(%s)" % (name, ", ".join("%s=%s" % (field, structure(item, strange))
                                           for field, item in fields_of(value).items()))
    if value is None or isinstance(value, (bool, int, complex, str, bytes, torch.dtype, torch.device)):
        return "%s %r" % (name, value)
    strange.append(name)
    return "an object of type %s" % name


def random_state():
    """Of the generators that a program shares; None for one that is not there yet."""
    numpy = sys.modules.get("numpy")
    return (_get_rng_state().tolist(), _python_state(),
            str(numpy.random.get_state()) if numpy is not None and hasattr(numpy, "random") else None)


def storage_of(tensor):
    """(address, bytes) of the memory behind a tensor."""
    if hasattr(tensor, "untyped_storage"):
        storage = tensor.untyped_storage()
        return storage.data_ptr(), storage.nbytes()
    storage = tensor.storage()
    return storage.data_ptr(), storage.size() * storage.element_size()


def laid_out(tensor, layout):
    """The same values elsewhere in memory. What lies between them is NaN, which a kernel that ignores strides reads."""
    if layout == "transposed" and tensor.dim() >= 2:
        return tensor.transpose(0, -1).contiguous().transpose(0, -1)
    if layout == "sliced" and tensor.dim() >= 1:
        room = torch.full(tensor.shape[:-1] + (2 * tensor.shape[-1],), float("nan"), dtype=tensor.dtype,
                          device=tensor.device)
        view = room[..., ::2]
        view.copy_(tensor)
        return view
    if layout == "offset":
        room = torch.full((tensor.numel() + 1,), float("nan"), dtype=tensor.dtype, device=tensor.device)
        view = room[1:].view(tensor.shape)
        view.copy_(tensor)
        return view
    if layout == "expanded" and tensor.dim() >= 2:
        return tensor[:1].expand(tensor.shape)  # the judge sends equal rows for this
    return tensor


def upstream(tensor, layout):
    """An upstream gradient as other code than the judge's sends it."""
    if layout == "summed":
        return tensor.new_ones(()).expand(tensor.shape)
    return laid_out(tensor, layout)


def blend(many, weights):
    """A weighted mean of sets of inputs; weights: a list for each tensor. What holds no fractions comes from one set.

    A mean keeps what inputs usually promise: signs, bounds, rows that add up to 1, zeros in a triangle. It is made of
    single multiplications and additions, so that every process gets the same bits."""
    tensors = []
    for column, shares in zip(zip(*[leaves(values) for values in many]), weights):
        if not column[0].is_floating_point():
            tensors.append(column[shares.index(max(shares))].clone())
            continue
        total = column[0] * shares[0]
        for value, share in zip(column[1:], shares[1:]):
            total = total + value * share
        tensors.append(total)
    return rebuild(many[0], iter(tensors))


def digest(result):
    """Sums of the bits of a result, one for every BLOCK of its elements."""
    flat = result.detach().reshape(-1)
    if flat.is_complex():
        flat = torch.view_as_real(flat)
    bits = flat.view(INTEGERS[flat.element_size()])
    whole = len(bits) // BLOCK * BLOCK
    sums = [bits[:whole].reshape(-1, BLOCK * bits[:1].numel()).sum(1)] if whole else []
    if whole < len(bits):
        sums.append(bits[whole:].sum().reshape(1))
    return sums[0] if len(sums) == 1 else torch.cat(sums) if sums else bits.new_zeros(0, dtype=torch.int64)


_digest = digest


def hidden_guard():
    """The guard's module once more, under no name by which a candidate could come by it."""
    spec = importlib.util.spec_from_file_location("guard", guard.__file__)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.KERNELS = guard.KERNELS
    return module


class Runner:
    def __init__(self):
        self.slots, self.starts, self.inputs, self.results, self.held = {}, {}, {}, {}, []
        self.device, self.dtype, self.make, self.module = torch.device("cpu"), torch.float32, None, None
        self.upstream, self.null_results = [], []
        self.descriptors = []  # of files that came with the request
        self.threads = torch.get_num_threads()
        self.guard = hidden_guard().Guard([
            ("the judge's Runner", Runner), ("the judge's wire", wire), ("the judge's runner", sys.modules[__name__]),
            ("the judge's guard", guard), ("the judge's Guard", guard.Guard)])
        self.moved_random = False  # whether the last call changed the state of random numbers

    # ---- files and models --------------------------------------------------------------------------------------------

    def do_load(self, path, model, device, dtype, size, rewrite=False):
        """Imports a file. model: the name of the class to build from it."""
        os.environ["ONEPASS_PROBLEM_SIZE"] = size
        self.device, self.dtype = torch.device(device), dtype
        if self.device.type == "cuda":
            torch.cuda.set_device(self.device.index or 0)
        sys.path.insert(0, os.path.dirname(os.path.abspath(path)))
        name = "judged_" + "".join(c if c.isalnum() else "_" for c in os.path.splitext(os.path.basename(path))[0])
        spec = importlib.util.spec_from_file_location(name, path)
        self.module = importlib.util.module_from_spec(spec)
        sys.modules[name] = self.module
        spec.loader.exec_module(self.module)
        make = getattr(self.module, model, None)
        if rewrite:
            from onepass.torch import rewrite as rewriting  # needs the compiled library, which need not be there

            def make_rewritten(*arguments):
                new, self.rewriting = rewriting(self.made(*arguments))
                return new
            self.made, self.make = make, make_rewritten
        else:
            self.make = make
        timed = getattr(self.module, "TIMED_GRADIENTS", None)
        return {"names": [name for name in ("Model", "ModelNew", "get_inputs", "get_init_inputs", "get_hidden_inputs",
                                            "get_hidden_cases") if callable(getattr(self.module, name, None))],
                "timed_gradients": None if timed is None else [int(number) for number in timed],
                "rewrites": rewrite, "version": torch.__version__, "threads": self.threads}

    def do_rewriting(self):
        """What onepass.torch.rewrite reported, in words, and whether it replaced anything."""
        report = self.rewriting
        return {"text": str(report), "replaced": bool(report.replaced)}

    def do_threads(self, number):
        """Threads of PyTorch's own pool; 0: as many as it would take."""
        torch.set_num_threads(number or self.threads)
        self.guard.settings["torch.get_num_threads()"] = torch.get_num_threads()

    def seed(self, seed):
        random.seed(seed)
        torch.manual_seed(seed)
        if "numpy" in sys.modules:
            sys.modules["numpy"].random.seed(seed % (1 << 32))

    def prepared(self, value, dtype=None, layout=None):
        """The value on the device; floating tensors in the dtype under judgement."""
        def place(tensor):
            tensor = tensor.detach()
            if tensor.is_floating_point():
                return laid_out(tensor.to(device=self.device, dtype=dtype or self.dtype), layout)
            return tensor.to(self.device)
        return rebuild(value, iter([place(tensor) for tensor in leaves(value)]))

    def do_get(self, function, seed):
        """What get_inputs, get_init_inputs or another function of the file returns."""
        self.seed(seed)
        return getattr(self.module, function)()

    def do_draw(self, name, seed, dtype=None):
        """get_inputs(), kept under a name, and returned in the dtype under judgement."""
        self.seed(seed)
        values = self.prepared(list(self.module.get_inputs()), dtype)
        self.inputs[name] = values
        return values

    def do_put(self, name, values, dtype=None, layout=None):
        self.inputs[name] = self.prepared(values, dtype, layout)

    def do_overwrite(self, name, other):
        """New values at the old addresses."""
        for old, new in zip(leaves(self.inputs[name]), leaves(self.inputs[other])):
            old.copy_(new)

    def do_blend(self, name, bases, weights, patch=None):
        """A mean of inputs; with a patch, the inputs of a timed call."""
        self.inputs[name] = blend([self.inputs[base] for base in bases], weights)
        if patch:
            self.patch(self.inputs[name], *patch)

    def do_drop(self, names):
        for name in names:
            self.inputs.pop(name, None)
        if self.device.type == "cuda":
            _empty_cache()  # two processes share the device

    def do_build(self, slot, init, seed, dtype=None, compiled=False):
        """A new model; its parameters and buffers as they are."""
        self.seed(seed)
        model = self.make(*init)
        if not isinstance(model, torch.nn.Module):
            raise TypeError("the class makes a %s, not a torch.nn.Module" % type(model).__name__)
        model = model.to(self.device).to(dtype or self.dtype)
        self.slots[slot] = torch.compile(model) if compiled else model
        self.starts.pop(slot, None)
        return self.description(model)

    def do_describe(self, slot):
        return self.description(self.slots[slot])

    def description(self, model):
        return {
            "training": model.training,
            "parameters": [[name, list(value.shape), str(value.dtype), value.requires_grad]
                           for name, value in model.named_parameters()],
            "buffers": [[name, list(value.shape), str(value.dtype), name in model.state_dict()]
                        for name, value in model.named_buffers()],
            "state": list(model.state_dict()),
        }

    def do_free(self, slot):
        self.slots.pop(slot, None)
        self.starts.pop(slot, None)

    def state_of(self, slot):
        model = self.slots[slot]
        return dict(list(model.named_parameters()) + list(model.named_buffers()))

    def do_state(self, slot):
        return dict(self.slots[slot].state_dict())

    def do_load_state(self, slot, state):
        """load_state_dict, strictly; every later call starts from here."""
        self.slots[slot].load_state_dict(state)
        self.starts[slot] = {name: value.detach().clone() for name, value in self.state_of(slot).items()}

    def do_change_state(self, slot, state, data):
        """Other weights in place, as an optimizer or a program writes them; the next call that restores has the loaded
        ones again. data: through .data, of which PyTorch keeps no count."""
        now = self.state_of(slot)
        with _no_grad():
            for name in set(state) & set(now):  # a weight under two names is here under one
                (now[name].data if data else now[name]).copy_(state[name])

    def restore(self, slot):
        with _no_grad():
            for name, value in self.state_of(slot).items():
                if name in self.starts.get(slot, {}):
                    value.copy_(self.starts[slot][name])
                value.grad = None

    # ---- one call ----------------------------------------------------------------------------------------------------

    def describe(self, tensor, known):
        """What kind of thing an output is."""
        if type(tensor) not in PLAIN or tensor.layout is not torch.strided:
            return {"plain": False, "type": "%s.%s" % (type(tensor).__module__, type(tensor).__qualname__),
                    "layout": str(tensor.layout)}
        address, size = storage_of(tensor)
        last = -1  # element, counted from the first
        if tensor.numel():
            last = sum((extent - 1) * stride for extent, stride in zip(tensor.shape, tensor.stride()))
        return {
            "plain": True, "dtype": str(tensor.dtype), "shape": list(tensor.shape), "strides": list(tensor.stride()),
            "device": str(tensor.device), "requires_grad": tensor.requires_grad,
            "stored": (tensor.storage_offset() + last + 1) * tensor.element_size() <= size
            and (address != 0 or tensor.numel() == 0),
            "shares": [name for name, other in known if tensor.numel() and other == address],
        }

    def run(self, model, values, train, grad, seed, other=None):
        """Outputs, and if asked for gradients: (outputs, {name: gradient}, {name: gradient of the gradients}).

        grad: the numbers of the inputs that get one (None: all), the name of upstream gradients, and perhaps
          again       vectors with which the gradients are multiplied to have gradients of their own
          parameters  names of those that get one, of all that could
          frozen      names of parameters that need none during the call
          layout      of the upstream gradients: summed (ones, as sum() sends them), transposed, sliced
          between     `other`: inputs of a second call, made between the forward and the backward pass
          twice       the second of two backward passes through the same graph counts
        or only
          inference   no gradients, in PyTorch's inference mode"""
        self.switch(model, train)
        self.seed(seed)
        before = random_state()
        try:
            return self.run_seeded(model, values, grad, other)
        finally:
            self.moved_random = any(old is not None and old != new for old, new in zip(before, random_state()))

    def switch(self, model, train):
        """Into a mode: as programs do it, by train(True) or eval(); "not train": by train(False); None: not at all,
        which leaves it in the mode it is in."""
        if train == "not train":
            model.train(False)
        elif train:
            model.train(True)
        elif train is not None:
            model.eval()

    def run_seeded(self, model, values, grad, other):
        if grad is None:
            with _no_grad():
                return model(*values), {}, {}
        if grad.get("inference"):
            with _inference_mode():
                return model(*values), {}, {}
        frozen = [value for name, value in model.named_parameters() if name in grad.get("frozen", ())]
        for value in frozen:
            value.requires_grad_(False)
        try:
            with _enable_grad():
                return self.run_backward(model, values, grad, other)
        finally:
            for value in frozen:
                value.requires_grad_(True)

    def run_backward(self, model, values, grad, other):
        tensors = leaves(values)
        numbers = range(len(tensors)) if grad["inputs"] is None else grad["inputs"]
        wanted = {}
        for number in numbers:
            if tensors[number].is_floating_point():
                tensors[number] = tensors[number].detach().requires_grad_(True)
                wanted["input.%d" % number] = tensors[number]
        chosen = grad.get("parameters")
        wanted.update((name, value) for name, value in model.named_parameters()
                      if value.requires_grad and (chosen is None or name in chosen))
        outputs = model(*rebuild(values, iter(tensors)))
        if other is not None:
            model(*other)
        pairs = [(output, upstream(up.to(output.dtype), grad.get("layout")))
                 for output, up in zip(leaves(with_numbers(outputs)), self.inputs[grad["upstream"]])
                 if output.requires_grad]
        if not pairs or not wanted:
            return outputs, {}, {}
        again = grad.get("again")
        ends, starts, ups = [output for output, _ in pairs], list(wanted.values()), [up for _, up in pairs]
        if grad.get("twice"):
            _grad(ends, starts, ups, allow_unused=True, retain_graph=True)
        first = _grad(ends, starts, ups, allow_unused=True, create_graph=again is not None)
        first = {name: value for name, value in zip(wanted, first) if value is not None}
        second = {}
        if again is not None:
            vectors = dict(zip(wanted, self.inputs[again]))
            pairs = [(value, vectors[name].to(value.dtype)) for name, value in first.items() if value.requires_grad]
            if pairs:
                found = _grad([value for value, _ in pairs], starts, [v for _, v in pairs], allow_unused=True)
                second = {name: value for name, value in zip(wanted, found) if value is not None}
        return outputs, first, second

    def do_call(self, slot, inputs, train, grad=None, seed=0, dtype=None, snapshot=False, hold=False, clear=False,
                restore=True):
        """Runs a model. The results are then here under the names
        out.N, grad.NAME, second.NAME (of inputs: input.N), buffer.NAME, input.N (the inputs after the call),
        first.N (the outputs as they were when the call returned).
        hold: keep the outputs beyond the next call; clear: write zeros over them, as their owner may."""
        if restore:
            self.restore(slot)
        model, values = self.slots[slot], self.inputs[inputs]
        if dtype is not None:
            values = self.prepared(values, dtype)
        self.results = {}
        known = [("input %d" % number, storage_of(value)[0]) for number, value in enumerate(leaves(values))]
        known += [(name, storage_of(value)[0]) for name, value in self.state_of(slot).items()]
        known += [("an earlier output", storage_of(value)[0]) for value in self.held]
        cuda = self.device.type == "cuda"
        stream = _current_stream() if cuda else None
        other = self.inputs[grad["between"]] if grad and "between" in grad else None
        if other is not None and dtype is not None:
            other = self.prepared(other, dtype)
        outputs, first, second = self.run(model, values, train, grad, seed, other)
        outputs, strange = with_numbers(outputs), []
        tensors = leaves(outputs)
        answer = {"structure": structure(outputs, strange), "strange": strange, "moved_random": self.moved_random,
                  "moved_stream": cuda and _current_stream() != stream,
                  "outputs": [self.describe(tensor, known) for tensor in tensors]}
        if not all(output["plain"] for output in answer["outputs"]):
            return dict(answer, results=[])
        if snapshot:
            for number, tensor in enumerate(tensors):
                self.results["first.%d" % number] = tensor.detach().clone()
            answer["tail"] = self.tail(stream) if cuda else 0.0
        for number, tensor in enumerate(tensors):
            self.results["out.%d" % number] = tensor.detach()
        for prefix, found in (("grad.", first), ("second.", second)):
            for name, value in found.items():
                self.results[prefix + name] = value.detach()
        for name, value in model.named_buffers():
            self.results["buffer." + name] = value
        for number, value in enumerate(leaves(values)):
            self.results["input.%d" % number] = value
        if hold:
            self.held += [tensor.detach() for tensor in tensors]
        if clear:
            for tensor in tensors:
                tensor.detach().zero_()
        return dict(answer, results=[[name, str(value.dtype), list(value.shape)]
                                     for name, value in self.results.items()])

    def tail(self, stream):
        """Milliseconds that the device works on after the stream of the caller is done: work hidden elsewhere."""
        stream.synchronize()
        begin = _Event(enable_timing=True)
        begin.record()
        _cuda_synchronize()
        end = _Event(enable_timing=True)
        end.record()
        _cuda_synchronize()
        return begin.elapsed_time(end)

    def do_release(self):
        self.held, self.results = [], {}

    def do_fetch(self, names, ranges=None):
        """Results, flat; ranges: [begin, end] pairs of elements instead of all."""
        if self.device.type == "cuda":
            _cuda_synchronize()
        found = []
        for name in names:
            flat = self.results[name].detach().reshape(-1)
            found.append(flat if ranges is None else _cat([flat[begin:end] for begin, end in ranges]))
        return found

    def do_steps(self, slot, inputs, upstream, rate, train=True, dtype=None):
        """Training steps of SGD with momentum, one for each set of inputs; the results are the state, state.NAME."""
        self.restore(slot)
        model = self.slots[slot]
        model.train(train)
        # By hand: torch.optim imports a compiler, which takes seconds.
        speeds = [(value, torch.zeros_like(value)) for value in model.parameters() if value.requires_grad]
        for name, gradient in zip(inputs, upstream):
            values = self.inputs[name] if dtype is None else self.prepared(self.inputs[name], dtype)
            for value, _ in speeds:
                value.grad = None
            with _enable_grad():
                outputs = leaves(model(*values))
                pairs = [(output, up) for output, up in zip(outputs, self.inputs[gradient]) if output.requires_grad]
                _backward([output for output, _ in pairs], [up.to(output.dtype) for output, up in pairs])
            with _no_grad():
                for value, speed in speeds:
                    if value.grad is not None:
                        speed.mul_(0.9).add_(value.grad)
                        value.sub_(rate * speed)
        self.results = {"state." + name: value.detach() for name, value in self.state_of(slot).items()}
        return [[name, str(value.dtype), list(value.shape)] for name, value in self.results.items()]

    # ---- memory ------------------------------------------------------------------------------------------------------

    def do_poison(self, byte, sizes):
        """Fills memory that is free, and that will be handed out, with one byte, so that reading it shows."""
        if sys.platform == "linux" and self.device.type == "cpu":
            with contextlib.suppress(AttributeError, OSError):
                ctypes.CDLL(None).mallopt(M_PERTURB, ~byte & 0xff)
        cuda = self.device.type == "cuda"
        self.results = {}
        if cuda:
            _empty_cache()
        blocks = [torch.empty(size, dtype=torch.uint8, device=self.device).fill_(byte)
                  for size in sizes for _ in range(3 if size < 64 << 20 else 1)]
        del blocks
        if cuda:
            _cuda_synchronize()

    def do_trim(self):
        """Gives free memory back to the system, so that its use can be seen from outside."""
        self.results = {}
        gc.collect()
        if sys.platform == "linux":
            with contextlib.suppress(AttributeError, OSError):
                ctypes.CDLL(None).mallopt(M_PERTURB, 0)
                ctypes.CDLL(None).malloc_trim(0)

    def do_show_memory(self):
        """From now on a block of some size has pages of its own, which come and go with it. Slow: not for timing."""
        if sys.platform == "linux":
            with contextlib.suppress(AttributeError, OSError):
                ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, 32768)

    # ---- many calls, timed by the judge ------------------------------------------------------------------------------

    def do_prepare(self, upstream, shapes):
        """Before a window: the weights as they were, gradients to begin a backward pass with, and results of the given
        shapes for a window that computes nothing."""
        self.results = {}
        for slot in self.starts:
            self.restore(slot)
        self.upstream = self.inputs[upstream] if upstream else []
        self.null_results = [torch.zeros(shape, dtype=wire.DTYPES[dtype], device=self.device)
                             for dtype, shape in shapes]
        if self.device.type == "cuda":
            _cuda_synchronize()

    def sets_of(self, source):
        """[(inputs of a call, those whose gradient is wanted)], from what came with a request: places in a file's
        memory, or weights of inputs that are here. like: the name of inputs of the same form."""
        like, found = self.inputs[source["like"]], []
        if "offsets" in source:
            room = _mmap(self.descriptors[0], source["size"], **POPULATE)
            for offsets in source["offsets"]:
                found.append(rebuild(like, iter([
                    _frombuffer(room, dtype=tensor.dtype, count=tensor.numel(), offset=offset).view(tensor.shape)
                    if tensor.numel() else tensor.clone() for tensor, offset in zip(leaves(like), offsets)])))
        else:
            for weights, change in zip(source["weights"], source["patches"]):
                found.append(blend([self.inputs[base] for base in source["bases"]], weights))
                self.patch(found[-1], *change)
        sets = []
        for values in found:
            tensors = leaves(values)
            sets.append((values, [tensors[number].requires_grad_(True) for number in source["grads"]]))
        return sets

    def forward_once(self, model, values, wanted):
        with _no_grad():
            return leaves(with_numbers(model(*values)))

    def backward_once(self, model, values, wanted):
        outputs = leaves(with_numbers(model(*values)))
        pairs = [(output, up) for output, up in zip(outputs, self.upstream) if output.requires_grad]
        found = _grad([output for output, _ in pairs], wanted, [up for _, up in pairs], allow_unused=True)
        return outputs + [torch.zeros_like(leaf) if value is None else value for leaf, value in zip(wanted, found)]

    def nothing_once(self, model, values, wanted):
        return self.null_results

    def patch(self, values, base, ranges):
        """Rows of another set of inputs into these."""
        for tensor, other, (begin, end) in zip(leaves(values), leaves(self.inputs[base]), ranges):
            if begin < end:
                tensor[begin:end].copy_(other[begin:end])

    def do_window(self, slot, train, backward, null, source, sleep=0, events=False, memory=False):
        """Runs calls on inputs that come with the request and answers with sums of the bits of every result.

        The judge's clock runs from before the request to the end of the answer. sleep: cycles that a GPU sleeps before
        the calls, while they are queued behind it. events: also say what CUDA's events say. null: all but the calls,
        which is asked of the reference's process alone."""
        self.results = {}
        model = self.slots[slot]
        model.train(train)
        once = self.nothing_once if null else self.backward_once if backward else self.forward_once
        parameters = [value for value in model.parameters() if value.requires_grad] if backward else []
        cuda = self.device.type == "cuda"
        kept, marks = [], []
        if cuda:
            self.reset_persisting_cache()
            _cuda_synchronize()
            if sleep and _sleep is not None:
                _sleep(sleep)
        sets = self.sets_of(source)
        if memory and cuda:
            before = _memory_allocated()
            _reset_peak()
        for values, wanted in sets:
            if events:
                begin, end = _Event(enable_timing=True), _Event(enable_timing=True)
                begin.record()
            kept.append(once(model, values, wanted + parameters))
            if events:
                end.record()
                marks.append((begin, end))
        answer = {}
        if memory:
            answer["digests"] = []
            if cuda:
                _cuda_synchronize()
                answer["peak"] = _peak() - before
        else:
            columns = [[_digest(result) for result in column] for column in zip(*kept)]
            if cuda:
                _cuda_synchronize()
            answer["digests"] = [_stack(column).cpu() for column in columns]
        if events:
            answer["events"] = [begin.elapsed_time(end) for begin, end in marks]
        for number, ((values, _), results) in enumerate(zip(sets, kept)):
            self.results.update(("%d.%d" % (number, index), result) for index, result in enumerate(results))
            self.results.update(("input.%d.%d" % (number, index), value) for index, value in enumerate(leaves(values)))
        return answer

    def reset_persisting_cache(self):
        """Takes back what a candidate may have pinned into the L2 cache."""
        with contextlib.suppress(AttributeError, OSError):
            ctypes.CDLL("libcuda.so.1").cuCtxResetPersistingL2Cache()

    # ---- asked of the reference's process only -----------------------------------------------------------------------

    def do_floor(self, size):
        """Bytes a second at which `size` bytes can be read: the best of several passes over rotating buffers."""
        count = max(1, size // 4)
        buffers = [torch.ones(count, device=self.device) for _ in range(max(2, min(64, (256 << 20) // (4 * count))))]
        # On the CPU a piece is timed that a busy machine may let pass undisturbed, about a megabyte.
        piece = max(1, (1 << 18) // count)
        best = 0.0
        for work, moved in ((lambda buffer: buffer.sum(), 1), (lambda buffer: buffers[0].copy_(buffer), 2)):
            for _ in range(5):
                if self.device.type == "cuda":
                    begin, end = _Event(enable_timing=True), _Event(enable_timing=True)
                    begin.record()
                    for buffer in buffers[1:]:
                        work(buffer)
                    end.record()
                    _cuda_synchronize()
                    seconds = begin.elapsed_time(end) / 1e3
                else:
                    seconds = math.inf
                    for first in range(1, len(buffers), piece):
                        part = buffers[first:first + piece]
                        start = time.perf_counter()
                        for buffer in part:
                            work(buffer)
                        taken = (time.perf_counter() - start) * (len(buffers) - 1) / len(part)
                        seconds = min(seconds, taken)
                best = max(best, moved * 4 * count * (len(buffers) - 1) / seconds)
        return best

    def do_multiply_rate(self):
        """Multiplications and additions a second of the fastest matrix product this device does in PyTorch."""
        cuda = self.device.type == "cuda"
        # On the CPU also one that a busy machine may let pass undisturbed, in less than a millisecond.
        cases = [(8192, torch.bfloat16, 5), (8192, torch.float32, 5)] if cuda else [(768, torch.float32, 5),
                                                                                    (256, torch.float32, 50)]
        best = 0.0
        for size, dtype, times in cases:
            a = torch.rand(size, size, device=self.device).to(dtype)
            for _ in range(times):
                if cuda:
                    begin, end = _Event(enable_timing=True), _Event(enable_timing=True)
                    begin.record()
                    a @ a
                    end.record()
                    _cuda_synchronize()
                    seconds = begin.elapsed_time(end) / 1e3
                else:
                    start = time.perf_counter()
                    a @ a
                    seconds = time.perf_counter() - start
                best = max(best, 2.0 * size ** 3 / seconds)
        return best

    def do_multiply(self, dtype):
        """A small product of matrices of a type."""
        a = torch.ones(128, 128, device=self.device).to(dtype)
        return float((a @ a)[0, 0])

    def do_work(self, slot, inputs, train, upstream=None, grads=()):
        """Multiplications and additions in the matrix products of a call; None where PyTorch cannot count them."""
        try:
            from torch.utils.flop_counter import FlopCounterMode
        except ImportError:  # before 2.1
            return None
        model, values = self.slots[slot], self.inputs[inputs]
        model.train(train)
        with FlopCounterMode(display=False) as counter, (_no_grad() if upstream is None else _enable_grad()):
            tensors = [tensor.detach().requires_grad_(upstream is not None and number in grads)
                       if tensor.is_floating_point() else tensor for number, tensor in enumerate(leaves(values))]
            outputs = leaves(model(*rebuild(values, iter(tensors))))
            if upstream is not None:
                # The counter cannot follow autograd.grad, only backward.
                pairs = [(output, up) for output, up in zip(outputs, self.inputs[upstream]) if output.requires_grad]
                _backward([output for output, _ in pairs], [up for _, up in pairs])
                self.restore(slot)
        return counter.get_total_flops()

    def do_device(self):
        """What the work runs on."""
        if self.device.type != "cuda":
            return {"name": None, "cache": None, "free": None}
        properties = torch.cuda.get_device_properties(self.device)
        return {"name": properties.name, "cache": getattr(properties, "L2_cache_size", None),
                "free": torch.cuda.mem_get_info()[0] if hasattr(torch.cuda, "mem_get_info") else None}

    def do_where(self):
        """In words: what the calls ran on."""
        name = torch.cuda.get_device_name(self.device) if self.device.type == "cuda" else "CPU"
        return "%s, %d threads of PyTorch's" % (name, torch.get_num_threads())

    def do_products(self):
        """How onepass multiplies float32 matrices on CUDA with the settings of this process; None where it is not."""
        return fp32.description() if importlib.util.find_spec("onepass._native") else None
