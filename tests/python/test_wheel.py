#!/usr/bin/env python3
"""The wheel as it would be uploaded: its name, its files, what its extension asks of the system, and its import.

usage: test_wheel.py WHEEL PYTHON... [-- unittest arguments]. The wheel is installed for every Python named, by its own
pip if it has one. Standard library and readelf only; PyTorch and NumPy are not needed.
"""
import base64
import csv
import hashlib
import io
import glob
import os
import re
import subprocess
import sys
import tempfile
import unittest
import zipfile

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
EXTENSION = "onepass/_native.abi3.so"
LARGEST = 21e6  # bytes; docs/install.md says how large the wheel is, and of what
FATBIN = b"\x50\xed\x55\xba"  # how a fatbin begins

# Without NumPy and PyTorch: the extension loads, knows its version, works on the CPU, and says what is wrong.
SMOKE = r"""
import sys
sys.modules["numpy"] = sys.modules["torch"] = None
import onepass, onepass._native
assert onepass.__file__.startswith(sys.argv[1]), onepass.__file__
assert onepass._native.__file__.endswith("_native.abi3.so"), onepass._native.__file__
assert onepass.__version__ == sys.argv[2], onepass.__version__
found = onepass.info("cpu")
assert found["threads"] >= 1 and found["level"], found
try:
    onepass._native.info(77, 0)
except onepass.Error as error:
    assert "77" in str(error), error
else:
    raise AssertionError("device type 77 was taken")
print(found)
"""


def output(*command):
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, universal_newlines=True)
    if done.returncode != 0:
        raise AssertionError("%s ended with %d:\n%s" % (" ".join(command[:4]), done.returncode, done.stdout))
    return done.stdout


def header_version():
    with open(os.path.join(ROOT, "include", "onepass.h"), encoding="utf-8") as file:
        numbers = re.findall(r"^#define ONEPASS_VERSION_(?:MAJOR|MINOR|PATCH) (\d+)$", file.read(), re.MULTILINE)
    return ".".join(numbers)


def expected_files():
    """The package's files in the wheel, from the source tree."""
    found = {EXTENSION}
    package = os.path.join(ROOT, "python", "onepass")
    for directory, subdirectories, names in os.walk(package):
        subdirectories[:] = [name for name in subdirectories if name != "__pycache__"]
        found.update(os.path.relpath(os.path.join(directory, name), os.path.dirname(package)) for name in names)
    for folder in ("include", "src", os.path.join("python", "src")):  # what onepass.export packs
        for directory, _, names in os.walk(os.path.join(ROOT, folder)):
            found.update("onepass/export/sources/" + os.path.relpath(os.path.join(directory, name), ROOT)
                         for name in names)
    found.add("onepass/export/sources/python/native.map")
    return found


class WheelTest(unittest.TestCase):
    wheel = ""
    pythons = []

    @classmethod
    def setUpClass(cls):
        cls.temporary = tempfile.TemporaryDirectory()
        cls.archive = zipfile.ZipFile(cls.wheel)
        cls.addClassCleanup(cls.temporary.cleanup)
        cls.addClassCleanup(cls.archive.close)
        cls.library = cls.archive.extract(EXTENSION, cls.temporary.name)

    def metadata(self, name):
        return self.archive.read("onepass-%s.dist-info/%s" % (header_version(), name)).decode()

    def test_tags(self):
        """One wheel for every CPython from 3.8 on, and the same tags outside and inside."""
        name, version, python, abi, platform = os.path.basename(self.wheel)[:-len(".whl")].split("-")
        self.assertEqual([name, version, python, abi], ["onepass", header_version(), "cp38", "abi3"])
        machine = output("uname", "-m").strip()
        for one in platform.split("."):
            self.assertRegex(one, r"^manylinux(_2_\d+|2014)_%s$" % machine)
        inside = re.findall(r"^Tag: (.*)$", self.metadata("WHEEL"), re.MULTILINE)
        self.assertEqual(set(inside), {"cp38-abi3-" + one for one in platform.split(".")})
        self.assertIn("Root-Is-Purelib: false", self.metadata("WHEEL"))

    def test_metadata(self):
        text = self.metadata("METADATA")
        self.assertIn("\nVersion: %s\n" % header_version(), text)
        self.assertIn("\nRequires-Python: >=3.8\n", text)
        required = re.findall(r"^Requires-Dist: (.*)$", text, re.MULTILINE)
        self.assertEqual([line for line in required if "extra ==" not in line], [])
        self.assertEqual({line.split(">")[0] for line in required}, {"numpy", "torch"})

    def test_files(self):
        """Every file of the package and no other, each as RECORD says."""
        names = {name for name in self.archive.namelist() if ".dist-info/" not in name}
        self.assertEqual(names, expected_files())
        for name, digest, size in csv.reader(io.StringIO(self.metadata("RECORD"))):
            if name.endswith("/RECORD"):
                continue
            data = self.archive.read(name)
            made = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
            self.assertEqual((digest, size), ("sha256=" + made, str(len(data))), name)

    def test_size(self):
        """Of the wheel. The kernels are nearly all of it: a new one must be worth its place."""
        self.assertLessEqual(os.path.getsize(self.wheel), LARGEST)
        with open(os.path.join(ROOT, "docs", "install.md"), encoding="utf-8") as file:
            said = re.search(r"the wheel has (\d+) MB", file.read())
        self.assertTrue(said, "docs/install.md does not say how large the wheel is")
        megabytes = os.path.getsize(self.wheel) / 1e6
        self.assertLess(abs(float(said.group(1)) - megabytes), 2, "docs/install.md says %s MB, it has %.1f" % (
            said.group(1), megabytes))

    def test_entry_points(self):
        """The name alone makes torch.compile find the backend."""
        self.assertIn("[torch_dynamo_backends]\nonepass = onepass.torch.backend:onepass", re.sub(
            r" *= *", " = ", self.metadata("entry_points.txt")))

    def test_needed_libraries(self):
        """Nothing beyond the C library: no C++ or OpenMP runtime, no BLAS, no CUDA, no libpython."""
        dynamic = output("readelf", "-dW", self.library)
        needed = re.findall(r"\(NEEDED\).*\[(.*)\]", dynamic)
        self.assertTrue(needed)
        for name in needed:
            self.assertRegex(name, r"^(lib(c|m|pthread|dl)\.so\.\d+|ld-linux-.*\.so\.\d+)$")
        self.assertNotRegex(dynamic, r"\((RPATH|RUNPATH|TEXTREL)\)")
        self.assertRegex(dynamic, r"NODELETE")  # worker threads live as long as the process
        self.assertRegex(dynamic, r"BIND_NOW|\bNOW\b")
        self.assertNotRegex(output("readelf", "-lW", self.library), r"GNU_STACK.*RWE")

    def symbols(self):
        """(binding, section, name, version) of the dynamic symbols."""
        for line in output("readelf", "--dyn-syms", "-W", self.library).splitlines():
            fields = line.split()
            if len(fields) >= 8 and fields[0].rstrip(":").isdigit():
                name, _, version = fields[7].partition("@")
                yield fields[4], fields[6], name, version.lstrip("@")

    def test_symbols(self):
        """Out: the one function that Python looks for. In: the C library's, and Python's own."""
        shown = [name for binding, section, name, _ in self.symbols() if section != "UND" and binding != "LOCAL"]
        self.assertEqual(shown, ["PyInit__native"])
        foreign = [name for binding, section, name, version in self.symbols()
                   if section == "UND" and binding == "GLOBAL" and not version and not re.match(r"_?Py", name)]
        self.assertEqual(foreign, [])

    def test_glibc(self):
        """No function is newer than the glibc that the name of the wheel promises to do with."""
        promised = [(2, 17) if one.startswith("manylinux2014") else tuple(map(int, one.split("_")[1:3]))
                    for one in os.path.basename(self.wheel)[:-len(".whl")].split("-")[4].split(".")]
        versions = {(name, version) for _, section, name, version in self.symbols() if section == "UND" and version}
        self.assertTrue(versions)
        for name, version in versions:
            self.assertRegex(version, r"^GLIBC_2(\.\d+)+$", name)
            number = tuple(map(int, version[len("GLIBC_"):].split(".")))
            self.assertLessEqual(number[:2], min(promised), name + ": python/glibc.h could ask for an older one")

    def test_kernels(self):
        """A fatbin for each .cu file is inside."""
        sources = glob.glob(os.path.join(ROOT, "src", "*", "*.cu"))
        self.assertEqual(self.archive.read(EXTENSION).count(FATBIN), len(sources))

    def test_every_python(self):
        self.assertTrue(self.pythons, "no Python was named")
        for python in self.pythons:
            with self.subTest(python=python), tempfile.TemporaryDirectory() as directory:
                if subprocess.run([python, "-c", "import pip"], stderr=subprocess.DEVNULL).returncode == 0:
                    output(python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-index",
                           "--no-deps", "--target", directory, self.wheel)
                else:
                    self.archive.extractall(directory)
                # -S: no site-packages, so that nothing but the wheel is there.
                said = subprocess.run([python, "-S", "-c", SMOKE, directory, header_version()], cwd=directory,
                                      stdout=subprocess.PIPE, stderr=subprocess.STDOUT, universal_newlines=True)
                self.assertEqual(said.returncode, 0, said.stdout)
                version = output(python, "-c", "import sys; print(sys.version.split()[0])").strip()
                print("Python %s (%s): %s" % (version, python, said.stdout.strip()))


if __name__ == "__main__":
    arguments, rest = sys.argv[1:], []
    if "--" in arguments:
        rest = arguments[arguments.index("--") + 1:]
        arguments = arguments[:arguments.index("--")]
    if len(arguments) < 2:
        sys.exit(__doc__)
    WheelTest.wheel, WheelTest.pythons = os.path.abspath(arguments[0]), arguments[1:]
    unittest.main(argv=sys.argv[:1] + rest, verbosity=2)
