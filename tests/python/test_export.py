"""python -m onepass.export: the command, the file it writes, and what is packed into it. The model is not run here."""
import ast
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


def sources_of(text):
    """(model and builder, {path: text} of the sources) of an exported file, without running it."""
    head, _, rest = text.partition("# ---- sources ---")
    found = re.findall(r"^_FILES\['([^']+)'\] = (r'''.*?'''|r\"\"\".*?\"\"\")$", rest, re.MULTILINE | re.DOTALL)
    assert len(found) == len(dict(found)) == rest.count("\n_FILES['")
    return head, {name: quoted[4:-3] for name, quoted in found}


# ---- the command -----------------------------------------------------------------------------------------------------


def test_list_names_every_operator():
    done = command("--list")
    assert done.returncode == 0 and done.stderr == ""
    assert [line.split()[0] for line in done.stdout.splitlines()] == list(export.OPERATORS)
    assert list(export.OPERATORS) == ["kl_div", "linear_bn_softmax", "kl_logits", "cross_entropy",
                                      "linear_cross_entropy", "kl_top_k"]


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
    """With nothing but what python/CMakeLists.txt installs."""
    ignore = shutil.ignore_patterns("sources", "__pycache__", "*.so")
    shutil.copytree(str(PACKAGE / "onepass"), str(tmp_path / "onepass"), ignore=ignore)
    for folder in ("include", "src", "python/src"):
        shutil.copytree(str(ROOT / folder), str(tmp_path / "onepass" / "export" / "sources" / folder))
    shutil.copy(str(ROOT / "python" / "native.map"), str(tmp_path / "onepass" / "export" / "sources" / "python"))
    for operator in export.OPERATORS:
        done = command(operator, "-o", "-", package=tmp_path)
        assert done.returncode == 0, done.stderr
        assert done.stdout == export.export(operator)


# ---- the file --------------------------------------------------------------------------------------------------------


every_operator = pytest.mark.parametrize("operator", list(export.OPERATORS))


@every_operator
def test_head_says_what_it_is_and_how_it_was_made(operator):
    head = export.export(operator).split('"""')[1]
    numbers = re.findall(r"^#define ONEPASS_VERSION_(?:MAJOR|MINOR|PATCH) (\d+)$",
                         (ROOT / "include" / "onepass.h").read_text(encoding="utf-8"), re.MULTILINE)
    made_by = "python -m onepass.export " + operator
    for words in ("class ModelNew", "onepass " + ".".join(numbers), made_by, "Apache-2.0", "--unpack DIR"):
        assert words in head


@every_operator
def test_one_readable_file_without_absolute_paths(operator):
    text = export.export(operator)
    assert text.isascii() and len(text) < 1600000
    for path in (str(ROOT), str(PACKAGE), "/home/", "/root/", "/tmp/"):
        assert path not in text
    head, files = sources_of(text)
    assert "class ModelNew(nn.Module):" in head and len(head.splitlines()) < 300
    compile(text, "model_new.py", "exec")
    ast.parse(head, feature_version=(3, 8))


@every_operator
def test_sources_are_the_projects_word_for_word(operator):
    """But for two lists of operators, cut to those that are packed, and the package's __init__ files, left empty."""
    _, files = sources_of(export.export(operator))
    assert len(files) > 90
    cut = {"src/operators.def", "src/levels/operators.inc"}
    for path, text in files.items():
        whole = (ROOT / path).read_text(encoding="utf-8")
        if path.endswith("/__init__.py"):
            assert text == ""
        elif path in cut:
            lines = text.splitlines(True)
            assert lines == [line for line in whole.splitlines(True) if line in lines] and len(text) < len(whole)
        else:
            assert text == whole, path


_OF_LOGITS = ["divergence_logits_logits", "divergence_logits_probs", "divergence_logits_log_probs",
              "divergence_logits_top_k", "cross_entropy_logits_labels"]
_LOSSES_NEED = {"errors", "fp32", "library", "torch/losses", "torch/losses_call", "torch/losses_reference",
                "torch/losses_shards", "torch/route"}
_LOSSES = (["kl_probs_probs", "kl_log_probs_probs", "kl_probs_log_probs", "kl_log_probs_log_probs"] + _OF_LOGITS,
           ["kl", "logits"], _LOSSES_NEED | {"torch/kl", "torch/kl_derivatives", "torch/rewrite_losses"})
PACKED = {
    "kl_logits": _LOSSES, "cross_entropy": _LOSSES,
    "kl_top_k": (_OF_LOGITS, ["logits"], _LOSSES_NEED | {"torch/losses_top_k"}),
    "linear_cross_entropy": (
        _OF_LOGITS + ["linear", "linear_backward", "prepare_weight", "linear_cross_entropy", "linear_divergence"],
        ["logits", "linear", "linear_loss"],
        _LOSSES_NEED | {"torch/linear", "torch/losses_linear", "torch/losses_modules", "torch/losses_shards_linear",
                        "torch/prepared_weights"}),
    "kl_div": (["kl_probs_probs", "kl_log_probs_probs", "kl_probs_log_probs", "kl_log_probs_log_probs"], ["kl"],
               {"errors", "fp32", "library", "torch/kl", "torch/kl_derivatives", "torch/route"}),
    "linear_bn_softmax": (["linear", "linear_backward", "prepare_weight", "head", "head_backward"], ["linear", "head"],
                          {"errors", "fp32", "library", "torch/head", "torch/head_call", "torch/head_sync", "torch/kl",
                           "torch/kl_derivatives", "torch/modules", "torch/prepared_weights", "torch/route"}),
}


@every_operator
def test_what_is_packed(operator):
    """The operator's folders and those all operators share, whole; the Python modules that are imported."""
    _, files = sources_of(export.export(operator))
    operators, folders, modules = PACKED[operator]
    assert re.findall(r"^OPERATOR\((\w+)\)", files["src/operators.def"], re.MULTILINE) == operators
    assert re.findall(r'"(\w+)/cpu_level.inc"', files["src/levels/operators.inc"]) == folders
    python = {path for path in files if path.endswith(".py") and not path.endswith("__init__.py")}
    assert python == {"python/onepass/%s.py" % module for module in modules}
    for folder in ["core", "cpu", "cuda", "levels"] + folders:
        expected = {path.name for path in (ROOT / "src" / folder).iterdir()}
        assert {path.split("/")[2] for path in files if path.startswith("src/%s/" % folder)} == expected
    others = set(re.findall(r"src/(\w+)/", " ".join(files))) - {"core", "cpu", "cuda", "levels"}
    assert others == set(folders)


@every_operator
def test_every_include_and_import_is_there(operator):
    _, files = sources_of(export.export(operator))
    made = {"cuda/fatbin_images.inc", "cuda/fatbin_kernels.inc"}  # by the build
    for path, text in files.items():
        for name in re.findall(r'^#include "([^"]+)"', text, re.MULTILINE):
            places = [prefix + name for prefix in ("src/", "include/", "cuda/", os.path.dirname(path) + "/")]
            assert any(place in files or place in made for place in places), (path, name)
        if path.endswith(".py"):
            for origin, names in re.findall(r"^ *(?:from|import) onepass(\S*)(?: import (.*))?$", text, re.MULTILINE):
                for name in names.split(", "):
                    places = ["python/onepass" + origin.replace(".", "/") + end for end in (".py", "/%s.py" % name)]
                    assert name == "_native" or any(place in files for place in places), (path, origin, name)


@every_operator
def test_unpack_writes_the_sources(operator, tmp_path):
    path = tmp_path / "model_new.py"
    text = export.export(operator)
    # PyTorch is not needed for it: a reader may have none.
    path.write_text(text.replace("import torch\nfrom torch import nn\n",
                                 "import types\nnn = types.SimpleNamespace(Module=object)\n", 1), encoding="utf-8")
    done = subprocess.run([sys.executable, str(path), "--unpack", str(tmp_path / "out")], stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, universal_newlines=True)
    assert done.returncode == 0, done.stdout
    written = {str(found.relative_to(tmp_path / "out")): found.read_text(encoding="utf-8")
               for found in (tmp_path / "out").rglob("*") if found.is_file()}
    assert written == sources_of(text)[1]
    wrong = subprocess.run([sys.executable, str(path), "--upack"], stderr=subprocess.PIPE, universal_newlines=True)
    assert wrong.returncode == 1 and "--unpack DIR" in wrong.stderr


# ---- how it compiles -------------------------------------------------------------------------------------------------


def words_of(pattern, *names):
    text = "".join((ROOT / name).read_text(encoding="utf-8") for name in names)
    return set(re.search(pattern, text).group(1).split())


def test_flags_are_those_of_the_librarys_build():
    """What decides about bits is written in CMake files and again in build.py."""
    builder = {}
    text = (ROOT / "python" / "onepass" / "export" / "build.py").read_text(encoding="utf-8")
    exec(text[:text.index("_log =")], builder)
    assert words_of(r"add_compile_options\((-ffp[^)]*)\)", "CMakeLists.txt") <= set(builder["_C"])
    assert set(builder["_LEVELS"]["x86_64"]) == {"avx2", "avx512"} and set(builder["_LEVELS"]["aarch64"]) == {"neon"}
    avx2 = words_of(r"set\(onepass_flags_avx2 ([^)]*)\)", "CMakeLists.txt")
    assert set(builder["_LEVELS"]["x86_64"]["avx2"]) == avx2
    avx512 = words_of(r"set\(onepass_flags_avx512 ([^)]*)\)", "CMakeLists.txt") - {"${onepass_flags_avx2}"}
    assert set(builder["_LEVELS"]["x86_64"]["avx512"]) == avx2 | avx512
    nvcc = words_of(r"set\(onepass_nvcc_flags ([^)]*)\)", "cmake/cuda.cmake") - {"-I${PROJECT_SOURCE_DIR}/src"}
    assert set(builder["_NVCC"]) == nvcc | {"-fatbin", "-Isrc", "-Xptxas=-v"}
    linked = re.findall(r"-Wl,-z,\w+", (ROOT / "python" / "CMakeLists.txt").read_text(encoding="utf-8"))
    assert set(linked) <= set(builder["_LINK"])


def cuda_home():
    nvcc = shutil.which("nvcc") or "/usr/local/cuda/bin/nvcc"
    if not os.path.exists(nvcc):
        pytest.skip("no nvcc, so CUDA sources cannot be compiled")
    return pathlib.Path(os.path.realpath(nvcc)).parent.parent


def test_kernels_need_no_more_than_cuda_11(tmp_path):
    """tests/test_cuda11.py compiles the library's sources: these are the same, with all that they include. The smallest
    is compiled from what was packed."""
    sys.path.insert(0, str(ROOT / "tests"))
    import test_cuda11
    sys.path.remove(str(ROOT / "tests"))
    try:
        nvrtc = test_cuda11.Nvrtc(test_cuda11.wheel_directory())
    except SystemExit:
        pytest.skip("the compiler of CUDA 11.8 can neither be found nor fetched")
    assert nvrtc.version() == (11, 8)
    files = {}
    for operator in export.OPERATORS:
        files.update(sources_of(export.export(operator))[1])
    sources = [path for path in files if path.endswith(".cu") and not path.endswith("_sm90a.cu")]
    assert len(sources) >= 12 and "src/logits/cuda_count.cu" in sources
    needed = set(sources)
    for path in sources:  # grows while it is gone through
        assert files[path] == (ROOT / path).read_text(encoding="utf-8"), path
        included = re.findall(r'^[ \t]*#[ \t]*include[ \t]+"([^"]+)"', files[path], re.MULTILINE)
        found = {"src/" + name for name in included if (ROOT / "src" / name).exists()} - needed
        sources += sorted(found)
        needed |= found
    assert len(needed) > 30
    for path in needed:
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(files[path], encoding="utf-8")
    cubin, log = nvrtc.compile(str(tmp_path / "src" / "logits" / "cuda_count.cu"), root=str(tmp_path))
    assert cubin and re.search(rb"\.text\.(onep_\w+)", cubin), log
