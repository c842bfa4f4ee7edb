"""Write docs/constants.csv: every number that a fit, a model or the sensing of a board uses, with its value and its source or reason.

A number is a module constant in upper case with a number other than 0, 1 and 2 in its value.  The text is the one below it in the
source; a test compares the file with the code and fails for a constant without a text.
"""

import ast
import csv
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
TABLE: Final = ROOT / "docs" / "constants.csv"
FOLDERS: Final = (
    "collector/sensing", "estimator/counts", "estimator/engine", "estimator/model", "estimator/serving", "estimator/tracing",
    "estimator/uncertainty",
    "fitter/blocks", "fitter/bundle", "fitter/instructions", "fitter/latency", "fitter/power", "fitter/rows", "fitter/transfer",
    "fitter/validate",
)  # fmt: skip
HEADER: Final = ("file", "constant", "value", "meaning and source")


def constants(source: str) -> Iterator[tuple[str, str, str]]:
    """Name, value and text of the module constants with numbers of a file; empty where there is none.

    Constants in a row share the text below the last of them.
    """
    open_rows: list[tuple[str, str]] = []
    for statement in [*ast.parse(source).body, ast.Pass()]:
        if isinstance(statement, ast.Assign | ast.AnnAssign) and statement.value is not None:
            target = statement.targets[0] if isinstance(statement, ast.Assign) else statement.target
            names = [one.id for one in ast.walk(target) if isinstance(one, ast.Name)]
            if all(name.isupper() and name[0] != "_" for name in names):
                open_rows += [(", ".join(names), ast.unparse(statement.value))] if any(map(_is_number, ast.walk(statement.value))) else []
            continue
        text = statement.value.value if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant) else ""
        yield from ((*row, " ".join(str(text).split())) for row in open_rows)
        open_rows = []


def _is_number(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and type(node.value) in (int, float) and node.value not in (0, 1, 2)


def table() -> str:
    """The content of docs/constants.csv."""
    content = io.StringIO()
    writer = csv.writer(content, lineterminator="\n")
    writer.writerow(HEADER)
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*.py")):
            writer.writerows((path.relative_to(ROOT), *row) for row in constants(path.read_text(encoding="utf-8")))
    return content.getvalue()


if __name__ == "__main__":
    TABLE.write_text(table(), encoding="utf-8")
