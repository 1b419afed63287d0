"""The build backend of the wheel: scikit-build-core, with a CUDA compiler from PyPI as one more requirement.

nvcc has a C++ compiler read the sources; for a machine that has none, NVRTC is fetched too (cmake/nvrtc.py). Nothing
is fetched for a build without CUDA, or with an nvcc that was named in one of these ways:

  pip install . --config-settings=cmake.define.ONEPASS_CUDA=OFF
  pip install . --config-settings=cmake.define.ONEPASS_NVCC=/usr/local/cuda/bin/nvcc
  CUDACXX=/usr/local/cuda/bin/nvcc pip install .

What would make the build fail, a C compiler that is not there or an nvcc that was named and is not there, is said
before anything is fetched.
"""
import os
import platform
import shlex
import shutil
import subprocess

from scikit_build_core import build as _core
from scikit_build_core.build import *  # noqa: F401,F403 - the hooks that stay as they are

HERE = os.path.dirname(os.path.abspath(__file__))


def _reads_cxx():
    """True if the compiler that nvcc will call reads C++ and finds its headers."""
    try:
        command = [os.environ.get("NVCC_CCBIN") or "gcc", "-E", "-x", "c++", "-"]
        return subprocess.run(command, input=b"#include <cstdlib>\n", stdout=subprocess.DEVNULL,
                              stderr=subprocess.DEVNULL).returncode == 0
    except OSError:
        return False


def _check_compilers(config_settings):
    """Ends the build, with a line that says why, if a compiler is not there."""
    compiler = os.environ.get("CC")
    if compiler and not shutil.which(shlex.split(compiler)[0]):
        raise SystemExit("onepass: $CC is %s, and there is no such compiler" % compiler)
    if not compiler and not any(map(shutil.which, ("cc", "gcc", "clang"))):
        raise SystemExit("onepass: no C compiler was found (cc, gcc, clang). Install one (Debian, Ubuntu: apt-get install "
                         "gcc libc6-dev; Fedora: dnf install gcc), or name one: CC=/path/to/compiler pip install .")
    settings = config_settings or {}
    for name, nvcc in (("cmake.define.ONEPASS_NVCC", settings.get("cmake.define.ONEPASS_NVCC")),
                       ("$CUDACXX", os.environ.get("CUDACXX"))):
        if nvcc and not shutil.which(nvcc):
            raise SystemExit("onepass: %s is %s, and there is no such compiler; without it a CUDA compiler is fetched "
                             "from PyPI" % (name, nvcc))


def _cuda_compiler(config_settings):
    """Requirements that bring a CUDA compiler; none if the build will not look for one."""
    settings = config_settings or {}
    cuda = settings.get("cmake.define.ONEPASS_CUDA", "ON")
    named = settings.get("cmake.define.ONEPASS_NVCC") or os.environ.get("CUDACXX")
    if named or str(cuda).upper() in ("OFF", "0", "FALSE", "NO") or platform.machine() not in ("x86_64", "aarch64"):
        return []
    found = []
    for name in ["nvcc"] if _reads_cxx() else ["nvcc", "nvrtc"]:
        with open(os.path.join(HERE, name + "-requirements.txt"), encoding="utf-8") as file:
            found += [line.strip() for line in file if not line.startswith("#")]
    return found


def get_requires_for_build_wheel(config_settings=None):
    _check_compilers(config_settings)
    return _core.get_requires_for_build_wheel(config_settings) + _cuda_compiler(config_settings)


def get_requires_for_build_editable(config_settings=None):
    _check_compilers(config_settings)
    return _core.get_requires_for_build_editable(config_settings) + _cuda_compiler(config_settings)
