# ---- compiling -------------------------------------------------------------------------------------------------------

_loaded = {}
_loading = threading.Lock()


def _extension(tensor):
    """The compiled library for the device of this tensor; made at its first use, which takes up to a minute or two."""
    kind = tensor.device.type
    if kind not in _loaded:
        with _loading:
            if kind not in _loaded:
                _loaded[kind] = _load(kind)
    return _loaded[kind]


def _load(kind):
    if kind not in ("cpu", "cuda"):
        raise RuntimeError("%s: tensors on %r; this model has kernels for cpu and cuda" % (_OPERATOR, kind))
    try:
        from torch.utils import cpp_extension
    except ImportError as error:
        raise RuntimeError("%s: PyTorch cannot compile extensions here: %s" % (_OPERATOR, error)) from error
    # Contraction would change bits; the kernels say themselves where they fuse. Hexadecimal numbers came with C++17.
    flags = ["-O3", "-ffp-contract=off", "-fno-math-errno", "-fvisibility=hidden"]
    if torch.__version__.startswith("1."):
        flags.append("-std=gnu++14")
    options = {"cpp_sources": [_FILES[_OPERATOR + ".cpp"]], "extra_cflags": flags}
    key = [sys.version, torch.__version__, os.environ.get("CXX")]
    architectures = None
    if kind == "cuda":
        capabilities = _check_cuda(cpp_extension)
        architectures, hopper = _architectures(cpp_extension, capabilities)
        key += [capabilities, cpp_extension.CUDA_HOME, architectures]
        flags.append("-DONEPASS_EXPORT_CUDA=1")
        options["cuda_sources"] = [_FILES["kernels.cu"]]
        options["extra_cuda_cflags"] = ["-O3", "-Xcompiler=-fvisibility=hidden"]
        if hopper:
            options["extra_cuda_cflags"].append("-DONEPASS_EXPORT_HOPPER=1")
    if "no_implicit_headers" in inspect.signature(cpp_extension.load_inline).parameters:
        options["no_implicit_headers"] = True  # the sources name what they need, a fraction of it
    key = repr([key, sorted(options.items()), sorted(_FILES.items())])
    name = "onepass_%s_%s_%s" % (_OPERATOR, kind, hashlib.sha256(key.encode()).hexdigest()[:16])
    root = os.environ.get("TORCH_EXTENSIONS_DIR") or cpp_extension.get_default_build_root()
    directory = os.path.join(root, name)
    logging.getLogger("onepass").info("%s: compiling in %s", _OPERATOR, directory)
    try:
        return _build(cpp_extension, name, directory, architectures, options)
    except (ImportError, OSError, RuntimeError, subprocess.SubprocessError) as error:
        raise RuntimeError("%s: the kernels for %s could not be compiled in %s: %s"
                           % (_OPERATOR, kind, directory, error)) from error


def _check_cuda(cpp_extension):
    """The compute capabilities of the GPUs of this machine; raises if the kernels cannot be compiled for them."""
    if torch.version.cuda is None:
        raise RuntimeError("%s: tensors on cuda, but this PyTorch was not built with CUDA" % _OPERATOR)
    home = cpp_extension.CUDA_HOME
    if home is None or not os.path.exists(os.path.join(home, "bin", "nvcc")):
        raise RuntimeError("%s: tensors on cuda, but no nvcc to compile the kernels with was found (CUDA_HOME is %s); "
                           "install the CUDA %s toolkit, or pass tensors on the CPU"
                           % (_OPERATOR, home, torch.version.cuda))
    capabilities = _capabilities()
    if capabilities[0] < (8, 0):
        raise RuntimeError("%s: a GPU here has compute capability %d.%d; the kernels need 8.0 or newer on each that is "
                           "visible (CUDA_VISIBLE_DEVICES)" % ((_OPERATOR,) + capabilities[0]))
    return capabilities


def _capabilities():
    return sorted({torch.cuda.get_device_capability(index) for index in range(torch.cuda.device_count())})


def _architectures(cpp_extension, capabilities):
    """(TORCH_CUDA_ARCH_LIST to compile with, whether kernels are in it that Hopper alone can run).

    Those need the architecture 9.0a, which PyTorch takes for no GPU by itself. A list that is set stays as it is. Code
    for 8.0 runs on every other GPU that may be beside a Hopper.
    """
    given = wanted = os.environ.get("TORCH_CUDA_ARCH_LIST")
    if "split_sm90a.cu" not in _FILES:
        return given, False
    if given in (None, "", "native") and (9, 0) in capabilities:
        wanted = "9.0a" if len(capabilities) == 1 else "8.0+PTX;9.0a"
    if wanted and "9.0a" in wanted and _compiles_for_hopper(cpp_extension, wanted):
        return wanted, True
    return given, False


def _compiles_for_hopper(cpp_extension, architectures):
    """Whether PyTorch makes sm_90a of this list, and nvcc knows it: since 2.2, and since 12.0."""
    try:
        with _arch_list(architectures):
            known = any("sm_90a" in flag for flag in cpp_extension._get_cuda_arch_flags())
    except (AttributeError, ValueError):
        return False
    nvcc = subprocess.run([os.path.join(cpp_extension.CUDA_HOME, "bin", "nvcc"), "--version"], stdout=subprocess.PIPE,
                          universal_newlines=True)
    release = re.search(r"release (\d+)\.", nvcc.stdout)
    return known and release is not None and int(release.group(1)) >= 12


@contextlib.contextmanager
def _arch_list(architectures):
    """TORCH_CUDA_ARCH_LIST as given, None for none, for as long as this lasts."""
    before = os.environ.pop("TORCH_CUDA_ARCH_LIST", None)
    try:
        if architectures is not None:
            os.environ["TORCH_CUDA_ARCH_LIST"] = architectures
        yield
    finally:
        os.environ.pop("TORCH_CUDA_ARCH_LIST", None)
        if before is not None:
            os.environ["TORCH_CUDA_ARCH_LIST"] = before


def _build(cpp_extension, name, directory, architectures, options):
    """The extension from a directory whose name says what is in it; compiled there once, others wait meanwhile."""
    os.makedirs(directory, exist_ok=True)
    complete = os.path.join(directory, "complete")
    with open(os.path.join(directory, "onepass.lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not os.path.exists(complete):
            if not cpp_extension.is_ninja_available():
                raise RuntimeError("ninja is needed and is not on the PATH: pip install ninja")
            # With this lock held, PyTorch's own can only have been left by a process that was killed.
            if os.path.exists(os.path.join(directory, "lock")):
                os.unlink(os.path.join(directory, "lock"))
            for path, text in _FILES.items():
                with open(os.path.join(directory, path), "w", encoding="utf-8") as file:
                    file.write(text)
            with _arch_list(architectures):
                module = cpp_extension.load_inline(name=name, build_directory=directory, **options)
            open(complete, "w").close()
            return module
    spec = importlib.util.spec_from_file_location(name, os.path.join(directory, name + ".so"))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _autocast_takes_device():
    try:
        torch.is_autocast_enabled("cpu")
        return True
    except TypeError:  # PyTorch before 2.4
        return False


_AUTOCAST_TAKES_DEVICE = _autocast_takes_device()


def _autocast(tensor):
    """Whether autocast is on for the device of this tensor."""
    if tensor.device.type not in ("cpu", "cuda"):
        return False
    if _AUTOCAST_TAKES_DEVICE:
        return torch.is_autocast_enabled(tensor.device.type)
    return torch.is_autocast_enabled() if tensor.is_cuda else torch.is_autocast_cpu_enabled()
