"""One self-contained HTML page of sections, tables and charts: no network, no script, light and dark; and its charts as pictures.

The only file of this package that imports resvg_py.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from html import escape
from typing import Any, Final

import numpy as np

from estimator.display.text import aligned
from estimator.vocabulary.documents import printable
from estimator.vocabulary.errors import EstimatorError
from estimator.vocabulary.values import frozen

LONGEST_CELL: Final = 160
"""Length to which texts from data sets are cut [character]."""

STYLE: Final = """
:root{color-scheme:light dark;--bg:#fff;--fg:#1c2024;--dim:#5a646e;--line:#d5dbe1;
--p0:#0b62c4;--p1:#b4530a;--p2:#1a7f4b;--p3:#7a3db8;--p4:#8a6d00;--p5:#0f7a80;--p6:#b0307a;--p7:#5b6470;--p8:#4a8f00;--p9:#c2410c;
--bad:#b42318}
@media(prefers-color-scheme:dark){:root{--bg:#14181c;--fg:#e8ecf0;--dim:#a3aeb9;--line:#38414a;
--p0:#6cb2ff;--p1:#ffb066;--p2:#6ddb9c;--p3:#c9a0ff;--p4:#e5cd5a;--p5:#63d3d8;--p6:#ff9ad0;--p7:#a9b4c0;--p8:#a8dd6a;--p9:#ff9a70;
--bad:#ff8a80}}
*{box-sizing:border-box}
body{margin:0 auto;max-width:72rem;padding:1rem 1.25rem 4rem;background:var(--bg);color:var(--fg);font:16px/1.5 system-ui,sans-serif}
h1{font-size:1.6rem;margin:.5rem 0}
h2{font-size:1.2rem;margin:2rem 0 .5rem;border-bottom:1px solid var(--line)}
.dim,caption,figcaption,dt{color:var(--dim)}
.bad{color:var(--bad);font-weight:600}
.charts{display:grid;gap:1.5rem;grid-template-columns:repeat(auto-fit,minmax(min(100%,26rem),1fr))}
figure,dd{margin:0}
figcaption,table{font-size:.9rem}
svg{width:100%;height:auto;font-size:12px}
.grid line{stroke:var(--line)}
.text text{fill:var(--fg)}
.diagonal{stroke:var(--fg);stroke-dasharray:5 4}
.p0,.p1,.p2,.p3,.p4,.p5{stroke-width:4.5;stroke-linecap:round;fill:none;stroke-opacity:.55}
.l0,.l1,.l2,.l3,.l4,.l5{fill:none;stroke-width:1.6}
.b0,.b1,.b2,.b3,.b4,.b5{stroke:none;fill-opacity:.25}
.b0{fill:var(--p0)}.b1{fill:var(--p1)}.b2{fill:var(--p2)}.b3{fill:var(--p3)}.b4{fill:var(--p4)}.b5{fill:var(--p5)}
.p0,.l0{stroke:var(--p0)}.p1,.l1{stroke:var(--p1)}.p2,.l2{stroke:var(--p2)}
.p3,.l3{stroke:var(--p3)}.p4,.l4{stroke:var(--p4)}.p5,.l5{stroke:var(--p5)}
.s{stroke:var(--bg);stroke-width:.6}
.s0{fill:var(--p0)}.s1{fill:var(--p1)}.s2{fill:var(--p2)}.s3{fill:var(--p3)}.s4{fill:var(--p4)}
.s5{fill:var(--p5)}.s6{fill:var(--p6)}.s7{fill:var(--p7)}.s8{fill:var(--p8)}.s9{fill:var(--p9)}.s10{fill:var(--fg)}
.scroll{overflow-x:auto}
table{border-collapse:collapse;margin:.5rem 0}
caption{text-align:left;padding:.25rem 0}
th,td{padding:.2rem .7rem .2rem 0;text-align:left;border-bottom:1px solid var(--line);vertical-align:top}
td.n{text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap}
summary:focus-visible,.scroll:focus-visible{outline:2px solid var(--p0)}
dl{display:grid;grid-template-columns:max-content 1fr;gap:.15rem 1rem}
dd{overflow-wrap:anywhere}
"""


REPORT_STYLE: Final = """
a{color:var(--p0)}
.skip{position:absolute;left:-99rem}
.skip:focus{position:static;display:inline-block;padding:.5rem}
nav ul{columns:14rem;padding-left:1.2rem;margin:.5rem 0}
.charts>figure{max-width:44rem}
section>figure{margin:1rem 0}
.p0,.p1,.p2,.p3,.p4,.p5{stroke-opacity:.85}
@media(max-width:40rem){body{padding:.75rem .75rem 3rem}svg{font-size:14px}dl{grid-template-columns:1fr}}
@media print{.skip,nav{display:none}}
"""
"""Style rules of reports in addition to those of all pages."""


def report_page(title: str, parts: Iterable[tuple[str, str, str]]) -> str:
    """The whole page from (anchor, heading, body) of its sections, with links to them; one with an empty body is left out."""
    name, links, sections = text_html(title), "", ""
    for identity, heading, body in parts:
        if body:
            links += f'<li><a href="#{identity}">{escape(heading)}</a></li>'
            label = f'<h2 id="{identity}-title">{escape(heading)}</h2>'
            sections += f'<section id="{identity}" aria-labelledby="{identity}-title">{label}{body}</section>'
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>{name}</title><style>{STYLE}{REPORT_STYLE}</style></head><body>"
        f'<a class="skip" href="#main">Skip to the report</a><nav aria-label="Sections"><ul>{links}</ul></nav>'
        f'<main id="main" tabindex="-1"><h1>{name}</h1>{sections}</main></body></html>\n'
    )


def facts_html(facts: Mapping[str, object]) -> str:
    """Facts by title as a list."""
    return f"<dl>{''.join(f'<dt>{escape(name)}</dt><dd>{text_html(value)}</dd>' for name, value in facts.items())}</dl>"


def table_html(caption: str, head: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """A table; numbers are right-aligned, all text is escaped and cut."""
    lines = []
    for row in rows:
        cells = "".join(f'<td class="n">{number_html(c)}</td>' if isinstance(c, int | float) else f"<td>{text_html(c)}</td>" for c in row)
        lines.append(f"<tr>{cells}</tr>")
    if not lines:
        return ""
    heads = "".join(f'<th scope="col">{escape(name)}</th>' for name in head)
    label = escape(caption)
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{label}"><table><caption>{label}</caption>'
        f"<thead><tr>{heads}</tr></thead><tbody>{''.join(lines)}</tbody></table></div>"
    )


@frozen
class Shown:
    """A table for terminals and pages: its title, names of its columns, and rows of texts and numbers; nan is unknown."""

    title: str
    head: tuple[str, ...]
    rows: Sequence[Sequence[object]]

    def lines(self) -> list[str]:
        """Lines for a terminal; empty without rows."""
        if not self.rows:
            return []
        body = [[number_html(cell) if isinstance(cell, float) else printable(str(cell)) for cell in row] for row in self.rows]
        texts = [i for i in range(len(self.head)) if not all(isinstance(row[i], int | float) for row in self.rows)]
        return [self.title, *aligned([self.head, *body], texts).splitlines()]

    def html(self) -> str:
        """HTML for a page; "" without rows."""
        return table_html(self.title, self.head, self.rows)


def number_html(value: float | bool) -> str:
    """A number with four digits, counts in full, – for nan."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    return "–" if np.isnan(value) else f"{value:.4g}"


def text_html(value: object) -> str:
    """A text, escaped and cut."""
    text = str(value)
    return escape(text if len(text) <= LONGEST_CELL else text[:LONGEST_CELL] + "…")


def figure_html(svg: str, caption: str) -> str:
    """A chart with its caption."""
    return f"<figure>{svg}<figcaption>{escape(caption)}</figcaption></figure>"


# Pictures -------------------------------------------------------------------------------------------------------------

COLOUR: Final = re.compile(r"--([a-z0-9]+):(#[0-9a-f]{3,6})")
SVG: Final = '<svg xmlns="http://www.w3.org/2000/svg" font-family="sans-serif" font-size="12" '


def standalone_svg(chart: str) -> str:
    """A chart as an SVG file: with its name space, its light colours inserted (programs that draw single pictures know no variables)
    and a white background.
    """
    plain = re.sub(r"@media[^{]*\{.*?\}\s*\}", "", STYLE, flags=re.DOTALL)
    colours = dict(COLOUR.findall(plain))
    style = re.sub(r"var\(--([a-z0-9]+)\)", lambda found: colours[found[1]], re.sub(r":root\{[^}]*\}", "", plain))
    start, _, rest = chart.replace("<svg ", SVG, 1).partition(">")
    return f'{start}><style>{style}</style><rect width="100%" height="100%" fill="#ffffff"/>{rest}\n'


FAMILIES: Final = ("DejaVu Sans", "Liberation Sans", "Noto Sans", "Arial", "Helvetica", "Ubuntu", "Cantarell", "Open Sans", "Roboto")
"""Font families in order of preference: the renderer draws no text in a family that it does not find."""


def picture_png(chart: str) -> bytes:
    """A chart as a PNG file.  Raises EstimatorError if the renderer finds no font."""
    from resvg_py import svg_to_bytes

    return bytes(svg_to_bytes(svg_string=standalone_svg(chart), width=1200, sans_serif_family=_family(svg_to_bytes)))


def _family(draw: Callable[..., Any]) -> str:
    """An installed font family.  Raises EstimatorError if no family is installed."""

    def word(text: str, family: str) -> bytes:
        svg = f'{SVG} viewBox="0 0 60 20"><text x="2" y="15">{text}</text></svg>'
        return bytes(draw(svg_string=svg, background="#ffffff", sans_serif_family=family))

    for family in FAMILIES:
        if word("W", family) != word("", family):
            return family
    raise EstimatorError("no font for the charts' text is installed; install one, such as the package fonts-dejavu-core")
