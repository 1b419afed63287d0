#!/usr/bin/env python3
"""cmake/fatbin.cmake takes a fatbin from another build if that is what it would make, and only then.

The compiler is a stand-in that copies its source and says what nvcc and ptxas say; the trees are made here. Standard
library and cmake only.
"""
import os
import shutil
import subprocess
import sys
import tempfile
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))

COMPILER = r'''
import shutil, sys
words = sys.argv[1:]
if "--version" in words:
    print("release VERSION")
    sys.exit()
source, output = words[-1], words[words.index("-o") + 1]
header = source.rpartition("/")[0] + "/x.h"
shutil.copy(source, output)
with open(words[words.index("-MF") + 1], "w") as file:
    file.write("%s : %s \\\n    %s \\\n    /usr/include/stdio.h\n" % (
        words[words.index("-MT") + 1], source.replace(" ", "\\ "), header.replace(" ", "\\ ")))
print("ptxas info    : Compiling entry function 'onep_x' for 'sm_80'")
print("ptxas info    : Function properties for onep_x")
print("    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads")
with open(sys.argv[0] + ".runs", "a") as file:
    file.write("x")
'''


class FatbinTest(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.directory = temporary.name
        self.compiler = self.make_compiler("nvcc.py", "1.2")

    def make_compiler(self, name, version):
        path = os.path.join(self.directory, name)
        with open(path, "w", encoding="utf-8") as file:
            file.write(COMPILER.replace("VERSION", version))
        return path

    def make_tree(self, name):
        tree = os.path.join(self.directory, name)
        os.makedirs(os.path.join(tree, "src", "x"))
        os.makedirs(os.path.join(tree, "made"))
        os.mkdir(os.path.join(tree, "cmake"))
        shutil.copy(os.path.join(ROOT, "cmake", "fatbin.cmake"), os.path.join(tree, "cmake"))
        for file_name, text in (("x.cu", "kernel\n"), ("x.h", "header\n")):
            self.write(tree, file_name, text)
        return tree

    def write(self, tree, name, text):
        with open(os.path.join(tree, "src", "x", name), "w", encoding="utf-8") as file:
            file.write(text)

    def make(self, tree, other=None, flags="-O3", compiler=None):
        """Makes the tree's fatbin; returns whether the compiler was used."""
        compiler = compiler or self.compiler
        runs = compiler + ".runs"
        if os.path.exists(runs):
            os.remove(runs)
        output = os.path.join(tree, "made", "x.fatbin")
        done = subprocess.run(["cmake", "-DSTEP=compile", "-DNVCC=%s;%s" % (sys.executable, compiler),
                               "-DFLAGS=%s;-I%s/src" % (flags, tree), "-DSOURCE=%s/src/x/x.cu" % tree,
                               "-DOUTPUT=" + output, "-P", os.path.join(tree, "cmake", "fatbin.cmake")],
                              env=dict(os.environ, ONEPASS_FATBINS=os.path.join(other, "made") if other else ""),
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, universal_newlines=True)
        self.assertEqual(done.returncode, 0, done.stdout)
        with open(output, encoding="utf-8") as made, open(os.path.join(tree, "src", "x", "x.cu"),
                                                          encoding="utf-8") as source:
            self.assertEqual(made.read(), source.read())
        with open(output + ".kernels", encoding="utf-8") as file:
            self.assertEqual(file.read(), "onep_x\n")
        return os.path.exists(runs)

    def test_taken(self):
        first, second = self.make_tree("first"), self.make_tree("a second tree")
        self.assertTrue(self.make(first))
        self.assertFalse(self.make(second, other=first))
        with open(os.path.join(second, "made", "x.fatbin.d"), encoding="utf-8") as file:
            rule = file.read().replace("\\ ", " ")
        # What the compiler read of the tree and nothing else: bench/evidence.py takes its list from here.
        files = [os.path.join(second, name) for name in ("made/x.fatbin:", "src/x/x.cu", "src/x/x.h")]
        self.assertEqual(rule, " ".join(files) + "\n")
        third = self.make_tree("third")
        self.assertFalse(self.make(third, other=second))  # what was taken can be taken on

    def test_made_again(self):
        first = self.make_tree("first")
        self.assertTrue(self.make(first))
        for name in ("x.cu", "x.h"):
            tree = self.make_tree("another " + name)
            self.write(tree, name, "another text\n")
            self.assertTrue(self.make(tree, other=first), name)
        self.assertTrue(self.make(self.make_tree("flags"), other=first, flags="-O2"))
        self.assertTrue(self.make(self.make_tree("release"), other=first, compiler=self.make_compiler("new.py", "1.3")))
        os.remove(os.path.join(first, "made", "x.fatbin.kernels"))
        self.assertTrue(self.make(self.make_tree("incomplete"), other=first))
        self.assertTrue(self.make(self.make_tree("nothing"), other=self.directory))


if __name__ == "__main__":
    unittest.main()
