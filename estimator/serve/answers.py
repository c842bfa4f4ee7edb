"""The answer to one question as JSON data: the estimate, its explanation, the sweep over the clocks, and their charts."""

import math
from http import HTTPStatus
from typing import Any, Final

import numpy as np

from estimator.display.answers import CLOCK_CHARTS, module_svg, time_svg, timeline_svg
from estimator.display.charts import Band, Series, axis_over, line_svg
from estimator.display.estimates import ENERGY_UNITS, POWER_UNITS, TIME_UNITS, result_document, with_spread
from estimator.display.explanations import explanation_document
from estimator.domain import why_no_time
from estimator.forms.rescaling import Sizes
from estimator.forms.variation import Variant, variants
from estimator.local_site import RequestError
from estimator.questions.choosing import answered
from estimator.questions.estimates import Estimate
from estimator.questions.explanation import Explanation, explain
from estimator.questions.judging import Asked, at_clocks
from estimator.questions.points import VALUES, Sweep
from estimator.serve.catalogue import Catalogue
from estimator.serve.choices import MICROSECONDS, clocks_of
from estimator.serve.question import Question, check_gpu
from estimator.specifications import load_gpu
from estimator.workload import Workload

MOST_KERNELS_SHOWN: Final = 200
"""The longest kernels that the explanation lists; the estimate holds all."""

UNITS: Final = {"latency": ("latency_s", TIME_UNITS), "power": ("power_w", POWER_UNITS), "energy": ("energy_j", ENERGY_UNITS)}
EXPLAINED: Final = ("limits_s", "energy_parts_j", "waiting_s")
"""Fields of the explanation that the page shows, beside its kernels."""


def answer_document(question: Question, catalogue: Catalogue) -> dict[str, Any]:
    """Everything that the page shows about one operating point.

    `estimate` is what `estimate --json` prints for it, to the last digit.  Raises RequestError for unknown keys and EstimatorError for
    settings that cannot be.
    """
    asked = _asked(question, catalogue)
    with np.errstate(all="ignore"):  # what is not finite is refused below, in words
        explanation = explain(asked)
        result = explanation.result
        if not math.isfinite(result.latency_s):
            raise RequestError(
                f"{result.workload} has no finite time on {result.gpu}: {why_no_time(result.warnings, 'precision or GPU')}",
                HTTPStatus.UNPROCESSABLE_ENTITY,
            )
        (points,) = answered([at_clocks(asked, tuple(clocks_of(asked.gpu or asked.bundle.gpu)))])
        charts = _charts(explanation, points)
    document = explanation_document(explanation)
    return {
        "estimate": result_document(result),
        "gpu": result.gpu,
        "simulated": asked.bundle.simulated,
        "numbers": [_number_row(name, result) for name in UNITS],
        "explanation": {**{name: document[name] for name in EXPLAINED}, "kernels": document["kernels"][:MOST_KERNELS_SHOWN]},
        "kernels": len(document["kernels"]),
        "sweep": {name: [_known(value) for value in getattr(points, name).tolist()] for name in VALUES},
        "charts": charts,
    }


def _asked(question: Question, catalogue: Catalogue) -> Asked:
    entry, bundle = catalogue.workload(question.workload), catalogue.bundle(question.bundle)
    check_gpu(question.gpu, catalogue.gpus)
    return Asked(
        variant=_variant(question, entry.workload, question.at or entry.at),
        bundle=bundle,
        gpu=load_gpu(question.gpu) if question.gpu else None,
        sm_clock_mhz=None if question.clock_mhz is None else (question.clock_mhz,),
        power_cap_w=question.power_cap_w,
        host_launch_s=None if question.host_launch_us is None else question.host_launch_us * MICROSECONDS,
    )


def _variant(question: Question, workload: Workload, at: Sizes | None) -> Variant:
    (variant,) = variants(
        workload,
        at=at,
        batch=() if question.batch is None else (question.batch,),
        sequence=() if question.sequence is None else (question.sequence,),
        precision=(question.precision,) if question.precision else (),
        attention=(question.attention,) if question.attention else (),
    )
    return variant


def _number_row(name: str, result: Estimate) -> dict[str, Any]:
    """A quantity with its standard deviation and 90 % interval as text, and its number in SI units."""
    field, units = UNITS[name]
    value, low, high = (getattr(result, name) for name in (field, f"{field}_low", f"{field}_high"))
    return {
        "name": name,
        "value": _known(value),
        "text": with_spread(value, getattr(result, f"{field}_std"), units),
        "interval": f"{with_spread(low, math.nan, units)} to {with_spread(high, math.nan, units)}" if math.isfinite(low) else "unknown",
    }


def _charts(explanation: Explanation, points: Sweep) -> dict[str, str]:
    """Charts by name as SVG; those of unknown numbers are left out."""
    charts = {
        name: _clock_svg(points, name, explanation.result)
        for name in CLOCK_CHARTS
        if np.isfinite(getattr(points, CLOCK_CHARTS[name][0])).any()
    }
    charts |= {"time": time_svg(explanation), "timeline": timeline_svg(explanation)}
    return charts | ({"modules": module_svg(explanation)} if explanation.energy_parts_j else {})


def _clock_svg(points: Sweep, quantity: str, result: Estimate) -> str:
    """A quantity over the asked clock with its 90 % band, and where the chosen clock stands."""
    column, label = CLOCK_CHARTS[quantity]
    value, low, high = (getattr(points, name) for name in (column, f"{column}_low", f"{column}_high"))
    clocks = points.asked_clock_mhz
    x = axis_over("asked SM clock [MHz]", [clocks], logarithmic=False)
    y = axis_over(label, [value, low, high], logarithmic=False)
    chosen = result.asked_clock_mhz
    series = [
        Series(name=quantity, x=clocks, y=value),
        Series(name=f"chosen: {chosen:g} MHz", x=np.array([chosen, chosen]), y=np.array([y.low, y.high])),
    ]
    bands = [Band(x=clocks, low=low, high=high)]
    return line_svg(f"{quantity} over the clock", f"{label} over the asked SM clock with its 90 % band", series, x, y, bands=bands)


def _known(value: float) -> float | None:
    return value if math.isfinite(value) else None
