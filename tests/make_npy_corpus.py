#!/usr/bin/env python3
"""Files for the .npy reader: those it must read and those it must refuse, each with its reason.

As a program it writes them all to a directory, where they are the fuzzer's seeds. test_tool.py imports the two tables.
Standard library only.
"""
import os
import struct
import sys

MAGIC = b"\x93NUMPY"


def literal(descr="'<f4'", fortran_order="False", shape="(2, 3)"):
    return "{'descr': %s, 'fortran_order': %s, 'shape': %s, }" % (descr, fortran_order, shape)


def file_of(header, data=b"", version=(1, 0), length=None, padded=True):
    """The bytes of a .npy file with that header; `length` overrides what the header says of its own."""
    header = header.encode("utf-8") if isinstance(header, str) else header
    width = 2 if version[0] == 1 else 4
    if padded:
        header += b" " * (-(len(MAGIC) + 2 + width + len(header) + 1) % 64) + b"\n"
    said = len(header) if length is None else length
    return MAGIC + bytes(version) + struct.pack("<H" if width == 2 else "<I", said) + header + data


# Two rows of probabilities, as fp32.
ROWS = struct.pack("<6f", 0.5, 0.25, 0.25, 0.125, 0.5, 0.375)

VALID = {
    "version 1": file_of(literal(), ROWS),
    "version 2": file_of(literal(), ROWS, version=(2, 0)),
    "version 3": file_of(literal(), ROWS, version=(3, 0)),
    "no padding, data at an odd place": file_of(literal() + " ", ROWS, padded=False),
    "double quotes, keys in another order": file_of(
        '{"shape": (2, 3), "fortran_order": False, "descr": "<f4"}', ROWS),
    "no trailing comma": file_of("{'descr':'<f4','fortran_order':False,'shape':(2,3)}", ROWS),
    "commas wherever they may be": file_of(
        "{ 'descr' : '<f4' , 'fortran_order' : False , 'shape' : ( 2 , 3 , ) , }", ROWS),
    "line breaks and tabs": file_of("{'descr':\t'<f4',\n'fortran_order': False,\r\n'shape': (2, 3)}\n\n", ROWS),
    "native order": file_of(literal("'=f4'"), ROWS),
    "no order": file_of(literal("'|f4'"), ROWS),
    "a long header": file_of(literal() + " " * 3000, ROWS, version=(2, 0)),
}

VALID_OTHER = {  # of other shapes and types
    "fp64": file_of(literal("'<f8'"), bytes(48)),
    "fp16": file_of(literal("'<f2'"), bytes(12)),
    "bf16": file_of(literal("'<V2'"), bytes(12)),
    "bf16 without order": file_of(literal("'|V2'"), bytes(12)),
    "bf16 by name": file_of(literal("'bfloat16'"), bytes(12)),
    "bool": file_of(literal("'|b1'"), bytes(6)),
    "u1": file_of(literal("'|u1'"), bytes(6)),
    "i1": file_of(literal("'|i1'"), bytes(6)),
    "Fortran order": file_of(literal(fortran_order="True"), bytes(24)),
    "0-d": file_of(literal(shape="()"), bytes(4)),
    "1-d": file_of(literal(shape="(6,)"), bytes(24)),
    "no rows": file_of(literal(shape="(0, 3)")),
    "no columns, many rows": file_of(literal(shape="(1000000000000, 0)")),
    "64 dimensions": file_of(literal(shape="(%s)" % ("1, " * 64)), bytes(4)),
}

# name: (bytes, a word that the message must hold)
REFUSED = {
    "empty file": (b"", "empty"),
    "one byte": (b"\x93", "not a .npy file"),
    "truncated magic": (MAGIC[:5], "not a .npy file"),
    "magic alone": (MAGIC, "not a .npy file"),
    "wrong magic": (b"\x93NUMPX" + file_of(literal(), ROWS)[6:], "not a .npy file"),
    "a zip file (.npz)": (b"PK\x03\x04" + bytes(60), "not a .npy file"),
    "text": (b"0.5 0.25 0.25\n", "not a .npy file"),
    "version without length": (MAGIC + b"\x01\x00", "length"),
    "half a length, version 1": (MAGIC + b"\x01\x00\x76", "length"),
    "half a length, version 2": (MAGIC + b"\x02\x00\x76\x00\x00", "length"),
    "version 0.0": (file_of(literal(), ROWS, version=(0, 0)), "version 0.0"),
    "version 1.1": (file_of(literal(), ROWS, version=(1, 1)), "version 1.1"),
    "version 4.0": (file_of(literal(), ROWS, version=(4, 0)), "version 4.0"),
    "version 255.255": (file_of(literal(), ROWS, version=(255, 255)), "version 255.255"),
    "header longer than the file": (file_of(literal(), b"", length=60000), "60000"),
    "header longer than it may be": (file_of(literal(), ROWS, version=(2, 0), length=(1 << 20) + 1), "1048577"),
    "header of 4 GiB": (file_of(literal(), ROWS, version=(3, 0), length=(1 << 32) - 1), "4294967295"),
    "header cut short": (file_of(literal(), ROWS, length=30), "header"),
    "header of no length": (file_of(literal(), ROWS, length=0), "header"),
    "header runs into the data": (file_of(literal(), ROWS, length=118 + 8), "white space"),
    "not a dict": (file_of("['descr', '<f4']", ROWS), "{"),
    "nothing but a brace": (file_of("{", ROWS), "key"),
    "dict not closed": (file_of(literal()[:-1], ROWS), "key"),
    "text after the dict": (file_of(literal() + " x", ROWS), "white space"),
    "two dicts": (file_of(literal() + literal(), ROWS), "white space"),
    "NUL padding": (file_of(literal() + "\0\0\0", ROWS), "white space"),
    "a comment": (file_of(literal() + " # a comment", ROWS), "white space"),
    "no colon": (file_of(literal().replace("'descr':", "'descr'"), ROWS), "colon"),
    "no comma": (file_of(literal().replace("'<f4',", "'<f4'"), ROWS), "comma"),
    "two commas": (file_of(literal().replace("'<f4',", "'<f4',,"), ROWS), "key"),
    "duplicate key": (
        file_of("{'descr': '<f4', 'descr': '<f4', 'fortran_order': False, 'shape': (2, 3)}", ROWS), "twice"),
    "unknown key": (file_of("{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), 'more': 1}", ROWS), "'more'"),
    "missing descr": (file_of("{'fortran_order': False, 'shape': (2, 3)}", ROWS), "'descr'"),
    "missing fortran_order": (file_of("{'descr': '<f4', 'shape': (2, 3)}", ROWS), "'fortran_order'"),
    "missing shape": (file_of("{'descr': '<f4', 'fortran_order': False}", ROWS), "'shape'"),
    "key without quotes": (file_of(literal().replace("'descr'", "descr"), ROWS), "key"),
    "key in bytes": (file_of(literal().replace("'descr'", "b'descr'"), ROWS), "key"),
    "quotes do not match": (file_of(literal().replace("'descr'", "'descr\""), ROWS), "key"),
    "escape in a string": (file_of(literal("'<f\\x34'"), ROWS), "dtype"),
    "NUL in the dtype": (file_of(literal("'\0f4'"), ROWS), "dtype"),
    "empty dtype": (file_of(literal("''"), ROWS), "dtype"),
    "long dtype": (file_of(literal("'%s'" % ("f" * 5000)), ROWS), "dtype"),
    "big-endian": (file_of(literal("'>f4'"), ROWS), "big-endian"),
    "int16": (file_of(literal("'<i2'"), ROWS), "'<i2'"),
    "complex": (file_of(literal("'<c8'"), ROWS + ROWS), "'<c8'"),
    "fp128": (file_of(literal("'<f16'"), bytes(96)), "'<f16'"),
    "object": (file_of(literal("'|O'"), ROWS), "'|O'"),
    "unicode": (file_of(literal("'<U1'"), ROWS), "'<U1'"),
    "void of 4": (file_of(literal("'|V4'"), ROWS), "'|V4'"),
    "structured": (file_of(literal("[('a', '<f4')]"), ROWS), "structured"),
    "sub-array": (file_of(literal("('<f4', (3,))", shape="(2,)"), ROWS), "structured"),
    "dtype is a number": (file_of(literal("4"), ROWS), "dtype"),
    "terminal escape in the dtype": (file_of(literal("'\x1b[2J\nonepass: fine'"), ROWS), "dtype"),
    "fortran_order 0": (file_of(literal(fortran_order="0"), ROWS), "fortran_order"),
    "fortran_order None": (file_of(literal(fortran_order="None"), ROWS), "fortran_order"),
    "fortran_order true": (file_of(literal(fortran_order="true"), ROWS), "fortran_order"),
    "fortran_order Falsehood": (file_of(literal(fortran_order="Falsehood"), ROWS), "comma"),
    "shape is a number": (file_of(literal(shape="6"), ROWS), "shape"),
    "shape is a number in brackets": (file_of(literal(shape="(6)"), ROWS), "comma"),
    "shape is a list": (file_of(literal(shape="[2, 3]"), ROWS), "shape"),
    "shape is not closed": (file_of(literal(shape="(2, 3"), ROWS), "dimension"),
    "shape of nothing and a comma": (file_of(literal(shape="(,)"), ROWS), "dimension"),
    "shape nested": (file_of(literal(shape="((2, 3),)"), ROWS), "dimension"),
    "negative dimension": (file_of(literal(shape="(-2, 3)"), ROWS), "0 or more"),
    "two negative dimensions": (file_of(literal(shape="(-2, -3)"), ROWS), "0 or more"),
    "fractional dimension": (file_of(literal(shape="(2.0, 3)"), ROWS), "comma"),
    "hexadecimal dimension": (file_of(literal(shape="(0x2, 3)"), ROWS), "comma"),
    "dimension with a leading zero": (file_of(literal(shape="(02, 3)"), ROWS), "integer"),
    "long dimension of Python 2": (file_of(literal(shape="(2L, 3L)"), ROWS), "comma"),
    "dimension with an underscore": (file_of(literal(shape="(2_0, 3)"), ROWS), "comma"),
    "dimension is a word": (file_of(literal(shape="(two, 3)"), ROWS), "integer"),
    "dimension of 2^63": (file_of(literal(shape="(9223372036854775808,)"), ROWS), "2^63"),
    "dimension of 2^64 + 6": (file_of(literal(shape="(18446744073709551622,)"), ROWS), "2^63"),
    "dimension of 400 digits": (file_of(literal(shape="(%s,)" % ("9" * 400)), ROWS), "2^63"),
    "product overflows to 6": (file_of(literal(shape="(4611686018427387905, 4, 6)"), ROWS), "2^63"),
    "product overflows to 0": (file_of(literal(shape="(4294967296, 4294967296)")), "2^63"),
    "bytes overflow": (file_of(literal(shape="(4611686018427387904,)"), ROWS), "2^63"),
    "overflow beside a 0": (file_of(literal(shape="(4611686018427387904, 4611686018427387904, 0)")), "2^63"),
    "65 dimensions": (file_of(literal(shape="(%s)" % ("1, " * 65)), bytes(4)), "64"),
    "10000 dimensions": (file_of(literal(shape="(%s)" % ("1, " * 10000)), bytes(4)), "64"),
    "no data": (file_of(literal()), "152 bytes"),
    "data one byte short": (file_of(literal(), ROWS[:-1]), "152 bytes"),
    "data one byte long": (file_of(literal(), ROWS + b"\0"), "left over"),
    "data 4 KiB long": (file_of(literal(), ROWS + bytes(4096)), "4096 left over"),
    "data after an empty array": (file_of(literal(shape="(0, 3)"), ROWS), "24 left over"),
    "a terabyte promised": (file_of(literal(shape="(500000, 500000)"), ROWS), "1000000000128"),
}


def main(directory):
    os.makedirs(directory, exist_ok=True)
    files = dict(VALID)
    files.update(VALID_OTHER)
    files.update((name, data) for name, (data, _) in REFUSED.items())
    for number, data in enumerate(files.values()):
        with open(os.path.join(directory, "%03d.npy" % number), "wb") as file:
            file.write(data)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: make_npy_corpus.py DIRECTORY")
    main(sys.argv[1])
