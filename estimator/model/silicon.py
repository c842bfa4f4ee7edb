"""What a board's silicon says of power that was not measured: voltage and rest power over the clock, and energies of another board.

At equal voltage, a byte on wires costs the same on every board; a byte of GDDR costs more than one of HBM.  Logic changes with the process,
a tensor core's flop also with the width of the unit, and the power of busy SMs grows with their number.  All in the core grows with V².
Numbers without another source were chosen on measured powers of A100-PCIe, A10 and H100-SXM (EnergAIzer artifact); docs/model.md says how
well each of these boards is forecast from the others.
"""

from typing import Final

import numpy as np

from estimator.vocabulary.gpu import ClockTable, GpuSpec
from estimator.vocabulary.quantities import Array

PROCESS_ENERGY: Final[dict[str, float]] = {"tsmc-12n": 1.8, "samsung-8n": 1.3, "tsmc-7n": 1.0, "tsmc-4n": 0.62}
"""Energy of logic at equal voltage over that of TSMC's N7 [1]: the foundries' claims at equal speed, rounded."""

FLAT_V: Final = 0.69375
"""Core voltage of an A100 at low clocks [V], to which energies refer.  Source: the table of its specification."""

UNKNOWN_V: Final = 1.0
"""Where a voltage curve that was inferred from power is flat: its scale is unknown [V].  No board has as much at its lowest clocks."""

USUAL_FLAT_SHARE: Final = 0.58
USUAL_TOP_SHARE: Final = 0.95
USUAL_RISE: Final = 0.45
"""The usual voltage over FLAT_V [1]: 1 up to a share of the silicon's highest clock, then a line that ends at a second share, higher by
the rise.  Source: rest power of an H100 over its clocks; the measured curves of two A100 boards lie within 7 % of it."""

REFERENCE_SMS: Final = 108
CORE_REST_W: Final = 11.0
CORE_REST_W_PER_GHZ: Final = 4.95
"""Rest power of an A100's SMs: leakage, which grows with V³, and the clock tree's, with f·V².  Source: its idle table, within 0.3 W."""

HBM_REST_W: Final = 18.5
GDDR_REST_W: Final = 1.17
"""Rest power of memory and board for each TB/s of HBM [W], and for each GiB of GDDR, which stands for its chips [W].  Sources: idle tables
of A100 and H100; with GDDR_ENERGY, whole models of A10, A100 and H100, forecast from each other."""

LEAKAGE_SHARE: Final = 0.26
REST_W_PER_GHZ: Final = 4.75
"""Share of leakage in an A100's rest power at low clocks [1], and its clock tree's power [W/GHz], which split other boards' idle tables."""

REFERENCE_FLOP_PER_CLOCK: Final = 2048.0
"""Width of the tensor core to which energies refer: an A100's [16-bit flop / (clock · SM)]."""

FLOP_PER_CLOCK: Final[dict[str, float]] = {"8.6": 1024.0, "8.9": 1024.0, "9.0": 4096.0, "12.0": 1024.0}
"""That width by compute capability where boards are sold with a lower rate (GeForce, L20, H20): the units are the same (assumed)."""

GDDR_ENERGY: Final[dict[str, float]] = {"gddr5": 1.7, "gddr6": 1.7, "gddr6x": 2.3}
"""Energy of a byte over one of HBM [1], which has shorter wires; GDDR5's as GDDR6's.  Whole models of A10, A100 and H100, forecast from
each other, take 1.3 with more rest power for the A10, or 2 with less, alike; decoding and training on A40, L40 and RTX 4090 ask for 2 or
more.  GDDR6 was chosen between, with all of these in view; GDDR6X by copies and sums on an RTX 3070 Ti (errors of an RTX 4090's power
then 16 for 22 %).  GDDR7 counts as HBM, with an RTX PRO 6000 (better so) and an RTX 5090 (worse) in view; at 1.7 copies and sums on
an RTX 5060 Ti err by 52 and 40 instead of 28 and 18 %."""

WIDTH_SHARE: Final = 0.5
"""Share of a tensor core's energy for operands, which wider units use more often [1]."""


def voltage_ratios(gpu: GpuSpec, voltage: ClockTable | None, idle: ClockTable | None) -> ClockTable:
    """Voltage over FLAT_V, over the clock [1]: as measured, else as rest power tells, else the usual curve."""
    if voltage is not None:
        known = voltage.rising
        unit = FLAT_V if known.value[0] < UNKNOWN_V else known.value[0]
        return ClockTable(sm_clock_mhz=known.sm_clock_mhz, value=tuple((np.array(known.value) / unit).tolist()))
    if idle is not None and np.ptp(idle.value) > 0.0:
        return _rest_voltage(idle.rising)
    top = gpu.silicon_clock_mhz or gpu.sm_clock_limit_mhz
    return ClockTable(sm_clock_mhz=(USUAL_FLAT_SHARE * top, USUAL_TOP_SHARE * top), value=(1.0, 1.0 + USUAL_RISE))


def _rest_voltage(idle: ClockTable) -> ClockTable:
    """The voltage ratio v that explains rest power: I = I₀·(1 − L + L·v³) + c·f·v², with I₀ from the lower half of the clocks."""
    clock, watt = np.array(idle.sm_clock_mhz), np.array(idle.value)
    low = clock <= max(0.5 * clock[-1], clock[0])
    tree_w = REST_W_PER_GHZ * clock / 1e3
    base_w = float(np.mean((watt - tree_w)[low]))
    ratio = np.ones_like(clock)
    for _ in range(8):  # Newton's method: both terms are convex in v
        rest = base_w * (1.0 - LEAKAGE_SHARE + LEAKAGE_SHARE * ratio**3) + tree_w * ratio**2
        ratio -= (rest - watt) / (3.0 * base_w * LEAKAGE_SHARE * ratio**2 + 2.0 * tree_w * ratio)
    return ClockTable(sm_clock_mhz=idle.sm_clock_mhz, value=tuple(np.maximum.accumulate(np.maximum(ratio, 1.0)).tolist()))


def usual_rest_w(gpu: GpuSpec, sm_clock_mhz: Array, voltage_ratio: Array) -> Array:
    """Rest power of a board without an idle table [W], shape of the clocks: memory by bandwidth or size, the core by its SMs."""
    gddr = gpu.memory.startswith("gddr")
    memory = GDDR_REST_W * gpu.dram_bytes / 2**30 if gddr else HBM_REST_W * gpu.dram_bytes_per_s / 1e12
    core = CORE_REST_W * voltage_ratio**3 + CORE_REST_W_PER_GHZ * sm_clock_mhz / 1e3 * voltage_ratio**2
    return memory + gpu.num_sms / REFERENCE_SMS * core


def energy_factors(gpu: GpuSpec) -> dict[str, float]:
    """Energies by term, and the power of busy SMs, over those of an A100 at equal voltage [1]; terms that are not named cost the same."""
    logic = PROCESS_ENERGY.get(gpu.process, 1.0)
    flop_per_clock = FLOP_PER_CLOCK.get(gpu.compute_capability, gpu.tensor_flop_per_clock.get("fp16", 0.0))
    width = 1.0 - WIDTH_SHARE + WIDTH_SHARE * REFERENCE_FLOP_PER_CLOCK / flop_per_clock if flop_per_clock else 1.0
    dram = GDDR_ENERGY.get(gpu.memory, 1.0)
    return {"dram": dram, "tensor": logic * width, "cuda": logic, "sfu": logic, "busy": gpu.num_sms / REFERENCE_SMS}
