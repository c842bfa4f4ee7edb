"""What the page's server refuses, and that every refusal is one JSON line."""

import json
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from estimator.serve.local_site import RequestError
from estimator.serve.server import Question, ServedQuestion, parse_request

ASKED = {"workload": "example-0", "bundle": "bundle-0"}
SERVED = {"model": "llama-3-8b", "gpu": "h100-sxm", "prompt": 512, "output": 64, "batch": 8}


def refusal(content):
    """The message of a refusal, checked to be one line."""
    document = json.loads(content)
    assert list(document) == ["error"]
    assert content.count(b"\n") == 1
    assert "Traceback" not in document["error"]
    return document["error"]


@pytest.mark.parametrize(
    "body, status, message",
    [
        (b"", 400, "not valid JSON"),
        (b"{}", 400, "lacks the field 'workload'"),
        ({"path": "/etc/passwd"}, 400, "unknown field 'path'"),
        ({"workload": "../examples/gpt2-prefill.json"}, 404, "unknown workload"),
        ({"bundle": "/etc/passwd"}, 404, "unknown bundle"),
        ({"gpu": "./spec.toml"}, 422, "unknown GPU"),
        ({"precision": "bf17"}, 422, "bf17"),
        ({"attention": "x" * 10_000}, 422, "form of attention"),
        ({"clock_mhz": float("nan")}, 400, "holds NaN, which is no JSON number"),
        ({"clock_mhz": -900}, 400, "clock_mhz = -900 lies outside"),
        ({"clock_mhz": 90_000}, 422, "outside what"),
        ({"host_launch_us": 1e9}, 422, "at most 1 s"),
        ({"batch": 8.5}, 400, "batch must be a whole number"),
        ({"batch": 1}, 422, "several sequences and not for one"),
        ({"at": {"sequence": 8}}, 400, "at lacks the field"),
        (SERVED | {"model": "/etc/passwd"}, 422, "'/etc/passwd' is unknown"),
        (SERVED | {"engine": "mine.toml"}, 422, "'mine.toml' is unknown"),
        (SERVED | {"gpu": "./m2075.toml"}, 422, "'./m2075.toml' is unknown"),
        (SERVED | {"output": 1}, 400, "output"),
        (SERVED | {"tensor_parallel": 3}, 422, "3"),
    ],
)
def test_bad_questions_are_refused_by_name(served, body, status, message):
    content = body if isinstance(body, bytes) else json.dumps(body if "model" in body else {**ASKED, **body}).encode()
    got, _, answer = served.request("POST", "/api/served" if b"model" in content else "/api/answer", content)
    assert (got, message in refusal(answer)) == (status, True), answer
    assert served.complaints == []


@pytest.mark.parametrize("path", ["/../../../etc/passwd", "/page.js\\..\\server.py", "/api/answer/../load"])
def test_no_path_reaches_a_file(served, path):
    status, _, content = served.request("GET", path)
    assert status == 404
    refusal(content)


@pytest.mark.parametrize("path", ["/", "/api/choices", "/nothing"])
def test_every_answer_forbids_what_the_page_does_not_need(served, path):
    _, headers, _ = served.request("GET", path)
    policy = dict(part.strip().split(" ", 1) for part in headers["Content-Security-Policy"].split(";"))
    assert policy["default-src"] == "'none'"
    assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"
    assert policy["frame-ancestors"] == "'none'"
    assert not [name for name in headers if name.startswith("Access-Control")]
    assert (headers["X-Content-Type-Options"], headers["Cross-Origin-Resource-Policy"]) == ("nosniff", "same-origin")


FIELDS = ["workload", "bundle", "at", "batch", "clock_mhz", "gpu", "model", "prompt", "output", "else"]


@settings(max_examples=30)
@given(
    st.recursive(
        st.none() | st.booleans() | st.floats() | st.integers() | st.text(),
        lambda inner: (
            st.dictionaries(
                st.sampled_from(FIELDS),
                inner,
                max_size=6,
            )
            | st.lists(inner, max_size=3)
        ),
    )
)
def test_any_json_is_a_question_or_refused(document):
    body = json.dumps(document).encode()
    with suppress(RequestError):
        assert isinstance(parse_request(body, Question).workload, str)
    with suppress(RequestError):
        assert parse_request(body, ServedQuestion).output >= 2
