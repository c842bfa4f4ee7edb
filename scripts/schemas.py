"""Writes the JSON Schemas of the formats from their declarations: scripts/schemas.py; a test holds the files to them."""

import json
from pathlib import Path
from typing import Any, Final

import estimator.schema
from estimator.bundle.content import BundleFile

FOLDER: Final = Path(estimator.schema.__path__[0])
DECLARED: Final[dict[str, Any]] = {"bundle-1.json": (BundleFile, "wattprint bundle, format 1.0")}
"""By file: the declaration and the title."""


def schema_text(name: str) -> str:
    """The content of a schema file."""
    return json.dumps(estimator.schema.schema_of(*DECLARED[name]), indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    for name in DECLARED:
        (FOLDER / name).write_text(schema_text(name), encoding="utf-8")
