"""Campaign files: measured kernels and settings, each key declared once with its limits and unit."""

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Final, TypeVar

from collector.errors import CampaignError
from collector.sensing.calibration import SensorCalibration
from collector.sensing.steady import settle_time_s, update_period_s
from estimator.vocabulary.errors import WorkloadError
from estimator.vocabulary.quantities import BYTES_PER_ELEMENT
from estimator.vocabulary.reader import LEAST_ONE, FaultError, Span, Text, Words, fields_of, plain, read, read_file
from estimator.vocabulary.resources import resource_folder, resource_names
from estimator.vocabulary.workload import FAMILY_FIELDS, FAMILY_OPERATORS, Operator, make_operator
from microbench.errors import UnsupportedError
from microbench.kernel import MODES, OPTIMISATION_LEVELS, PATTERNS
from microbench.layouts import LAYOUTS
from microbench.loads.groups import LoadGroup, check_group
from microbench.runners.torch_kernels import BACKENDS
from microbench.shapes import Derived, KernelGroup, LogRange

Built = TypeVar("Built")
Table = Mapping[str, Any]
"""A table of a TOML file."""

GROUP_SPANS: Final = {
    "count": Span(1, 100_000, "kernels"),
    "min_bytes": Span(0, 1e13, "byte"),
    "max_bytes": Span(1, 1e13, "byte"),
    "max_flop": Span(1, 1e17, "flop"),
}
"""Limits of a group of kernels."""

Share = Annotated[float, Span(0, 1)]


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasurementSettings:
    """Settings for measuring a kernel.

    At least `updates` whole sensor updates and `window_s` seconds, after at least `settle_s` of the same load;
    before, `gap_s` at rest (`idle_s` if the point requests its idle power) and a ranging run of `ranging_s`.
    `max_temperature_c` is the hottest normal temperature.
    """

    updates: Annotated[int, Span(4, 10_000, "sensor updates")] = 20
    window_s: Annotated[float, Span(0.01, 600, "s")] = 1.5
    settle_s: Annotated[float, Span(0, 60, "s")] = 1.0
    gap_s: Annotated[float, Span(0, 600, "s")] = 0.2
    idle_s: Annotated[float, Span(0, 600, "s")] = 3.0
    ranging_s: Annotated[float, Span(0.001, 10, "s")] = 0.02
    max_temperature_c: Annotated[float, Span(20, 120, "degree Celsius")] = 85.0

    def planned_window_s(self, calibration: SensorCalibration) -> float:
        """Planned span of the settled window of a run [s]."""
        return max(self.window_s, (self.updates + 1) * update_period_s(calibration))

    def planned_run_s(self, calibration: SensorCalibration) -> float:
        """Length of the measured run [s]."""
        return settle_time_s(calibration, self.settle_s) + self.planned_window_s(calibration)

    def planned_total_s(self, calibration: SensorCalibration) -> float:
        """Rest, ranging and run of a point without idle power together [s]."""
        return self.gap_s + 2.0 * self.ranging_s + self.planned_run_s(calibration)


@dataclass(frozen=True, slots=True, kw_only=True)
class CampaignSpec:
    """Kernels and settings of a campaign.

    `warmup_s` of load at the start.  Idle power at each clock comes from `idle_window_s` after `idle_settle_s` of rest.
    `kernels_per_block` kernels run in a row at one clock before the next clock; all `anchors` run again after every `anchor_every` rows (0:
    never), to show drift.  `every_clock_share` of the kernels run at every clock, each of the others at one, evenly over the clocks: rows
    cost time, and a new shape gives more information than a known one at another clock.  A kernel whose row has a passing doubt (a
    throttled board, drift, another process) is measured again at the end, at most `retries` times.  `instructions` are groups of generated
    kernels, each run at every clock.  `attention` is the backend of PyTorch that computes attention on a real board.  `digest` identifies
    the content.
    """

    name: Text
    digest: str
    measurement: MeasurementSettings = MeasurementSettings()
    anchors: tuple[Operator, ...] = ()
    kernels: tuple[KernelGroup, ...] = ()
    description: str = ""
    warmup_s: Annotated[float, Span(0, 3600, "s")] = 15.0
    idle_settle_s: Annotated[float, Span(0, 600, "s")] = 3.0
    idle_window_s: Annotated[float, Span(0.2, 600, "s")] = 3.0
    kernels_per_block: Annotated[int, Span(1, 100_000, "kernels")] = 50
    anchor_every: Annotated[int, Span(0, 1_000_000, "rows")] = 60
    instructions: tuple[LoadGroup, ...] = ()
    every_clock_share: Share = 1.0
    retries: Annotated[int, Span(0, 100, "times")] = 1
    attention: Annotated[str, Words(tuple(BACKENDS))] = "flash"


def campaign_names() -> tuple[str, ...]:
    """Names of the shipped campaigns, sorted."""
    return resource_names("campaigns", ".toml")


def load_campaign(name_or_path: str) -> CampaignSpec:
    """A campaign by its name, or from a TOML file (text that ends in `.toml` or holds a path separator).

    Raises CampaignError for an unknown name, an unreadable file, an unknown key and an impossible figure.
    """
    path = Path(name_or_path)
    if not (name_or_path.endswith(".toml") or "/" in name_or_path):
        if name_or_path not in campaign_names():
            raise CampaignError(f"unknown campaign {name_or_path!r}; known: {', '.join(campaign_names())}; or give a TOML file")
        path = resource_folder("campaigns") / f"{name_or_path}.toml"
    document = plain(read_file(Table, path, "campaign", CampaignError))  # type: ignore[type-abstract]
    return campaign_from_document({"name": path.stem, **document}, f"campaign {path}")


def campaign_from_document(document: Table, where: str) -> CampaignSpec:
    """A campaign from plain data.  Raises CampaignError, naming `where` and the key's path."""
    canonical = json.dumps(document, sort_keys=True, separators=(",", ":"), default=str)
    fields = fields_of(CampaignSpec)
    try:
        built: dict[str, Any] = {name: _each(document, name, build) for name, build in LISTS.items()}
        if not built["kernels"] and not built["instructions"]:
            raise FaultError("is empty; a campaign needs at least one group", "kernels")
        for name, value in document.items():
            if name not in fields:
                raise FaultError(f"is unknown; known: {', '.join(fields)}", name)
            if name not in LISTS:
                built[name] = read(fields[name][0], value, name)
    except (FaultError, CampaignError) as error:
        raise CampaignError(f"{where}: {error}") from error
    return CampaignSpec(**built, digest=hashlib.sha256(canonical.encode()).hexdigest())


def _each(values: Table, key: str, build: Callable[[Table], Built]) -> tuple[Built, ...]:
    """The tables of a list, each built.  Raises FaultError with the table's place."""
    found = []
    for index, item in enumerate(read(tuple[Table, ...], values.get(key, []), key)):
        try:
            found.append(build(item))
        except FaultError as fault:
            raise FaultError(fault.what, key, index, *fault.place) from fault
        except UnsupportedError as error:  # begins with the key
            raise CampaignError(f"{key}[{index}]{error}") from error
        except (WorkloadError, TypeError) as error:
            raise CampaignError(f"{key}[{index}]: {error}") from error
    return tuple(found)


def _anchor(item: Table) -> Operator:
    """An operator with all its fields given."""
    details = dict(item)
    family, operator, precision = (read(Text, details.pop(key, None), key) for key in ("family", "operator", "precision"))
    return make_operator(family, operator, precision.split("|")[0], **details)


def _word(item: Table, key: str, known: Any) -> str:
    """One of some words at a key.  Raises FaultError."""
    word: str = read(Annotated[str, Words(tuple(known))], item.get(key), key)
    return word


def _group(item: Table) -> KernelGroup:
    """A group of kernels with its shape rules."""
    family = _word(item, "family", FAMILY_FIELDS)
    _word(item, "operator", FAMILY_OPERATORS[family])
    shape = read(Table, item.get("shape"), "shape")
    if set(shape) != set(FAMILY_FIELDS[family]):
        raise FaultError(f"must give exactly {', '.join(FAMILY_FIELDS[family])}", "shape")
    if "transpose" in item and family != "gemm":
        raise FaultError(f"is for matrix products (family gemm); {family} has no layout, leave it out", "transpose")
    layouts = item.get("transpose", ())
    rules = {name: _rule(rule) for name, rule in shape.items()}
    group = read(KernelGroup, {**item, "shape": rules, "transpose": [layouts] if isinstance(layouts, str) else layouts})
    group = replace(group, transpose=tuple(dict.fromkeys(group.transpose)))
    for name, span in GROUP_SPANS.items():
        read(Annotated[float, span], getattr(group, name), name)
    precisions = (*group.precisions, *filter(None, (group.precision_out, group.precision_kv)))
    for name, words, known in (
        ("transpose", group.transpose, LAYOUTS),
        ("precision", precisions, BYTES_PER_ELEMENT),
        ("l2_state", [group.l2_state], ("warm", "cold")),
    ):
        for word in words:
            _word({name: word}, name, known)
    for name, rule in group.shape.items():
        if any(getattr(rule, field, True) == () for field in ("values", "times", "divide")):
            raise FaultError("must not have an empty list", "shape", name)
        if isinstance(rule, Derived) and (rule.of not in shape or min(rule.divide) <= 0):
            raise FaultError(f"needs another field as `of` ({', '.join(shape)}), and to `divide` by numbers above 0", "shape", name)
        if isinstance(rule, LogRange) and not (0 < rule.low <= rule.high and rule.multiple >= 1 and 0 <= rule.ragged <= 1):
            raise FaultError("needs 0 < low <= high, multiple >= 1 and ragged between 0 and 1", "shape", name)
    return group


def _rule(value: Any) -> Any:
    """Rule for drawing a shape field, as a table: a number, a list of numbers and another field's name are short forms."""
    if isinstance(value, str):
        return {"of": value}
    return value if isinstance(value, Mapping) else {"values": list(value) if isinstance(value, tuple) else [value]}


def _loads(item: Table) -> LoadGroup:
    """A group of generated kernels."""
    group = read(LoadGroup, item)
    for key, words, known in (
        ("modes", group.modes, MODES),
        ("pattern", [group.pattern], PATTERNS),
        ("level", [group.level], OPTIMISATION_LEVELS),
    ):
        for word in words:
            _word({key: word}, key, known)
    for key in ("kernels", "modes"):
        read(Annotated[tuple[str, ...], LEAST_ONE], getattr(group, key), key)
    check_group(group, "")
    return group


LISTS: Final[dict[str, Callable[[Table], Any]]] = {"anchors": _anchor, "kernels": _group, "instructions": _loads}
"""Lists of tables in a campaign's file, and the function that builds an entry from its table."""
