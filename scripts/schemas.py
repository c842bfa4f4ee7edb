"""Write the JSON Schemas of `estimator/schema` and docs/dataset-columns.csv from the declarations; tests compare the files with them."""

import csv
import dataclasses
import io
import json
from collections.abc import Mapping
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Final, Literal, NotRequired, Union, get_args, get_origin, is_typeddict

import numpy as np

import estimator.schema
from collector.dataset.schema import FLAGS, KERNEL_COLUMNS
from estimator.bundle.content import BundleFile
from estimator.formats.own import Head
from estimator.vocabulary.reader import LEAST_ONE, Pattern, Shape, Span, Words, fields_of
from estimator.vocabulary.workload import FAMILY_FIELDS, entry_of

FOLDER: Final = Path(estimator.schema.__path__[0])
COLUMNS: Final = Path(__file__).resolve().parent.parent / "docs" / "dataset-columns.csv"
ENTRIES: Any = Union[tuple(map(entry_of, FAMILY_FIELDS))]  # noqa: UP007
OPERATORS: Final = [("operators", Annotated[tuple[ENTRIES, ...], LEAST_ONE])]
WORKLOAD: Final = dataclasses.make_dataclass("Workload", OPERATORS, bases=(Head,), kw_only=True, namespace={"__doc__": Head.__doc__})

DECLARED: Final[dict[str, Any]] = {
    "bundle-1.json": (BundleFile, "wattprint bundle, format 1.0"),
    "workload-1.json": (WORKLOAD, "wattprint workload, format 1.0"),
}
"""Declaration and title of each file."""

Schema = dict[str, Any]

DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"


def schema_of(kind: Any, title: str) -> Schema:
    """The JSON Schema of a declared document."""
    definitions: dict[str, Schema] = {}
    made = _schema(kind, definitions)
    own = definitions.pop(made["$ref"].rpartition("/")[2])
    return {"$schema": DIALECT, "title": title, **own, "$defs": definitions}


def _schema(hint: Any, definitions: dict[str, Schema]) -> Schema:
    if get_origin(hint) is Annotated:
        hint, *metas = get_args(hint)
        if get_origin(hint) is np.ndarray:
            return _array(metas)
        return {**_schema(hint, definitions), **_limits(hint, metas)}
    origin, args = get_origin(hint), get_args(hint)
    if origin is NotRequired:
        return _schema(args[0], definitions)
    if origin is Literal:
        return {"const": args[0]} if len(args) == 1 else {"enum": list(args)}
    if origin is tuple:
        alike = args[-1] is Ellipsis
        items = _schema(args[0], definitions)
        return {"type": "array", "items": items} | ({} if alike else {"minItems": len(args), "maxItems": len(args)})
    if origin in (Union, UnionType):
        return {"anyOf": [_schema(arm, definitions) for arm in args]}
    if origin is Mapping:
        names = _schema(args[0], definitions)
        return {"type": "object", "additionalProperties": _schema(args[1], definitions)} | (
            {"propertyNames": names} if len(names) > 1 else {}
        )
    simple = {float: "number", int: "integer", str: "string", bool: "boolean", NoneType: "null"}
    if hint in simple:
        return {"type": simple[hint]}
    if is_typeddict(hint) or dataclasses.is_dataclass(hint):
        return _object(hint, definitions)
    return {}


def _object(kind: Any, definitions: dict[str, Schema]) -> Schema:
    """A reference to a declared object, whose schema is added to the definitions."""
    if kind.__name__ not in definitions:
        definitions[kind.__name__] = {}  # placed before the definitions that it needs
        fields = fields_of(kind)
        definitions[kind.__name__] = {
            "type": "object",
            "description": (kind.__doc__ or "").partition("\n")[0].rstrip("."),
            "properties": {name: _schema(hint, definitions) for name, (hint, _) in fields.items()},
            "required": [name for name, (_, due) in fields.items() if due],
            "additionalProperties": False,
        }
    return {"$ref": f"#/$defs/{kind.__name__}"}


def _array(metas: list[Any]) -> Schema:
    """The schema of nested lists of numbers."""
    texts = [meta for meta in metas if isinstance(meta, str)]
    made: Schema = {"type": "number"} | _limits(float, [meta for meta in metas if isinstance(meta, Span)])
    for count in reversed(next(meta.counts for meta in metas if isinstance(meta, Shape))):
        made = {"type": "array", "items": made, "minItems": count, "maxItems": count}
    return made | ({"description": texts[0]} if texts else {})


def _whole(value: float) -> float:
    """A limit in its JSON form: equal annotations are one object, whether 0 or 0.0 was declared first."""
    return int(value) if value == int(value) else value


def _limits(hint: Any, metas: list[Any]) -> Schema:
    """Fields that annotations add to the schema of a type."""
    found: Schema = {}
    for meta in metas:
        if isinstance(meta, Span):
            found |= {"minimum": _whole(meta.low), "maximum": _whole(meta.high)} | ({"description": f"[{meta.unit}]"} if meta.unit else {})
            found |= {"type": ["number", "null"]} if meta.nan else {}
        elif isinstance(meta, Words):
            found |= {"enum": list(meta.known)}
        elif isinstance(meta, Pattern):
            found |= {"pattern": f"^(?:{meta.pattern})$"}
        elif meta == LEAST_ONE:
            found |= {{str: "minLength", tuple: "minItems"}.get(get_origin(hint) or hint, "minProperties"): 1}
        elif isinstance(meta, str):
            unit = found.get("description", "")
            found["description"] = f"{meta} {unit}".strip()
    return found


def schema_text(name: str) -> str:
    """The content of a schema file."""
    return json.dumps(schema_of(*DECLARED[name]), indent=1, ensure_ascii=False) + "\n"


def columns_table() -> str:
    """The content of docs/dataset-columns.csv."""
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(("column", "type", "unit", "null", "meaning"))
    writer.writerows((one.name, one.type, one.unit, "" if one.required else "yes", one.meaning) for one in KERNEL_COLUMNS.values())
    writer.writerows((name, "flag", "", "", meaning) for name, meaning in FLAGS.items())
    return stream.getvalue()


if __name__ == "__main__":
    COLUMNS.write_text(columns_table(), encoding="utf-8")
    for name in DECLARED:
        (FOLDER / name).write_text(schema_text(name), encoding="utf-8")
