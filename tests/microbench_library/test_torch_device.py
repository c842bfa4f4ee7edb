"""PyTorch on another library's stream: which stream and graph it is given; a stand-in for the module."""

from contextlib import contextmanager
from types import SimpleNamespace

import pytest

from microbench.errors import DeviceLostError
from microbench.runners.torch_device import open_torch_device


def fake_torch(calls, fault=None):
    """What of PyTorch's CUDA part the load uses, noting the calls."""

    @contextmanager
    def entered(name, *details):
        calls.append((f"enter {name}", *details))
        yield
        calls.append((f"leave {name}",))

    def external(pointer, device):
        if fault is not None:
            raise fault
        return f"stream {pointer:#x} on {device}"

    def graph():
        return SimpleNamespace(replay=lambda: calls.append(("replay",)))

    return SimpleNamespace(
        no_grad=lambda: entered("no_grad"),
        cuda=SimpleNamespace(
            is_available=lambda: True,
            ExternalStream=external,
            device=lambda ordinal: entered("device", ordinal),
            stream=lambda stream: entered("stream", stream),
            CUDAGraph=graph,
            graph=lambda graph, stream, capture_error_mode: entered("graph", stream, capture_error_mode),
            empty_cache=lambda: calls.append(("empty_cache",)),
        ),
    )


def test_work_goes_on_the_stream_that_was_given_is_captured_once_and_memory_comes_back():
    calls = []
    with open_torch_device(fake_torch(calls), 1, 0x5000) as device:
        assert device.device == "cuda:1"
        assert ("enter stream", "stream 0x5000 on cuda:1") in calls
        replay = device.capture(lambda: calls.append(("work",)))
        start = calls.index(("enter graph", "stream 0x5000 on cuda:1", "thread_local"))
        assert calls[start + 1 : start + 3] == [("work",), ("leave graph",)]
        replay()
        replay()
    assert (calls.count(("work",)), calls.count(("replay",))) == (1, 2)
    assert calls[-1] == ("empty_cache",)


def test_a_lost_board_is_said_to_be_lost():
    fault = RuntimeError("CUDA error: an illegal memory access was encountered\nmore")
    with pytest.raises(DeviceLostError, match="opening PyTorch"), open_torch_device(fake_torch([], fault), 0, 1):
        pass
