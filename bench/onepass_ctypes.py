"""The library's C interface as seen from Python's ctypes, for benchmarks: PyTorch's tensors are passed by address."""
import ctypes

import torch

DTYPES = {torch.float16: (2, 16), torch.bfloat16: (4, 16), torch.float32: (2, 32), torch.float64: (2, 64)}
FORMS = ("probs_probs", "log_probs_probs", "probs_log_probs", "log_probs_log_probs")
CUDA = 2
BATCHMEAN = 0


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
                ("progress_context", ctypes.c_void_p)]


class Options(ctypes.Structure):
    _fields_ = [("size", ctypes.c_size_t), ("reduction", ctypes.c_int), ("semantics", ctypes.c_int),
                ("divisor", ctypes.c_double), ("row_weights", ctypes.c_void_p), ("row_mask", ctypes.c_void_p),
                ("grad_value", ctypes.c_void_p), ("grad_made_for", ctypes.c_void_p), ("workspace", ctypes.c_void_p),
                ("workspace_size", ctypes.c_size_t)]


def describe(tensor):
    """The descriptor of a tensor; it keeps nothing alive."""
    described = Tensor()
    described.data = tensor.data_ptr()
    described.device = Device(CUDA, tensor.device.index or 0)
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

    def check(self, status):
        if status != 0:
            raise RuntimeError(self.c.onepass_last_error().decode())

    def handle(self, stream):
        """A handle whose work is ordered on a torch stream."""
        config = Config(size=ctypes.sizeof(Config), device=Device(CUDA, torch.cuda.current_device()),
                        stream=stream.cuda_stream)
        handle = ctypes.c_void_p()
        self.check(self.c.onepass_create(ctypes.byref(config), ctypes.byref(handle)))
        return handle


class KlCall:
    """One call with everything prepared: made once, called often. batchmean, strict."""

    def __init__(self, library, form, predictions, targets, gradient, value_type=None):
        self.library = library
        self.entry = getattr(library.c, "onepass_kl_" + form)
        value_type = value_type or (torch.float64 if predictions.dtype == torch.float64 else torch.float32)
        self.value = torch.full((), float("nan"), dtype=value_type, device="cuda")
        self.gradient = torch.empty_like(predictions) if gradient else None
        self.kept = [describe(predictions), describe(targets), describe(self.value)]
        self.options = Options(size=ctypes.sizeof(Options), reduction=BATCHMEAN)
        self.handles = {}
        bytes_needed = ctypes.c_size_t()
        library.check(library.c.onepass_kl_workspace_size(
            self.handle(), ctypes.byref(self.kept[0]), ctypes.byref(self.options), ctypes.byref(bytes_needed)))
        self.workspace = torch.empty(max(bytes_needed.value, 1), dtype=torch.uint8, device="cuda")
        self.options.workspace = self.workspace.data_ptr()
        self.options.workspace_size = bytes_needed.value
        self.workspace_bytes = bytes_needed.value
        if gradient:
            self.kept.append(describe(self.gradient))
        addresses = [ctypes.addressof(item) for item in self.kept]
        self.arguments = (addresses[0], addresses[1], ctypes.addressof(self.options), addresses[2],
                          addresses[3] if gradient else None, None)

    def handle(self):
        """A handle for torch's current stream."""
        stream = torch.cuda.current_stream()
        if stream.cuda_stream not in self.handles:
            self.handles[stream.cuda_stream] = self.library.handle(stream)
        return self.handles[stream.cuda_stream]

    def __call__(self):
        status = self.entry(self.handle(), *self.arguments)
        if status != 0:
            self.library.check(status)
        return self.value

    def close(self):
        torch.cuda.synchronize()
        for handle in self.handles.values():
            self.library.c.onepass_destroy(handle)
        self.handles = {}


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
