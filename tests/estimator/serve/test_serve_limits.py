"""What the server refuses, and that every refusal is one JSON line."""

import json
import socket
from contextlib import ExitStack, suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from estimator.serve.errors import RequestError
from estimator.serve.question import MOST_REQUEST_BYTES, parse_question
from estimator.serve.server import MOST_COMPUTED, MOST_CONNECTIONS, MOST_FILE_BYTES, names_this_server
from tests.estimator.serve.conftest import PATIENCE_S, Served, running, until

ASKED = {"workload": "example-0", "bundle": "bundle-0"}


def refusal(content: bytes) -> str:
    """The message of a refusal, checked to be one line."""
    document = json.loads(content)
    assert list(document) == ["error"]
    assert content.count(b"\n") == 1
    assert "Traceback" not in document["error"]
    text: str = document["error"]
    return text


@pytest.mark.parametrize(
    ("body", "status", "message"),
    [
        (b"", 400, "not JSON"),
        (b"[" * 10_000, 400, "nested too deeply"),
        (b"\xff\xfe", 400, "not UTF-8"),
        (b"[]", 400, "must be a JSON object"),
        (b'{"workload": "a", "workload": "b"}', 400, "twice"),
        (b"{}", 400, "'workload' is missing"),
        (json.dumps({**ASKED, "path": "/etc/passwd"}).encode(), 400, "unknown field 'path'"),
        (json.dumps({**ASKED, "workload": "../examples/gpt2-prefill.json"}).encode(), 404, "no longer kept"),
        (json.dumps({**ASKED, "bundle": "/etc/passwd"}).encode(), 404, "unknown bundle"),
        (json.dumps({**ASKED, "gpu": "./spec.toml"}).encode(), 422, "unknown GPU"),
        (json.dumps({**ASKED, "gpu": ["h100-sxm"]}).encode(), 400, "must be a plain text"),
        (json.dumps({**ASKED, "precision": "bf17"}).encode(), 422, "bf17"),
        (json.dumps({**ASKED, "precision": "b\x00"}).encode(), 400, "must be a plain text"),
        (json.dumps({**ASKED, "attention": "x" * 10_000}).encode(), 400, "must be a plain text"),
        (json.dumps({**ASKED, "attention": "flesh"}).encode(), 422, "unknown form of attention"),
        (json.dumps({**ASKED, "clock_mhz": float("nan")}).encode(), 400, "NaN is no JSON number"),
        (b'{"workload": "example-0", "bundle": "bundle-0", "clock_mhz": 1e400}', 400, "must be a number above 0"),
        (b'{"workload": "example-0", "bundle": "bundle-0", "batch": ' + b"9" * 6000 + b"}", 400, "a number that cannot be"),
        (json.dumps({**ASKED, "clock_mhz": -900}).encode(), 400, "must be a number above 0"),
        (json.dumps({**ASKED, "clock_mhz": 1e300}).encode(), 400, "must be a number above 0 and at most 1e+09"),
        (json.dumps({**ASKED, "clock_mhz": True}).encode(), 400, "must be a number above 0"),
        (json.dumps({**ASKED, "host_launch_us": -1}).encode(), 400, "must be a number of at least 0"),
        (json.dumps({**ASKED, "host_launch_us": False}).encode(), 400, "must be a number of at least 0"),
        (json.dumps({**ASKED, "host_launch_us": 1e9}).encode(), 422, "must be at most 1 s"),
        (json.dumps({**ASKED, "clock_mhz": 90_000}).encode(), 422, "outside what"),
        (json.dumps({**ASKED, "batch": 0}).encode(), 400, "must be a whole number"),
        (json.dumps({**ASKED, "batch": 8.5}).encode(), 400, "must be a whole number"),
        (json.dumps({**ASKED, "batch": 1}).encode(), 422, "several sequences and not for one"),
        (json.dumps({**ASKED, "at": {"batch": 8, "rows": 2}}).encode(), 400, "unknown field 'rows'"),
        (json.dumps({**ASKED, "at": {"sequence": 8}}).encode(), 400, "at.batch is missing"),
    ],
)
def test_bad_questions_are_refused_by_name(served: Served, body: bytes, status: int, message: str) -> None:
    got, _, content = served.request("POST", "/api/answer", body)
    assert (got, message in refusal(content)) == (status, True), content
    assert served.complaints == []


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"", "empty"),
        (b"\xff\xfe\x00", "not UTF-8"),
        (b"[[", "not valid JSON"),
        (b"[" * 100_000, "nested too deeply"),
        (b'{"format": "wattprint-bundle"}', "not a workload"),
        (b'[[{"dim": NaN}, ["a"]]]', "not a JSON number"),
        (b"42", "object or a list"),
    ],
)
def test_files_that_are_no_workload_are_refused(served: Served, body: bytes, message: str) -> None:
    status, _, content = served.request("POST", "/api/load?name=..%2F..%2Fetc%2Fpasswd%0d%0aX", body)
    assert status in (400, 422)
    text = refusal(content)
    assert message in text
    assert text.startswith("passwd")


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/../../../etc/passwd", 404),
        ("GET", "/%2e%2e/%2e%2e/etc/passwd", 404),
        ("GET", "/static/page.js", 404),
        ("GET", "//etc/passwd", 404),
        ("GET", "/page.js\\..\\server.py", 404),
        ("POST", "/api/answer/../load", 404),
        ("GET", "/api/answer", 405),
        ("POST", "/", 405),
        ("PUT", "/api/load", 405),
        ("DELETE", "/", 405),
        ("OPTIONS", "/api/answer", 405),
        ("TRACE", "/", 405),
        ("BREW", "/", 405),
    ],
)
def test_other_paths_and_methods_are_refused(served: Served, method: str, path: str, status: int) -> None:
    got, headers, content = served.request(method, path, b"{}" if method in ("POST", "PUT") else None)
    assert got == status
    assert ("Allow" in headers) == (status == 405)
    refusal(content)


@pytest.mark.parametrize("path", ["/", "/page.js", "/page.css", "/api/choices", "/nothing"])
def test_every_answer_forbids_what_the_page_does_not_need(served: Served, path: str) -> None:
    _, headers, _ = served.request("GET", path)
    policy = dict(part.strip().split(" ", 1) for part in headers["Content-Security-Policy"].split(";"))
    assert policy["default-src"] == "'none'"
    assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"
    assert policy["frame-ancestors"] == "'none'"
    assert not [name for name in headers if name.startswith("Access-Control")]
    assert (headers["X-Content-Type-Options"], headers["Cross-Origin-Resource-Policy"]) == ("nosniff", "same-origin")
    assert headers["Server"].split() == ["wattprint"]


def test_a_head_request_has_the_headers_of_a_get_and_no_content(served: Served) -> None:
    _, full, content = served.request("GET", "/page.js")
    status, headers, nothing = served.request("HEAD", "/page.js")
    assert (status, nothing, headers["Content-Length"]) == (200, b"", str(len(content)))
    assert full["Content-Length"] == headers["Content-Length"]


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:{port}", "localhost.evil.example", "127.0.0.1.evil.example:{port}", "2130706433:{port}", ""]
)
def test_a_request_under_another_name_is_refused(served: Served, host: str) -> None:
    status, _, content = served.request("GET", "/", Host=host.format(port=served.server.port))
    assert status == 403
    assert served.server.url in refusal(content)


@pytest.mark.parametrize("name", ["Origin", "Sec-Fetch-Site"])
def test_a_request_of_another_page_is_refused(served: Served, name: str) -> None:
    value = {"Origin": "http://evil.example", "Sec-Fetch-Site": "cross-site"}[name]
    status, _, content = served.request("POST", "/api/answer", json.dumps(ASKED).encode(), **{name: value})
    assert (status, refusal(content)) == (403, "requests of other pages are not answered")
    assert served.request("GET", "/api/choices", **{name: value})[0] == 403
    assert served.request("GET", "/", **{name: value})[0] == 200  # a link may lead here
    own = served.server.url.rstrip("/")
    assert served.request("POST", "/api/answer", json.dumps(ASKED).encode(), Origin=own)[0] == 200


@pytest.mark.parametrize("content_type", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data"])
def test_what_a_form_elsewhere_could_send_is_refused(served: Served, content_type: str) -> None:
    status, _, content = served.request("POST", "/api/answer", json.dumps(ASKED).encode(), Content_Type=content_type)
    assert (status, "content type" in refusal(content)) == (415, True)


@pytest.mark.parametrize(("path", "limit"), [("/api/answer", MOST_REQUEST_BYTES), ("/api/load", MOST_FILE_BYTES)])
def test_a_body_that_is_too_large_is_refused(served: Served, path: str, limit: int) -> None:
    status, _, content = served.request("POST", path, b" " * (limit + 1))
    assert (status, f"at most {limit}" in refusal(content)) == (413, True)


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (b"POST /api/answer HTTP/1.1\r\nHost: {host}\r\n\r\n", b"411"),
        (b"POST /api/answer HTTP/1.1\r\nHost: {host}\r\nContent-Length: -1\r\n\r\n", b"411"),
        (b"POST /api/answer HTTP/1.1\r\nHost: {host}\r\nContent-Length: 9999999999999999999999\r\n\r\n", b"411"),
        (b"POST /api/answer HTTP/1.1\r\nHost: {host}\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", b"411"),
        (b"GET / HTTP/1.1\r\n\r\n", b"403"),
        (b"GET / HTTP/1.1\r\nHost: {host}\r\nHost: evil.example\r\n\r\n", b"403"),
        (b"GET http://evil.example/ HTTP/1.1\r\nHost: {host}\r\n\r\n", b"404"),
        (b"GET / HTTP/9.9\r\n\r\n", b"505"),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", b"400"),
        (b"GET /" + b"a" * 70_000 + b" HTTP/1.1\r\n\r\n", b"414"),
        (b"GET / HTTP/1.1\r\n" + b"A: b\r\n" * 200 + b"\r\n", b"431"),
    ],
)
def test_malformed_requests_are_refused(served: Served, request_bytes: bytes, status: bytes) -> None:
    answer = served.raw(request_bytes.replace(b"{host}", f"127.0.0.1:{served.server.port}".encode()))
    head, _, content = answer.partition(b"\r\n\r\n")
    assert head.split()[1] == status
    refusal(content)
    assert served.request("GET", "/")[0] == 200


def test_a_request_that_drips_is_ended_at_its_deadline() -> None:
    with running(read_s=0.3) as served, socket.create_connection(("127.0.0.1", served.server.port)) as connection:
        connection.settimeout(0.02)

        def ended() -> bool:
            try:
                connection.sendall(b"x")
                return connection.recv(1) == b""
            except TimeoutError:
                return False
            except ConnectionError:
                return True

        until(ended)


@pytest.mark.parametrize(
    "begun",
    [b"G", b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n", b"POST /api/answer HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 90\r\n\r\n{"],
)
def test_a_request_that_is_not_in_within_its_time_is_answered_408(begun: bytes) -> None:
    with running(read_s=0.3) as served, socket.create_connection(("127.0.0.1", served.server.port), timeout=PATIENCE_S) as connection:
        connection.sendall(begun)
        head, _, content = b"".join(iter(lambda: connection.recv(4096), b"")).partition(b"\r\n\r\n")
        assert head.split()[1] == b"408"
        assert b"Connection: close" in head
        assert json.loads(content) == {"error": "the request did not come in within 0.3 s"}
        assert served.request("GET", "/")[0] == 200


def test_connections_are_bounded_and_free_again_after_the_deadline() -> None:
    with running(read_s=1.0) as served:
        silent = [socket.create_connection(("127.0.0.1", served.server.port), timeout=PATIENCE_S) for _ in range(MOST_CONNECTIONS)]
        for connection in silent:
            assert connection.recv(1) == b""
            connection.close()

        def answered() -> bool:
            with suppress(ConnectionError):  # held up for a second, a request is too late itself
                return served.request("GET", "/")[0] == 200
            return False

        until(answered)


def test_silent_connections_give_way_to_one_that_asks() -> None:
    with running(read_s=10.0 * PATIENCE_S) as served:
        address = ("127.0.0.1", served.server.port)
        silent = [socket.create_connection(address, timeout=PATIENCE_S) for _ in range(MOST_CONNECTIONS + 20)]
        for connection in silent[:20]:
            assert connection.recv(1) == b""  # those that were silent for longest
        until(lambda: sum("connections at once" in line for line in served.complaints) == 20)
        for number, connection in enumerate(silent[-MOST_CONNECTIONS:]):
            connection.sendall(b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n"[: number + 1])  # half a request each
        # An answer comes within its patience, which is far less than a silent one may take.
        assert served.request("GET", "/api/choices")[0] == 200
        assert served.request("POST", "/api/answer", json.dumps(ASKED).encode())[0] == 200
        for connection in silent:
            connection.close()


def test_more_requests_than_there_is_room_for_are_refused_with_503_and_complained_of_once() -> None:
    whole = b"GET /api/choices HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
    with running() as served, ExitStack() as open_ones:
        for _ in range(MOST_COMPUTED):
            served.server.turn.acquire()  # as if long answers were being computed
        address = ("127.0.0.1", served.server.port)
        waiting = [open_ones.enter_context(socket.create_connection(address, timeout=PATIENCE_S)) for _ in range(MOST_CONNECTIONS)]
        for connection in waiting:
            connection.sendall(whole)
        until(lambda: served.server._room._value == 0 and not served.server._silent)
        for _ in range(8):
            status, headers, content = served.request("GET", "/api/choices")
            assert (status, headers["Retry-After"]) == (503, "1")
            assert json.loads(content) == {"error": "32 requests are being answered; try again"}
        assert sum("new ones are refused" in line for line in served.complaints) == 1
        served.server.turn.release()
        served.server.turn.release()
        starts = [connection.recv(1 << 16)[:12] for connection in waiting]
        assert starts.count(b"HTTP/1.1 200") == MOST_CONNECTIONS, set(starts)


@given(st.text(alphabet="abc.:[]0127localhost", max_size=24))
def test_only_addresses_and_localhost_name_the_server(text: str) -> None:
    if names_this_server(f"{text}:8765"):
        assert text.lower() == "localhost" or set(text) <= set("0123456789.") or (text[0] == "[" and text[-1] == "]")


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("127.0.0.1:8765", True),
        ("LOCALHOST:8765", True),
        ("[::1]:8765", True),
        ("[::1]", True),
        ("127.0.0.1", True),
        ("::1:8765", False),
        ("[127.0.0.1]:8765", False),
        ("127.0.0.1:", False),
        ("127.0.0.1:http", False),
        ("a.localhost:8765", False),
    ],
)
def test_names_of_the_server(host: str, expected: bool) -> None:
    assert names_this_server(host) is expected


@given(
    st.recursive(
        st.none() | st.booleans() | st.floats() | st.integers() | st.text(),
        lambda inner: (
            st.dictionaries(st.sampled_from(["workload", "bundle", "at", "batch", "clock_mhz", "gpu", "else"]), inner, max_size=6)
            | st.lists(inner, max_size=3)
        ),
    )
)
def test_any_json_is_a_question_or_refused(document: object) -> None:
    with suppress(RequestError):
        assert isinstance(parse_question(json.dumps(document).encode()).workload, str)
