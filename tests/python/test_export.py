"""python -m onepass.export: the command, the file it writes, and the C++ and CUDA in it. The model is not run here."""
import contextlib
import importlib.util
import os
import pathlib
import re
import shutil
import subprocess
import sys

import pytest

from onepass import export
from onepass.export import gather

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
PACKAGE = pathlib.Path(export.__file__).parent.parent.parent


def command(*words, package=PACKAGE, **options):
    """python -m onepass.export WORDS, from elsewhere."""
    return subprocess.run([sys.executable, "-m", "onepass.export", *words], stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, universal_newlines=True, cwd="/",
                          env=dict(os.environ, PYTHONPATH=str(package)), **options)


def load(path, name="model_new"):
    """The module in an exported file."""
    spec = importlib.util.spec_from_file_location(name, str(path))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@contextlib.contextmanager
def exported(operator, directory):
    """The exported file, in a directory where PyTorch keeps what it compiles for it as well."""
    path = directory / "model_new.py"
    path.write_text(export.export(operator), encoding="utf-8")
    before = os.environ.get("TORCH_EXTENSIONS_DIR")
    os.environ["TORCH_EXTENSIONS_DIR"] = str(directory / "extensions")
    try:
        yield path
    finally:
        os.environ.pop("TORCH_EXTENSIONS_DIR")
        if before is not None:
            os.environ["TORCH_EXTENSIONS_DIR"] = before


def set_architectures(monkeypatch, architectures):
    """TORCH_CUDA_ARCH_LIST; None: not set."""
    if architectures is None:
        monkeypatch.delenv("TORCH_CUDA_ARCH_LIST", raising=False)
    else:
        monkeypatch.setenv("TORCH_CUDA_ARCH_LIST", architectures)


def files_of(text):
    """The sources in an exported file, {name: text}, without running it."""
    found = re.findall(r"^_FILES\['([^']+)'\] = (r'''.*?'''|r\"\"\".*?\"\"\")$", text, re.MULTILINE | re.DOTALL)
    return {name: quoted[4:-3] for name, quoted in found}


# ---- the command -----------------------------------------------------------------------------------------------------


def test_list_names_every_operator():
    done = command("--list")
    assert done.returncode == 0 and done.stderr == ""
    assert [line.split()[0] for line in done.stdout.splitlines()] == list(export.OPERATORS)
    assert list(export.OPERATORS) == ["kl_div", "linear_bn_softmax"]


def test_help_names_options_and_exit_codes():
    done = command("--help")
    assert done.returncode == 0
    for word in ("OPERATOR", "-o", "--list", "Exit codes"):
        assert word in done.stdout


@pytest.mark.parametrize("words, named", [((), "OPERATOR"), (("kl_div",), "-o"), (("nothing", "-o", "-"), "'nothing'"),
                                          (("kl_div", "-o", "-", "--fast"), "--fast")])
def test_wrong_usage_is_2_and_named(words, named):
    done = command(*words)
    assert done.returncode == 2 and done.stdout == ""
    assert named in done.stderr


def test_a_file_that_cannot_be_written_is_3(tmp_path):
    done = command("kl_div", "-o", str(tmp_path / "missing" / "model.py"))
    assert done.returncode == 3 and "missing" in done.stderr and "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_missing_sources_are_3(tmp_path):
    shutil.copytree(str(PACKAGE / "onepass"), str(tmp_path / "onepass"), ignore=shutil.ignore_patterns("sources"))
    done = command("kl_div", "-o", "-", package=tmp_path)
    assert done.returncode == 3 and "neither installed" in done.stderr and "Traceback" not in done.stderr


def test_file_and_standard_output_are_the_same_bytes(tmp_path):
    first, second = tmp_path / "first.py", tmp_path / "second.py"
    second.write_text("something else", encoding="utf-8")
    for path in (first, second):
        done = command("kl_div", "-o", str(path))
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert first.read_bytes() == second.read_bytes() == command("kl_div", "-o", "-").stdout.encode()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["first.py", "second.py"]


def test_an_installed_package_writes_the_same_bytes(tmp_path):
    """With nothing but what sources.txt tells the build to install."""
    ignore = shutil.ignore_patterns("sources", "__pycache__", "*.so")
    shutil.copytree(str(PACKAGE / "onepass"), str(tmp_path / "onepass"), ignore=ignore)
    for path in gather.listed():
        target = tmp_path / "onepass" / "export" / "sources" / path
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(str(ROOT / path), str(target))
    for operator in export.OPERATORS:
        done = command(operator, "-o", "-", package=tmp_path)
        assert done.returncode == 0, done.stderr
        assert done.stdout == export.export(operator)


# ---- the file --------------------------------------------------------------------------------------------------------


every_operator = pytest.mark.parametrize("operator", list(export.OPERATORS))


@every_operator
def test_head_says_what_it_is_and_how_it_was_made(operator):
    head = export.export(operator).split('"""')[1]
    made_by = "python -m onepass.export " + operator
    for words in ("class ModelNew", "onepass " + gather.version(), made_by, "Apache-2.0"):
        assert words in head


def test_sources_txt_lists_what_is_used(monkeypatch):
    """No more and no fewer."""
    used = []
    read = gather.read
    monkeypatch.setattr(gather, "read", lambda path: used.append(path) or read(path))
    for operator in export.OPERATORS:
        export.export(operator)
    assert set(used) == set(gather.listed()) and len(gather.listed()) == len(set(gather.listed()))


@every_operator
def test_sources_are_the_librarys_word_for_word(operator):
    """The list of kernels but for the lines of other operators."""
    files = files_of(export.export(operator))
    whole = [path for path in gather.listed() if gather.flat_name(path) in files]
    assert len(whole) > 40
    own = tuple("KERNEL(%s," % name for name in export.OPERATORS[operator].kernels)
    for path in whole:
        text = (ROOT / path).read_text(encoding="utf-8")
        if path == "src/core/kernels.def":
            text = "".join(line for line in text.splitlines(True) if line.startswith(own) or line[:6] != "KERNEL")
        assert files[gather.flat_name(path)] == text, path


def test_lines_of_kl_are_the_librarys():
    lines = files_of(export.export("kl_div"))["kl_kernels.inc"].splitlines()[1:]
    cut = "".join((ROOT / "src" / "cuda" / ("kl_%s.cu" % word)).read_text(encoding="utf-8")
                  for word in ("f16", "bf16", "f32", "f64"))
    assert len(lines) == 14 and all(line + "\n" in cut for line in lines)


@every_operator
def test_every_include_is_there(operator):
    files = files_of(export.export(operator))
    included = {name for text in files.values() for name in re.findall(r'^#include "([^"]+)"', text, re.MULTILINE)}
    assert included <= set(files)
    assert set(files) - included == {operator + ".cpp", "kernels.cu"}


def test_only_the_head_has_kernels_for_hopper():
    kl, head = (files_of(export.export(operator)) for operator in ("kl_div", "linear_bn_softmax"))
    for name in ("copy_engine.inc", "split_sm90a.cu", "hopper.cuh"):
        assert name in head and name not in kl
    assert "ClusterDimension" not in "".join(kl.values()) and "ampere.cuh" not in head


def test_two_sources_of_one_name_are_refused(monkeypatch):
    monkeypatch.setattr(gather, "listed", lambda: ["src/core/kl.h", "src/cuda/kl.h"])
    with pytest.raises(ValueError, match="kl.h"):
        gather.with_includes([], {}, [])


# ---- the C++ and CUDA in it, without PyTorch -------------------------------------------------------------------------


@pytest.fixture(scope="module", params=list(export.OPERATORS))
def directory(request, tmp_path_factory):
    """The sources of an operator, written as the model writes them, in a directory of its name."""
    made = tmp_path_factory.mktemp("exported") / request.param
    made.mkdir()
    for name, text in files_of(export.export(request.param)).items():
        (made / name).write_text(text, encoding="utf-8")
    return made


def run(words, where):
    done = subprocess.run([str(word) for word in words], cwd=str(where), stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, universal_newlines=True)
    assert done.returncode == 0, done.stdout[-3000:]
    return done.stdout


def kernel_names(directory, hopper=False):
    """The kernels in the launch table; those that Hopper alone can run only if it is asked for."""
    text = (directory / "operator_names.inc").read_text(encoding="utf-8")
    common, _, special = text.partition("#ifdef ONEPASS_EXPORT_SM90A\n")
    names = re.findall(r"^KERNEL\((\w+)\)$", common, re.MULTILINE)
    assert len(names) == len(set(names)) >= 26 and not any("_sm90" in name for name in names)
    special = re.findall(r"^KERNEL\((\w+)\)$", special, re.MULTILINE)
    assert len(special) == len(set(special)) == (9 if directory.name == "linear_bn_softmax" else 0)
    assert all("_sm90_" in name for name in special)
    return set(names + special) if hopper else set(names)


def cuda_home():
    nvcc = shutil.which("nvcc") or "/usr/local/cuda/bin/nvcc"
    if not os.path.exists(nvcc):
        pytest.skip("no nvcc, so CUDA sources cannot be compiled")
    return pathlib.Path(os.path.realpath(nvcc)).parent.parent


# Built as C++14 and as the newest standard, with the library's own strictness where C and C++ agree on it.
WARNINGS = ["-Werror", "-Wall", "-Wshadow", "-Wundef", "-Wno-unused-function"]
COMPILERS = [(compiler, standard) for compiler in ("g++", "clang++") for standard in ("gnu++14", "c++20")]


@pytest.mark.parametrize("compiler, standard", COMPILERS)
@pytest.mark.parametrize("half", ["cpu", "cuda"])
def test_host_code_is_clean_cxx(directory, compiler, standard, half):
    if not shutil.which(compiler):
        pytest.skip("no " + compiler)
    include = ["-isystem", cuda_home() / "include"] if half == "cuda" else []
    source = directory / ("%s_%s_%s.cpp" % (half, compiler, standard))
    source.write_text('#include "%s.inc"\n' % half, encoding="utf-8")
    run([compiler, "-std=" + standard, "-fsyntax-only", *WARNINGS, *include, source], directory)


# Prints status, level, a value, and whether the compiler fused.
PROBE_BEGIN = r"""
#include "cpu.inc"
int main()
{
    onepass_handle *handle;
    if (onepass_create(NULL, &handle) != ONEPASS_OK)
        return puts(onepass_last_error()) * 0 + 1;
    int64_t shape[] = {2, 2};
    onepass_device cpu = {ONEPASS_CPU, 0};
"""
PROBE_END = r"""
    printf("%d %s %.7g %d\n", (int)status, onepass_isa(handle), value, onep_level_contracts(handle->level));
    return 0;
}
"""
PROBES = {
    "kl_div": (r"""
    float p[] = {0.25f, 0.75f, 0.50f, 0.50f}, t[] = {0.50f, 0.50f, 0.25f, 0.75f}, loss;
    onepass_tensor predictions = {p, cpu, 2, ONEPASS_F32, shape, NULL, 0}, targets = predictions;
    onepass_tensor to = {&loss, cpu, 0, ONEPASS_F32, NULL, NULL, 0};
    targets.data = t;
    onepass_status status = onepass_kl_probs_probs(handle, &predictions, &targets, NULL, &to, NULL, NULL);
    double value = loss;
""", "0.1373265"),
    # Columns of q are (1, 3) and (2, 6): normalised they are (-1, 1) both, and the scale sets the second apart.
    "linear_bn_softmax": (r"""
    float x[] = {1, 0, 0, 1}, w[] = {1, 3, 2, 6}, s[] = {1, 2}, out[4];
    onepass_tensor input = {x, cpu, 2, ONEPASS_F32, shape, NULL, 0}, weight = input, output = input, scale = input;
    weight.data = w;
    output.data = out;
    scale.data = s;
    scale.ndim = 1;
    onepass_head_options options = {};
    options.size = sizeof options;
    options.scale = &scale;
    size_t bytes = 0;
    onepass_status status =
        onepass_head_workspace_size(handle, &input, &weight, &options, &output, NULL, &bytes);
    options.workspace = malloc(bytes);
    options.workspace_size = bytes;
    if (status == ONEPASS_OK)
        status = onepass_head(handle, &input, &weight, &options, &output, NULL, NULL, NULL);
    double value = out[0];
""", "0.7310586"),
}


def probe(directory):
    """The program, and the value that it is to print."""
    middle, value = PROBES[directory.name]
    return PROBE_BEGIN + middle + PROBE_END, value


def test_contraction_is_noticed(directory):
    """The check that -ffp-contract=off was obeyed can fail: without the flag gcc fuses wherever the machine can."""
    if not shutil.which("g++"):
        pytest.skip("no g++")
    program, expected = probe(directory)
    (directory / "probe.cpp").write_text(program, encoding="utf-8")
    fuses = {}
    for flag in ("off", "fast"):
        run(["g++", "-std=gnu++14", "-O3", "-ffp-contract=" + flag, "probe.cpp", "-o", "probe", "-lpthread", "-ldl"],
            directory)
        status, level, value, fused = run([directory / "probe"], directory).split()
        assert (status, value) == ("0", expected)
        fuses[flag] = fused
    assert fuses["off"] == "0"
    assert fuses["fast"] == ("0" if level == "scalar" else "1")


def test_neon_compiles_as_cxx_and_runs(directory):
    """Under emulation; without the C++ headers of that machine, which the library's part does not need."""
    headers = "/usr/aarch64-linux-gnu/include"
    emulator = shutil.which("qemu-aarch64") or shutil.which("qemu-aarch64-static")
    if not (shutil.which("clang++") and shutil.which("aarch64-linux-gnu-gcc") and os.path.isdir(headers) and emulator):
        pytest.skip("no clang++, C compiler for 64-bit Arm and qemu")
    program, expected = probe(directory)
    (directory / "neon.cpp").write_text(program, encoding="utf-8")
    run(["clang++", "--target=aarch64-linux-gnu", "-nostdinc++", "-isystem", headers, "-std=gnu++14", "-O2",
         "-ffp-contract=off", "-fno-exceptions", "-fno-rtti", "-c", "neon.cpp", "-o", "neon.o"], directory)
    run(["aarch64-linux-gnu-gcc", "-static", "neon.o", "-o", "neon", "-lm", "-lpthread"], directory)
    assert run([emulator, directory / "neon"], directory).split() == ["0", "neon", expected, "0"]


def compiled_kernels(directory, *architectures, options=()):
    """{(kernel, architecture): (bytes of stack, spilt, loaded again)} of what nvcc makes as C++14, with the table."""
    log = run([cuda_home() / "bin" / "nvcc", "-std=c++14", "-O3", "-Xptxas=-v", "-Xcompiler=-Wall",
               "-Werror=all-warnings", *options,
               *("-gencode=arch=compute_%s,code=sm_%s" % (number, number) for number in architectures),
               "-c", "kernels.cu", "-o", "kernels_%s.o" % "_".join(architectures)], directory)
    found = re.findall(r"Compiling entry function '(\w+)' for 'sm_(\w+)'\n.*\n"
                       r" +(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", log)
    assert len(found) == log.count("Compiling entry function")
    return {(name, number): tuple(map(int, used)) for name, number, *used in found}


def check_stack(directory, found):
    """Kernels need no more of a stack, for what they spill, than their files say; mostly they say nothing."""
    texts = [path.read_text(encoding="utf-8") for path in directory.glob("*.cu")]
    allowed = dict(re.findall(r"(onep_\w+): spills up to (\d+) bytes", "".join(texts)))
    for (name, _), used in found.items():
        assert max(used) <= int(allowed.get(name, 0)), (name, used)


@pytest.mark.parametrize("architecture", ["80", "90"])
def test_kernels_compile_as_cxx14(directory, architecture):
    found = compiled_kernels(directory, architecture)
    assert set(found) == {(name, architecture) for name in kernel_names(directory)}
    check_stack(directory, found)


def test_kernels_compile_for_hopper_and_beside_others(directory):
    """Its own are in code for 9.0a alone; only the head has such."""
    found = compiled_kernels(directory, "80", "90a", options=["-DONEPASS_EXPORT_HOPPER=1"])
    everywhere, on_hopper = kernel_names(directory), kernel_names(directory, hopper=True)
    assert set(found) == {(name, "80") for name in everywhere} | {(name, "90a") for name in on_hopper}
    own = {name for name in on_hopper - everywhere if "_sm90_" in name}
    assert own == on_hopper - everywhere and len(own) == {"kl_div": 0, "linear_bn_softmax": 9}[directory.name]
    check_stack(directory, found)


# A program that asks an operator's plan for everything, and prints the names of the kernels that it would launch.
PLAN_BEGIN = r"""
#include <cuda_runtime_api.h>
#include <set>
#include <string>
static std::set<std::string> asked;
/* In place of the runtime's, for clusters of blocks: what it would refuse is refused here. */
static size_t allowed_shared = 48 << 10;
static cudaError_t set_attribute(const void *, cudaFuncAttribute attribute, int value)
{
    allowed_shared = value;
    return attribute == cudaFuncAttributeMaxDynamicSharedMemorySize && value <= 227 << 10 ? cudaSuccess
                                                                                          : cudaErrorInvalidValue;
}
static cudaError_t launch_cluster(const cudaLaunchConfig_t *shape, const void *function, void **arguments)
{
    unsigned cluster = shape->attrs[0].val.clusterDim.x;
    asked.insert(static_cast<const char *>(function));
    bool valid = shape->numAttrs == 1 && shape->attrs[0].id == cudaLaunchAttributeClusterDimension && cluster >= 1 &&
                 cluster <= 2 && shape->gridDim.x > 0 && shape->gridDim.x % cluster == 0 && shape->gridDim.x <= 132 &&
                 shape->dynamicSmemBytes <= allowed_shared && (uintptr_t)arguments[0] % 64 == 0;
    return valid ? cudaSuccess : cudaErrorInvalidConfiguration;
}
static int describe(void *map, int type, uint32_t rank, void *address, const uint64_t *extents, const uint64_t *strides,
                    const uint32_t *box, const uint32_t *steps, int, int, int, int)
{
    uint64_t size = type == 6 ? 2 : 4;
    bool valid = (uintptr_t)map % 64 == 0 && rank == 2 && (uintptr_t)address % 16 == 0 && strides[0] % 16 == 0 &&
                 strides[0] >= extents[0] * size && extents[1] > 0 && box[0] * size == 128 && box[1] > 0 &&
                 box[1] <= 256 && steps[0] == 1 && steps[1] == 1;
    return valid ? 0 : 1;
}
static cudaError_t entry_point(const char *name, void **function, unsigned, unsigned long long)
{
    *function = std::string(name) == "cuTensorMapEncodeTiled" ? reinterpret_cast<void *>(describe) : NULL;
    return cudaSuccess;
}
#define cudaFuncSetAttribute             set_attribute
#define cudaLaunchKernelExC              launch_cluster
#define cudaGetDriverEntryPointByVersion entry_point
#include "cuda.inc"
int onepass_export_load(onepass_export_words *words)
{
    static unsigned tickets[ONEPASS_EXPORT_TICKETS];
    words->tickets = tickets;
    return 0;
}
int onepass_export_launch(const char *kernel, unsigned, unsigned, unsigned, const void *, void *, int)
{
    asked.insert(kernel);
    return 0;
}
const void *onepass_export_kernel(const char *kernel)
{
    static std::set<std::string> names; /* a kernel's function is its name here */
    return names.insert(kernel).first->c_str();
}
static char memory[12][1 << 21] __attribute__((aligned(256)));
int main(int count, char **)
{
    onepass_export_words words = {};
    onepass_export_load(&words);
    words.hopper = count > 1;
    cuda_device device = {true, 132, words, 0, {}, NULL};
    onep_cuda cuda = {&device, (cudaStream_t)8, NULL};
    device.tickets[cuda.stream] = {words.tickets, ONEP_CUDA_LAUNCH_TICKETS};
    onepass_handle handle = {};
    handle.device.type = ONEPASS_CUDA;
    handle.kernels = &cuda_kernels;
    handle.cuda = &cuda;
    const onepass_dtype types[] = {ONEPASS_F16, ONEPASS_BF16, ONEPASS_F32, ONEPASS_F64};
"""
PLAN_END = r"""
    for (const std::string &name : asked)
        puts(name.c_str());
    return 0;
}
"""
PLANS = {
    "kl_div": r"""
    int64_t shape[] = {4, 8}, compact[] = {8, 1}, wide[] = {16, 1}, apart[] = {64, 2};
    int64_t *layouts[] = {compact, wide, apart};
    for (int p = 0; p < 4; p++)
        for (int t = 0; t < 4; t++)
            for (int layout = 0; layout < 3; layout++)
                for (int outputs = 1; outputs < 8; outputs++)
                    for (int offset = 0; offset < 2; offset++) {
                        onepass_tensor tensors[4] = {};
                        for (int i = 0; i < 4; i++) {
                            onepass_dtype type = types[i % 2 ? t : p];
                            tensors[i].data = memory[i] + offset * type.bits / 8;
                            tensors[i].device = handle.device;
                            tensors[i].ndim = 2;
                            tensors[i].dtype = type;
                            tensors[i].shape = shape;
                            tensors[i].strides = layouts[layout];
                        }
                        onepass_tensor value = tensors[0];
                        value.ndim = 0;
                        value.dtype = types[3];
                        value.data = memory[4];
                        onepass_kl_options options = {};
                        options.size = sizeof options;
                        options.workspace = memory[4] + 256;
                        options.workspace_size = sizeof memory[4] - 256;
                        if (onepass_kl_probs_probs(&handle, &tensors[0], &tensors[1], &options,
                                                   outputs & 1 ? &value : NULL, outputs & 2 ? &tensors[2] : NULL,
                                                   outputs & 4 ? &tensors[3] : NULL) != ONEPASS_OK)
                            return puts(onepass_last_error()) * 0 + 1;
                    }
""",
    "linear_bn_softmax": r"""
    const int64_t widths[] = {64, 12000, 20000, 63};
    for (int inputs = 0; inputs < 4; inputs++)
        for (int results = 0; results < 4; results++)
            for (int width = 0; width < 4; width++)
                for (int training = 0; training < 2; training++)
                    for (int rows = 0; rows < 5; rows += 4) {
                        onepass_dtype of_input = types[inputs], of_result = types[results];
                        if (of_result.bits < of_input.bits || (results != inputs && of_result.bits == 16))
                            continue;
                        int64_t n = widths[width], shapes[3][2] = {{rows, 8}, {n, 8}, {rows, n}};
                        onepass_dtype computed = types[inputs == 3 ? 3 : 2];
                        /* input, weight, output, product, a counter, grad_output; mean, rstd, the running ones;
                           grad_input, grad_weight */
                        onepass_tensor t[12] = {};
                        for (int i = 0; i < 12; i++) {
                            t[i].data = memory[i];
                            t[i].device = handle.device;
                            t[i].ndim = i < 6 || i > 9 ? 2 : 1;
                            t[i].dtype = i < 2 || i > 9 ? of_input : i == 2 || i == 5 ? of_result : computed;
                            t[i].shape = i < 2 ? shapes[i] : i < 6 ? shapes[2] : i < 10 ? shapes[1] : shapes[i - 10];
                        }
                        onepass_tensor *product = &t[3], *mean = &t[6], *rstd = &t[7];
                        onepass_tensor count = {memory[4], handle.device, 0, ONEPASS_I64, NULL, NULL, 0};
                        onepass_head_options options = {};
                        options.size = sizeof options;
                        options.statistics = training ? ONEPASS_BATCH_STATISTICS : ONEPASS_RUNNING_STATISTICS;
                        options.running_mean = &t[8];
                        options.running_var = &t[9];
                        options.batches_tracked = training ? &count : NULL;
                        static char room[1 << 24];
                        options.workspace = room;
                        options.workspace_size = sizeof room;
                        onepass_head_gradients gradients = {};
                        gradients.size = sizeof gradients;
                        gradients.input = &t[10];
                        gradients.weight = &t[11];
                        onepass_status status =
                            onepass_head(&handle, &t[0], &t[1], &options, &t[2], product, mean, rstd);
                        if (status == ONEPASS_OK)
                            status = onepass_head_backward(&handle, &t[5], &t[2], &t[0], &t[1], product, mean, rstd,
                                                           &options, &gradients);
                        if (status != ONEPASS_OK)
                            return puts(onepass_last_error()) * 0 + 1;
                    }
    /* fp32 that is large enough for Hopper's own products: tiles of each width, a depth in parts and in one, and of each
       length that is split in another way; weights that the copy engine reads along, across, and not at all. The
       addresses are anything: none is read. */
    const int64_t large[][3] = {{16, 2048, 2048},  {100, 2048, 2048}, {512, 2048, 2048}, {512, 512, 16384},
                                {100, 6000, 2048}, {100, 2046, 2048}, {2048, 2048, 2048}};
    for (int shape = 0; shape < 7; shape++)
        for (int layout = 0; layout < 3; layout++)
            for (int training = 0; training < 2; training++) {
                int64_t m = large[shape][0], k = large[shape][1], n = large[shape][2];
                int64_t shapes[3][2] = {{m, k}, {n, k}, {m, n}}, across[] = {1, n};
                onepass_tensor t[10] = {};
                for (int i = 0; i < 10; i++) { /* input, weight, output and product, its gradient, mean and so on */
                    t[i].data = reinterpret_cast<char *>((uintptr_t)(i + 1) << 36);
                    t[i].device = handle.device;
                    t[i].ndim = i < 5 || i > 7 ? 2 : 1;
                    t[i].dtype = ONEPASS_F32;
                    t[i].shape = i < 2 ? shapes[i] : i < 5 ? shapes[2] : i < 8 ? shapes[1] : shapes[i - 8];
                }
                if (layout == 1)
                    t[1].strides = across;
                if (layout == 2)
                    t[1].data = static_cast<char *>(t[1].data) + 4;
                onepass_head_options options = {};
                options.size = sizeof options;
                options.statistics = training ? ONEPASS_BATCH_STATISTICS : ONEPASS_RUNNING_STATISTICS;
                options.running_mean = &t[7];
                options.running_var = &t[7];
                if (training)
                    options.running_mean = options.running_var = NULL;
                options.workspace = reinterpret_cast<void *>((uintptr_t)11 << 36);
                options.workspace_size = (size_t)1 << 34;
                onepass_head_gradients gradients = {};
                gradients.size = sizeof gradients;
                gradients.input = &t[8];
                gradients.weight = &t[9];
                onepass_status status = onepass_head(&handle, &t[0], &t[1], &options, &t[2], &t[3], &t[5], &t[6]);
                if (status == ONEPASS_OK)
                    status = onepass_head_backward(&handle, &t[4], &t[2], &t[0], &t[1], &t[3], &t[5], &t[6], &options,
                                                   &gradients);
                if (status != ONEPASS_OK)
                    return puts(onepass_last_error()) * 0 + 1;
            }
""",
}
# What is in the files beside it: for the linear layer, and for a product that is kept in a half type.
NOT_ASKED = {
    "kl_div": set(),
    "linear_bn_softmax": {"onep_add_bias", "onep_column_sums"}.union(*(
        {"onep_head_stats_" + half} | {"onep_head_softmax_%s_%s_%s" % (kind, half, half)
                                       for kind in ("rows", "wide", "long")} for half in ("f16", "bf16"))),
}


# What is asked for only where Hopper's kernels are.
ON_HOPPER = {
    "kl_div": set(),
    "linear_bn_softmax": {"onep_head_merge_any32", "onep_split_rows", "onep_split_rows_4096", "onep_split_rows_8192",
                          "onep_split_rows_16384", "onep_split_columns", "onep_split_columns_1024",
                          "onep_split_chunks", "onep_split_chunks_across", "onep_split_merge"},
}


def test_plan_and_launch_table_agree(directory):
    """The plan, asked for everything it can do, names the kernels in the table and no other."""
    nvcc = cuda_home() / "bin" / "nvcc"
    (directory / "names.cpp").write_text(PLAN_BEGIN + PLANS[directory.name] + PLAN_END, encoding="utf-8")
    run(["g++", "-std=gnu++14", "-isystem", cuda_home() / "include", "-c", "names.cpp", "-o", "names.o"], directory)
    run([nvcc, "names.o", "-o", "names", "-ldl"], directory)
    for words in ([], ["on", "Hopper"]):
        asked = set(run(["env", "ONEPASS_CUBLASLT=none", directory / "names", *words], directory).split())
        left_out = NOT_ASKED[directory.name] | (set() if words else ON_HOPPER[directory.name])
        assert left_out <= kernel_names(directory)
        assert asked == kernel_names(directory, hopper=bool(words)) - left_out


def test_kernels_need_no_more_than_cuda_11(directory):
    sys.path.insert(0, str(ROOT / "tests"))
    import test_cuda11
    sys.path.remove(str(ROOT / "tests"))
    try:
        nvrtc = test_cuda11.Nvrtc(test_cuda11.wheel_directory())
    except SystemExit:
        pytest.skip("the compiler of CUDA 11.8 can neither be found nor fetched")
    assert nvrtc.version() == (11, 8)
    source = directory / "kernels_only.cu"
    source.write_text('#include "operator_kernels.inc"\n', encoding="utf-8")
    cubin, log = nvrtc.compile(str(source))
    assert cubin, log
    assert {name.decode() for name in re.findall(rb"\.text\.(onep_\w+)", cubin)} == kernel_names(directory)
