"""The build backend of the wheel: scikit-build-core, with a CUDA compiler from PyPI as one more requirement.

nvcc has a C++ compiler read the sources; for a machine that has none, NVRTC is fetched too (cmake/nvrtc.py). Nothing
is fetched for a build without CUDA, or with an nvcc that was named in one of these ways:

  pip install . -C cmake.define.ONEPASS_CUDA=OFF
  pip install . -C cmake.define.ONEPASS_NVCC=/usr/local/cuda/bin/nvcc
  CUDACXX=/usr/local/cuda/bin/nvcc pip install .
"""
import os
import platform
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
    return _core.get_requires_for_build_wheel(config_settings) + _cuda_compiler(config_settings)


def get_requires_for_build_editable(config_settings=None):
    return _core.get_requires_for_build_editable(config_settings) + _cuda_compiler(config_settings)
