"""The library's C interface as seen from Python's ctypes, for benchmarks: PyTorch's tensors are passed by address."""
import ctypes

import torch

DTYPES = {torch.float16: (2, 16), torch.bfloat16: (4, 16), torch.float32: (2, 32), torch.float64: (2, 64),
          torch.int64: (0, 64)}
FORMS = ("probs_probs", "log_probs_probs", "probs_log_probs", "log_probs_log_probs")
DEVICES = {"cpu": 1, "cuda": 2}
BATCHMEAN = 0
BATCH_STATISTICS, RUNNING_STATISTICS = 0, 1
FP32_FULL, FP32_TF32, FP32_SPLIT, FP32_VENDOR = 0, 1, 2, 3


class Device(ctypes.Structure):
    _fields_ = [("type", ctypes.c_int32), ("id", ctypes.c_int32)]


class Dtype(ctypes.Structure):
    _fields_ = [("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16)]


class Tensor(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("device", Device), ("ndim", ctypes.c_int32), ("dtype", Dtype),
                ("shape", ctypes.POINTER(ctypes.c_int64)), ("strides", ctypes.POINTER(ctypes.c_int64)),
                ("byte_offset", ctypes.c_uint64)]


class Config(ctypes.Structure):
    _fields_ = [("size", ctypes.c_size_t), ("device", Device), ("stream", ctypes.c_void_p),
                ("threads", ctypes.c_int32), ("isa", ctypes.c_char_p), ("progress", ctypes.c_void_p),
                ("progress_context", ctypes.c_void_p), ("trust_addresses", ctypes.c_int32),
                ("fp32_products", ctypes.c_int32), ("blas", ctypes.c_char_p)]


class Options(ctypes.Structure):
    _fields_ = [("size", ctypes.c_size_t), ("reduction", ctypes.c_int), ("semantics", ctypes.c_int),
                ("divisor", ctypes.c_double), ("row_weights", ctypes.c_void_p), ("row_mask", ctypes.c_void_p),
                ("grad_value", ctypes.c_void_p), ("grad_made_for", ctypes.c_void_p), ("workspace", ctypes.c_void_p),
                ("workspace_size", ctypes.c_size_t)]


class HeadOptions(ctypes.Structure):
    _fields_ = [("size", ctypes.c_size_t), ("statistics", ctypes.c_int), ("cumulative", ctypes.c_int32),
                ("eps", ctypes.c_double), ("momentum", ctypes.c_double)] + [
        (name, ctypes.c_void_p) for name in ("bias", "gamma", "beta", "scale", "running_mean", "running_var",
                                             "batches_tracked", "workspace")] + [
        ("workspace_size", ctypes.c_size_t), ("prepared_weight", ctypes.c_void_p)]


class HeadGradients(ctypes.Structure):
    _fields_ = [("size", ctypes.c_size_t)] + [
        (name, ctypes.c_void_p) for name in ("input", "weight", "bias", "gamma", "beta", "scale")]


def describe(tensor):
    """The descriptor of a tensor; it keeps nothing alive."""
    described = Tensor()
    described.data = tensor.data_ptr()
    described.device = Device(DEVICES[tensor.device.type], tensor.device.index or 0)
    described.ndim = tensor.dim()
    described.dtype = Dtype(*DTYPES[tensor.dtype], 1)
    described.shape = (ctypes.c_int64 * max(tensor.dim(), 1))(*tensor.shape)
    described.strides = (ctypes.c_int64 * max(tensor.dim(), 1))(*tensor.stride())
    return described


class Library:
    def __init__(self, path):
        self.c = ctypes.CDLL(path)
        self.c.onepass_last_error.restype = ctypes.c_char_p
        for form in FORMS:
            getattr(self.c, "onepass_kl_" + form).argtypes = [ctypes.c_void_p] * 7
        pointer, size = ctypes.c_void_p, ctypes.c_size_t
        self.c.onepass_linear.argtypes = [pointer] * 6 + [size]
        self.c.onepass_linear_prepared.argtypes = [pointer] * 7 + [size]
        self.c.onepass_linear_backward.argtypes = [pointer] * 8 + [size]
        self.c.onepass_prepare_weight.argtypes = [pointer] * 3 + [size]
        self.c.onepass_prepare_weight_size.argtypes = [pointer] * 3
        self.c.onepass_head.argtypes = [pointer] * 8
        self.c.onepass_head_backward.argtypes = [pointer] * 10
        self.c.onepass_linear_workspace_size.argtypes = [pointer] * 4
        self.c.onepass_head_workspace_size.argtypes = [pointer] * 7
        self.c.onepass_head_backward_workspace_size.argtypes = [pointer] * 5

    def check(self, status):
        if status != 0:
            raise RuntimeError(self.c.onepass_last_error().decode())

    def handle(self, stream=None, fp32_products=FP32_FULL):
        """A handle whose work is ordered on a torch stream; without one, of the CPU."""
        config = Config(size=ctypes.sizeof(Config), fp32_products=fp32_products)
        if stream is not None:
            config.device = Device(DEVICES["cuda"], torch.cuda.current_device())
            config.stream = stream.cuda_stream
        handle = ctypes.c_void_p()
        self.check(self.c.onepass_create(ctypes.byref(config), ctypes.byref(handle)))
        return handle


class Handles:
    """A handle for each of torch's streams that work is ordered on, or one of the CPU; made when first needed."""

    def __init__(self, library, device, fp32_products=FP32_FULL):
        self.library, self.device, self.fp32_products = library, torch.device(device), fp32_products
        self.made = {}

    def current(self):
        stream = torch.cuda.current_stream() if self.device.type == "cuda" else None
        key = stream.cuda_stream if stream is not None else None
        if key not in self.made:
            self.made[key] = self.library.handle(stream, self.fp32_products)
        return self.made[key]

    def close(self):
        if self.device.type == "cuda":
            torch.cuda.synchronize()
        for handle in self.made.values():
            self.library.c.onepass_destroy(handle)
        self.made = {}


class Call:
    """A call with everything prepared: made once, called often. Its results are tensors of its own; its handles are,
    too, unless it is given some."""

    def __init__(self, library, device, fp32_products=FP32_FULL, handles=None):
        self.library, self.device = library, torch.device(device)
        self.handles = handles or Handles(library, device, fp32_products)
        self.kept = []  # descriptors, whose addresses are passed, and their tensors

    def address(self, tensor):
        """Of a tensor's descriptor; None for None."""
        if tensor is None:
            return None
        described = describe(tensor)
        self.kept.append((described, tensor))
        return ctypes.addressof(described)

    def empty(self, like, shape=None, dtype=None):
        """A result, NaN until it is written."""
        dtype = dtype or like.dtype
        return torch.full(like.shape if shape is None else shape, float("nan"), dtype=dtype, device=self.device)

    def workspace(self, *sizes):
        """(tensor, bytes): room for the largest. Each size is a function that takes a pointer to what it finds."""
        found = [ctypes.c_size_t() for _ in sizes]
        for size, needed in zip(sizes, found):
            self.library.check(size(ctypes.byref(needed)))
        needed = max(size.value for size in found)
        return torch.empty(max(needed, 1), dtype=torch.uint8, device=self.device), needed

    def prepare(self, weight):
        """(tensor, bytes): the weight whose descriptor is given, in the form of the library's own fp32 product."""
        made, size = self.workspace(
            lambda needed: self.library.c.onepass_prepare_weight_size(self.handle(), weight, needed))
        self.library.check(self.library.c.onepass_prepare_weight(self.handle(), weight, made.data_ptr(), size))
        return made, size

    def handle(self):
        return self.handles.current()

    def close(self):
        self.handles.close()


class KlCall(Call):
    """A divergence, and the gradient to the predictions if asked for. batchmean, strict."""

    def __init__(self, library, form, predictions, targets, gradient, value_type=None):
        super().__init__(library, predictions.device)
        self.entry = getattr(library.c, "onepass_kl_" + form)
        value_type = value_type or (torch.float64 if predictions.dtype == torch.float64 else torch.float32)
        self.value = self.empty(predictions, (), value_type)
        self.gradient = torch.empty_like(predictions) if gradient else None
        self.options = Options(size=ctypes.sizeof(Options), reduction=BATCHMEAN)
        p, t = self.address(predictions), self.address(targets)
        self.room, self.workspace_bytes = self.workspace(lambda needed: library.c.onepass_kl_workspace_size(
            self.handle(), ctypes.c_void_p(p), ctypes.byref(self.options), needed))
        self.options.workspace = self.room.data_ptr()
        self.options.workspace_size = self.workspace_bytes
        self.arguments = (p, t, ctypes.addressof(self.options), self.address(self.value), self.address(self.gradient),
                          None)

    def __call__(self):
        status = self.entry(self.handle(), *self.arguments)
        if status != 0:
            self.library.check(status)
        return self.value


def bytes_of(tensors):
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors if tensor is not None)


class LinearCall(Call):
    """input weight^T + bias; if asked for, with a weight that is prepared here, once."""

    def __init__(self, library, input, weight, bias, fp32_products=FP32_FULL, prepare=False, handles=None):
        super().__init__(library, input.device, fp32_products, handles)
        self.output = self.empty(input, (input.shape[0], weight.shape[0]))
        x, w = self.address(input), self.address(weight)
        self.room, needed = self.workspace(
            lambda size: library.c.onepass_linear_workspace_size(self.handle(), x, w, size))
        self.entry, weights, prepared_bytes = library.c.onepass_linear, (w,), 0
        if prepare:
            self.prepared, prepared_bytes = self.prepare(w)
            self.entry, weights = library.c.onepass_linear_prepared, (w, self.prepared.data_ptr())
        self.arguments = (x, *weights, self.address(bias), self.address(self.output), self.room.data_ptr(), needed)
        self.extra_bytes = needed + prepared_bytes + bytes_of([self.output])

    def __call__(self):
        status = self.entry(self.handle(), *self.arguments)
        if status != 0:
            self.library.check(status)
        return self.output


class HeadCall(Call):
    """The forward pass of a module with gemm, bn and scale (problems/linear_bn_softmax.py) in its mode, and with an
    upstream gradient the backward pass to input, weight, bias, gamma, beta and scale: `gradients`, in this order. If
    asked for, with a weight that is prepared here, once."""

    def __init__(self, library, model, input, upstream=None, fp32_products=FP32_FULL, prepare=False):
        super().__init__(library, input.device, fp32_products)
        gemm, bn, train = model.gemm, model.bn, model.training
        weight, n = gemm.weight.detach(), gemm.weight.shape[0]
        parameters = [tensor.detach() for tensor in (gemm.bias, bn.weight, bn.bias, model.scale)]
        computed = torch.float64 if input.dtype == torch.float64 else torch.float32
        self.output = self.empty(input, (input.shape[0], n))
        backward = upstream is not None
        self.state = [self.empty(input, shape, computed) for shape in ((input.shape[0], n), (n,), (n,))] if backward \
            else [None] * 3
        self.gradients = [self.empty(tensor) for tensor in [input, weight] + parameters] if backward else []
        options = HeadOptions(size=ctypes.sizeof(HeadOptions), eps=bn.eps, momentum=bn.momentum if train else 0,
                              statistics=BATCH_STATISTICS if train else RUNNING_STATISTICS)
        for name, tensor in zip(("bias", "gamma", "beta", "scale"), parameters):
            setattr(options, name, self.address(tensor))
        options.running_mean, options.running_var = self.address(bn.running_mean), self.address(bn.running_var)
        options.batches_tracked = self.address(bn.num_batches_tracked) if train else None
        self.options, at = options, ctypes.addressof(options)
        x, w, out = self.address(input), self.address(weight), self.address(self.output)
        state = [self.address(tensor) for tensor in self.state]
        prepared_bytes = 0
        if prepare:
            self.prepared, prepared_bytes = self.prepare(w)
            options.prepared_weight = self.prepared.data_ptr()
        sizes = [lambda size: library.c.onepass_head_workspace_size(self.handle(), x, w, at, out, state[0], size)]
        if backward:
            sizes.append(lambda size: library.c.onepass_head_backward_workspace_size(self.handle(), x, w, at, size))
        self.room, needed = self.workspace(*sizes)
        options.workspace, options.workspace_size = self.room.data_ptr(), needed
        self.forward = (x, w, at, out) + tuple(state)
        self.backward = None
        if backward:
            self.asked = HeadGradients(ctypes.sizeof(HeadGradients), *[self.address(made) for made in self.gradients])
            self.backward = (self.address(upstream), out, x, w) + tuple(state) + (at, ctypes.addressof(self.asked))
        self.extra_bytes = needed + prepared_bytes + bytes_of([self.output] + self.state + self.gradients)

    def __call__(self):
        handle = self.handle()
        status = self.library.c.onepass_head(handle, *self.forward)
        if status == 0 and self.backward:
            status = self.library.c.onepass_head_backward(handle, *self.backward)
        if status != 0:
            self.library.check(status)
        return self.output


class ReadProbe:
    """The plain read of memory in src/cuda/probe.cu, launched on torch's stream: what no kernel can beat."""

    def __init__(self, fatbin):
        self.driver = ctypes.CDLL("libcuda.so.1")
        torch.cuda.current_stream().synchronize()  # torch's context is current now
        with open(fatbin, "rb") as file:
            self.image = file.read()
        module, self.function = ctypes.c_void_p(), ctypes.c_void_p()
        self.must(self.driver.cuModuleLoadData(ctypes.byref(module), self.image))
        self.must(self.driver.cuModuleGetFunction(ctypes.byref(self.function), module, b"onep_read_probe"))
        self.sink = torch.zeros(1, dtype=torch.int32, device="cuda")
        self.grid = 2 * torch.cuda.get_device_properties(0).multi_processor_count

    @staticmethod
    def must(error):
        if error != 0:
            raise RuntimeError("the CUDA driver answers %d" % error)

    def over(self, tensor):
        """A function that reads the whole tensor once."""
        size = tensor.numel() * tensor.element_size() // 16 * 16
        values = (ctypes.c_uint64(tensor.data_ptr()), ctypes.c_uint64(size), ctypes.c_uint64(self.sink.data_ptr()))
        packed = (ctypes.c_uint64 * 3)(*[value.value for value in values])
        parameters = (ctypes.c_void_p * 1)(ctypes.addressof(packed))

        def run():
            self.must(self.driver.cuLaunchKernel(
                self.function, self.grid, 1, 1, 512, 1, 1, 0,
                ctypes.c_void_p(torch.cuda.current_stream().cuda_stream), parameters, None))
            return packed  # keeps the arguments alive as long as the function
        return run
