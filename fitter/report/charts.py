"""The chart of a fit's report that no other page has: errors in bins, as a few paths however many rows it shows.

As in `estimator.display.charts`, colours come from the page (`report.html`), and title and description are for screen readers.
"""

import numpy as np
import pandas as pd

from estimator.display.charts import Series, axis_over, frame_svg, pixel_places
from fitter.report.rows import QUANTILES


def bins_svg(title: str, description: str, bins: pd.DataFrame, label: str, *, logarithmic: bool = False) -> str:
    """Signed errors over something: a whisker from the 5th to the 95th percentile, a box over the middle half, a line through medians."""
    place, quantiles = bins["place"].to_numpy(), bins[list(QUANTILES)].to_numpy()
    x = axis_over(label, [place], logarithmic=logarithmic)
    y = axis_over("predicted / measured - 1 [%]", [quantiles.ravel(), np.zeros(1)], logarithmic=False)
    left = pixel_places(Series(name="", x=place, y=quantiles[:, 0]), x, y)[0]
    low, first, middle, third, high = (pixel_places(Series(name="", x=place, y=column), x, y)[1] for column in quantiles.T)
    ends, zero = pixel_places(Series(name="", x=np.array([x.low, x.high]), y=np.zeros(2)), x, y)
    body = f'<line class="zero" x1="{ends[0]:.1f}" y1="{zero[0]:.1f}" x2="{ends[1]:.1f}" y2="{zero[1]:.1f}"/>'
    for kind, top, bottom in (("whisker", low, high), ("box", first, third)):
        path = "".join(f"M{a:.1f} {b:.1f}V{c:.1f}" for a, b, c in zip(left, top, bottom, strict=True))
        body += f'<path class="{kind}" d="{path}"/>'
    points = " ".join(f"{a:.1f},{b:.1f}" for a, b in zip(left, middle, strict=True))
    dots = "".join(f"M{a:.1f} {b:.1f}h0" for a, b in zip(left, middle, strict=True))
    body += f'<polyline class="l0" points="{points}"/><path class="middle" d="{dots}"/>'
    return frame_svg(title, description, body, x, y, [], "l")
