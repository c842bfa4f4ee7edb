"""The form of an answer: what a flag or the ending of the output's name asks for."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import click

TEXT_FORMATS: Final = ("csv", "json", "txt")
PICTURES: Final = ("svg", "png")
PAGE_FORMATS: Final = (*TEXT_FORMATS, "html", *PICTURES)
FILE_FORMATS: Final = (*TEXT_FORMATS, "parquet", "html", *PICTURES)


def answer_form(options: Mapping[str, Any], known: Sequence[str]) -> str:
    """The form of the answer: a flag's, that which the output's ending names, or "txt".  Raises UsageError."""
    if options["as_json"] and options["as_csv"]:
        raise click.UsageError("--json and --csv exclude each other")
    flag = "json" if options["as_json"] else "csv" if options["as_csv"] else ""
    out: Path | None = options["out"]
    ending = out.suffix.lower().removeprefix(".") if out is not None else ""
    if ending and ending not in known and (ending in FILE_FORMATS or not flag):
        raise click.UsageError(f"--out: .{ending} is no form of this answer; known: {', '.join(known)}")
    if flag and ending in FILE_FORMATS and ending not in ("txt", flag):
        raise click.UsageError(f"--{flag} and --out {out} contradict each other")
    form = flag or (ending if ending in known else "txt")
    if options.get("chart") and form not in (*PICTURES, "html"):
        raise click.UsageError("--chart chooses what a picture shows; name one with --out, such as chart.svg or chart.png")
    return form
