"""The report of a fit: one self-contained HTML page, no network, no script."""

from collections.abc import Mapping, Sequence
from html import escape

import pandas as pd

from estimator.bundle.content import Bundle
from estimator.display.pages import facts_html, report_page, table_html
from fitter.blocks.section import block_tables
from fitter.instructions.display import instruction_tables
from fitter.report.errors import family_errors_html, held_frame, scatters_html, worst_html
from fitter.report.pictures import pictures_html
from fitter.report.text import bundle_facts, coefficient_tables, dataset_table
from fitter.rows.columns import Selection
from fitter.rows.rejected import count_reasons, reason_meaning
from fitter.validate.predictions import compared
from fitter.validate.tables import error_table


def report_html(bundle: Bundle, selection: Selection, held_out: Mapping[str, pd.DataFrame], verdict: Sequence[str] = ()) -> str:
    """The page; held_out: predictions of held-out rows by kind ("kernels", "workloads"); verdict: its first lines."""
    held = {kind: held_frame(compared(found)) for kind, found in held_out.items()}
    errors = error_table("Errors in percent; coverage of stated 90 % intervals", bundle.errors).html()
    parts = (
        ("verdict", "Verdict", _verdict(bundle, verdict)),
        ("pictures", "Pictures", scatters_html(held) + family_errors_html(held) + pictures_html(bundle, selection.kernels)),
        ("card", "Model card", _model_card(bundle, selection)),
        ("errors", "Errors on held-out rows", errors or "<p>No kernels were held out.</p>"),
        ("worst", "Largest errors", worst_html(held)),
        ("coefficients", "Coefficients", "".join(table.html() for table in coefficient_tables(bundle, list(bundle.groups)))),
        ("instructions", "Instruction energies", "".join(table.html() for table in instruction_tables(bundle))),
        ("blocks", "Block-count models", "".join(table.html() for table in block_tables(bundle))),
        ("rejected", "Rejected rows", _rejected(selection)),
        ("data", "Data sets", dataset_table(bundle).html()),
    )
    return report_page(f"{bundle.name} {bundle.version}: fit of {bundle.gpu.name}", parts)


def _verdict(bundle: Bundle, lines: Sequence[str]) -> str:
    simulated = '<p class="bad">Fitted on a simulated board: these numbers test the program, they say nothing about a GPU.</p>'
    return (simulated if bundle.simulated else "") + "".join(f"<p>{escape(line)}</p>" for line in lines)


def _model_card(bundle: Bundle, selection: Selection) -> str:
    used = sum(dataset.used for dataset in selection.datasets)
    facts = {"Rows": f"{used:,} used of {selection.row_count:,} read", **bundle_facts(bundle)}
    notes = "".join(f"<li>{escape(note[:4000])}</li>" for note in dict.fromkeys((*bundle.notes, *selection.notes)))
    return facts_html(facts) + (f"<ul>{notes}</ul>" if notes else "")


def _rejected(selection: Selection) -> str:
    counts = [[reason, count, reason_meaning(reason)] for reason, count in count_reasons(selection.rejected).items()]
    return table_html("Rejected rows by reason; fit -v names them", ("reason", "rows", "meaning"), counts) or "<p>None.</p>"
