"""What a row says of a generated kernel or of a copy, beyond what every row says."""

import json
from typing import Any

from collector.devices.protocols import LaunchRecord, PowerReadings
from collector.sampling import SECONDS_PER_NS
from collector.sensing.baselines import sampled_energies_j
from microbench.loads.copies import COPY_ENGINE, CopyLoad
from microbench.loads.generated import LEVELS, GeneratedLoad


def load_columns(load: GeneratedLoad | CopyLoad) -> dict[str, Any]:
    """Family, operator and work of a load by column."""
    operator = load.operator
    named = {
        "family": operator.family,
        "operator": operator.operator,
        "precision": operator.precision,
        "cuda_cores": False,
        "link": load.link or None,
    }
    if isinstance(load, CopyLoad):
        return {**named, "instruction": COPY_ENGINE, "data_pattern": "random", "link_bytes": float(load.host.bytes_moved)}
    kernel, launch = load.kernel, load.launch
    counts = load.transactions()
    return {
        **named,
        "instruction": kernel.instruction,
        "launch_mode": launch.mode,
        "data_pattern": launch.pattern,
        "unroll": kernel.unroll,
        "chains": kernel.chains,
        "iterations": launch.iterations,
        "active_threads": launch.active_threads,
        "active_warps": load.active_warps,
        "loop_opcodes": _counted(load.entry.body),
        "loop_operations": _counted(kernel.work.operations),
        **{f"{level}_transactions": counts[level] for level in LEVELS},
        "assembler": f"{load.compiler} -{load.level} {load.architecture}",
        "cubin_sha256": load.cubin_sha256,
        "ptx_sha256": kernel.digest(),
        "link_bytes": load.link_bytes() if load.link else None,
    }


def sampled_columns(readings: PowerReadings, record: LaunchRecord) -> dict[str, Any]:
    """Energy of one launch as published ways of sampling would have it, by column [J]."""
    found = sampled_energies_j(readings, record.start_ns * SECONDS_PER_NS, record.end_ns * SECONDS_PER_NS)
    return {f"energy_{name}_j": joule / record.launches for name, joule in found.items()}


def _counted(counts: Any) -> str:
    return json.dumps(dict(counts), separators=(",", ":"))
