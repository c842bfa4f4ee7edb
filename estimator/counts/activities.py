"""Counted work of kernels: Nsight Compute's metrics or a JSON file → activities whose energy is known.

Energies per instruction and per transaction that are published come as TOML, in the form of fitted ones.

A JSON file is {"format": "wattprint-activity", "format_version": 1, "kernels": […]}; each kernel has `name`, `time_s` and counts:
`opcodes` (machine opcode → instructions issued to warps) or `instructions` (class → instructions executed by threads) with `issued`,
`transactions` (level → 128 byte of shared memory and L1, 32 byte of L2 and DRAM), `stalls` (slots of a scheduler in which nothing was
issued), `link_bytes`, `launches` (number of such launches) and `lanes` (active lanes of a warp).
Sources of the metrics: Nsight Compute's documentation, "Metrics Reference"; docs/how-to/energy-from-counts.md.
"""

import codecs
import csv
import re
from collections.abc import Iterable, Mapping
from dataclasses import field, replace
from math import nan, sqrt
from pathlib import Path
from typing import Annotated, Final, Literal

import numpy as np

from estimator.counts.energies import INSTRUCTION, STALL, TRANSACTION, TRANSACTION_BYTES, Activity, InstructionEnergies
from estimator.counts.opcodes import LANES, sass_class
from estimator.vocabulary.documents import parse_json
from estimator.vocabulary.errors import CountsError
from estimator.vocabulary.reader import LEAST_ONE, FaultError, Span, Text, Words, read, read_file
from estimator.vocabulary.regular_files import MOST_DATA_BYTES, read_regular
from estimator.vocabulary.resources import resource_folder, resource_names
from estimator.vocabulary.specifications import names_file
from estimator.vocabulary.values import frozen

Vocabulary = Literal["sass", "joule"]
"""Naming of instruction classes: machine opcodes, or GPUJoule's PTX types ("f32.fma")."""

Positive = Annotated[float, Span(1e-12, 1e9)]
"""An energy [nJ] or a power [W]: at most a joule an instruction."""


@frozen
class TableFile:
    """A file of published energies by thread and by transaction of one hop."""

    name: Text
    title: Text
    source: Text
    vocabulary: Vocabulary
    instructions_nj: Annotated[Mapping[str, Positive], LEAST_ONE]
    transactions_nj: Annotated[Mapping[Annotated[str, Words(tuple(TRANSACTION_BYTES))], Positive], LEAST_ONE]
    stall_nj: Positive | None = None
    constant_w: Annotated[float, Span(1e-12, 1e9, nan=True)] = nan


@frozen
class EnergyTable:
    """Energies with their names: `constant_w` is the power of the board at rest, nan if unknown [W]."""

    name: str
    source: str
    vocabulary: Vocabulary
    energies: InstructionEnergies
    constant_w: float = nan

    def with_dram(self, pj_per_bit: float) -> "EnergyTable":
        """The table with another DRAM: GPUJoule replaces GDDR5 by HBM with 21.1 pJ/bit.  Raises CountsError without an energy of DRAM."""
        energies = self.energies
        term = f"{TRANSACTION}dram"
        if term not in energies.terms:
            raise CountsError(f"{self.name} has no energy of DRAM to put another in its place")
        place = energies.terms.index(term)
        values, covariance = energies.values.copy(), energies.covariance.copy()
        values[place] = pj_per_bit * 8e-12 * TRANSACTION_BYTES["dram"]
        covariance[place, :] = covariance[:, place] = 0.0
        return replace(self, energies=replace(energies, values=values, covariance=covariance))


def load_energy_table(name_or_path: str) -> EnergyTable:
    """A shipped table by its name, or a TOML file.  Raises CountsError, naming the field, for a table that cannot be used."""
    if names_file(name_or_path):
        path = Path(name_or_path)
    else:
        names = resource_names("energies")
        if name_or_path not in names:
            raise CountsError(f"no table of energies {name_or_path!r}; there are {', '.join(names)}")
        path = resource_folder("energies") / f"{name_or_path}.toml"
    file = read_file(TableFile, path, "energies", CountsError)
    values = {INSTRUCTION + name: value for name, value in file.instructions_nj.items()}
    values |= {TRANSACTION + name: value for name, value in file.transactions_nj.items()}
    values |= {} if file.stall_nj is None else {STALL: file.stall_nj}
    energies = InstructionEnergies(
        terms=tuple(values),
        values=np.array(list(values.values())) * 1e-9,
        covariance=np.eye(len(values)) * (0.01e-9 / sqrt(12.0)) ** 2,  # figures are rounded to 0.01 nJ
        identified=(True,) * len(values),
        reference_voltage_v=nan,
        reference_clock_mhz=nan,
        temperature_c=nan,
        scatter=0.0,
        rows=0,
    )
    return EnergyTable(name=file.name, source=file.source, vocabulary=file.vocabulary, constant_w=file.constant_w, energies=energies)


MOST_COUNT: Final = 1e24
"""Largest count; a year of the largest GPU has fewer instructions."""

Count = Annotated[float, Span(0.0, MOST_COUNT)]


@frozen
class KernelEntry:
    """A kernel of a JSON file."""

    name: Text
    time_s: Annotated[float, Span(1e-12, 1e9, "s")]
    launches: Annotated[float, Span(1e-12, 1e12)] = 1.0
    opcodes: Mapping[str, Count] | None = None
    instructions: Mapping[str, Count] | None = None
    issued: Count = 0.0
    transactions: Mapping[Annotated[str, Words(tuple(TRANSACTION_BYTES))], Count] | None = None
    stalls: Count | None = None
    link_bytes: Count = 0.0
    lanes: Annotated[float, Span(1e-12, LANES)] = float(LANES)

    def __post_init__(self) -> None:
        if (self.opcodes is None) == (self.instructions is None):
            raise FaultError("needs either opcodes or instructions")


@frozen
class ActivityFile:
    """A JSON file of counted kernels."""

    format: Literal["wattprint-activity"]
    format_version: Annotated[int, Span(1, 1)]
    kernels: Annotated[tuple[KernelEntry, ...], LEAST_ONE]


THREAD_METRIC: Final = "sm__sass_thread_inst_executed_op_{}_pred_on.sum"
"""Metric of instructions of a kind executed by threads; older and newer versions write smsp instead of sm."""

THREAD_KINDS: Final = {
    "sass": {
        "fadd": "FADD", "fmul": "FMUL", "ffma": "FFMA", "dadd": "DADD", "dmul": "DMUL", "dfma": "DFMA",
        "hadd": "HADD2", "hmul": "HMUL2", "hfma": "HFMA2", "integer": "IADD3", "bit": "LOP3", "conversion": "F2F",
        "inter_thread_communication": "SHFL.BFLY",
    },
    "joule": {
        "fadd": "f32.add", "fmul": "f32.mul", "ffma": "f32.fma", "dadd": "f64.add", "dmul": "f64.mul", "dfma": "f64.fma",
        "integer": "i32.add", "bit": "b32.and",
    },
}  # fmt: skip
"""Class of energy by kind of instruction; for a metric that sums several classes, the most frequent one."""

TENSOR_METRIC: Final = "sm__inst_executed_pipe_tensor_op_{}.sum"
TENSOR_KINDS: Final = {"hmma": "HMMA.16816.F32", "imma": "IMMA.16832.S8.S8", "dmma": "DMMA.884", "gmma": "HGMMA"}
"""Matrix instructions of a warp, by the pipe's operation."""

TIME: Final = "gpu__time_duration.sum"
ISSUED: Final = "smsp__inst_executed.sum"
ACTIVE: Final = "smsp__cycles_active.sum"
BUSY: Final = "smsp__issue_active.sum"

TRANSACTION_METRICS: Final = {
    "shared": (("l1tex__data_pipe_lsu_wavefronts_mem_shared.sum",), 1.0),
    "l1": (("l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum", "l1tex__t_sectors_pipe_lsu_mem_global_op_st.sum"), 0.25),
    "l2": (("lts__t_sectors_srcunit_tex_op_read.sum", "lts__t_sectors_srcunit_tex_op_write.sum"), 1.0),
    "dram": (("dram__sectors_read.sum", "dram__sectors_write.sum"), 1.0),
}
"""Metrics whose sum, times a factor, is the transactions of a level; L1 counts sectors, four to a line."""

LINK_METRICS: Final = ("nvlrx__bytes.sum", "nvltx__bytes.sum")

METRICS: Final = (
    TIME, ISSUED, ACTIVE, BUSY,
    *(THREAD_METRIC.format(kind) for kind in THREAD_KINDS["sass"]),
    *(TENSOR_METRIC.format(kind) for kind in TENSOR_KINDS),
    *(name for names, _ in TRANSACTION_METRICS.values() for name in names),
    *LINK_METRICS,
)  # fmt: skip
"""Metrics for `ncu --metrics`."""


@frozen
class CountedKernel:
    """A kernel that ran `launches` times: the activity of one launch, bytes over links, and the names of missing counts."""

    name: str
    launches: float
    activity: Activity
    link_bytes: float = 0.0
    missing: tuple[str, ...] = ()


def read_activities(path: Path, vocabulary: Vocabulary) -> tuple[CountedKernel, ...]:
    """Counted kernels of a file: JSON in our format, or a table of Nsight Compute.

    Raises CountsError, naming file and field, for a file that cannot be used.
    """
    try:
        content = read_regular(path, MOST_DATA_BYTES)
        if content.lstrip(codecs.BOM_UTF8 + b" \t\r\n")[:1] == b"{":
            file: ActivityFile = read(ActivityFile, parse_json(content))
            return tuple(_counted(entry, f"{path}: kernels[{place}]", vocabulary) for place, entry in enumerate(file.kernels))
    except OSError as error:
        raise CountsError(f"{path}: cannot be read ({error.strerror}); `estimate counts --metrics` names what to profile") from error
    except ValueError as error:
        raise CountsError(f"{path}: {error}") from error
    kernels = tuple(profiled_activity(kernel, vocabulary, str(path)) for kernel in read_ncu(content, path))
    if not kernels:
        raise CountsError(f"{path}: no kernel was profiled")
    return kernels


def profiled_activity(kernel: "ProfiledKernel", vocabulary: Vocabulary, at: str) -> CountedKernel:
    """The activity of a profiled kernel.  Raises CountsError for a kernel without its time."""
    missing: list[str] = []

    def metric(name: str) -> float:
        value = next((kernel.metrics[one] for one in (name, name.replace("sm__", "smsp__", 1)) if one in kernel.metrics), nan)
        if not 0 <= value <= MOST_COUNT:  # nan: no count, or a count in an unknown unit
            missing.append(name)
            return 0.0
        return value

    time_s = metric(TIME)
    if time_s <= 0:
        fault = f"has no {TIME} above 0 in a known unit; profile it with --metrics {TIME},… and print it with --csv"
        raise CountsError(f"{at}: kernel {kernel.number} ({kernel.name[:60]}) {fault}")
    counted = {name: metric(THREAD_METRIC.format(kind)) for kind, name in THREAD_KINDS[vocabulary].items()}
    if vocabulary == "sass":
        counted |= {name: metric(TENSOR_METRIC.format(kind)) * LANES for kind, name in TENSOR_KINDS.items()}
    transactions = {level: factor * sum(metric(name) for name in names) for level, (names, factor) in TRANSACTION_METRICS.items()}
    activity = Activity(
        instructions={name: count for name, count in counted.items() if count > 0},
        issued=metric(ISSUED),
        transactions={level: count for level, count in transactions.items() if count > 0},
        stalls=max(0.0, metric(ACTIVE) - metric(BUSY)),
        time_s=time_s,
    )
    # Boards without links and pipes have no such metrics; all other absent metrics are reported as missing.
    silent = {*LINK_METRICS, *(TENSOR_METRIC.format(kind) for kind in TENSOR_KINDS)}
    return CountedKernel(
        name=kernel.name,
        launches=1.0,
        activity=activity,
        link_bytes=sum(metric(name) for name in LINK_METRICS),
        missing=tuple(dict.fromkeys(name for name in missing if name not in silent)),
    )


def _counted(entry: KernelEntry, at: str, vocabulary: Vocabulary) -> CountedKernel:
    instructions, opcodes = dict(entry.instructions or {}), entry.opcodes or {}
    if entry.opcodes is not None and vocabulary != "sass":
        raise CountsError(f"{at}.opcodes: these energies are of PTX types; give instructions by type instead")
    for opcode, count in opcodes.items():
        if name := sass_class(opcode):
            instructions[name] = instructions.get(name, 0.0) + count * entry.lanes
    activity = Activity(
        instructions=instructions,
        issued=entry.issued or sum(opcodes.values()),
        transactions=entry.transactions or {},
        stalls=entry.stalls or 0.0,
        time_s=entry.time_s,
    )
    missing = tuple(name for name in ("transactions", "stalls") if getattr(entry, name) is None)
    return CountedKernel(name=entry.name, launches=entry.launches, activity=activity, link_bytes=entry.link_bytes, missing=missing)


# Nsight Compute's CSV, printed with --csv: one line a metric ------------------------------------------------------------------

SCALES: Final = {
    "": 1.0, "%": 1.0, "inst/cycle": 1.0,
    **{
        prefix + unit: scale
        for unit in ("inst", "cycle", "request", "warp", "block", "thread", "wavefront", "byte", "sector")
        for prefix, scale in {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12}.items()
    },
    **{prefix + unit: scale for unit in ("s", "second") for prefix, scale in {"": 1.0, "m": 1e-3, "u": 1e-6, "n": 1e-9}.items()},
}  # fmt: skip
"""Printed units in base units; ncu prints base units with --print-units base, and scaled ones without.  A metric in another unit counts
as not read."""


@frozen
class ProfiledKernel:
    """One profiled kernel: name, grid as printed, and values by metric, in base units.

    Metrics without a value from ncu are nan.
    """

    number: int
    name: str
    grid: str = ""
    metrics: dict[str, float] = field(default_factory=dict)


def read_ncu(content: bytes, at: Path) -> list[ProfiledKernel]:
    """The kernels of a table, in the order of execution.  Raises CountsError, naming the file `at`, for any other content."""
    lines = content.decode("utf-8", errors="replace").splitlines()
    start = next((place for place, line in enumerate(lines) if line.startswith('"ID"')), None)
    if start is None:
        said = next((line for line in lines if "==ERROR==" in line or "ERR_NVGPUCTRPERM" in line), "")
        reason = f"ncu said: {said.strip()[:200]}" if said else 'no line begins with "ID"'
        raise CountsError(f"{at}: no table of Nsight Compute ({reason}); print it with ncu --csv")
    try:
        return _kernels(row for row in csv.DictReader(lines[start:], strict=True) if not row["ID"].startswith("=="))
    except (ValueError, LookupError, AttributeError, csv.Error) as error:
        raise CountsError(
            f"{at}: a damaged table of Nsight Compute, a line or a column is not whole; print it again with ncu --csv"
        ) from error


def _kernels(rows: Iterable[Mapping[str, str]]) -> list[ProfiledKernel]:
    """The kernels of a table with one line a metric.  Raises AttributeError for a line that is not whole: it lacks texts."""
    found: dict[int, ProfiledKernel] = {}
    for row in rows:
        number = int(row["ID"])
        kernel = found.setdefault(number, ProfiledKernel(number=number, name=row["Kernel Name"], grid=row.get("Grid Size", "")))
        kernel.metrics[row["Metric Name"]] = _value(row["Metric Value"], row["Metric Unit"])
    return [found[number] for number in sorted(found)]


def _value(text: str, unit: str) -> float:
    """A printed number in base units; commas separate thousands.  nan for other texts ("n/a", empty, decimal commas)."""
    number = re.fullmatch(r"(-?\d+|-?\d{1,3}(,\d{3})+)(\.\d*)?(e[+-]?\d+)?", text.strip(), re.ASCII | re.IGNORECASE)
    return float(text.replace(",", "")) * SCALES.get(unit.strip().lower(), nan) if number else nan
