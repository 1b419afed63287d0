# ---- building the packed package -------------------------------------------------------------------------------------

# As CMakeLists.txt and cmake/cuda.cmake have them. Contraction would change bits: the sources say where they fuse.
_C = "-std=c11 -O3 -DNDEBUG -fPIC -fvisibility=hidden -ffp-contract=off -fno-math-errno -Iinclude -Isrc -Icuda".split()
_AVX2 = "-mavx2 -mfma -mf16c".split()
_AVX512 = _AVX2 + "-mavx512f -mavx512bw -mavx512dq -mavx512vl -mprefer-vector-width=512".split()
_LEVELS = {"x86_64": {"avx2": _AVX2, "avx512": _AVX512}, "aarch64": {"neon": []}}
_LINK = ("-shared -Wl,--version-script=python/native.map -Wl,-z,nodelete -Wl,-z,relro -Wl,-z,now -lm -lpthread "
         "-ldl").split()
_NVCC = "-fatbin -O3 -std=c++14 -Xfatbin=-compress-all -Isrc -Xptxas=-v".split()
_NATIVE = "python/onepass/_native.abi3.so"

_log = logging.getLogger("onepass")
_loaded = {}  # {"cpu" or "cuda": module}
_loading = threading.Lock()


def _onepass(tensor):
    """The packed package's module for this tensor's device. Its first use compiles, which takes a minute or two."""
    kind = "cuda" if tensor.is_cuda else "cpu"
    found = _loaded.get(kind)
    return _load(kind) if found is None else found


def _load(kind):
    with _loading:
        if kind == "cpu" and "cuda" in _loaded:
            _loaded["cpu"] = _loaded["cuda"]
        if kind not in _loaded:
            _loaded[kind] = _import(_built(kind, _cuda_tools() if kind == "cuda" else None))
        return _loaded[kind]


_load._torchdynamo_disable = True  # torch.compile calls it; a graph is made of what comes after


def _import(directory):
    """The packed package under a name of its own, so that an installed onepass may be in the same process."""
    name = os.path.basename(directory)
    if name not in sys.modules:
        package = os.path.join(directory, "python", "onepass")
        spec = importlib.util.spec_from_file_location(name, os.path.join(package, "__init__.py"),
                                                      submodule_search_locations=[package])
        sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])
    return importlib.import_module("%s.%s" % (name, _MODULE))


# ---- which commands --------------------------------------------------------------------------------------------------


def _cuda_tools(capabilities=None):
    """(nvcc, its release as (major, minor), its targets) for the GPUs that are visible, or for those given."""
    if torch.version.cuda is None:
        raise RuntimeError("%s: tensors on cuda, but this PyTorch was not built with CUDA" % _OPERATOR)
    homes = [os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), "/usr/local/cuda"]
    found = [os.path.join(home, "bin", "nvcc") for home in homes if home]
    found.insert(len(found) - 1, shutil.which("nvcc") or "")
    nvcc = next(filter(os.path.exists, found), None)
    if nvcc is None:
        raise RuntimeError("%s: tensors on cuda, but no nvcc to compile the kernels with was found; install the CUDA "
                           "%s toolkit or set CUDA_HOME, or pass tensors on the CPU" % (_OPERATOR, torch.version.cuda))
    release = re.search(r"release (\d+)\.(\d+)", _output([nvcc, "--version"], None))
    release = int(release.group(1)), int(release.group(2))
    if capabilities is None:
        capabilities = [torch.cuda.get_device_capability(index) for index in range(torch.cuda.device_count())]
    return nvcc, release, _targets(capabilities, release)


def _targets(capabilities, release):
    """{number: nvcc's flag} for GPUs of these compute capabilities: what of the library's own build they would run."""
    targets = {}
    for capability in sorted(set(capabilities)):
        if capability == (9, 0) and release >= (11, 8):
            targets["90"] = "-gencode=arch=compute_90,code=sm_90"
            if release >= (12, 0):
                targets["90a"] = "-gencode=arch=compute_90a,code=sm_90a"
        elif capability >= (8, 0):
            targets["80"] = "-gencode=arch=compute_80,code=sm_80"
            if capability[0] != 8:
                targets["ptx"] = "-gencode=arch=compute_80,code=compute_80"
    if not targets:
        raise RuntimeError("%s: GPUs of compute capability %s; the kernels need 8.0 or newer" % (
            _OPERATOR, ", ".join("%d.%d" % capability for capability in capabilities) or "none"))
    return targets


def _commands(cuda):
    """Commands in three lists, to be run one after the other, each side by side: kernels and C; C that needs the list
    of kernels; the linker. All paths but those of the tools are relative."""
    found = os.environ.get("CC") or next(filter(shutil.which, ("cc", "gcc", "clang")), None)
    if found is None:
        raise RuntimeError("no C compiler was found: install gcc or clang, or set CC")
    compiler = shlex.split(found) + _C + ["-isystem", sysconfig.get_paths()["include"]]
    levels = _LEVELS.get(platform.machine(), {})
    compiler += ["-DONEPASS_HAVE_%s=1" % level.upper() for level in levels]
    kernels, plain, plans, objects = [], [], [], []
    if cuda:
        nvcc, release, targets = cuda
        common = [flag for number, flag in sorted(targets.items()) if number != "90a"]
        compiler += ["-DONEPASS_HAVE_CUDA=1", '-DONEPASS_CUDA_RELEASE="%d.%d"' % release]
        compiler += ["-DONEPASS_HAVE_SM90A=1"] if "90a" in targets else []
    for path in sorted(_FILES):
        folder, name = os.path.split(path)
        stem, extension = os.path.splitext(name)
        is_hopper = stem.endswith("_sm90a")
        if extension == ".cu" and cuda and (not is_hopper or "90a" in targets):
            fatbin = "cuda/%s_%s.fatbin" % (os.path.basename(folder), stem)
            kernels.append([nvcc] + _NVCC + ([targets["90a"]] if is_hopper else common) + ["-o", fatbin, path])
        if extension != ".c" or (folder == "src/levels" and stem not in levels and stem != "scalar"):
            continue
        is_plan = (folder == "src/cuda" or name.startswith("cuda")) and path != "src/cuda/driver.c"
        if is_plan and not cuda:
            continue
        objects.append(path[:-1] + "o")
        flags = levels.get(stem, []) if folder == "src/levels" else []
        (plans if is_plan else plain).append(compiler + flags + ["-c", path, "-o", objects[-1]])
    return kernels + plain, plans, [shlex.split(found) + objects + ["-o", "native.so"] + _LINK]


# ---- running them ----------------------------------------------------------------------------------------------------


def _built(kind, cuda):
    """The directory of the package, compiled there once; processes that come meanwhile wait."""
    try:
        steps = _commands(cuda)
        key = repr((sorted(_FILES.items()), steps, os.confstr("CS_GNU_LIBC_VERSION"))).encode()
        # Files with the same sources share what they compile.
        name = "onepass_%s_%s_%s" % (_FOLDERS, kind, hashlib.sha256(key).hexdigest()[:16])
        caches = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
        root = os.environ.get("TORCH_EXTENSIONS_DIR") or os.path.join(caches, "torch_extensions")
        directory = os.path.join(os.path.abspath(root), name)
        if os.path.exists(os.path.join(directory, _NATIVE)):
            return directory
        directory, lock = _locked(directory)
        with lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not os.path.exists(os.path.join(directory, _NATIVE)):
                _log.info("%s: compiling in %s", _OPERATOR, directory)
                _build(directory, steps)
        return directory
    except (OSError, RuntimeError) as error:
        raise RuntimeError("%s: the kernels for %s could not be compiled: %s" % (_OPERATOR, kind, error)) from error


def _locked(directory):
    """(directory, its open lock file); another one, for this process alone, where the cache cannot be written to."""
    try:
        os.makedirs(directory, exist_ok=True)
        return directory, open(os.path.join(directory, "lock"), "w")
    except OSError as error:
        _log.warning("%s: %s; compiling for this process alone", _OPERATOR, error)
        own = tempfile.mkdtemp(prefix="onepass_")
        atexit.register(shutil.rmtree, own, ignore_errors=True)
        directory = os.path.join(own, os.path.basename(directory))
        os.makedirs(directory)
        return directory, open(os.path.join(directory, "lock"), "w")


def _build(directory, steps):
    # Absolute imports and the namespace of torch.ops, under the name that _import gives the package.
    rename = re.compile(r'(?<=from )onepass\b|(?<=\bops\.)onepass\b|(?<=Library\(")onepass\b')
    _unpack(directory, lambda text: rename.sub(os.path.basename(directory), text))
    os.makedirs(os.path.join(directory, "cuda"), exist_ok=True)
    first, second, link = steps
    images, kernels = [], []
    for command, text in zip(first, _run(first, directory)):
        if command[1] == "-fatbin":
            fatbin = command[-2]
            names = set(re.findall(r"Compiling entry function '(\w+)'", text))
            kernels += ["KERNEL(%s, %d)\n" % (name, len(images)) for name in names]
            images.append('IMAGE(%s, "%s")\n' % (os.path.basename(fatbin)[:-len(".fatbin")], fatbin))
    _write(os.path.join(directory, "cuda", "fatbin_images.inc"), "".join(images))
    _write(os.path.join(directory, "cuda", "fatbin_kernels.inc"), "".join(sorted(kernels)))
    _run(second, directory)
    _run(link, directory)
    os.replace(os.path.join(directory, "native.so"), os.path.join(directory, _NATIVE))


def _run(commands, directory):
    """Runs commands side by side; what each of them says."""
    with concurrent.futures.ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        return list(pool.map(lambda command: _output(command, directory), commands))


def _output(command, directory):
    done = subprocess.run(command, cwd=directory, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          universal_newlines=True)
    if done.returncode != 0:
        raise RuntimeError("in %s: %s\n%s" % (directory, " ".join(command), done.stdout[-3000:]))
    return done.stdout


def _unpack(directory, change=str):
    """Writes the sources, by their paths in the project; Python's changed."""
    for path, text in _FILES.items():
        target = os.path.join(directory, *path.split("/"))
        os.makedirs(os.path.dirname(target), exist_ok=True)
        _write(target, change(text) if path.endswith(".py") else text)


def _write(path, text):
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)
