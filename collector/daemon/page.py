"""The status page: one HTML document without scripts, for narrow and wide screens, light and dark, keyboard and screen reader."""

import hashlib
import math
from base64 import b64encode
from collections.abc import Sequence
from datetime import UTC, datetime
from html import escape
from typing import Final

from collector.daemon.display import note_text
from collector.daemon.heartbeat import heartbeat_complaint
from collector.daemon.jobs import BoardState, Job, Overview, left_text

CONTENT_TYPE: Final = "text/html; charset=utf-8"
UNKNOWN: Final = "unknown"

STYLE: Final = """
:root{color-scheme:light dark;--text:#1b1f24;--back:#fff;--soft:#57606a;--line:#d0d7de;--link:#0550ae}
@media(prefers-color-scheme:dark){:root{--text:#e6edf3;--back:#0d1117;--soft:#9da7b1;--line:#3d444d;--link:#79c0ff}}
*{box-sizing:border-box}
body{margin:0 auto;max-width:70rem;padding:1rem;background:var(--back);color:var(--text);font:1rem/1.5 system-ui,sans-serif}
h1{font-size:1.4rem;margin:.2rem 0}h2{font-size:1.15rem;margin:1.5rem 0 .4rem}
a{color:var(--link)}a:focus-visible,div[tabindex]:focus-visible{outline:3px solid var(--link);outline-offset:2px}
.skip{position:absolute;left:-99rem}.skip:focus{position:static}
.wide{overflow-x:auto}
table{border-collapse:collapse;width:100%}caption{text-align:left;color:var(--soft)}
th,td{text-align:left;padding:.35rem .6rem;border-bottom:1px solid var(--line);vertical-align:top}
td.n,th.n{text-align:right;font-variant-numeric:tabular-nums}
progress{width:6rem;vertical-align:middle}
dl{display:grid;grid-template-columns:max-content 1fr;gap:.1rem .8rem;margin:.4rem 0}dt{color:var(--soft)}dd{margin:0}
@media(max-width:40rem){thead{position:absolute;left:-99rem}tr{display:block;border-bottom:2px solid var(--line);padding:.4rem 0}
td,tbody th{display:flex;justify-content:space-between;gap:1rem;border:0;padding:.1rem 0;text-align:right!important;overflow-wrap:anywhere}
td::before,tbody th::before{content:attr(data-name);color:var(--soft);text-align:left;font-weight:400;flex:none}}
"""
STYLE_DIGEST: Final = b64encode(hashlib.sha256(STYLE.encode()).digest()).decode()
POLICY: Final = f"default-src 'none'; style-src 'sha256-{STYLE_DIGEST}'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
"""Content security policy: this style and nothing else."""


def status_page(overview: Overview, now_unix_s: float) -> str:
    """The page.  `now_unix_s` is the time of day [s since 1970]."""
    daemon = overview.daemon
    complaint = heartbeat_complaint(daemon, now_unix_s)
    state = "draining" if daemon.draining else "silent" if complaint else "running"
    counts = ", ".join(f"{count} {name}" for name, count in overview.counts.items() if count) or "no jobs"
    return "\n".join(
        (
            '<!doctype html><html lang="en"><head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>wattprint: {escape(counts)}</title><style>{STYLE}</style></head><body>",
            '<a class="skip" href="#jobs">To the jobs</a>',
            "<header><h1>wattprint daemon</h1>",
            f"<dl><dt>State</dt><dd>{state}, process {daemon.pid}, version {escape(daemon.version)}</dd>",
            f"<dt>Since</dt><dd>{_time(daemon.started_unix_s)}</dd><dt>Jobs</dt><dd>{escape(counts)}</dd>",
            f'<dt>As of</dt><dd>{_time(now_unix_s)} <a href="./">Load again</a></dd></dl></header>',
            "<main>",
            *((f'<p role="alert"><strong>{escape(complaint)}</strong></p>',) if complaint else ()),
            '<section aria-labelledby="boards"><h2 id="boards">Boards</h2>',
            _table(
                "Each board with its job and the figures of its last row.", BOARD_HEADS, [_board_cells(board) for board in overview.boards]
            ),
            '</section><section aria-labelledby="jobs"><h2 id="jobs" tabindex="-1">Jobs</h2>',
            _table("Newest first.", JOB_HEADS, [_job_cells(job) for job in overview.jobs]),
            "</section></main>",
            '<footer><p><a href="metrics">Figures for Prometheus</a>. Jobs are ordered with <code>collect submit</code> and '
            "<code>collect stop</code>; this page only shows.</p></footer></body></html>",
        )
    )


BOARD_HEADS: Final = ("Board", "Name", "Job", "SM clock", "Power", "Temperature", "Heard")
JOB_HEADS: Final = ("Job", "State", "Campaign", "Board", "Progress", "Rows", "Left", "Note")
NUMBER_HEADS: Final = frozenset({"Job", "SM clock", "Power", "Temperature", "Rows", "Left"})


def _board_cells(board: BoardState) -> list[str]:
    return [
        escape(board.board),
        escape(board.name),
        str(board.job) if board.job else "none",
        _figure(board.sm_clock_mhz, "MHz", 0),
        _figure(board.power_w, "W", 1),
        _figure(board.temperature_c, "°C", 0),
        _time(board.updated_unix_s),
    ]


def _job_cells(job: Job) -> list[str]:
    doubts = [f"{job.refused} not run" if job.refused else "", f"{job.flagged} in doubt" if job.flagged else ""]
    rows = ", ".join([str(job.rows), *(doubt for doubt in doubts if doubt)])
    note = note_text(job)
    return [
        str(job.id),
        escape(job.state),
        escape(job.request.title),
        escape(job.request.board),
        _progress(job),
        rows,
        left_text(job.eta_s) if math.isfinite(job.eta_s) else "–",
        escape(note) or "–",
    ]


def _progress(job: Job) -> str:
    if not job.total:
        return "not planned yet"
    text = f"{job.done} of {job.total}"
    return f'<span><progress max="{job.total}" value="{job.done}" aria-label="points of job {job.id}">{text}</progress> {text}</span>'


def _table(caption: str, heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    if not rows:
        return "<p>None.</p>"
    number = [' class="n"' if head in NUMBER_HEADS else "" for head in heads]
    head = "".join(f'<th scope="col"{kind}>{name}</th>' for name, kind in zip(heads, number, strict=True))
    body = []
    for cells in rows:
        first, *others = [
            f'<{tag}{kind} data-name="{name}">{cell}</{tag.split()[0]}>'
            for tag, kind, name, cell in zip(['th scope="row"', *["td"] * len(heads)], number, heads, cells, strict=False)
        ]
        body.append(f"<tr>{first}{''.join(others)}</tr>")
    table = f"<table><caption>{caption}</caption><thead><tr>{head}</tr></thead><tbody>{''.join(body)}</tbody></table>"
    return f'<div class="wide" role="region" aria-label="{caption}" tabindex="0">{table}</div>'


def _figure(value: float, unit: str, digits: int) -> str:
    return f"{value:.{digits}f} {unit}" if math.isfinite(value) else UNKNOWN


def _time(unix_s: float) -> str:
    if not math.isfinite(unix_s):
        return "never"
    moment = datetime.fromtimestamp(unix_s, UTC)
    return f'<time datetime="{moment.isoformat(timespec="seconds")}">{moment.strftime("%Y-%m-%d %H:%M:%S")} UTC</time>'
