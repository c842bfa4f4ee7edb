"""Campaign files: measured kernels and settings, each key declared once with its limits and unit."""

import hashlib
import json
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final, TypeVar

from collector.errors import CampaignError
from collector.sensing.calibration import SensorCalibration
from collector.sensing.steady import settle_time_s, update_period_s
from estimator.vocabulary.errors import WorkloadError
from estimator.vocabulary.reader import FaultError, Span, Text, Words, fields_of, plain, read, read_file
from estimator.vocabulary.resources import resource_folder, resource_names
from estimator.vocabulary.specifications import names_file
from estimator.vocabulary.values import frozen
from estimator.vocabulary.workload import Operator, make_operator
from microbench.loads.generated import LoadGroup
from microbench.runners.torch_kernels import BACKENDS, OWN_BACKEND
from microbench.shapes import KernelGroup

PREPARE_S: Final = 0.25
"""Expected time to prepare a kernel [s]: operands, first launch, trace.  PyTorch took 0.3 to 0.6 s when the host filled the operands."""

Built = TypeVar("Built")
Table = Mapping[str, Any]
"""A table of a TOML file."""


@frozen
class MeasurementSettings:
    """Settings for measuring a kernel.

    At least `updates` whole sensor updates and `window_s` seconds, after at least `settle_s` of the same load;
    before, `gap_s` at rest (`idle_s` if the point requests its idle power) and a ranging run of `ranging_s`.
    `timed_s` is the length of a run that is only timed: a hundred times the resolution of the clocks that time it.  Its last part gives
    launch time and clock, so the power limit need not have settled.  `max_temperature_c` is the hottest normal temperature.
    """

    updates: Annotated[int, Span(4, 10_000, "sensor updates")] = 20
    window_s: Annotated[float, Span(0.01, 600, "s")] = 1.5
    settle_s: Annotated[float, Span(0, 60, "s")] = 1.0
    gap_s: Annotated[float, Span(0, 600, "s")] = 0.2
    idle_s: Annotated[float, Span(0, 600, "s")] = 3.0
    ranging_s: Annotated[float, Span(0.001, 10, "s")] = 0.02
    timed_s: Annotated[float, Span(0.02, 10, "s")] = 0.1
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


@frozen
class CampaignSpec:
    """Kernels and settings of a campaign.

    `warmup_s` of load at the start.  Idle power at each clock comes from `idle_window_s` after `idle_settle_s` of rest.
    `kernels_per_block` kernels run in a row at one clock before the next clock; all `anchors` run again after every `anchor_every` rows (0:
    never), to show drift.  `every_clock_share` of the kernels run at every clock, each of the others at one, evenly over the clocks: rows
    cost time, and a new shape gives more information than a known one at another clock.  `instructions` are
    groups of generated kernels, each run at every clock.  `attention` is the backend of PyTorch that computes attention on a real board.
    `clock_budget_s` is the board's time at each clock if no `--budget` is given (None: all rows).  `digest` identifies the content.
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
    every_clock_share: Annotated[float, Span(0, 1)] = 1.0
    attention: Annotated[str, Words((OWN_BACKEND, *BACKENDS))] = OWN_BACKEND
    clock_budget_s: Annotated[float, Span(60, 1e6, "s")] | None = None


def campaign_names() -> tuple[str, ...]:
    """Names of the shipped campaigns, sorted."""
    return resource_names("campaigns")


def load_campaign(name_or_path: str) -> CampaignSpec:
    """A campaign by its name, or from a TOML file (text that ends in `.toml` or holds a path separator).

    Raises CampaignError for an unknown name, an unreadable file, an unknown key and an impossible figure.
    """
    path = Path(name_or_path)
    if not names_file(name_or_path):
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
        except (WorkloadError, TypeError) as error:
            raise CampaignError(f"{key}[{index}]: {error}") from error
    return tuple(found)


def _anchor(item: Table) -> Operator:
    """An operator with all its fields given."""
    details = dict(item)
    family, operator, precision = (read(Text, details.pop(key, None), key) for key in ("family", "operator", "precision"))
    return make_operator(family, operator, precision.split("|")[0], **details)


def _group(item: Table) -> KernelGroup:
    """A group of kernels with its shape rules; one layout needs no list."""
    layouts = item.get("transpose", ())
    rules = {name: _rule(rule) for name, rule in read(Table, item.get("shape"), "shape").items()}
    given = [layouts] if isinstance(layouts, str) else layouts
    return read(KernelGroup, {**item, "shape": rules, "transpose": list(dict.fromkeys(given)) if given else ()})


def _rule(value: Any) -> Any:
    """Rule for drawing a shape field, as a table: a number, a list of numbers and another field's name are short forms."""
    if isinstance(value, str):
        return {"of": value}
    return value if isinstance(value, Mapping) else {"values": list(value) if isinstance(value, tuple) else [value]}


LISTS: Final[dict[str, Callable[[Table], Any]]] = {"anchors": _anchor, "kernels": _group, "instructions": partial(read, LoadGroup)}
"""Lists of tables in a campaign's file, and the function that builds an entry from its table."""
