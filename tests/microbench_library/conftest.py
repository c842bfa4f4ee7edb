"""A runner over a stand-in for CuPy, cuBLAS and CUPTI."""

from contextlib import contextmanager
from dataclasses import dataclass
from types import SimpleNamespace

from collector.devices.board_runner import BoardRunner, Libraries, open_board_runner
from collector.devices.tracer import CuptiTracer
from estimator import load_gpu
from tests.microbench_library.cuda_fake import FakeCublas, FakeCupti, World, fake_cupy


@dataclass
class FakeBoard:
    """A runner with the world behind it."""

    runner: BoardRunner
    world: World
    cublas: FakeCublas
    cupti: FakeCupti


NO_TORCH = SimpleNamespace(cuda=SimpleNamespace(is_available=lambda: False))
"""In PyTorch's place where it has no CUDA part."""


@contextmanager
def open_fake_board(*, tracer=None, raw_kernels=None, **world_settings):
    """A board of the H200's size whose kernels all take `kernel_s`; every launch is seen by the stand-in for CUPTI.

    `raw_kernels` are what compiled entries do, by name.
    """
    world = World(**world_settings)
    cublas, cupti = FakeCublas(world), FakeCupti()

    def seen(name):
        end = round(world.busy_until_s * 1e9)
        cupti.ran(name, end - round(world.kernel_s * 1e9), end)

    world.seen = seen
    with open_board_runner(
        "00000000:5d:00.0",
        load_gpu("h200-sxm"),
        world.now_ns,
        tracer=CuptiTracer(cupti) if tracer is None else tracer,
        libraries=Libraries(cupy=fake_cupy(world, raw_kernels), cublas=cublas, torch=NO_TORCH),
    ) as runner:
        yield FakeBoard(runner=runner, world=world, cublas=cublas, cupti=cupti)
