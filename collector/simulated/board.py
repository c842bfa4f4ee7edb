"""A simulated board behind the protocols of real ones, and the planted truth beside it."""

import math
from dataclasses import replace
from functools import cache
from statistics import NormalDist
from threading import Event
from typing import Final

import numpy as np

from collector.devices.protocols import THROTTLE_BITS, GpuIdentity, GpuState, LaunchRecord, PreparedKernel, StateReadings, supported_clock
from collector.devices.tracer import NOT_TRACED
from collector.errors import DeviceError, RunnerError
from collector.simulated.library_attention import attention_plan
from collector.simulated.library_matrix import matrix_plan
from collector.simulated.library_stream import stream_plan
from collector.simulated.plan import KernelPlan, steady_noise
from collector.simulated.profile import BoardProfile
from collector.simulated.sensors import PollClock, SimulatedMeter, SimulatedSensor
from collector.simulated.silicon import voltage_v
from collector.simulated.world import LoadedKernel, World
from estimator.vocabulary.gpu import GpuSpec, simulated_uuid
from estimator.vocabulary.values import frozen
from estimator.vocabulary.workload import TABLED, Operator
from microbench.errors import UnsupportedError
from microbench.layouts import layout_of
from microbench.loads.generated import LINKS, Load
from microbench.sizing import displacing_sets

STATE_POLL_S: Final = 0.02
SETUP_S: Final = 0.2
"""Time to set a kernel up, without filling its operands [s]."""
FILL_BYTES_PER_S: Final = 2e10
"""Rate at which operands are filled."""


@frozen
class SimulatedClock:
    """The world's time; implements Clock."""

    world: World

    def now_ns(self) -> int:
        """Monotonic host time [ns]."""
        return self.world.now_ns

    def wait(self, seconds: float) -> None:
        """Advances the world, with nothing running."""
        self.world.rest(seconds)

    def unix_s(self) -> float:
        """Wall time [s since 1970]: a fixed epoch and the world's time."""
        # wall time at which every simulated session begins: 2024-01-01 00:00 UTC, so that results repeat to the bit
        return 1_704_067_200.0 + self.world.now_s


class SimulatedGpu:
    """A simulated board through its driver; implements Gpu."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._polls = PollClock(world.sensor_seed.spawn(1)[0], world.now_s, STATE_POLL_S, 0.1 * STATE_POLL_S, world.profile.faults.call_s)

    def identity(self) -> GpuIdentity:
        """Identity of the board; the UUID spells the profile's name."""
        profile, gpu = self._world.profile, self._world.gpu
        own = profile.identity
        return GpuIdentity(
            name=own.product_name,
            canonical_name=gpu.name,
            uuid=simulated_uuid(profile.name),
            pci_address=own.pci_address,
            driver=own.driver,
            vbios=own.vbios,
            compute_capability=gpu.compute_capability,
            simulated=True,
        )

    def state(self) -> GpuState:
        """The board now."""
        world = self._world
        world.rest(world.profile.faults.call_s)
        clock = world.rest_clock_mhz()  # nothing runs between two calls
        return GpuState(
            host_ns=world.now_ns,
            sm_clock_mhz=clock,
            memory_clock_mhz=world.gpu.memory_clock_mhz,
            temperature_c=float(np.round(world.temperature_c)),
            voltage_v=voltage_v(world.profile, clock) if self.voltage_readable() else math.nan,
            power_limit_w=world.gpu.power_limit_w,
            throttle_mask=THROTTLE_BITS["gpu_idle"],
            # number of the planted process that shares the board in some runs
            other_processes=(4242,) if world.shared else (),
        )

    def read_states(self) -> StateReadings:
        """Every state polled since the last call."""
        due = self._polls.until(self._world.now_s)
        clock, temperature, volt, mask = self._world.states_at(due)
        return StateReadings(
            host_ns=np.round(due * 1e9).astype(np.int64),
            sm_clock_mhz=clock,
            temperature_c=np.round(temperature),
            voltage_v=volt if self.voltage_readable() else np.full(due.shape, np.nan),
            throttle_mask=mask,
        )

    def supported_clocks_mhz(self) -> tuple[float, ...]:
        """SM clocks that can be locked, ascending [MHz]."""
        return tuple(self._world.clocks_mhz)

    def lock_clock_mhz(self, sm_clock_mhz: float) -> None:
        """Hold the SM clock.  Raises ClockError for an unsupported one."""
        self._world.locked_mhz = supported_clock(sm_clock_mhz, self.supported_clocks_mhz())

    def unlock_clock(self) -> None:
        """Give the SM clock back."""
        self._world.locked_mhz = None

    def power_limit_w(self) -> float:
        """The enforced power limit [W]."""
        return self._world.gpu.power_limit_w

    def voltage_readable(self) -> bool:
        """Whether `state` contains the core voltage."""
        return self._world.profile.identity.voltage_readable


class SimulatedRunner:
    """Plans kernels with the simulated library and runs them in the world; implements KernelRunner."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._loaded: dict[PreparedKernel, LoadedKernel] = {}
        self._planned = cache(lambda operator, transpose: plan_kernel(operator, world.profile, transpose))
        self._broken = False
        self.tracing = True

    def supports(self, operator: Operator, transpose: str = "") -> bool:
        """Whether `prepare` would accept the operator, in a layout of its inputs."""
        try:
            _placed(self._planned(operator, transpose), self._world.gpu, "warm")
        except RunnerError:
            return False
        return True

    def prepare(self, operator: Operator, l2_state: str = "warm", transpose: str = "") -> PreparedKernel:
        """Choose and set up the kernel for an operator, in a layout of its inputs.  Raises RunnerError if it cannot run here."""
        plan = self._planned(operator, transpose)
        prepared = _placed(plan, self._world.gpu, l2_state)
        if prepared not in self._loaded:
            self._loaded[prepared] = self._world.load(plan, l2_state)
        self._world.rest(SETUP_S + prepared.buffer_sets * prepared.working_set_bytes / FILL_BYTES_PER_S)
        return self._traced(prepared)

    def _traced(self, prepared: PreparedKernel) -> PreparedKernel:
        """The kernel as a trace shows it, or without what only a trace shows."""
        late = self._world.profile.faults.late_trace_share
        noise = steady_noise("trace", prepared.kernel_name, prepared.grid, float(prepared.working_set_bytes))
        if self.tracing and not (late and NormalDist().cdf(noise) < late):
            return prepared
        nothing = PreparedKernel(
            operator=prepared.operator,
            l2_state=prepared.l2_state,
            library=prepared.library,
            split_k=1,
            transpose=prepared.transpose,
            working_set_bytes=prepared.working_set_bytes,
            buffer_sets=prepared.buffer_sets,
            untraced="its trace came too late, a planted fault" if self.tracing else NOT_TRACED,
        )
        self._loaded[nothing] = self._loaded[prepared]
        return nothing

    def prepare_generated(self, load: Load) -> PreparedKernel:
        """A generated kernel or a copy, ready to run.  Raises RunnerError if the board lacks the link."""
        name, profile = load.operator.operator, self._world.profile
        if load.link in LINKS and load.link not in profile.link:
            raise RunnerError(f"{name}: needs the memory of another GPU; this simulated board has no [link.{load.link}]")
        # nothing is computed here: a profile plants faults in the results
        prepared = load.prepared(f"{name}: results are wrong, a planted fault" if name in profile.faults.corrupted.split() else "")
        self._loaded[prepared] = self._world.load_generated(load)
        self._world.rest(SETUP_S)
        return prepared

    def run(self, prepared: PreparedKernel, launches: int) -> LaunchRecord:
        """Launch it back to back and wait for the end.  Raises DeviceError for a kernel that breaks the context."""
        faults = self._world.profile.faults
        if prepared.kernel_name in faults.hangs.split():
            Event().wait()
        if self._broken or prepared.kernel_name in faults.kills.split():
            self._broken = True
            raise DeviceError(f"running {prepared.kernel_name}: illegal address; this process cannot use the board any more")
        return self._world.run(self._loaded[prepared], launches)


def _placed(plan: KernelPlan, gpu: GpuSpec, l2_state: str) -> PreparedKernel:
    """The kernel with enough copies of its operands to rotate through.  Raises RunnerError if they do not fit into memory."""
    kernel = plan.kernel
    sets = 1 if l2_state == "warm" else displacing_sets(kernel.working_set_bytes, gpu.l2_bytes)
    needed = sets * kernel.working_set_bytes
    if needed > 0.95 * gpu.dram_bytes:  # the driver uses the rest
        raise RunnerError(f"{kernel.kernel_name} needs {needed / 1e9:.1f} GB; {gpu.name} has {gpu.dram_bytes / 1e9:.1f} GB")
    return replace(kernel, l2_state=l2_state, buffer_sets=sets)


def plan_kernel(operator: Operator, profile: BoardProfile, transpose: str = "") -> KernelPlan:
    """The simulated library's kernel for an operator, a product's in a layout ("": the natural one).

    Raises RunnerError without a kernel.
    """
    family = operator.family
    if family in TABLED:
        raise RunnerError(f"{family}: the simulated library has no such kernel")
    try:
        layout = layout_of(operator, transpose)
    except UnsupportedError as error:
        raise RunnerError(str(error)) from error
    if family == "gemm" or operator.operator == "conv2d":
        return matrix_plan(operator, profile, layout)
    if family == "attention":
        return attention_plan(operator, profile)
    return stream_plan(operator, profile)


class SimulatedBoard:
    """One world with its gpu, sensors and runner.  `planted_…` is the truth for comparison with a measurement."""

    def __init__(self, profile: BoardProfile, seed: int) -> None:
        self.world = world = World(profile, seed)
        self.clock = SimulatedClock(world=world)
        self.gpu = SimulatedGpu(world)
        self.sensor = SimulatedSensor(world)
        self.meter = SimulatedMeter(world)
        self.runner = SimulatedRunner(world)

    def true_energy_j(self, start_ns: int, end_ns: int) -> float:
        """Energy that the board drew between two host times [J]."""
        energy = self.world.trace.energy_j(np.array([start_ns, end_ns]) * 1e-9)
        return float(energy[1] - energy[0])
