"""Everything that kernels measured one by one teach: coefficients by group, tiles, residual tier, intervals."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

import numpy as np

from estimator.coefficients import Prior, coefficient_vector, group_key, longest_prefix
from estimator.frozen import FrozenMapping
from estimator.gpu import GpuSpec
from estimator.kernels.registry import KnownTiles, is_matrix
from estimator.quantities import HZ_PER_MHZ, Array, BoolArray, IntArray
from estimator.tile_predictor import predicted_tiles
from estimator.workload import FAMILY_FIELDS, Operator
from fitter.intervals import folds_of, interval_quantiles, largest_rows
from fitter.kernel_latency import ERROR_SCALE, GroupFit, KernelProblem, fit_group, kernel_problem, predicted_seconds
from fitter.objective import robust_residual
from fitter.priors import FLOOR_WIDTH, GROUP_PRIORS, PERSISTENT_ARCHITECTURES, around, kernel_priors
from fitter.residual_tier import FEWEST_POINTS, ShapeErrors, corrected, shape_errors, tier_document
from fitter.rows import KernelRows, RejectedRow
from fitter.tiles import fit_tiles
