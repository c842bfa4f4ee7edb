"""What a trace and a comparison look like as text and as JSON values."""

from dataclasses import asdict
from typing import Any, Final

from estimator.memory import GIB, footprint_parts
from estimator.reckoning import work_by_family
from estimator.tracing.comparison import Comparison
from estimator.tracing.models import load_model_config, model_names
from estimator.workload import Footprint, Workload

GIGA: Final = 1e9


def trace_summary(workload: Workload) -> dict[str, Any]:
    """Kernels, flop and bytes of a workload, in all and by family, with what is not modelled."""
    families = []
    for family, work in work_by_family(workload).items():
        counts = [count for operator, count in zip(workload.operators, workload.counts, strict=True) if operator.family == family]
        moved = work.read_byte + work.write_byte
        families.append({"family": family, "kernels": sum(counts), "kinds": len(counts), "flop": work.flop, "moved_byte": moved})
    return {
        "workload": workload.name,
        "kernels": sum(workload.counts),
        "kinds": len(workload.operators),
        "flop": sum(row["flop"] for row in families),
        "moved_byte": sum(row["moved_byte"] for row in families),
        "families": families,
        "memory": None if workload.footprint is None else asdict(workload.footprint) | {"total_byte": workload.footprint.total_byte},
        "unknown": [{"name": item.name, "count": item.count, "elements": item.elements} for item in workload.unknown],
        "notes": list(workload.notes),
    }


def summary_text(summary: dict[str, Any]) -> str:
    """A summary as a table."""
    lines = [f"{summary['workload']}", f"{'family':<14}{'kernels':>9}{'kinds':>7}{'GFLOP':>12}{'GB moved':>11}"]
    rows = [*summary["families"], summary | {"family": "all"}]
    for row in rows:
        flop = f"{row['flop'] / GIGA:.2f}" if row["flop"] else "-"
        lines.append(f"{row['family']:<14}{row['kernels']:>9.0f}{row['kinds']:>7}{flop:>12}{row['moved_byte'] / GIGA:>11.3f}")
    if summary["memory"] is not None:
        memory = dict(summary["memory"])
        total = memory.pop("total_byte")
        parts = [f"{name} {size / GIB:.4g}" for name, size in footprint_parts(Footprint(**memory)).items() if size]
        lines.append(f"memory: at least {total / GIB:.4g} GiB: {', '.join(parts)}")
    lines += [f"not modelled: {item['name']} ×{item['count']}, {item['elements']:.0f} elements each" for item in summary["unknown"]]
    return "\n".join(lines) + "\n"


def comparison_values(comparison: Comparison) -> dict[str, Any]:
    """A comparison as JSON values."""
    return {
        "kinds": [row._asdict() for row in comparison.rows],
        "products_missing": dict(comparison.missing),
        "products_extra": dict(comparison.extra),
    }


def comparison_text(comparison: Comparison) -> str:
    """A comparison as a table: kernels and bytes of list and trace by kind."""
    lines = [f"{'kind':<30}{'listed':>8}{'traced':>8}{'GB listed':>11}{'GB traced':>11}"]
    for row in comparison.rows:
        lines.append(f"{row.kind:<30}{row.listed:>8.0f}{row.traced:>8.0f}{row.listed_byte / GIGA:>11.3f}{row.traced_byte / GIGA:>11.3f}")
    differences = [("only in the list", *item) for item in comparison.missing] + [("only in the trace", *item) for item in comparison.extra]
    lines += [f"{where}: {name} ×{count:.0f}" for where, name, count in differences]
    lines.append("products: differ" if differences else "products: equal in shapes and counts")
    return "\n".join(lines) + "\n"


def model_rows() -> list[dict[str, str]]:
    """The shipped configurations."""
    return [{"name": name, "title": load_model_config(name).title} for name in model_names()]
