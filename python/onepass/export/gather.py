"""The C and CUDA sources that exported files are made of: where they are, and what each of them needs.

They are the library's own. In a checkout they are found where they are written; an installed package carries those that
sources.txt lists, which the build reads too.
"""

import os
import re

_HERE = os.path.dirname(os.path.abspath(__file__))
_TEMPLATES = os.path.join(_HERE, "templates")
_INCLUDE = re.compile(r'^#include "([^"]+)"', re.MULTILINE)
_KERNEL = re.compile(r"^KERNEL\((\w+),.*\n", re.MULTILINE)


class SourcesMissing(Exception):
    """The sources are not where they should be: the installation is not complete."""


def listed():
    """The paths in sources.txt, from the root of the project."""
    with open(os.path.join(_HERE, "sources.txt"), encoding="utf-8") as file:
        return [line.strip() for line in file if line.strip() and not line.startswith("#")]


def read(path):
    """A source of the library, by its path from the root of the project."""
    roots = (os.path.join(_HERE, "sources"), os.path.join(_HERE, "..", "..", ".."))
    for root in roots:
        if os.path.exists(os.path.join(root, path)):
            with open(os.path.join(root, path), encoding="utf-8") as file:
                return file.read()
    raise SourcesMissing("%s is neither installed with onepass nor in a checkout: looked in %s"
                         % (path, " and ".join(os.path.normpath(root) for root in roots)))


def template(name):
    """A part of exported files that is no part of the library."""
    with open(os.path.join(_TEMPLATES, name), encoding="utf-8") as file:
        return file.read()


def version():
    """The version, from the public header: the one place where it is written."""
    header = read("include/onepass.h")
    return ".".join(re.search(r"#define ONEPASS_VERSION_%s (\d+)" % part, header)[1]
                    for part in ("MAJOR", "MINOR", "PATCH"))


def flat_name(path):
    """The name of a source in the one directory exported files compile in: headers keep theirs, for they are included
    by it; a .c file gets its directory in front, because src/ops/kl.c and src/ref/kl.c are two files."""
    directory, name = os.path.split(path)
    return "%s_%s" % (os.path.basename(directory), name) if name.endswith(".c") else name


def with_includes(roots, made, operators):
    """{flat name: text} of the named templates and of all that they include, in the order in which it is needed.

    `made` has files that are neither templates nor sources, {name: text}. Of the list of kernels the lines of the named
    operators stay.
    """
    paths = {}
    for path in listed():
        name = flat_name(path)
        if name in paths:
            raise ValueError("sources.txt: %s and %s would both be called %s" % (paths[name], path, name))
        paths[name] = path
    seen, found = set(), {}

    def add(name):
        if name in seen:
            return
        seen.add(name)
        text = made[name] if name in made else read(paths[name]) if name in paths else template(name)
        if name == "kernels.def":
            text = _KERNEL.sub(lambda line: line[0] if line[1] in operators else "", text)
        for included in _INCLUDE.findall(text):
            add(included)
        found[name] = text

    for root in roots:
        add(root)
    return found
