"""The frames in which the judge's processes talk: what is sent arrives, and what is malformed is found out."""

import pickle
import socket
import struct

import pytest
import torch

from onepass.judge import compare, wire


def through(value):
    """What arrives when the value is sent."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        wire.send(ours, 7, value)
        number, result = wire.receive(theirs, 1 << 20)
    assert number == 7
    return result


@pytest.mark.parametrize("dtype", sorted(wire.DTYPES))
def test_a_tensor_arrives_bit_for_bit(dtype):
    tensor = torch.randint(0, 2, (3, 5, 2)).to(wire.DTYPES[dtype])
    if tensor.is_floating_point():
        tensor[0, 0, 0], tensor[0, 1, 0] = float("nan"), float("-inf")
    for sent in (tensor, tensor.transpose(0, 2), tensor[:0], tensor[1, 1, 1]):
        assert compare.same_bits(through({"x": sent})["x"], sent.contiguous())


def test_nested_values_arrive():
    value = {"a": [1, 2.5, None, True, "text", (1, [])], 3: {"b": torch.float16}, "c": float("inf")}
    assert through(value) == value


def test_what_cannot_be_sent_is_refused():
    with pytest.raises(wire.WireError, match="of type set"):
        wire.encode({1, 2}, [])
    nested = []
    for _ in range(40):
        nested = [nested]
    with pytest.raises(wire.WireError, match="deep"):
        wire.encode(nested, [])


def frame(text, size=0, magic=wire.MAGIC):
    return wire.HEAD.pack(magic, 7, len(text), size) + text


@pytest.mark.parametrize("data", [
    b"x" * 64,
    pickle.dumps([1] * 100),
    frame(b"not json at all {{{{"),
    frame(b"[null]"),
    frame(b'[null, [["float32", [4]]]]'),                                # fewer bytes than the tensor has
    frame(b'[null, [["float32", [-4]]]]', 16) + b"\0" * 16,
    frame(b'[null, [["float32", [1e9]]]]', 16) + b"\0" * 16,
    frame(b'[null, [["float32", [1099511627776, 1099511627776]]]]'),
    frame(b'[null, [["object", [1]]]]', 8) + b"\0" * 8,
    frame(b'[{"tensor": 3}, []]'),
    frame(b'[{"tensor": true}, []]'),
    frame(b'[{"call": "os.system"}, []]'),
    frame(b'[{"dict": [[{"list": []}, 1]]}, []]'),
    frame(b'[{"dict": 5}, []]'),
    frame(b"[" * 100000 + b"]" * 100000),
    frame(b"", 1 << 60),
    struct.pack("<4sQIQ", wire.MAGIC, 7, 0xffffffff, 0),
], ids=range(17))
def test_a_malformed_frame_is_found_out(data):
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.sendall(data)
        ours.shutdown(socket.SHUT_WR)
        with pytest.raises(wire.WireError):
            wire.receive(theirs, 1 << 20)


def test_a_boolean_is_one_of_two_bytes():
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.sendall(frame(b'[{"tensor": 0}, [["bool", [4]]]]', 4) + bytes([0, 1, 2, 255]))
        _, tensor = wire.receive(theirs, 1 << 20)
    assert tensor.tolist() == [False, True, True, True] and tensor.view(torch.uint8).max() == 1
