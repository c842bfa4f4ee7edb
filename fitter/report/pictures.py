"""The report's pictures of the model on the rows that it was fitted to: ideal and corrected time, power by module, tiles."""

from collections import Counter
from typing import Final

import numpy as np

from estimator.bundle.content import Bundle
from estimator.display.charts import Series, axis_over, scatter_svg, shares_svg
from estimator.display.pages import figure_html
from estimator.engine.kernel_table import KernelTimes, alone_parts_w, bundle_times
from estimator.model.lowering import KnownTiles
from estimator.model.tile_choice import predicted_tiles
from estimator.model.timeline import ideal_seconds
from estimator.vocabulary.quantities import HZ_PER_MHZ
from fitter.rows.columns import KernelRows

MOST_ROWS: Final = 3000
"""Rows of which pictures are drawn, evenly over the file: more change no picture."""

MOST_BARS: Final = 5
"""Families whose power is shown by module."""


def pictures_html(bundle: Bundle, rows: KernelRows | None) -> str:
    """The pictures from kernels of the bundle's own GPU; "" without any."""
    if rows is None or bundle.gpu.name not in rows.gpus:
        return ""
    own = np.flatnonzero(rows.gpu_index == rows.gpus.index(bundle.gpu.name))
    rows = rows.select(own[np.unique(np.linspace(0, len(own) - 1, min(len(own), MOST_ROWS)).astype(np.int64))])
    known = KnownTiles(tile_m=rows.tile_m, tile_n=rows.tile_n, split=rows.split_k)
    clock = rows.clock_mhz(bundle.gpu)
    times = bundle_times(rows.row_operators(), bundle, bundle.gpu, sm_clock_mhz=clock, warm=rows.l2_warm, known=known)
    return _ideal(bundle, rows, times) + _tiles(bundle, rows, times) + _modules(bundle, rows, times)


def _ideal(bundle: Bundle, rows: KernelRows, times: KernelTimes) -> str:
    """Ideal and corrected over measured time.  Source: EnergAIzer (arXiv 2604.20105), fig. 6."""
    ideal_s = ideal_seconds(times.phases, bundle.gpu, rows.clock_mhz(bundle.gpu) * HZ_PER_MHZ)
    known = np.isfinite(times.equations_s) & np.isfinite(ideal_s) & (ideal_s > 0.0) & (rows.latency_s > 0.0)
    if not known.any():
        return ""
    drawn = {"ideal: published rates": ideal_s, "corrected: fitted λ and ε": times.equations_s}
    series = [Series(name=name, x=rows.latency_s[known], y=seconds[known]) for name, seconds in drawn.items()]
    y = axis_over("time of the model [s]", [one.y for one in series], logarithmic=True)
    x = axis_over("measured latency [s]", [one.x for one in series], logarithmic=True)
    caption = "Time at the published rates, and as corrected by the fit, over the measured time, on rows that the fit saw."
    return (
        f'<div class="charts">{figure_html(scatter_svg("Ideal and corrected time", caption, series, x, y, diagonal=True), caption)}</div>'
    )


def _tiles(bundle: Bundle, rows: KernelRows, times: KernelTimes) -> str:
    """Share of kernels whose tile the bundle predicts as their names state it."""
    found = predicted_tiles(rows.row_operators(), bundle.gpu, bundle.tile_predictors, times.coefficients, times.groups)
    first = np.unique(rows.operator_index, return_index=True)[1]
    shapes = first[:0] if found is None else first[np.isfinite(rows.tile_m[first]) & np.isfinite(found.tile_m[first])]
    if found is None or not len(shapes):
        return ""
    hit = (rows.tile_m[shapes] == found.tile_m[shapes]) & (rows.tile_n[shapes] == found.tile_n[shapes])
    text = f"Tiles: predicted as the library chose them for {hit.mean():.0%} of {len(shapes):,} products with a known kernel name"
    return f"<p>{text}. The fit saw these rows: new shapes are hit less often.</p>"


def _modules(bundle: Bundle, rows: KernelRows, times: KernelTimes) -> str:
    """Mean power of the most frequent families by module."""
    parts = alone_parts_w(times, bundle, bundle.gpu, rows.clock_mhz(bundle.gpu), rows.l2_warm, rows.temperature_c)
    if not parts:
        return ""
    families = [operator.family for operator in rows.row_operators()]
    figures = ""
    for family, _ in Counter(families).most_common(MOST_BARS):
        own = np.array(families) == family
        shown = {name: float(np.nanmean(watt[own])) for name, watt in parts.items()}
        caption = f"Power of {family} kernels by module: {sum(shown.values()):.0f} W on average, on rows that the fit saw."
        figures += figure_html(shares_svg(f"Power by module: {family}", caption, shown, "W"), caption)
    return figures
