"""A local site answers whoever knows its token, sends fixed files whatever is being computed, and ends no request without a line."""

import json
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from threading import Event, Semaphore
from urllib.parse import quote, urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from estimator import WorkloadError
from estimator.serve.local_site import MOST_COMPUTED, Computed, Reply, local_site
from tests.estimator.serve.conftest import PATIENCE_S, Served

TOKEN = "Xq3_-secret"
FILE = Reply(content=b"a fixed file", media_type="text/plain")
ASKED = 60


def broken(_body, _query):
    raise ZeroDivisionError("a defect\n of ours")


def unanswerable(_body, _query):
    raise WorkloadError("no such workload")


def echo(body, query):
    return Reply(content=body + query.encode(), media_type="text/plain")


PAGES = {
    "/": FILE,
    "/broken": Computed(answer=broken),
    "/unanswerable": Computed(answer=unanswerable),
    "/echo": Computed(answer=echo, most_bytes=9),
}


@contextmanager
def running(host="127.0.0.1", **more):
    complaints = []
    pages = {**PAGES, **{f"/{name}": page for name, page in more.items()}}
    with local_site(host, 0, pages, token=TOKEN, headers={}, complain=complaints.append) as url:
        yield Served(url=url, complaints=complaints)


@pytest.fixture(scope="module")
def site():
    with running() as served:
        yield served


WRONG = ["", TOKEN[:-1], f"{TOKEN}x", TOKEN.swapcase(), f"x/{TOKEN}/", f"?token={TOKEN}", "%00/", "\u00e4/"]


@given(st.one_of(st.sampled_from(WRONG), st.text().filter(lambda text: text.partition("/")[0] != TOKEN).map(quote)))
def test_without_the_token_nothing_is_told(site, text):
    status, _, content = site.fetch("GET", f"/{quote(text, safe='/?=%')}")
    assert (status, list(json.loads(content))) == (403, ["error"])
    assert TOKEN.encode() not in content


def test_with_the_token_pages_are_answered(site):
    status, headers, content = site.request("GET", "/?x=1")
    assert (status, content, headers["Cache-Control"], headers["Referrer-Policy"]) == (200, FILE.content, "no-store", "no-referrer")
    assert "Server" not in headers
    status, nothing, content = site.request("HEAD", "/")
    assert (status, content, nothing["Content-Length"]) == (200, b"", headers["Content-Length"])
    assert site.request("POST", "/echo?a=b", b"123")[2] == b"123a=b"
    assert site.request("POST", "/echo", b"0123456789")[0] == 413
    assert site.request("GET", "/echo")[0] == 405
    assert site.fetch("GET", f"/{TOKEN}")[0] == 404, "relative addresses need the slash"


def test_defects_and_refusals_are_one_line_each(site):
    assert site.request("GET", "/unanswerable")[::2] == (422, b'{"error": "no such workload"}\n')
    assert site.complaints == []
    assert site.request("GET", "/broken")[::2] == (500, b'{"error": "this request failed"}\n')
    assert site.complaints == ["a request failed: ZeroDivisionError: a defect of ours"]


def test_many_questions_delay_each_other_and_no_fixed_file():
    started, released = Semaphore(0), Event()

    def heavy(_body, _query):
        started.release()
        released.wait(PATIENCE_S)
        return FILE

    with running(heavy=Computed(answer=heavy)) as site, ThreadPoolExecutor(ASKED) as pool:
        try:
            asked = [pool.submit(site.request, "GET", "/heavy") for _ in range(ASKED)]
            for _ in range(MOST_COMPUTED):
                assert started.acquire(timeout=PATIENCE_S)
            assert site.request("GET", "/")[0] == 200
            assert not any(one.done() for one in asked)
        finally:
            released.set()
        assert [one.result()[0] for one in asked] == [200] * ASKED


@pytest.mark.parametrize("host, shown", [("0.0.0.0", "127.0.0.1"), ("::1", "::1"), ("::", "::1")])
def test_the_address_is_one_that_a_browser_here_takes(host, shown):
    with running(host=host) as site:
        assert urlsplit(site.url).hostname == shown
        assert site.request("GET", "/")[0] == 200
