"""What says that a machine cannot do what was asked."""


class DeviceError(RuntimeError):
    """The machine cannot do what was asked: a message of one line that says what to do."""
