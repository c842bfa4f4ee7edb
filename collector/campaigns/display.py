"""Plans, rows and outcomes of campaigns as lines or plain data."""

from collector.campaigns.files import CampaignSpec
from collector.campaigns.plan import CampaignPlan
from collector.campaigns.running import CampaignOutcome
from collector.campaigns.selection import Choice
from collector.clocks import Clocks
from collector.dataset.schema import FLAGS, Row
from collector.devices.protocols import Bench


def plan_document(bench: Bench, spec: CampaignSpec, plan: CampaignPlan) -> dict[str, object]:
    """A plan as plain data."""
    identity = bench.gpu.identity()
    return {
        "gpu": identity.name,
        "gpu_uuid": identity.uuid,
        "simulated": bench.simulated,
        "campaign": spec.name,
        "campaign_digest": spec.digest,
        "sm_clocks_mhz": list(plan.clocks_mhz),
        "kernels": plan.kernels,
        "rows": len(plan.points),
        "anchor_rows": plan.anchors,
        "skipped": plan.skipped,
        "selection": plan.choice,
        "estimated_s": plan.estimated_s,
        "estimated_j": plan.estimated_j,
    }


def plan_lines(bench: Bench, spec: CampaignSpec, plan: CampaignPlan) -> list[str]:
    """A plan for people."""
    families = ", ".join(f"{family} {count}" for family, count in plan.kernels.items())
    identity = bench.gpu.identity()
    lines = [
        f"board      {identity.name} ({identity.uuid}{', simulated' if bench.simulated else ''})",
        f"campaign   {spec.name}: {sum(plan.kernels.values())} kernels ({families})",
        f"SM clocks  {_clocks(plan.clocks_mhz)}",
        f"rows       {len(plan.points)}, {plan.anchors} of them repetitions that show drift",
        f"time       about {duration_text(plan.estimated_s)} of the board's time{', simulated in seconds' if bench.simulated else ''}",
        f"energy     about {plan.estimated_j / 1e3:.0f} kJ",
    ]
    if plan.choice is not None:
        lines.append(f"chosen     {choice_text(plan.choice)}")
    return [*lines, *(f"skipped    {count} kernels: {reason}" for reason, count in plan.skipped.items())]


def choice_text(choice: Choice) -> str:
    """The part of a campaign that a budget covers."""
    part = f"{choice.rows} of {choice.of} rows at random" if choice.rows < choice.of else f"all {choice.of} rows with shorter windows"
    text = f"{part} for {duration_text(choice.budget_s)}"
    if choice.timed:
        text += f"; {choice.timed} are only timed, power is measured of {choice.rows - choice.timed}"
    if choice.left_out:
        text += f"; without {', '.join(choice.left_out)}"
    return text


def row_line(row: Row) -> str:
    """A measured row in one line."""
    latency, power = row.get("latency_s"), row.get("power_w")
    clock = row.get("sm_clock_mhz")
    parts = [
        f"{row['family']}.{row['operator']}.{row['precision']}",
        "current clock" if clock is None else f"{clock:g} MHz",
        "no time" if latency is None else f"{latency * 1e6:.4g} µs",
        "no power" if power is None else f"{power:.1f} W",
        *row["flags"],
    ]
    return " ".join(parts)


def outcome_lines(outcome: CampaignOutcome, simulated: bool, fit: str) -> list[str]:
    """An outcome for people, with the next command, `fit`."""
    notes = f", {outcome.rows_kept} of them from before" if outcome.rows_kept else ""
    time = f"{duration_text(outcome.board_time_s)} of {'simulated ' if simulated else ''}board time"
    lines = [f"{outcome.dataset}: {outcome.rows} of {outcome.rows_planned} rows{notes}, {time}"]
    lines += [f"  {count:5d} {flag}: {FLAGS[flag]}" for flag, count in outcome.flags.items()]
    lines += [f"  {count:5d} not run: {reason}" for reason, count in outcome.rejected.items()]
    if outcome.drift:
        spreads = ", ".join(f"{name} {value:.1%}" for name, value in outcome.drift.items())
        lines.append(f"  repetitions of a kernel differ by at most {spreads}")
    if outcome.rows_missing:
        lines.append(f"  {outcome.rows_missing} rows of the plan are missing: the same command with --resume goes on")
    return [*lines, f"next: {fit}"]


def duration_text(seconds: float) -> str:
    """A time in a readable unit."""
    if seconds < 120.0:
        return f"{seconds:.0f} s"
    return f"{seconds / 60.0:.0f} min" if seconds < 7200.0 else f"{seconds / 3600.0:.1f} h"


def _clocks(clocks_mhz: Clocks) -> str:
    if clocks_mhz == (None,):
        return "left alone"
    if len(clocks_mhz) > 12:
        return f"{len(clocks_mhz)} from {clocks_mhz[0]:g} to {clocks_mhz[-1]:g} MHz"
    return ", ".join(f"{clock:g}" for clock in clocks_mhz) + " MHz"
