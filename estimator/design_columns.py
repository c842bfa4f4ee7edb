"""A kernel's row of the design before anything is fitted: how much each phase moves its time, and where it lies among others.

Phases start from their ideal times (every λ is 1), which needs neither a measurement nor another GPU's bundle.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np

from estimator.coefficients import coefficient_vector
from estimator.gpu import GpuSpec
from estimator.kernels.registry import lower
from estimator.kriging import phase_features
from estimator.phases import OVERLAPPED, SERIAL
from estimator.quantities import HZ_PER_MHZ, Array, BoolArray
from estimator.residuals import shape_points
from estimator.timeline import warm_ratio
from estimator.workload import Operator

IDEAL: Final[dict[str, float]] = {**dict.fromkeys(OVERLAPPED + SERIAL, 1.0), "l2_knee": 0.7}
"""Coefficients before any fit: published rates are reached, and warm operands stay in L2 as the fit's prior has it."""

PHASE_WIDTH: Final = 0.5
"""How far a phase's time lies from its ideal one before any fit [ln]: the middle of the fit's priors, 0.1 to 1."""

CLOCK_WEIGHT: Final = 1.5
"""Octaves of shape that tell as much apart as one octave of the SM clock: the ratio of the scales in `estimator.kriging`."""


def phase_columns(operators: Sequence[Operator], gpu: GpuSpec, sm_clock_mhz: Array, warm: BoolArray) -> Array:
    """J · σ of kernels at their clocks [ln], shape (n, 8): the share of each phase in the time, times PHASE_WIDTH.

    sm_clock_mhz (n,); warm (n,): whether operands stay in L2 from launch to launch.
    """
    vector = coefficient_vector(IDEAL)
    table = np.broadcast_to(vector, (len(operators), len(vector)))
    phases = lower(operators, gpu, table).phases
    features = phase_features(phases, table, sm_clock_mhz * HZ_PER_MHZ, warm_ratio(phases, gpu, warm))
    return PHASE_WIDTH * features.shares


def design_points(operators: Sequence[Operator], sm_clock_mhz: Array) -> Array:
    """Where kernels of one family lie [octave], shape (n, f): fields of the shape, and the SM clock."""
    return np.column_stack([shape_points(operators), CLOCK_WEIGHT * np.log2(sm_clock_mhz)])
