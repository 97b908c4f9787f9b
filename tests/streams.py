"""On which streams launches are."""

from charcnn.gpu import device
from charcnn.gpu.launch import Call
from charcnn.gpu.replay import Replay


def launched_on(monkeypatch):
    """A set that each launch adds its stream to."""
    streams = set()
    launch = Call.launch

    def spy(call, *args, **kwargs):
        streams.add(numbered(call.stream))
        launch(call, *args, **kwargs)

    monkeypatch.setattr(Call, "launch", spy)
    known = Replay.started

    def started(replay, arrays, options, out, given):  # what is known starts without `Call.launch`
        found = known(replay, arrays, options, out, given)
        if found is not None:
            streams.add(device.stream_handle(given))
        return found

    monkeypatch.setattr(Replay, "started", started)
    return streams


def numbered(stream):
    """What tells a stream from others."""
    return stream if device.SIMULATED else int(stream)
