#!/usr/bin/env python3
"""Compiles src/*/*.cu for sm_80 with the device compiler of CUDA 11.8: none but *_sm90a.cu needs more than CUDA 11.

The compiler (NVRTC) and its headers are wheels on PyPI, kept in a cache outside the checkout, and so is what it made of
a source, by the text of all that it read. Where the wheels can neither be found nor fetched the test says so and ends
with 77, which ctest shows as skipped. No GPU and no driver is needed.
"""
import ctypes
import glob
import hashlib
import os
import re
import subprocess
import sys
import time

WHEELS = ["nvidia-cuda-nvrtc-cu11==11.8.89", "nvidia-cuda-runtime-cu11==11.8.89"]
SKIPPED = 77
ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def skip(why):
    print("not run: " + why)
    sys.exit(SKIPPED)


def wheel_directory():
    """Where the wheels lie unpacked; fetched now if they are not there yet."""
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    key = hashlib.sha256(" ".join(WHEELS).encode()).hexdigest()[:12]
    directory = os.path.join(cache, "onepass", "nvrtc-" + key)
    if os.path.isdir(directory):
        return directory
    partial = "%s.%d" % (directory, os.getpid())
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps",
               "--only-binary", ":all:", "--root-user-action", "ignore", "--target", partial] + WHEELS
    print("fetching " + " ".join(WHEELS))
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, universal_newlines=True)
    if done.returncode != 0:
        skip("pip cannot fetch the wheels:\n" + done.stdout.strip()[-600:])
    os.rename(partial, directory)
    return directory


def text_of(source):
    """The source and all of src that it includes, in a fixed order, each after its name."""
    found, waiting = {}, [source]
    while waiting:
        path = waiting.pop()
        if path not in found and os.path.exists(path):
            with open(path, "rb") as file:
                found[path] = file.read()
            waiting += [os.path.join(ROOT, "src", name.decode())
                        for name in re.findall(rb'^[ \t]*#[ \t]*include[ \t]+"([^"]+)"', found[path], re.MULTILINE)]
    return b"".join(os.path.relpath(path, ROOT).encode() + b"\0" + found[path] + b"\0" for path in sorted(found))


class Nvrtc:
    # nvcc takes hexadecimal floating-point numbers in C++14 too; NVRTC wants C++17 for them, as the standard does.
    OPTIONS = ["-arch=sm_80", "-std=c++17"]

    def __init__(self, directory):
        self.made = os.path.join(directory, "made")
        libraries = os.path.join(directory, "nvidia", "cuda_nvrtc", "lib")
        for builtins in glob.glob(os.path.join(libraries, "libnvrtc-builtins.so.*")):
            ctypes.CDLL(builtins, mode=ctypes.RTLD_GLOBAL)  # NVRTC asks for it by name alone
        self.library = ctypes.CDLL(os.path.join(libraries, "libnvrtc.so.11.2"))
        self.library.nvrtcGetErrorString.restype = ctypes.c_char_p
        self.include = os.path.join(directory, "nvidia", "cuda_runtime", "include")

    def version(self):
        major, minor = ctypes.c_int(), ctypes.c_int()
        self.library.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor))
        return major.value, minor.value

    def text(self, program, kind):
        size = ctypes.c_size_t()
        getattr(self.library, "nvrtcGet%sSize" % kind)(program, ctypes.byref(size))
        memory = ctypes.create_string_buffer(size.value)
        getattr(self.library, "nvrtcGet%s" % kind)(program, memory)
        return memory.raw[:size.value]

    def compile_once(self, source):
        """compile, or what it made of the same text before."""
        key = hashlib.sha256(repr((WHEELS, self.OPTIONS)).encode() + text_of(source)).hexdigest()
        path = os.path.join(self.made, key[:32])
        if os.path.exists(path):
            with open(path, "rb") as file:
                return file.read(), ""
        cubin, log = self.compile(source)
        if cubin:
            os.makedirs(self.made, exist_ok=True)
            partial = "%s.%d" % (path, os.getpid())
            with open(partial, "wb") as file:
                file.write(cubin)
            os.rename(partial, path)
        return cubin, log

    def compile(self, source, root=ROOT):
        """The code for sm_80, or None, and what the compiler said. root: where src with the headers is."""
        options = self.OPTIONS + ["-I" + os.path.join(root, "src"), "-I" + self.include]
        program = ctypes.c_void_p()
        with open(source, "rb") as file:
            code = self.library.nvrtcCreateProgram(ctypes.byref(program), file.read(), source.encode(), 0, None, None)
        assert code == 0, self.library.nvrtcGetErrorString(code)
        words = (ctypes.c_char_p * len(options))(*[option.encode() for option in options])
        code = self.library.nvrtcCompileProgram(program, len(options), words)
        log = self.text(program, "ProgramLog").rstrip(b"\0").decode()
        cubin = self.text(program, "CUBIN") if code == 0 else None
        self.library.nvrtcDestroyProgram(ctypes.byref(program))
        return cubin, log


def main():
    sources = sorted(glob.glob(os.path.join(ROOT, "src", "*", "*.cu")))
    # Hopper's own instructions: CUDA 11 builds leave these files out (cmake/cuda.cmake), and the library works without.
    sources = [source for source in sources if not source.endswith("_sm90a.cu")]
    if not sources:
        sys.exit("no src/*/*.cu was found")
    nvrtc = Nvrtc(wheel_directory())
    print("NVRTC %d.%d" % nvrtc.version())
    if nvrtc.version() != (11, 8):
        sys.exit("this is not the compiler the test is about")
    failed = 0
    for source in sources:
        begun = time.time()
        cubin, log = nvrtc.compile_once(source)
        name = os.path.relpath(source, ROOT)
        kernels = len(set(re.findall(rb"\.text\.(\w+)", cubin))) if cubin else 0
        if kernels:
            print("%s: %d kernels, %d bytes, %.1f s" % (name, kernels, len(cubin), time.time() - begun))
        else:
            failed += 1
            print("FAILED: %s\n%s" % (name, log[:1500]))
    # The test can fail: what CUDA 11 does not have must be refused.
    probe = os.path.join(os.environ.get("TMPDIR", "/tmp"), "onepass-cuda11-%d.cu" % os.getpid())
    with open(probe, "w") as file:
        file.write("#if __CUDACC_VER_MAJOR__ > 11\n#else\n#error too old\n#endif\n")
    cubin, log = nvrtc.compile(probe)
    os.unlink(probe)
    if cubin or "too old" not in log:
        failed += 1
        print("FAILED: a source for CUDA 12 was taken: " + log)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
