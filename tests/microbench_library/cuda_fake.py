"""The outside world at CuPy's, cuBLAS's and CUPTI's edge: a device with a clock, a stream, memory, graphs and products.

The host's time passes with every launch, the device's with every kernel; a kernel starts when the host has launched it and
the one before has ended.  Arrays lie in host memory, so that products are really computed.
"""

import ctypes
import json
from contextlib import contextmanager
from types import SimpleNamespace

import numpy as np

HOST_LAUNCH_S = 5e-6
GRAPH_LAUNCH_S = 8e-6
PCI_ADDRESS = "0000:5D:00.0"


class CudaRuntimeError(RuntimeError):
    """As CuPy's: a RuntimeError with the status."""

    def __init__(self, status, message=""):
        super().__init__(message or f"cudaError {status}")
        self.status = status


class OutOfMemoryError(MemoryError):
    """As CuPy's memory pool raises."""


class CuptiError(Exception):
    """As cupti-python raises."""


class Array(np.ndarray):
    """Device memory; `data.ptr` is its address."""

    @property
    def data(self):
        return SimpleNamespace(ptr=self.ctypes.data)

    def set(self, values):
        assert (values.dtype, values.shape) == (self.dtype, self.shape)
        self[...] = values


class World:
    """One board: host and device time, memory, what was launched, and faults to come."""

    def __init__(self, *, kernel_s=50e-6, total_bytes=10**12, computes=True, boards=1):
        self.computes = computes
        self.boards = boards
        self.peers_open = set()
        self.damages_copies = False
        self.host_s = 100.0
        self.busy_until_s = 100.0
        self.kernel_s = kernel_s
        self.total_bytes = total_bytes
        self.largest_allocation = 0
        self.launched = []
        self.graphs_launched = 0
        self.captured = None
        self.fail_launch = None
        self.fail_sync = None
        self.addresses = []
        self.seen = lambda name: None

    def now_ns(self):
        return round(self.host_s * 1e9)

    def launch(self, name, work, address=0):
        if self.fail_launch is not None:
            raise self.fail_launch
        if self.captured is not None:
            self.captured.append((name, work, address))
            return
        self.host_s += HOST_LAUNCH_S
        self._start(name, work, address)

    def replay(self, nodes):
        self.host_s += GRAPH_LAUNCH_S
        self.graphs_launched += 1
        for name, work, address in nodes:
            self._start(name, work, address)

    def _start(self, name, work, address=0):
        self.busy_until_s = max(self.busy_until_s, self.host_s) + self.kernel_s
        self.launched.append(name)
        self.addresses.append(address)
        self.seen(name)
        if self.computes:
            work()

    def synchronize(self):
        if self.fail_sync is not None:
            raise self.fail_sync
        self.host_s = max(self.host_s, self.busy_until_s)

    def allocate(self, count):
        if count > self.total_bytes:
            raise OutOfMemoryError(f"Out of memory allocating {count:,} bytes")
        self.largest_allocation = max(self.largest_allocation, count)


class Stream:
    """A stream that can be captured."""

    def __init__(self, world):
        self.world, self.ptr = world, 0x5000

    def __enter__(self):
        return self

    def __exit__(self, *_):
        return None

    def synchronize(self):
        self.world.synchronize()

    def begin_capture(self):
        self.world.captured = []

    def end_capture(self):
        nodes, self.world.captured = self.world.captured or [], None
        return SimpleNamespace(launch=lambda stream: self.world.replay(nodes), upload=lambda stream: None)


class Pinned(bytearray):
    """Host memory that does not move; `ptr` is its address."""

    @property
    def ptr(self):
        return int(np.frombuffer(self, dtype=np.uint8).ctypes.data)


def fake_cupy(world, raw_kernels=None):
    """A CuPy module on a world; `raw_kernels` are what compiled entries do, by name."""

    def event():
        mark = SimpleNamespace(time_s=0.0)
        mark.record = lambda stream: setattr(mark, "time_s", max(world.busy_until_s, world.host_s))
        return mark

    def empty(elements, dtype):
        world.allocate(int(np.prod(elements)) * np.dtype(dtype).itemsize)
        return np.zeros(elements, dtype=dtype).view(Array)

    def normal(count, dtype):
        return generator.standard_normal(count, dtype=np.dtype(dtype)).view(Array)

    def raw_module(path):
        with open(path, "rb") as file:
            assert file.read(), "an empty cubin"
        return SimpleNamespace(get_function=raw_kernel)

    def raw_kernel(name):
        work = (raw_kernels or {}).get(name, lambda *_: None)
        return lambda grid, block, arguments: world.launch(name, lambda: work(grid, block, arguments))

    @contextmanager
    def device(ordinal):
        yield ordinal

    def by_pci(address):
        if address.lower() != PCI_ADDRESS.lower():
            raise CudaRuntimeError(101, "cudaErrorInvalidDevice: invalid device ordinal")
        return 0

    def copy(target, origin, size, name):
        def work():
            ctypes.memmove(target, origin, size)
            if world.damages_copies:
                ctypes.memset(target, 255 - ctypes.c_ubyte.from_address(target).value, 1)

        world.launch(name, work)

    def enable_peer(other):
        if other in world.peers_open:
            raise CudaRuntimeError(704, "cudaErrorPeerAccessAlreadyEnabled")
        world.peers_open.add(other)

    generator = np.random.default_rng(7)
    pool = SimpleNamespace(free_bytes=lambda: 0, free_all_blocks=lambda: None)
    return SimpleNamespace(
        cuda=SimpleNamespace(
            memory=SimpleNamespace(OutOfMemoryError=OutOfMemoryError),
            runtime=SimpleNamespace(
                CUDARuntimeError=CudaRuntimeError,
                memGetInfo=lambda: (world.total_bytes, world.total_bytes),
                deviceGetByPCIBusId=by_pci,
                getDeviceCount=lambda: world.boards,
                deviceCanAccessPeer=lambda own, other: 1,
                deviceEnablePeerAccess=enable_peer,
                deviceSynchronize=lambda: None,
                memcpyAsync=lambda target, origin, size, kind, stream: copy(target, origin, size, "memcpy"),
                memcpyPeerAsync=lambda target, there, origin, here, size, stream: copy(target, origin, size, "memcpyPeer"),
            ),
            alloc_pinned_memory=Pinned,
            driver=SimpleNamespace(CUDADriverError=type("CUDADriverError", (CudaRuntimeError,), {})),
            Event=event,
            get_elapsed_time=lambda earlier, later: (later.time_s - earlier.time_s) * 1e3,
            Stream=lambda non_blocking: Stream(world),
            Device=device,
            device=SimpleNamespace(get_cublas_handle=lambda: 1),
        ),
        random=SimpleNamespace(RandomState=lambda seed: SimpleNamespace(standard_normal=normal)),
        RawModule=raw_module,
        empty=empty,
        asnumpy=np.asarray,
        get_default_memory_pool=lambda: pool,
    )


CTYPES = {0: np.float32, 1: np.float64, 2: np.float16, 14: np.uint16}


class FakeCublas:
    """libcublas's products, computed as its manual defines them: columns first, leading dimensions, strides."""

    def __init__(self, world):
        self.world = world
        self.status = 0
        self.workspace_bytes = 0
        self.compute_types = []

    def __getattr__(self, name):
        assert name in ("cublasCreate_v2", "cublasDestroy_v2")
        return lambda handle: 0

    def cublasSetStream_v2(self, handle, stream):
        assert stream.value == 0x5000
        return 0

    def cublasSetWorkspace_v2(self, handle, address, size):
        self.workspace_bytes = size.value
        return 0

    def cublasGemmEx(self, handle, opa, opb, m, n, k, alpha, *rest):
        return self._product((opa, opb, m, n, k), alpha, ((*rest[:3], 0), (*rest[3:6], 0), (*rest[7:10], 0)), rest[6], 1, rest[10])

    def cublasGemmStridedBatchedEx(self, handle, opa, opb, m, n, k, alpha, *rest):
        operands = tuple((*rest[place : place + 3], rest[place + 3].value) for place in (0, 4, 9))
        return self._product((opa, opb, m, n, k), alpha, operands, rest[8], rest[13], rest[14])

    def _product(self, sizes, alpha, operands, beta, batch, compute):
        opa, opb, m, n, k = sizes
        a, b, c = operands
        if self.status:
            return self.status
        self.compute_types.append(compute)
        scale_type = ctypes.c_double if compute == 70 else ctypes.c_float
        assert isinstance(alpha._obj, scale_type)
        assert isinstance(beta._obj, scale_type)

        def work():
            for index in range(batch):
                left = _columns(a, (m, k) if opa == 0 else (k, m), index)
                right = _columns(b, (k, n) if opb == 0 else (n, k), index)
                total = (left if opa == 0 else left.T) @ (right if opb == 0 else right.T)
                _columns(c, (m, n), index, alpha._obj.value * total)

        self.world.launch("ampere_sgemm_128x64_tn", work, address=int(a[0].value))
        return 0


def _columns(operand, shape, index, values=None):
    """A column-major matrix in memory, read as float64 or overwritten."""
    address, kind, lead, stride = operand
    rows, columns = shape
    assert lead >= rows, "leading dimension below the number of rows"
    dtype = np.dtype(CTYPES[kind])
    count = lead * (columns - 1) + rows
    memory = (ctypes.c_char * (count * dtype.itemsize)).from_address(address.value + index * stride * dtype.itemsize)
    flat = np.frombuffer(memory, dtype=dtype)
    view = np.lib.stride_tricks.as_strided(flat, (rows, columns), (dtype.itemsize, lead * dtype.itemsize))
    if values is None:
        if kind == 14:
            return (view.astype(np.uint32) << np.uint32(16)).view(np.float32).astype(np.float64)
        return view.astype(np.float64)
    if kind == 14:
        bits = np.asarray(values, dtype=np.float32).view(np.uint32)
        values = ((bits + np.uint32(0x8000)) >> np.uint32(16)).astype(np.uint16)
    view[...] = values
    return view


RECORD = """{
"kind": 10, "grid_x": 16, "grid_y": 32, "grid_z": 1, "block_x": 256, "block_y": 1, "block_z": 1, "registers_per_thread": 122,
"static_shared_memory": 1024, "dynamic_shared_memory": 33792
}"""


class FakeCupti:
    """cupti-python: records handed over when they are flushed; they are void once the callback has returned."""

    cuptiError = CuptiError  # noqa: N815 (cupti-python's name)
    ActivityKind = SimpleNamespace(KERNEL=3, CONCURRENT_KERNEL=10, MEMSET=2)

    def __init__(self):
        self.enabled = set()
        self.pending = []
        self.refuse_enable = False
        self.requested = None
        self.completed = None

    def activity_register_callbacks(self, requested, completed):
        size, records = requested()
        assert size >= 1 << 20
        assert records == 0
        self.completed = completed

    def get_timestamp(self):
        return 0

    def activity_enable(self, kind):
        if self.refuse_enable:
            raise CuptiError("CUPTI_ERROR_NOT_COMPATIBLE")
        self.enabled.add(kind)

    def activity_disable(self, kind):
        self.enabled.discard(kind)

    def activity_flush_all(self, flag):
        assert flag == 1
        records, self.pending = self.pending, []
        self.completed(records)
        for record in records:
            vars(record).clear()

    def ran(self, name, start, end, **more):
        """A kernel ran; it is recorded while its kind is enabled."""
        if 10 in self.enabled:
            self.pending.append(SimpleNamespace(**json.loads(RECORD), name=name, start=start, end=end))
            vars(self.pending[-1]).update(more)
