"""What the library raises. The text names the operator, the argument, the offending value and the rule.

Every class is a RuntimeError, which is what PyTorch raises in these places, and the nearest built-in one as well.
"""


class Error(RuntimeError):
    """Any failure of the library."""


class InvalidArgument(Error, ValueError):
    """An argument breaks a rule: shape, dtype, overlap, option."""


class Unsupported(Error, NotImplementedError):
    """Legal, but not offered: refused rather than ignored."""


class NoDevice(Error):
    """The device asked for is not on this machine."""


class OutOfMemory(Error, MemoryError):
    """No memory for the library's own few words."""


class DeviceError(Error):
    """The device failed while working."""


# By onepass_status.
BY_STATUS = {1: InvalidArgument, 2: Unsupported, 3: NoDevice, 4: OutOfMemory, 5: InvalidArgument, 6: DeviceError}
