"""Frames between the judge and the processes that run other people's code.

A frame is a fixed head, a JSON text and the raw bytes of tensors, one after the other. What arrives is parsed here and
nowhere else, and nothing in it is ever executed or unpickled: a hostile sender can at worst be found out. Every request
carries a random number, and only an answer with the same number is taken for the answer to it.
"""

import array
import ctypes
import json
import socket
import struct
import time

import torch

HEAD = struct.Struct("<4sQIQ")  # magic, number of the request, bytes of JSON, bytes of tensors
MAGIC = b"OPJ1"
JSON_LIMIT = 64 << 20
CHUNK = 64 << 20  # bytes handed to the socket at a time, so that a deadline is looked at now and then
DEPTH = 16

DTYPES = {str(dtype)[6:]: dtype for dtype in (
    torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16, torch.int8,
    torch.uint8, torch.bool, torch.complex64, torch.complex128)}


class WireError(Exception):
    """A frame that no honest worker sends."""


class Closed(Exception):
    """The other side is gone."""


class Late(Exception):
    """The deadline has passed."""


def dtype_name(dtype):
    return str(dtype)[6:]


def element_size(dtype):
    return torch.empty((), dtype=dtype).element_size()


def tensor_bytes(tensor):
    """A writable view of the memory of a contiguous tensor on the CPU; it keeps no reference to the tensor."""
    size = tensor.numel() * tensor.element_size()
    if size == 0:
        return memoryview(bytearray())
    return memoryview((ctypes.c_char * size).from_address(tensor.data_ptr())).cast("B")


def encode(value, tensors, depth=0):
    """The value as JSON can hold it; tensors are put into the list, and the JSON says where."""
    if depth > DEPTH:
        raise WireError("a value is nested more than %d deep" % DEPTH)
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, torch.Tensor):
        tensors.append(value)
        return {"tensor": len(tensors) - 1}
    if hasattr(value, "_fields"):
        raise WireError("a namedtuple (%s) cannot be sent to another process" % type(value).__name__)
    if isinstance(value, (list, tuple)):
        items = [encode(item, tensors, depth + 1) for item in value]
        return {"tuple" if isinstance(value, tuple) else "list": items}
    if isinstance(value, dict):
        return {"dict": [[encode(key, tensors, depth + 1), encode(item, tensors, depth + 1)]
                         for key, item in value.items()]}
    if isinstance(value, torch.dtype):
        return {"dtype": dtype_name(value)}
    if isinstance(value, torch.device):
        return {"device": str(value)}
    raise WireError("a value of type %s cannot be sent to another process" % type(value).__name__)


def decode(value, tensors, depth=0):
    if depth > DEPTH:
        raise WireError("a value is nested more than %d deep" % DEPTH)
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if not isinstance(value, dict) or len(value) != 1:
        raise WireError("a value is not in the form it is sent in")
    (kind, body), = value.items()
    if kind == "tensor" and type(body) is int and 0 <= body < len(tensors):
        return tensors[body]
    if kind in ("list", "tuple") and isinstance(body, list):
        items = [decode(item, tensors, depth + 1) for item in body]
        return tuple(items) if kind == "tuple" else items
    if kind == "dict" and isinstance(body, list):
        result = {}
        for pair in body:
            if not isinstance(pair, list) or len(pair) != 2:
                raise WireError("an entry of a dictionary is no pair")
            key = decode(pair[0], tensors, depth + 1)
            if not isinstance(key, (str, int, float, bool, tuple, type(None))):
                raise WireError("a key of a dictionary is a %s" % type(key).__name__)
            result[key] = decode(pair[1], tensors, depth + 1)
        return result
    if kind == "dtype" and body in DTYPES:
        return DTYPES[body]
    if kind == "device" and isinstance(body, str):
        return torch.device(body)
    raise WireError("a value is of the unknown kind %.40r" % kind)


def _wait(sock, deadline):
    left = None if deadline is None else deadline - time.monotonic()
    if left is not None and left <= 0:
        raise Late()
    sock.settimeout(left)


def _send_all(sock, view, deadline):
    while len(view):
        _wait(sock, deadline)
        view = view[sock.send(view[:CHUNK]):]


def _receive_into(sock, view, deadline):
    while len(view):
        _wait(sock, deadline)
        count = sock.recv_into(view[:CHUNK])
        if count == 0:
            raise Closed()
        view = view[count:]


def send(sock, number, value, deadline=None, descriptors=()):
    """descriptors: of open files, which the receiver then has too."""
    tensors = []
    message = encode(value, tensors)
    tensors = [tensor.detach().cpu().contiguous() for tensor in tensors]
    text = json.dumps([message, [[dtype_name(tensor.dtype), list(tensor.shape)] for tensor in tensors]]).encode()
    views = [tensor_bytes(tensor) for tensor in tensors]
    try:
        begin = memoryview(HEAD.pack(MAGIC, number, len(text), sum(map(len, views))) + text)
        if descriptors:
            _wait(sock, deadline)
            begin = begin[sock.sendmsg([begin], [(socket.SOL_SOCKET, socket.SCM_RIGHTS,
                                                  array.array("i", descriptors))]):]
        _send_all(sock, begin, deadline)
        for view in views:
            _send_all(sock, view, deadline)
    except socket.timeout:
        raise Late()
    except OSError:
        raise Closed()


def receive(sock, limit, deadline=None, descriptors=None):
    """(number, value) of the next frame, whose tensors may have `limit` bytes. Raises WireError, Closed or Late.
    descriptors: a list for those that come along; without it none are taken."""
    try:
        head = bytearray(HEAD.size)
        view = memoryview(head)
        if descriptors is not None:
            _wait(sock, deadline)
            size, extra, _, _ = sock.recvmsg_into([view], socket.CMSG_SPACE(8 * array.array("i").itemsize))
            if size == 0:
                raise Closed()
            for _, _, data in extra:
                descriptors.extend(array.array("i", data))
            view = view[size:]
        _receive_into(sock, view, deadline)
        magic, number, text_size, size = HEAD.unpack(head)
        if magic != MAGIC:
            raise WireError("bytes on the channel that are no frame: %.40r" % bytes(head))
        if text_size > JSON_LIMIT or size > limit:
            raise WireError("a frame of %d + %d bytes, where at most %d were to come" % (text_size, size, limit))
        text = bytearray(text_size)
        _receive_into(sock, memoryview(text), deadline)
        try:
            message, shapes = json.loads(text.decode())
            layouts = [(DTYPES[dtype], tuple(shape)) for dtype, shape in shapes]
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise WireError("a frame whose text is not what it should be (%s)" % type(error).__name__)
        expected = 0
        for dtype, shape in layouts:
            elements = element_size(dtype)
            for extent in shape:
                if type(extent) is not int or not 0 <= extent <= limit + 1:
                    raise WireError("a tensor of shape %.80r" % (shape,))
                elements *= extent
            expected += elements
        if expected != size:
            raise WireError("tensors of %d bytes in a frame that has %d" % (expected, size))
        tensors = []
        for dtype, shape in layouts:
            # A boolean may arrive as any byte: read bytes, then ask which are not 0.
            tensor = torch.empty(shape, dtype=torch.uint8 if dtype is torch.bool else dtype)
            _receive_into(sock, tensor_bytes(tensor), deadline)
            tensors.append(tensor.ne(0) if dtype is torch.bool else tensor)
        return number, decode(message, tensors)
    except socket.timeout:
        raise Late()
    except OSError:
        raise Closed()
