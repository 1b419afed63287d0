"""The command: python -m onepass.export OPERATOR -o FILE. Exit codes: 0 fine, 2 wrong usage, 3 cannot be done here."""

import argparse
import os
import sys
import tempfile

from onepass.export import OPERATORS, SourcesMissing, export


def _arguments(words):
    parser = argparse.ArgumentParser(
        prog="python -m onepass.export",
        description="Writes one self-contained Python file with class ModelNew, compiled by PyTorch at first use.",
        epilog="Exit codes: 0 fine, 2 wrong usage, 3 the sources are missing or the file cannot be written.")
    parser.add_argument("operator", nargs="?", metavar="OPERATOR", help="what the model computes, see --list")
    parser.add_argument("-o", "--output", metavar="FILE", help="the file to write; - for standard output")
    parser.add_argument("--list", action="store_true", help="show the operators and end")
    arguments = parser.parse_args(words)
    if arguments.list:
        return arguments
    if arguments.operator is None:
        parser.error("OPERATOR is missing; it must be one of: " + ", ".join(OPERATORS))
    if arguments.operator not in OPERATORS:
        parser.error("OPERATOR is %r; it must be one of: %s" % (arguments.operator, ", ".join(OPERATORS)))
    if arguments.output is None:
        parser.error("-o is missing; it must be a file to write, or - for standard output")
    return arguments


def _write(path, text):
    """All of the file or nothing."""
    directory, name = os.path.split(os.path.abspath(path))
    handle, partial = tempfile.mkstemp(prefix=name + ".", dir=directory)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        mask = os.umask(0)
        os.umask(mask)
        os.chmod(partial, 0o666 & ~mask)
        os.replace(partial, path)
    except OSError:
        os.unlink(partial)
        raise


def main(words=None):
    arguments = _arguments(words)
    try:
        if arguments.list:
            for operator in OPERATORS.values():
                print("%-20s %s" % (operator.name, operator.summary))
        elif arguments.output == "-":
            sys.stdout.write(export(arguments.operator))
        else:
            _write(arguments.output, export(arguments.operator))
        sys.stdout.flush()
    except (OSError, SourcesMissing) as error:
        print("onepass.export: %s" % error, file=sys.stderr)
        return 3
    return 0


if __name__ == "__main__":
    sys.exit(main())
