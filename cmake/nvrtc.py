#!/usr/bin/env python3
"""Compiles a .cu file into a fatbin where nvcc cannot: without a C++ compiler.

nvcc has a C++ compiler read the source first. NVRTC, its device compiler in a library, reads sources itself, as long as
they need no header of CUDA or C++; ours need none (tests/test_cuda11.py). ptxas and fatbinary do the rest, as under
nvcc. All three come from PyPI (cmake/nvrtc-requirements.txt), or from wherever the Python that runs this has them.

It takes the options of nvcc that cmake/fatbin.cmake passes, and refuses any other:

  nvrtc.py -fatbin -O3 -std=c++14 -lineinfo -Xfatbin=-compress-all -I DIR -gencode=arch=compute_80,code=sm_80 ...
           -Xptxas=-v -MD -MF FILE -MT TARGET -o OUTPUT SOURCE
  nvrtc.py --version
  nvrtc.py --wheels      # prints the directories of CUDA wheels that this Python sees
"""
import argparse
import ctypes
import glob
import os
import re
import shutil
import subprocess
import sys
import tempfile


def wheels():
    """The directories where CUDA wheels put bin and lib, in the order of the module search."""
    return [found for entry in sys.path for found in sorted(glob.glob(os.path.join(entry, "nvidia", "cu[0-9]*")))]


def program(name):
    for directory in wheels():
        path = os.path.join(directory, "bin", name)
        if os.access(path, os.X_OK):
            return path
    return shutil.which(name) or sys.exit("nvrtc.py: %s was not found" % name)


class Nvrtc:
    def __init__(self):
        found = [path for directory in wheels() for path in glob.glob(os.path.join(directory, "lib", "libnvrtc.so.*"))]
        if not found:
            sys.exit("nvrtc.py: no wheel with libnvrtc was found")
        for builtins in glob.glob(os.path.join(os.path.dirname(found[0]), "libnvrtc-builtins.so.*")):
            ctypes.CDLL(builtins, mode=ctypes.RTLD_GLOBAL)  # NVRTC asks for it by name alone
        self.library = ctypes.CDLL(found[0])

    def version(self):
        major, minor = ctypes.c_int(), ctypes.c_int()
        self.library.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor))
        return "%d.%d" % (major.value, minor.value)

    def text(self, handle, kind):
        size = ctypes.c_size_t()
        getattr(self.library, "nvrtcGet%sSize" % kind)(handle, ctypes.byref(size))
        memory = ctypes.create_string_buffer(size.value)
        getattr(self.library, "nvrtcGet" + kind)(handle, memory)
        return memory.value

    def ptx(self, source, options):
        """The PTX, or None, and what the compiler said."""
        handle = ctypes.c_void_p()
        words = (ctypes.c_char_p * len(options))(*[option.encode() for option in options])
        with open(source, "rb") as file:
            text = file.read()
        failed = self.library.nvrtcCreateProgram(ctypes.byref(handle), text, source.encode(), 0, None, None)
        failed = failed or self.library.nvrtcCompileProgram(handle, len(options), words)
        return None if failed else self.text(handle, "PTX"), self.text(handle, "ProgramLog").decode()


def dependencies(source, directories):
    """The source and all that it includes in quotes, directly or not."""
    found, todo = [], [source]
    while todo:
        path = todo.pop()
        found.append(path)
        with open(path, encoding="utf-8") as file:
            names = re.findall(r'^\s*#\s*include\s+"([^"]+)"', file.read(), re.MULTILINE)
        for name in names:
            beside = [os.path.join(directory, name) for directory in [os.path.dirname(path)] + directories]
            todo += [path for path in beside if os.path.exists(path) and path not in found + todo][:1]
    return found


def run(command):
    """Runs it; what it says is passed on, and its failure ends this program."""
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, universal_newlines=True)
    sys.stdout.write(done.stdout)
    if done.returncode != 0:
        sys.exit("nvrtc.py: %s failed" % command[0])


def compile_fatbin(wanted):
    nvrtc = Nvrtc()
    # nvcc takes hexadecimal floating-point numbers in C++14 too; NVRTC wants C++17 for them, as the standard does.
    options = ["-std=" + wanted.std.replace("c++14", "c++17")] + ["-I" + directory for directory in wanted.include]
    if wanted.lineinfo:
        options.append("-lineinfo")
    ptx, images = {}, []
    with tempfile.TemporaryDirectory() as directory:
        for code in wanted.gencode:
            match = re.match(r"arch=compute_(\d+a?),code=(sm|compute)_(\d+a?)$", code)
            if not match:
                sys.exit("nvrtc.py: -gencode=%s is not understood" % code)
            virtual, kind, real = match.groups()
            if virtual not in ptx:
                text, log = nvrtc.ptx(wanted.source, options + ["-arch=compute_" + virtual])
                sys.stdout.write(log)
                if text is None:
                    sys.exit("nvrtc.py: %s does not compile for compute_%s" % (wanted.source, virtual))
                ptx[virtual] = os.path.join(directory, virtual + ".ptx")
                with open(ptx[virtual], "wb") as file:
                    file.write(text)
            if kind == "compute":
                images.append("--image3=kind=ptx,sm=%s,file=%s" % (real, ptx[virtual]))
                continue
            cubin = os.path.join(directory, real + ".cubin")
            run([program("ptxas"), "-arch=sm_" + real, "-m64"] + wanted.ptxas +
                (["--generate-line-info"] if wanted.lineinfo else []) + [ptx[virtual], "-o", cubin])
            images.append("--image3=kind=elf,sm=%s,file=%s" % (real, cubin))
        run([program("fatbinary"), "--create=" + wanted.output, "-64"] + wanted.fatbin_options + images)
    if wanted.depfile:
        with open(wanted.depfile, "w", encoding="utf-8") as file:
            needed = [path.replace(" ", "\\ ") for path in dependencies(wanted.source, wanted.include)]
            file.write("%s: %s\n" % (wanted.target, " \\\n  ".join(needed)))


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0], allow_abbrev=False)
    parser.add_argument("--version", action="store_true")
    parser.add_argument("--wheels", action="store_true")
    parser.add_argument("-fatbin", action="store_true")
    parser.add_argument("-O3", action="store_true")  # of the host's code: there is none
    parser.add_argument("-lineinfo", action="store_true")
    parser.add_argument("-MD", action="store_true")
    parser.add_argument("-std", default="c++17")
    parser.add_argument("-I", dest="include", action="append", default=[])
    parser.add_argument("-gencode", action="append", default=[])
    parser.add_argument("-Xfatbin", dest="fatbin_options", action="append", default=[])
    parser.add_argument("-Xptxas", dest="ptxas", action="append", default=[])
    parser.add_argument("-MF", dest="depfile")
    parser.add_argument("-MT", dest="target")
    parser.add_argument("-o", dest="output")
    parser.add_argument("source", nargs="?")
    wanted = parser.parse_args()
    if wanted.wheels:
        print("\n".join(wheels()))
    elif wanted.version:
        program("ptxas"), program("fatbinary")
        print("NVRTC, release " + Nvrtc().version())
    else:
        compile_fatbin(wanted)


if __name__ == "__main__":
    main()
