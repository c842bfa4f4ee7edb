"""Input of the solvers: accepted rows as columns, and every rejected row with its reason.

A row keeps its file and row number, so that a residual can be traced to its measurement.
Values are as measured; unknown values are nan.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import fields, replace
from typing import Any, Final, Self, TypeVar

import numpy as np

from estimator.model.lowering import KnownTiles
from estimator.vocabulary.gpu import GpuSpec
from estimator.vocabulary.quantities import Array, BoolArray, IntArray
from estimator.vocabulary.specifications import is_named
from estimator.vocabulary.values import frozen
from estimator.vocabulary.workload import Operator, Workload
from fitter.errors import InputError
from fitter.rows.rejected import RejectedRow, count_reasons
from fitter.rows.screening import first_known, numbered, taken

UNIQUE_COLUMNS: Final = {
    "operators": "operator_index",
    "workloads": "workload_index",
    "gpus": "gpu_index",
    "sources": "source_index",
    "collections": "collection_index",
}
"""Fields of unique values, and the columns that index them."""


LONGEST_NAME: Final = 80
"""Longest name of a collection [characters]."""


@frozen
class PlacedRows:
    """Measurements as columns of shape (n,).

    gpus, gpu_index              unique GPUs, and the one of each row
    sources, source_index, row   file names, the one of each row, and the row's number in it (the first is 1)
    collections, collection_index   names of the laboratories that measured, and the one of each row
    """

    gpus: tuple[GpuSpec, ...]
    gpu_index: IntArray
    sources: tuple[str, ...]
    source_index: IntArray
    row: IntArray
    collections: tuple[str, ...]
    collection_index: IntArray

    def __len__(self) -> int:
        return len(self.row)

    @property
    def row_gpus(self) -> list[str]:
        """The name of each row's GPU."""
        return [self.gpus[i].name for i in self.gpu_index]

    def in_collection(self, name: str) -> Self:
        """The rows with a name for those that name no collection; names are cut, and without control characters."""
        return replace(self, collections=tuple("".join(filter(str.isprintable, one or name))[:LONGEST_NAME] for one in self.collections))

    def row_collections(self) -> list[str]:
        """The collection of each row."""
        return [self.collections[i] for i in self.collection_index]

    def select(self, index: IntArray | BoolArray) -> Self:
        """The rows `index`; unique values are kept as they are."""
        return taken(self, index, UNIQUE_COLUMNS)


@frozen
class KernelRows(PlacedRows):
    """Measured kernels.

    operators, operator_index    unique operators, and the one of each row
    sm_clock_mhz                 measured SM clock; nan where not recorded (clocks were free, the boost clock ran)
    sm_clock_asked_mhz           requested SM clock; nan where none was requested
    latency_s                    time of one launch
    power_w, power_std_w         corrected power while the kernel runs; nan where missing or rejected
    temperature_c                nan where not recorded
    at_limit                     the board was at its power limit
    sustained, burst             ran long enough for the power limit to lower the clock; in a burst too short for it; neither: not known
    l2_warm                      what the launches of a measurement use in turn, in operands of one launch; 0: none are found in L2
    library                      library or framework and its version, "" where not recorded
    kernel_name                  the library's kernel, "" where not recorded
    tile_m, tile_n, split_k      output tile along m and n of the operator, and split-K; nan where unknown
    weight                       weight in the fit, 1 for a row without flags
    """

    operators: tuple[Operator, ...]
    operator_index: IntArray
    sm_clock_mhz: Array
    sm_clock_asked_mhz: Array
    latency_s: Array
    power_w: Array
    power_std_w: Array
    temperature_c: Array
    at_limit: BoolArray
    sustained: BoolArray
    burst: BoolArray
    l2_warm: Array
    library: tuple[str, ...]
    kernel_name: tuple[str, ...]
    tile_m: Array
    tile_n: Array
    split_k: Array
    weight: Array

    def row_operators(self) -> list[Operator]:
        """The operator of each row."""
        return [self.operators[i] for i in self.operator_index]

    @property
    def tiles(self) -> KnownTiles:
        """Tile of each row."""
        return KnownTiles(tile_m=self.tile_m, tile_n=self.tile_n, split=self.split_k)

    @property
    def bounded(self) -> BoolArray:
        """Rows whose power is a lower bound, shape (n,): at the limit, without a measurement of the clock that the board still held."""
        found: BoolArray = self.at_limit & (np.isnan(self.sm_clock_mhz) | (self.sm_clock_mhz == self.sm_clock_asked_mhz))
        return found

    def clock_mhz(self, gpu: GpuSpec) -> Array:
        """SM clock of each row without a power limit [MHz]: measured, else requested, else the highest, which boards left free run."""
        return first_known(self.sm_clock_mhz, self.sm_clock_asked_mhz, gpu.sm_clock_limit_mhz)


@frozen
class WorkloadRows(PlacedRows):
    """Measured runs of whole workloads.

    workloads, workload_index    unique workloads, and the one of each row
    sm_clock_asked_mhz           nan where none was requested
    sm_clock_measured_mhz        nan where not recorded
    latency_s, energy_j          of one iteration, start-up removed; energy nan where missing or rejected
    temperature_c                nan where not recorded
    weight                       weight in the fit, below 1 for runs that changed their pace
    """

    workloads: tuple[Workload, ...]
    workload_index: IntArray
    sm_clock_asked_mhz: Array
    sm_clock_measured_mhz: Array
    latency_s: Array
    energy_j: Array
    temperature_c: Array
    weight: Array

    @property
    def power_w(self) -> Array:
        """Mean power of an iteration, start-up removed [W]."""
        return self.energy_j / self.latency_s

    def clock_mhz(self, gpu: GpuSpec) -> Array:
        """SM clock that ran [MHz]: measured, else requested, else the clock for which the vendor quotes peak rates."""
        return first_known(self.sm_clock_measured_mhz, self.asked_clock_mhz(gpu))

    def asked_clock_mhz(self, gpu: GpuSpec) -> Array:
        """SM clock that was requested [MHz], else the measured one, else the clock for which the vendor quotes peak rates.

        Within the range that the GPU can lock: files round clocks.
        """
        asked = first_known(self.sm_clock_asked_mhz, self.sm_clock_measured_mhz, gpu.sm_clock_max_mhz)
        return np.clip(asked, gpu.sm_clock_min_mhz, gpu.sm_clock_limit_mhz)

    def row_workloads(self) -> list[Workload]:
        """The workload of each row."""
        return [self.workloads[i] for i in self.workload_index]


@frozen
class BlockRows(PlacedRows):
    """Grids of one or several kernels; unknown numbers are nan.

    kernel             name
    block_threads      threads of a block
    blocks_per_sm      blocks that fit on an SM at once
    blocks             of the grid
    latency_s          of one launch [s]
    power_w, idle_w    of the board during the launch, and at rest before it [W]
    power_std_w        standard error of power_w [W]
    sm_clock_mhz       of the run [MHz]
    flop_per_block     work [flop]
    """

    kernel: Array
    block_threads: Array
    blocks_per_sm: Array
    blocks: Array
    latency_s: Array
    power_w: Array
    power_std_w: Array
    idle_w: Array
    sm_clock_mhz: Array
    flop_per_block: Array


def at_level(kernel: str, level: str) -> str:
    """A kernel's name with its assembler's optimisation level."""
    return f"{kernel}.{level}" if level else kernel


@frozen
class InstructionRow:
    """One run of a generated kernel: counts and energy of one launch.

    `power_w` is the total board power, `idle_w` its power at rest just before (nan: unknown).  `published` holds energies by way of
    sampling.  `random` marks random operands, for which energies are stated.  For copies and traffic to the host or another board, `link`
    names the link and `link_bytes` the amount; such rows have an energy per byte and are in no regression.
    """

    source: str
    row: int
    gpu: str
    kernel: str
    instruction: str
    mode: str
    random: bool
    unroll: float
    body: dict[str, float]
    operations: dict[str, float]
    turns: float
    threads: float
    warps: float
    blocks: float
    transactions: dict[str, float]
    latency_s: float
    power_w: float
    power_std_w: float
    idle_w: float
    temperature_c: float
    asked_mhz: float
    sm_clock_mhz: float
    voltage_v: float
    throttled: bool
    assembler: str
    published: dict[str, float]
    link: str = ""
    link_bytes: float = 0.0

    @property
    def level(self) -> str:
        """Optimisation level of the assembler ("O3"), from its options in `assembler`; "" for copies, which have no assembly."""
        return next((word[1:] for word in self.assembler.split() if word.startswith("-O")), "")

    @property
    def build(self) -> str:
        """Kernel and level ("ffma_k8_u64.O3"), since each level gives another machine kernel."""
        return at_level(self.kernel, self.level)


@frozen
class InstructionRows:
    """Accepted rows of generated kernels."""

    rows: tuple[InstructionRow, ...]

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def row_gpus(self) -> list[str]:
        """The GPU of each row."""
        return [row.gpu for row in self.rows]

    def select(self, index: BoolArray | IntArray) -> "InstructionRows":
        """Some of the rows."""
        return taken(self, index)

    def column(self, name: str) -> Array:
        """A number of every row, shape (n,)."""
        return np.array([float(getattr(row, name)) for row in self.rows])


Rows = TypeVar("Rows", KernelRows, WorkloadRows, InstructionRows, BlockRows)


def join_rows(parts: Iterable[Rows | None]) -> Rows | None:
    """Rows of several files as one, None without any; unique values are merged and renumbered."""
    filled = [part for part in parts if part is not None and len(part)]
    if len(filled) < 2:
        return filled[0] if filled else None
    changes: dict[str, Any] = {}
    for column in fields(filled[0]):
        own: list[Any] = [getattr(part, column.name) for part in filled]
        if column.name in UNIQUE_COLUMNS:
            changes[column.name], number = numbered([value for part in own for value in part])
            index, starts = UNIQUE_COLUMNS[column.name], np.cumsum([0, *map(len, own)])
            changes[index] = np.concatenate([number[start + getattr(part, index)] for start, part in zip(starts, filled, strict=False)])
        elif column.name not in changes:
            changes[column.name] = sum(own, ()) if isinstance(own[0], tuple) else np.concatenate(own)
    return replace(filled[0], **changes)


def compacted(rows: Rows, index: IntArray) -> Rows | None:
    """The rows `index`, None without any; unused unique values are dropped, the others renumbered in order of first use."""
    chosen = rows.select(index)
    changes: dict[str, Any] = {}
    for unique, number in UNIQUE_COLUMNS.items():
        if hasattr(rows, unique):
            used, changes[number] = numbered(getattr(chosen, number).tolist())
            changes[unique] = tuple(getattr(rows, unique)[i] for i in used)
    return replace(chosen, **changes) if len(index) else None


@frozen
class Startup:
    """Start-up of the runs of one host: `target_s` is the target duration, `startup_s` the time before it, from `runs` runs."""

    gpu: str
    target_s: float
    startup_s: float
    runs: int


Files = tuple[Mapping[str, Any], ...]
"""Metadata of files."""


@frozen
class Dataset:
    """Origin of rows: file name, digest of its bytes, kind, and number of used rows.

    `rejected`: fully rejected rows by reason, so that rows = used + Σ rejected.
    `kind` is "kernel dataset", "kernel table", "block table" or "workload dataset"; `files` are the metadata of its files.
    """

    name: str
    sha256: str
    kind: str
    rows: int
    used: int
    rejected: Mapping[str, int]
    files: Files = ({},)

    def __post_init__(self) -> None:
        """Raises InputError if no file is of the rows' GPU: whether they were simulated is then unknown."""
        if self.used and not self.files:
            raise InputError(f"{self.name}: its metadata are of another GPU than these rows; fit the files that `collect` wrote")


def files_of(gpu: GpuSpec | None, files: Files) -> Files:
    """The metadata of files that were measured on a GPU; of all files without one."""
    named = [(file, (file.get("gpu") or {}).get("specification")) for file in files]
    return tuple(file for file, name in named if gpu is None or name is None or is_named(gpu, name))


def sensor_gain_std(sensor: Mapping[str, Any] | None) -> float:
    """Relative standard deviation of the gain of a power sensor."""
    sensor = sensor or {}
    gain, std = sensor.get("gain"), sensor.get("gain_std")
    return std / gain if isinstance(gain, int | float) and isinstance(std, int | float) and gain > 0 else UNKNOWN_GAIN_STD


UNKNOWN_GAIN_STD: Final = 0.05
"""Relative standard deviation of the gains of power sensors from card to card, used if no meter measured the gain.
Source: published comparisons of sensors with meters: ±5 % a card (docs/model.md)."""


@frozen
class Selection:
    """Accepted rows, rejected rows, start-up per host, files, and notes for the user."""

    kernels: KernelRows | None = None
    workloads: WorkloadRows | None = None
    instructions: InstructionRows | None = None
    blocks: BlockRows | None = None
    rejected: tuple[RejectedRow, ...] = ()
    startups: tuple[Startup, ...] = ()
    datasets: tuple[Dataset, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def tables(self) -> list[KernelRows | WorkloadRows]:
        """The tables of kernels and of runs that are present."""
        return [rows for rows in (self.kernels, self.workloads) if rows is not None]

    @property
    def parts(self) -> list[KernelRows | WorkloadRows | InstructionRows | BlockRows]:
        """Tables of all kinds that are present."""
        return [*self.tables, *(rows for rows in (self.instructions, self.blocks) if rows is not None)]

    @property
    def rows_by_gpu(self) -> Mapping[str, int]:
        """Accepted rows of each GPU, in first-seen order."""
        return Counter(name for part in self.parts for name in part.row_gpus)

    @property
    def gain_std(self) -> float:
        """Relative standard deviation of the power sensor's gain: the largest of all files; a table's is unknown."""
        return max((sensor_gain_std(file.get("sensor")) for file in self.files), default=UNKNOWN_GAIN_STD)

    @property
    def files(self) -> list[Mapping[str, Any]]:
        """The metadata of all files."""
        return [file for one in self.datasets for file in one.files]

    @property
    def row_count(self) -> int:
        """Number of rows that were read, accepted or not."""
        return sum(dataset.rows for dataset in self.datasets)


def with_rejected(selection: Selection, rejected: tuple[RejectedRow, ...]) -> Selection:
    """Add rejected rows to the selection; its tables stay unchanged, because the fit leaves these rows out itself."""
    datasets = []
    for dataset in selection.datasets:
        counts = count_reasons((row for row in rejected if row.source == dataset.name), power_only=False)
        both = Counter(dataset.rejected) + Counter(counts)
        datasets.append(replace(dataset, used=dataset.used - sum(counts.values()), rejected=dict(both)))
    return replace(selection, rejected=(*selection.rejected, *rejected), datasets=tuple(datasets))


CLOCK_TOLERANCE: Final = 0.03
"""Relative distance below which two clocks count as one."""


def distinct_clocks(clock_mhz: Array) -> Array:
    """Distinct clocks of rows, ascending; close ones are merged [MHz]."""
    found: list[float] = []
    for clock in np.sort(clock_mhz):
        if not found or clock > found[-1] * (1.0 + CLOCK_TOLERANCE):
            found.append(float(clock))
    return np.array(found)
