#!/usr/bin/env python3
"""Kernels without a C++ compiler: cmake/wheel_backend.py asks for NVRTC, and cmake/nvrtc.py makes fatbins with it.

Run by ./dev test with a Python that has the wheels of cmake/nvcc-requirements.txt and cmake/nvrtc-requirements.txt.
"""
import os
import subprocess
import sys
import tempfile
import types
import unittest
from unittest import mock

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
NVRTC = os.path.join(ROOT, "cmake", "nvrtc.py")
SOURCES = os.path.join(ROOT, "src")

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(ROOT, "cmake"))


class CompilerTest(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.directory = temporary.name

    def run_nvrtc(self, *arguments):
        # With an empty PATH: everything it needs is in the wheels, and no compiler of the machine is called.
        return subprocess.run([sys.executable, NVRTC] + list(arguments), env=dict(os.environ, PATH=self.directory),
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, universal_newlines=True)

    def test_version(self):
        done = self.run_nvrtc("--version")
        self.assertEqual(done.returncode, 0, done.stdout)
        self.assertRegex(done.stdout, r"release 1[0-9]\.[0-9]+\n$")

    def test_kernels(self):
        """The build's own step with nvrtc.py for a compiler: a fatbin, its kernels, what it depends on, no spills."""
        for name, kernel in (("kl/cuda_f32", "onep_kl_flat_f32_0_sum"), ("cuda/probe", "onep_"),
                             ("cuda/split_sm90a", "onep_split_product_sm90_along_256")):
            output = os.path.join(self.directory, os.path.basename(name) + ".fatbin")
            flags = ["-O3", "-std=c++14", "-lineinfo", "-Xfatbin=-compress-all", "-I" + SOURCES]
            if name.endswith("_sm90a"):
                flags += ["-gencode=arch=compute_90a,code=sm_90a"]
            else:
                flags += ["-gencode=arch=compute_80,code=sm_80", "-gencode=arch=compute_90,code=sm_90",
                          "-gencode=arch=compute_80,code=compute_80"]
            done = subprocess.run(["cmake", "-DSTEP=compile", "-DNVCC=%s;%s" % (sys.executable, NVRTC),
                                   "-DFLAGS=" + ";".join(flags), "-DSOURCE=%s/%s.cu" % (SOURCES, name),
                                   "-DOUTPUT=" + output, "-P", os.path.join(ROOT, "cmake", "fatbin.cmake")],
                                  stdout=subprocess.PIPE, stderr=subprocess.STDOUT, universal_newlines=True)
            self.assertEqual(done.returncode, 0, done.stdout)
            with open(output, "rb") as file:
                self.assertEqual(file.read(4), b"\x50\xed\x55\xba")
            with open(output + ".kernels", encoding="utf-8") as file:
                self.assertIn("\n" + kernel, "\n" + file.read())
            with open(output + ".d", encoding="utf-8") as file:
                target, _, rest = file.read().partition(": ")
            self.assertEqual(target, output)
            needed = {os.path.basename(path) for path in rest.replace("\\\n", " ").split()}
            self.assertIn(os.path.basename(name) + ".cu", needed)
            if name == "kl/cuda_f32":
                self.assertLessEqual({"cuda_args.h", "cuda_flat.cuh", "cuda_terms.cuh", "define.h", "reduce.cuh"}, needed)

    def test_refusals(self):
        wrong = os.path.join(self.directory, "wrong.cu")
        with open(wrong, "w", encoding="utf-8") as file:
            file.write("__global__ void kernel() { nonsense; }\n")
        output = os.path.join(self.directory, "wrong.fatbin")
        done = self.run_nvrtc("-fatbin", "-gencode=arch=compute_80,code=sm_80", "-o", output, wrong)
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("nonsense", done.stdout)
        self.assertFalse(os.path.exists(output))
        done = self.run_nvrtc("-fatbin", "--use_fast_math", "-o", output, wrong)
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("--use_fast_math", done.stdout)


class BackendTest(unittest.TestCase):
    def setUp(self):
        core = types.ModuleType("scikit_build_core.build")
        core.get_requires_for_build_wheel = core.get_requires_for_build_editable = lambda settings: ["base"]
        package = types.ModuleType("scikit_build_core")
        package.build = core
        modules = {"scikit_build_core": package, "scikit_build_core.build": core}
        with mock.patch.dict(sys.modules, modules):
            sys.modules.pop("wheel_backend", None)
            import wheel_backend
        self.backend = wheel_backend
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.compiler = os.path.join(temporary.name, "gcc")

    def required(self, status, settings=None, **environment):
        """Names of what is required on a machine whose compiler reads C++ (0) or not."""
        with open(self.compiler, "w", encoding="utf-8") as file:
            file.write("#!/bin/sh\nexit %d\n" % status)
        os.chmod(self.compiler, 0o755)
        environment["PATH"] = os.path.dirname(self.compiler)
        with mock.patch.dict(os.environ, environment):
            for name in set(os.environ) & {"CC", "CUDACXX", "NVCC_CCBIN"} - set(environment):
                del os.environ[name]
            found = self.backend.get_requires_for_build_wheel(settings)
            self.assertEqual(found, self.backend.get_requires_for_build_editable(settings))
        self.assertEqual(found[0], "base")
        for line in found[1:]:
            self.assertRegex(line, r"^nvidia-[a-z-]+==13\.0\.\d+$")
        return {line.split("==")[0] for line in found[1:]}

    def test_requirements(self):
        nvcc = {"nvidia-cuda-nvcc", "nvidia-cuda-crt", "nvidia-cuda-runtime", "nvidia-nvvm"}
        with mock.patch.object(self.backend.platform, "machine", return_value="x86_64"):
            self.assertEqual(self.required(0), nvcc)
            self.assertEqual(self.required(1), nvcc | {"nvidia-cuda-nvrtc"})
            self.assertEqual(self.required(0, {"cmake.define.ONEPASS_CUDA": "OFF"}), set())
            self.assertEqual(self.required(0, {"cmake.define.ONEPASS_CUDA": "ON"}), nvcc)
            self.assertEqual(self.required(1, {"cmake.define.ONEPASS_NVCC": "/bin/true"}), set())
            self.assertEqual(self.required(0, CUDACXX="/bin/true"), set())
            self.assertEqual(self.required(1, NVCC_CCBIN="/bin/true"), nvcc)
        with mock.patch.object(self.backend.platform, "machine", return_value="riscv64"):
            self.assertEqual(self.required(0), set())

    def test_compilers_that_are_not_there(self):
        """One line, before anything is fetched, that names what was asked for, and CC only if somebody set it."""
        for environment, settings, pattern in (
                ({"CC": "/nonexistent/cc -O2"}, None, r"\$CC is /nonexistent/cc -O2"),
                ({"CUDACXX": "/nonexistent/nvcc"}, None, r"\$CUDACXX is /nonexistent/nvcc"),
                ({}, {"cmake.define.ONEPASS_NVCC": "/nonexistent/nvcc"}, "ONEPASS_NVCC is /nonexistent/nvcc")):
            with self.assertRaisesRegex(SystemExit, "^onepass: .*" + pattern):
                self.required(0, settings, **environment)
        with mock.patch.dict(os.environ, {"PATH": "/nonexistent"}):
            os.environ.pop("CC", None)
            with self.assertRaisesRegex(SystemExit, "^onepass: no C compiler was found .*gcc") as caught:
                self.backend.get_requires_for_build_wheel()
        self.assertNotIn("$CC", str(caught.exception))

    def test_a_named_nvcc_that_is_not_there(self):
        """CMake takes no other one in its place."""
        done = subprocess.run(["cmake", "-S", ROOT, "-B", os.path.join(os.path.dirname(self.compiler), "build"),
                               "-DONEPASS_TESTS=OFF"], env=dict(os.environ, CUDACXX="/nonexistent/nvcc"),
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, universal_newlines=True)
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("CUDACXX is /nonexistent/nvcc", done.stdout)


if __name__ == "__main__":
    unittest.main(verbosity=2)
