"""Campaign files: TOML into frozen dataclasses, every key and figure checked."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from collector.campaigns.outcome import MeasurementSettings
from collector.errors import CampaignError
from collector.tables import TableReader
from estimator.errors import WorkloadError
from estimator.frozen import FrozenMapping
from estimator.quantities import BYTES_PER_ELEMENT
from estimator.resources import resource_folder, resource_names
from estimator.specifications import near_match
from estimator.workload import FAMILY_FIELDS, FAMILY_OPERATORS, Operator, make_operator
from microbench.errors import UnsupportedError
from microbench.kernel import OPTIMISATION_LEVELS
from microbench.layouts import LAYOUTS
from microbench.loads.generated import MODES, PATTERNS, LoadGroup, check_group
from microbench.runners.torch_kernels import BACKENDS
from microbench.shapes import Choice, Derived, KernelGroup, LogRange, ShapeRule

L2_STATES: Final = ("warm", "cold")
MOST_SHOWN: Final = 80
"""Characters of a wrong value that a message repeats."""

LIMITS: Final[dict[str, tuple[float, float, str]]] = {
    "updates": (4, 10_000, "sensor updates"),
    "window_s": (0.01, 600.0, "s"),
    "settle_s": (0.0, 60.0, "s"),
    "gap_s": (0.0, 600.0, "s"),
    "idle_s": (0.0, 600.0, "s"),
    "ranging_s": (0.001, 10.0, "s"),
    "max_temperature_c": (20.0, 120.0, "degree Celsius"),
    "warmup_s": (0.0, 3600.0, "s"),
    "warm_to_c": (0.0, 120.0, "degree Celsius"),
    "warmup_longest_s": (0.0, 7200.0, "s"),
    "cool_longest_s": (0.0, 7200.0, "s"),
    "retries": (0, 100, "times"),
    "target_std_share": (0.0, 1.0, "of the power"),
    "most_trials": (1, 1000, "times"),
    "idle_settle_s": (0.0, 600.0, "s"),
    "idle_window_s": (0.2, 600.0, "s"),
    "kernels_per_block": (1, 100_000, "kernels"),
    "every_clock_share": (0.0, 1.0, "of the kernels"),
    "anchor_every": (0, 1_000_000, "rows"),
    "count": (1, 100_000, "kernels"),
    "min_bytes": (0.0, 1e13, "byte"),
    "max_bytes": (1.0, 1e13, "byte"),
    "max_flop": (1.0, 1e17, "flop"),
}
"""Low, high and unit of every number in a campaign file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CampaignSpec:
    """What a campaign measures and how.

    `warmup_s` of load at the start, and up to `warmup_longest_s` until the board has `warm_to_c`; a board below that is warmed again
    before a kernel, one above `measurement.max_temperature_c` rests up to `cool_longest_s`.  Idle power at each clock from
    `idle_window_s` after `idle_settle_s` of rest;
    `kernels_per_block` kernels in a row at one clock before the next clock takes its turn; all `anchors` again
    after every `anchor_every` rows (0: never), to show drift.  `every_clock_share` of the kernels run at every clock, each
    of the others at one, as many at one clock as at another: rows cost time, and a new shape tells more than a known one
    at another clock.  A kernel whose row is doubtful for what passes (a throttled board, drift, another process) is measured again at
    the end, `retries` times at most.  Where the standard error of its power is above `target_std_share` of it, it is repeated at once
    until that of the mean is not, `most_trials` times at most (0: never).
    `instructions` are groups of generated kernels, each of which runs at every clock.  `attention` is the backend of PyTorch that computes
    attention on a real board.  `digest` identifies the content.
    """

    name: str
    digest: str
    measurement: MeasurementSettings
    anchors: tuple[Operator, ...]
    kernels: tuple[KernelGroup, ...]
    description: str = ""
    warmup_s: float = 15.0
    idle_settle_s: float = 3.0
    idle_window_s: float = 3.0
    kernels_per_block: int = 50
    anchor_every: int = 60
    instructions: tuple[LoadGroup, ...] = ()
    every_clock_share: float = 1.0
    warm_to_c: float = 0.0
    warmup_longest_s: float = 600.0
    cool_longest_s: float = 120.0
    retries: int = 1
    target_std_share: float = 0.0
    most_trials: int = 5
    attention: str = "flash"


def campaign_names() -> tuple[str, ...]:
    """Names of the campaigns that are shipped, sorted."""
    return resource_names("campaigns", ".toml")


def load_campaign(name_or_path: str) -> CampaignSpec:
    """A campaign by its name, or from a TOML file (text that ends in `.toml` or holds a path separator).

    Raises CampaignError for an unknown name, an unreadable file, an unknown key and a figure that cannot be.
    """
    if name_or_path.endswith(".toml") or "/" in name_or_path:
        path = Path(name_or_path)
    elif name_or_path in campaign_names():
        path = resource_folder("campaigns") / f"{name_or_path}.toml"
    else:
        own = f"{name_or_path}.toml"
        close = f", did you mean {own!r}?" if Path(own).is_file() else near_match(name_or_path, campaign_names())
        raise CampaignError(f"unknown campaign {name_or_path!r}{close}; known: {', '.join(campaign_names())}; or give a TOML file")
    where = f"campaign {path}"
    document = TableReader(where=where, error=CampaignError, limits=LIMITS).read(path, "campaign")
    return campaign_from_document({"name": path.stem, **document}, where)


def campaign_from_document(document: Mapping[str, Any], where: str) -> CampaignSpec:
    """A campaign from plain data.  Raises CampaignError, naming `where` and the key's path."""
    canonical = json.dumps(document, sort_keys=True, separators=(",", ":"), default=str)
    reader = TableReader(where=where, error=CampaignError, limits=LIMITS)
    values: dict[str, Any] = dict(document)
    values["measurement"] = reader.build(MeasurementSettings, values.get("measurement", {}), "measurement")
    values["anchors"] = tuple(_anchor(item, f"anchors[{i}]", where) for i, item in enumerate(_list(values, "anchors", where)))
    values["kernels"] = tuple(_group(item, f"kernels[{i}]", reader) for i, item in enumerate(_list(values, "kernels", where)))
    groups = _list(values, "instructions", where)
    values["instructions"] = tuple(_loads(item, f"instructions[{i}]", reader) for i, item in enumerate(groups))
    if not values["kernels"] and not values["instructions"]:
        raise CampaignError(f"{where}: kernels is empty; a campaign needs at least one group")
    values["digest"] = hashlib.sha256(canonical.encode()).hexdigest()
    spec: CampaignSpec = reader.build(CampaignSpec, values)
    if spec.attention not in BACKENDS:
        raise CampaignError(f"{where}: attention = {spec.attention!r}; known: {', '.join(BACKENDS)}")
    return spec


def _list(values: Mapping[str, Any], key: str, where: str) -> list[Any]:
    found = values.get(key, [])
    if not isinstance(found, list):
        raise CampaignError(f"{where}: {key} must be a list of tables ([[{key}]])")
    return found


def _anchor(item: object, path: str, where: str) -> Operator:
    """An operator given in full."""
    if not isinstance(item, Mapping):
        raise CampaignError(f"{where}: {path} must be a table")
    details = dict(item)
    texts = {key: details.pop(key, None) for key in ("family", "operator", "precision")}
    for key, text in texts.items():
        if not isinstance(text, str):
            raise CampaignError(f"{where}: {path}.{key} must be a text, got {text!r}")
    try:
        return make_operator(texts["family"], texts["operator"], texts["precision"].split("|")[0], where=f"{where}: {path}", **details)
    except WorkloadError as error:
        raise CampaignError(str(error)) from error


def _group(item: object, path: str, reader: TableReader) -> KernelGroup:
    """A group of kernels with its shape rules."""
    where = reader.where
    if not isinstance(item, Mapping):
        raise CampaignError(f"{where}: {path} must be a table")
    family, operator = item.get("family"), item.get("operator")
    if family not in FAMILY_FIELDS:
        raise CampaignError(f"{where}: {path}.family = {family!r}; known: {', '.join(FAMILY_FIELDS)}")
    if operator not in FAMILY_OPERATORS[family]:
        raise CampaignError(f"{where}: {path}.operator = {operator!r}; known for {family}: {', '.join(FAMILY_OPERATORS[family])}")
    shape = item.get("shape")
    if not isinstance(shape, Mapping) or set(shape) != set(FAMILY_FIELDS[family]):
        raise CampaignError(f"{where}: {path}.shape must give exactly {', '.join(FAMILY_FIELDS[family])}")
    rules = {name: _rule(value, f"{path}.shape.{name}", shape, reader) for name, value in shape.items()}
    layouts = _layouts(item["transpose"], family, f"{path}.transpose", where) if "transpose" in item else ()
    group: KernelGroup = reader.build(KernelGroup, {**item, "shape": FrozenMapping(rules), "transpose": layouts}, path)
    most = int(LIMITS["count"][1])
    if group.count * len(layouts) > most:
        raise CampaignError(
            f"{where}: {path}: {group.count} kernels in {len(layouts)} layouts each are more than {most} kernels; ask for fewer"
        )
    for precision in (*group.precisions, *(name for name in (group.precision_out, group.precision_kv) if name)):
        if precision not in BYTES_PER_ELEMENT:
            raise CampaignError(f"{where}: {path}: unknown precision {precision!r}; known: {', '.join(BYTES_PER_ELEMENT)}")
    if group.l2_state not in L2_STATES:
        raise CampaignError(f"{where}: {path}.l2_state = {group.l2_state!r}; known: {', '.join(L2_STATES)}")
    return group


def _layouts(given: object, family: str, path: str, where: str) -> tuple[str, ...]:
    """The layouts that the products of a group run in, each once: one name or a list of names."""
    if family != "gemm":
        raise CampaignError(f"{where}: {path}: only matrix products (family gemm) have a layout, {family} has none; leave it out")
    names = [given] if isinstance(given, str) else given
    if not isinstance(names, list) or not names or any(name not in LAYOUTS for name in names):
        raise CampaignError(f"{where}: {path} = {repr(given)[:MOST_SHOWN]}; known: {', '.join(LAYOUTS)}, or a list of several of them")
    return tuple(dict.fromkeys(names))


def _loads(item: object, path: str, reader: TableReader) -> LoadGroup:
    """A group of generated kernels."""
    for key in ("kernels", "without", "modes"):
        given = item.get(key, []) if isinstance(item, Mapping) else []
        if not isinstance(given, list) or not all(isinstance(name, str) for name in given):
            raise CampaignError(f"{reader.where}: {path}.{key} must be a list of names in quotes, got {given!r}")
    group: LoadGroup = reader.build(LoadGroup, item, path)
    choices = (("modes", group.modes, MODES), ("pattern", (group.pattern,), PATTERNS), ("level", (group.level,), OPTIMISATION_LEVELS))
    for key, given, known in choices:
        for name in given:
            if name not in known:
                raise CampaignError(f"{reader.where}: {path}.{key} = {name!r}; known: {', '.join(known)}")
    if not group.kernels:
        raise CampaignError(f"{reader.where}: {path}.kernels names no kernel")
    if not group.modes:
        raise CampaignError(f"{reader.where}: {path}.modes names no launch mode; known: {', '.join(MODES)}")
    try:
        check_group(group, path)
    except UnsupportedError as error:
        raise CampaignError(f"{reader.where}: {error}") from error
    return group


def _rule(value: object, path: str, shape: Mapping[str, Any], reader: TableReader) -> ShapeRule:
    """How a shape field is drawn: a number, a list of numbers, another field's name or a table."""
    where = reader.where
    if isinstance(value, int | float) and not isinstance(value, bool):
        return Choice(values=(reader.finite(value, path),))
    if isinstance(value, list) and value:
        return Choice(values=tuple(reader.finite(item, f"{path}[{i}]") for i, item in enumerate(value)))
    if isinstance(value, str):
        value = {"of": value}
    if not isinstance(value, Mapping):
        raise CampaignError(f"{where}: {path} must be a number, a list of numbers, another field's name or a table")
    table = {key: tuple(item) if isinstance(item, list) else item for key, item in value.items()}
    if "of" in table:
        derived: Derived = reader.build(Derived, table, path)
        if derived.of not in shape:
            raise CampaignError(f"{where}: {path}.of = {derived.of!r} is no field of this shape; fields: {', '.join(shape)}")
        if any(item <= 0 for item in derived.divide):
            raise CampaignError(f"{where}: {path}.divide must hold positive numbers")
        return derived
    rule: LogRange = reader.build(LogRange, table, path)
    if not 0 < rule.low <= rule.high or rule.multiple < 1 or not 0 <= rule.ragged <= 1:
        raise CampaignError(f"{where}: {path} needs 0 < low <= high, multiple >= 1 and ragged between 0 and 1")
    return rule
