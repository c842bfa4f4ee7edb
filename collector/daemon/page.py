"""The status page: one HTML document without scripts, for narrow and wide screens, light and dark, keyboard and screen reader."""

from pathlib import Path
from typing import Final

import jinja2

from collector.daemon.display import note_text
from collector.daemon.jobs import Overview, left_text, time_text

TEMPLATE: Final = "status.html"
NUMBERS: Final = ("Job", "SM clock", "Power", "Temperature", "Rows", "Left")
"""Columns that hold numbers."""


def status_page(overview: Overview, now_unix_s: float) -> str:
    """The page.  `now_unix_s` is the time of day [s since 1970]."""
    environment = jinja2.Environment(loader=jinja2.FileSystemLoader(Path(__file__).parent), autoescape=True)
    environment.filters |= {"left": left_text, "note": note_text, "utc": time_text}
    complaint = overview.complaint(now_unix_s)
    return environment.get_template(TEMPLATE).render(
        boards=overview.boards,
        jobs=overview.jobs,
        daemon=overview.daemon,
        complaint=complaint,
        state="draining" if overview.daemon.draining else "silent" if complaint else "running",
        counts=", ".join(f"{count} {name}" for name, count in overview.counts.items() if count) or "no jobs",
        now_unix_s=now_unix_s,
        numbers=NUMBERS,
    )
