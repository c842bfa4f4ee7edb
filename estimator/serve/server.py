"""The pages of `estimate serve`: three fixed files and five answers, and the requests for them, each field declared.

An answer is JSON data: the estimate, its explanation, the sweep and charts.
"""

import json
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Final, TypeVar, cast
from urllib.parse import parse_qs

import numpy as np

from estimator.commands.combinations import MICROSECONDS, check_finite
from estimator.display.answers import clock_charts, explanation_charts
from estimator.display.estimates import explanation_document, result_document
from estimator.display.pages import STYLE
from estimator.display.text import Document, known
from estimator.questions.choosing import answered
from estimator.questions.explanation import explain
from estimator.questions.judging import Asked, at_clocks, judged
from estimator.questions.sweeping import VALUES
from estimator.serve.catalogue import Catalogue, clocks_of
from estimator.serve.local_site import JSON_TYPE, Computed, Line, Reply, RequestError, local_site
from estimator.serving.answers import Serving, serve_llm
from estimator.transforms.rescaling import LARGEST_SIZE, Size, Sizes
from estimator.transforms.variation import variants
from estimator.uncertainty.nearest import asked_gpu
from estimator.vocabulary.documents import parse_json
from estimator.vocabulary.errors import SpecificationError
from estimator.vocabulary.reader import Span, read
from estimator.vocabulary.values import frozen

EXPLAINED: Final = ("limits_s", "energy_parts_j", "waiting_s")
"""Fields of the explanation that the page shows, in addition to its kernels."""


Positive = Annotated[float, Span(1e-9, 1e9)]


@frozen
class Question:
    """One operating point: keys of a workload and a bundle, and settings; None and "" leave a setting unchanged.

    A request for the choices of a workload has only `workload` and `at`.

    gpu                 name of another GPU than the bundle's, "" for its own
    precision           "" as written
    attention           "eager", "flash", "" as written
    at                  the sizes for which the workload was written, if the user states them
    batch, sequence     the requested sizes
    clock_mhz           requested SM clock [MHz], None for the GPU's usual clock
    power_cap_w         power limit [W], None for the GPU's own
    host_launch_us      host cost of one framework operator [µs], None for the bundle's
    """

    workload: str
    bundle: str = ""
    gpu: str | None = None
    precision: str | None = None
    attention: str | None = None
    at: Sizes | None = None
    batch: Size | None = None
    sequence: Size | None = None
    clock_mhz: Positive | None = None
    power_cap_w: Positive | None = None
    host_launch_us: Annotated[float, Span(0.0, 1e9)] | None = None


@frozen
class ServedQuestion:
    """A served model: names of the catalogue, and the fields of a `Serving`; "" leaves an engine or a format unstated."""

    model: str
    gpu: str
    engine: str = ""
    weights: str = ""
    prompt: Size
    output: Annotated[int, Span(2, LARGEST_SIZE)]
    batch: Size
    tensor_parallel: Size = 1


T = TypeVar("T")


def parse_request(content: bytes, kind: type[T]) -> T:
    """Content of a request's body, as `kind` declares it.  Raises RequestError, naming the field."""
    try:
        found: T = read(kind, parse_json(content))
    except ValueError as error:
        raise RequestError(f"the request: {error}") from error
    return found


def answer_document(question: Question, catalogue: Catalogue) -> Document:
    """All data that the page shows about one operating point.

    `estimate` equals the output of `estimate --json` to the last digit.  Raises RequestError for unknown keys and EstimatorError for
    impossible settings.
    """
    asked = _asked(question, catalogue)
    with np.errstate(all="ignore"):  # results that are not finite are refused below with a message
        explanation = explain(asked)
        result = explanation.result
        check_finite(judged(asked).points)
        (points,) = answered([at_clocks(asked, tuple(clocks_of(asked.gpu or asked.bundle.gpu)))])
        charts = clock_charts(points, result.asked_clock_mhz)
    document = explanation_document(explanation)
    kernels = cast(list[Document], document["kernels"])
    return {
        "estimate": result_document(result),
        "simulated": asked.bundle.simulated,
        "explanation": {**{name: document[name] for name in EXPLAINED}, "kernels": kernels[:200]},
        "kernels": len(kernels),
        "sweep": {name: getattr(points, name).tolist() for name in VALUES},
        "charts": charts | explanation_charts(explanation),
    }


def served_document(question: ServedQuestion, catalogue: Catalogue) -> Document:
    """A served model at one load; equals the output of `estimate llm --json`.  Raises EstimatorError like `serve_llm`."""
    for names, name in ((catalogue.models, question.model), (catalogue.gpus, question.gpu), (("", *catalogue.engines), question.engine)):
        if name not in names:  # a name from the page is never used as a file
            raise SpecificationError(f"{name!r:.60} is unknown; known: {', '.join(filter(None, names))}")
    serving = Serving(**{name: value for name, value in asdict(question).items() if name != "gpu" and value != ""})
    bundle = catalogue.bundle(catalogue.nearest(catalogue.gpus[question.gpu], serving.formats, served=True))
    return asdict(serve_llm(serving, bundle, gpu=asked_gpu(bundle, question.gpu)))


def _asked(question: Question, catalogue: Catalogue) -> Asked:
    workload, bundle = catalogue.workload(question.workload), catalogue.bundle(question.bundle)
    if question.gpu and question.gpu not in catalogue.gpus:  # a name from the page is never used as a file
        raise SpecificationError(f"unknown GPU {question.gpu!r:.60}; known: {', '.join(catalogue.gpus)}")
    settings = ("batch", "sequence", "precision", "attention")
    varied = {name: getattr(question, name) for name in settings if getattr(question, name)}
    (variant,) = variants(workload, at=question.at, **varied)
    return Asked(
        variant=variant,
        bundle=bundle,
        gpu=asked_gpu(bundle, question.gpu) if question.gpu else None,
        sm_clock_mhz=None if question.clock_mhz is None else (question.clock_mhz,),
        power_cap_w=question.power_cap_w,
        host_launch_s=None if question.host_launch_us is None else question.host_launch_us * MICROSECONDS,
    )


MOST_REQUEST_BYTES: Final = 16 << 10
MOST_FILE_BYTES: Final = 2 << 20
"""Largest request and largest file of the page [byte]; a request has a few hundred bytes, a workload file a fortieth of this."""

STATIC: Final = Path(__file__).resolve().parent / "static"
HEADERS: Final = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
}
"""Headers that forbid content from other sites."""


@contextmanager
def page_server(port: int, catalogue: Catalogue, *, complain: Line) -> Iterator[str]:
    """Serve the page on this machine within the block; yields its address.  Arguments and errors are those of `local_site`."""

    def computed(document: Callable[[bytes, str], Any], most_bytes: int = 0) -> Computed:
        def answer(body: bytes, query: str) -> Reply:
            return Reply(content=json.dumps(known(document(body, query)), allow_nan=False).encode(), media_type=JSON_TYPE)

        return Computed(answer=answer, most_bytes=most_bytes)

    def describe(body: bytes, _query: str) -> Any:
        asked = parse_request(body, Question)
        return catalogue.described(asked.workload, asked.at)

    pages: dict[str, Reply | Computed] = {
        **_static_files(),
        "/api/choices": computed(lambda _body, _query: catalogue.choices(MOST_FILE_BYTES)),
        "/api/answer": computed(lambda body, _query: answer_document(parse_request(body, Question), catalogue), MOST_REQUEST_BYTES),
        "/api/served": computed(lambda body, _query: served_document(parse_request(body, ServedQuestion), catalogue), MOST_REQUEST_BYTES),
        "/api/workload": computed(describe, MOST_REQUEST_BYTES),
        "/api/load": computed(lambda body, query: catalogue.add(parse_qs(query).get("name", [""])[0], body), MOST_FILE_BYTES),
    }
    with local_site("127.0.0.1", port, pages, token=secrets.token_urlsafe(), headers=HEADERS, complain=complain) as address:
        yield address


def _static_files() -> dict[str, Reply]:
    """The fixed files by path, read once: no path of a request reaches the file system."""
    contents = {
        "/": ("text/html", (STATIC / "index.html").read_bytes()),
        "/page.js": ("text/javascript", (STATIC / "page.js").read_bytes()),
        "/page.css": ("text/css", STYLE.encode() + (STATIC / "page.css").read_bytes()),
    }
    return {path: Reply(content=content, media_type=f"{kind}; charset=utf-8") for path, (kind, content) in contents.items()}
