"""The device through PyTorch, on the stream of another library: tensors, graphs, and the mapping of errors.

In this package only this file imports PyTorch.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from microbench.errors import UnsupportedError
from microbench.runners.cupy_device import CHUNK_ELEMENTS, device_failure, first_line
from microbench.runners.runner import Launch

DTYPES: Final = {
    "fp64": "float64",
    "fp32": "float32",
    "tf32": "float32",
    "fp16": "float16",
    "bf16": "bfloat16",
    "fp8": "float8_e4m3fn",
}
"""PyTorch's type for a precision."""

LOST_WORDS: Final = (
    "illegal memory access",
    "unspecified launch failure",
    "misaligned address",
    "illegal instruction",
    "device-side assert",
    "launch timed out",
    "uncorrectable",
    "unknown error",
    "no cuda-capable device",
    "devices unavailable",
    "device is lost",
    "busy or unavailable",
)
"""Parts of PyTorch's messages for errors that destroy the context.  Source: CUDA runtime API, cudaGetErrorString."""


def load_torch() -> Any:
    """The PyTorch module.  Raises UnsupportedError if it is missing or cannot be loaded."""
    try:
        import torch
    except (ImportError, OSError) as error:
        raise UnsupportedError(f"PyTorch cannot be loaded ({error}); pip install 'wattprint[torch]'") from error
    return torch


@dataclass(frozen=True, slots=True)
class TorchDevice:
    """PyTorch on one device; `open_torch_device` makes it."""

    torch: Any
    device: str
    stream: Any = None

    @contextmanager
    def errors(self, what: str) -> Iterator[None]:
        """Map PyTorch's errors within a block; `what` names the operation."""
        try:
            yield
        except RuntimeError as error:
            message = first_line(error)
            raise device_failure(any(word in message.lower() for word in LOST_WORDS), f"{what}: {message}") from error

    def dtype(self, precision: str) -> Any:
        """PyTorch's type for a precision.  Raises UnsupportedError if it has none."""
        if precision not in DTYPES:
            raise UnsupportedError(f"PyTorch has no {precision}; it has {', '.join(DTYPES)}")
        return getattr(self.torch, DTYPES[precision])

    def normal(self, shape: Sequence[int], precision: str, seed: int) -> Any:
        """Standard normal random numbers."""
        torch = self.torch
        dtype = self.dtype(precision)
        generator = torch.Generator(device=self.device).manual_seed(seed)
        if precision != "fp8":
            return torch.randn(tuple(shape), dtype=dtype, device=self.device, generator=generator)
        values = torch.empty(tuple(shape), dtype=dtype, device=self.device)
        flat = values.view(-1)
        for start in range(0, flat.numel(), CHUNK_ELEMENTS):
            part = flat[start : start + CHUNK_ELEMENTS]
            part.copy_(torch.randn(part.shape, device=self.device, generator=generator))
        return values

    def capture(self, work: Launch) -> Launch:
        """The launches of `work` as one graph; its results keep their memory while the graph exists."""
        torch = self.torch
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=self.stream, capture_error_mode="thread_local"):
            work()
        replay: Launch = graph.replay
        return replay

    def trim(self) -> None:
        """Return cached memory to the board."""
        self.torch.cuda.empty_cache()


@contextmanager
def open_torch_device(torch: Any, ordinal: int, stream_pointer: int) -> Iterator[TorchDevice]:
    """PyTorch on a board and a stream that another library opened, current for this thread.

    `torch` is the module.  Raises UnsupportedError without its CUDA part.
    """
    if not torch.cuda.is_available():
        raise UnsupportedError("this PyTorch does not see the board (built without CUDA, or for another driver)")
    device = f"cuda:{ordinal}"
    with TorchDevice(torch, device).errors(f"opening PyTorch on {device}"):
        stream = torch.cuda.ExternalStream(stream_pointer, device=device)
    with torch.cuda.device(ordinal), torch.cuda.stream(stream), torch.no_grad():
        opened = TorchDevice(torch, device, stream)
        yield opened
    opened.trim()
