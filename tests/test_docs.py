#!/usr/bin/env python3
"""Runs what the documents tell people to run.

Fenced blocks of README.md, CONTRIBUTING.md and docs/*.md, by their language:

  sh       run by bash in a copy of the tree whose build/ holds the built tool and libraries; the tool is on the PATH.
           A ./dev line is only looked up in ./dev help, since ./dev test runs this very file.
           A block whose first line is "# not run: reason" is left out, and the reason shown.
  c        with a main: compiled against the static library, warnings as errors, and run.
  python   run.

Relative links must lead to a file of the tree.

Blocks of one document share a directory, so that a later one may use what an earlier one wrote. Python is the one given
by --python, with the package found in --packages; python3 in a sh block is that one, too. Without them, blocks that
need the package, PyTorch or NumPy are left out, and that is said.
"""

import argparse
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
NEEDS_PACKAGE = re.compile(r"^\s*(?:import|from)\s+(?:onepass|torch|numpy)\b|\bpython3?\s+-m\s+onepass\b"
                           r"|\bexamples/\w+\.py\b", re.M)
NOT_RUN = re.compile(r"(?:#|//|/\*)\s*not run:\s*(.*?)\s*(?:\*/)?\s*$")
SECONDS = 1800  # what takes longer hangs, on a busy machine too


def blocks(path):
    """(line, language, text) of every fenced block; a fence inside a list item is indented, and so is its text."""
    found = None
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        fence = re.match(r"(\s*)(`{3,})\s*([\w+-]*)\s*$", line)
        if found is None:
            if fence:
                found = (number, fence, [])
            continue
        start, opening, lines = found
        if fence and not fence[3] and len(fence[2]) >= len(opening[2]):
            yield start, opening[3], "\n".join(lines) + "\n"
            found = None
        else:
            indent = len(opening[1])
            lines.append(line[indent:] if line[:indent].isspace() else line)
    if found is not None:
        raise SystemExit(f"{path}:{found[0]}: this block is never closed")


def broken_links(path):
    """The relative links of a document that lead nowhere."""
    text = re.sub(r"^```.*?^```", "", path.read_text(encoding="utf-8"), flags=re.M | re.S)
    links = re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", text)
    return [link for link in links if "://" not in link and not (path.parent / link).exists()]


def dev_help():
    """{command: its line} of ./dev help."""
    text = subprocess.run(["./dev", "help"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    return {match[1]: match[0] for match in re.finditer(r"^  \./dev (\w+).*$", text, re.MULTILINE)}


def check_dev(line, commands):
    """What is wrong with a ./dev line, or None."""
    words = shlex.split(line, comments=True)[1:]
    if not words:
        return None
    if words[0] not in commands:
        return f"./dev has no command {words[0]}"
    if "[ARGS]" in commands[words[0]]:
        return None
    # [--quick] is a word, [-o DIR] a word and its value.
    known = dict(re.findall(r"\[(-[\w-]+)( [A-Z]+)?\]", commands[words[0]]))
    rest = iter(words[1:])
    for word in rest:
        if word == "--":
            return None
        if word not in known:
            return f"./dev {words[0]} has no argument {word}"
        if known[word] and next(rest, None) is None:
            return f"./dev {words[0]} {word} needs{known[word]}"
    return None


def copy_tree(build, directory):
    """The sources, and a build/ that holds what a build leaves for its users."""
    others = (".git", ".hypothesis", "__pycache__")  # of other steps, which write there meanwhile
    shutil.copytree(ROOT, directory, dirs_exist_ok=True, symlinks=True,
                    ignore=lambda where, names: [name for name in names if name in others
                                                 or (Path(where) == ROOT and name.startswith("build"))])
    (directory / "build").mkdir()
    for pattern in ("onepass", "libonepass.*"):
        for file in build.glob(pattern):
            shutil.copy2(file, directory / "build" / file.name, follow_symlinks=False)


def commands_for(language, text, number, directory, commands, python):
    """The commands (lists of words) that try a block. A string says why it is not tried, None that it never is."""
    first = text.lstrip().split("\n", 1)[0]
    reason = NOT_RUN.match(first)
    if language in ("sh", "bash", "c", "python") and reason:
        if not reason[1]:
            raise ValueError("it is not run and gives no reason")
        return "not run: " + reason[1]
    if language in ("sh", "bash", "python") and not python and NEEDS_PACKAGE.search(text):
        return "not run: it needs the Python package, and no --python was given"
    if language in ("sh", "bash"):
        lines = []
        for line in text.splitlines():
            if re.match(r"\s*\./dev\b", line):
                wrong = check_dev(line, commands)
                if wrong:
                    raise ValueError(wrong)
                line = ":"
            lines.append(line)
        return [["bash", "-euo", "pipefail", "-c", "\n".join(lines)]]
    if language == "c" and re.search(r"\bint main\(", text):
        source, program = directory / f"block_{number}.c", directory / f"block_{number}"
        source.write_text(text, encoding="utf-8")
        compiler = shlex.split(os.environ.get("CC", "cc"))
        return [compiler + ["-std=c11", "-Wall", "-Wextra", "-Werror", "-Iinclude", str(source), "-o", str(program),
                            "build/libonepass.a", "-lm", "-lpthread", "-ldl"], [str(program)]]
    if language == "python":
        source = directory / f"block_{number}.py"  # a file: rewrite reads the source of a forward
        source.write_text(text, encoding="utf-8")
        return [[str(python or sys.executable), str(source)]]
    return None


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--build", type=Path, default=ROOT / "build", help="the directory of the build to use")
    parser.add_argument("--python", type=Path, help="the Python of the documents, in an environment with PyTorch")
    parser.add_argument("--packages", type=Path, help="the directory that holds the package onepass")
    arguments = parser.parse_args()
    build, python = arguments.build.resolve(), arguments.python
    if not (build / "onepass").exists():
        raise SystemExit(f"{build} holds no tool; build first")
    if bool(python) != bool(arguments.packages):
        raise SystemExit("--python and --packages go together")

    commands = dev_help()
    documents = [path for path in (ROOT / "README.md", ROOT / "CONTRIBUTING.md") if path.exists()]
    documents += sorted((ROOT / "docs").glob("*.md"))
    tried = failed = 0
    for document in documents:
        for link in broken_links(document):
            failed += 1
            print(f"{document.relative_to(ROOT)}: FAILED: {link} is not there")
        with tempfile.TemporaryDirectory() as name:
            directory = Path(name) / "onepass"
            copy_tree(build, directory)
            path = [str(directory / "build"), os.environ["PATH"]]
            environment = dict(os.environ, HOME=name)
            if python:
                path.insert(0, str(python.absolute().parent))
                environment["PYTHONPATH"] = str(arguments.packages.resolve())
            environment["PATH"] = os.pathsep.join(path)
            for number, language, text in blocks(document):
                where = f"{document.relative_to(ROOT)}:{number} ({language})"
                try:
                    todo = commands_for(language, text, number, directory, commands, python)
                    if todo is None:
                        continue
                    if isinstance(todo, str):
                        print(f"{where}: {todo}")
                        continue
                    tried += 1
                    for command in todo:
                        subprocess.run(command, cwd=directory, env=environment, check=True, timeout=SECONDS, text=True,
                                       stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
                    print(f"{where}: ok")
                except (ValueError, subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
                    failed += 1
                    print(f"{where}: FAILED: {error}")
                    print(getattr(error, "output", None) or "", end="")
    print(f"{tried} blocks tried, {failed} failed")
    if tried == 0:
        raise SystemExit("not one block was found: is the pattern right?")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
