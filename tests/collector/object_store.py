"""An object store in this process that speaks as much of the S3 protocol as pyarrow's client asks for; signatures are not looked at.

Objects appear whole when their upload ends, one request or many parts, as they do at Amazon; nothing else is promised of it.
"""

import io
import re
import threading
import urllib.parse
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import md5
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import BinaryIO, cast

SPACE = "http://s3.amazonaws.com/doc/2006-03-01/"
RANGE = re.compile(r"bytes=(\d+)-(\d*)")
WHEN = "Fri, 02 Jan 2026 03:04:05 GMT"


@dataclass
class ObjectStore:
    """Objects by "bucket/key" and uploads that have not ended; `fail_writes` refuses everything that writes."""

    port: int = 0
    objects: dict[str, bytes] = field(default_factory=dict)
    uploads: dict[str, dict[int, bytes]] = field(default_factory=dict)
    buckets: set[str] = field(default_factory=lambda: {"lab"})
    fail_writes: bool = False

    def url(self, path: str) -> str:
        """A place in the store, as `--out` takes it."""
        return f"s3://lab/{path}?scheme=http&endpoint_override=127.0.0.1:{self.port}&region=eu-west-1"

    def names(self, ending: str = "") -> list[str]:
        """Names of objects, without the markers of folders."""
        return sorted(key for key in self.objects if not key.endswith("/") and key.endswith(ending))


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, store: ObjectStore) -> None:
        self.store = store
        self.lock = threading.Lock()
        super().__init__(("127.0.0.1", 0), _Handler)


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name is that of the overridden method
        """Requests are not logged."""

    def _asked(self) -> tuple[str, dict[str, str], bytes]:
        parts = urllib.parse.urlsplit(self.path)
        query = dict(urllib.parse.parse_qsl(parts.query, keep_blank_values=True))
        return urllib.parse.unquote(parts.path).strip("/") + ("/" if parts.path.endswith("/") else ""), query, self._body()

    def _body(self) -> bytes:
        content = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if "chunked" in self.headers.get("Transfer-Encoding", ""):
            content = b"".join(self._chunks(cast(BinaryIO, self.rfile)))
        if "aws-chunked" in self.headers.get("Content-Encoding", "") or "STREAMING" in self.headers.get("x-amz-content-sha256", ""):
            content = b"".join(self._chunks(io.BytesIO(content)))
        return content

    @staticmethod
    def _chunks(stream: BinaryIO) -> Iterator[bytes]:
        while size := int(stream.readline().split(b";")[0] or b"0", 16):
            yield stream.read(size)
            stream.readline()

    def _answer(self, status: int, body: bytes = b"", **headers: str) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _fail(self, status: int, code: str) -> None:
        self._answer(status, f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>{code}</Message></Error>".encode())

    def do_HEAD(self) -> None:
        self._get()

    def do_GET(self) -> None:
        self._get()

    def _get(self) -> None:
        path, query, _ = self._asked()
        store = self.server.store
        bucket, _, key = path.partition("/")
        if not key:
            if bucket not in store.buckets:
                self._fail(404, "NoSuchBucket")
            elif self.command == "HEAD":
                self._answer(200)
            else:
                self._list(bucket, query)
            return
        content = store.objects.get(path)
        if content is None:
            self._fail(404, "NoSuchKey")
            return
        headers = {"Last_Modified": WHEN, "ETag": f'"{md5(content).hexdigest()}"', "Content_Type": "application/octet-stream"}
        asked = RANGE.fullmatch(self.headers.get("Range", ""))
        if asked:
            first, last = int(asked[1]), min(int(asked[2] or len(content)), len(content) - 1)
            self._answer(206, content[first : last + 1], Content_Range=f"bytes {first}-{last}/{len(content)}", **headers)
        else:
            self._answer(200, content, **headers)

    def _list(self, bucket: str, query: dict[str, str]) -> None:
        prefix, cut = query.get("prefix", ""), query.get("delimiter", "")
        entries, folders = [], set()
        for name, content in sorted(self.server.store.objects.items()):
            key = name.removeprefix(f"{bucket}/")
            if not name.startswith(f"{bucket}/") or not key.startswith(prefix):
                continue
            rest = key.removeprefix(prefix)
            if cut and cut in rest:
                folders.add(prefix + rest[: rest.index(cut) + 1])
            else:
                told = f"<Key>{key}</Key><Size>{len(content)}</Size><LastModified>2026-01-02T03:04:05.000Z</LastModified>"
                entries.append(f"<Contents>{told}</Contents>")
        common = "".join(f"<CommonPrefixes><Prefix>{folder}</Prefix></CommonPrefixes>" for folder in sorted(folders))
        found = min(len(entries) + len(folders), int(query.get("max-keys", "1000")))
        told = f"<Name>{bucket}</Name><Prefix>{prefix}</Prefix><KeyCount>{found}</KeyCount><IsTruncated>false</IsTruncated>"
        self._answer(200, f'<ListBucketResult xmlns="{SPACE}">{told}{"".join(entries)}{common}</ListBucketResult>'.encode())

    def do_PUT(self) -> None:
        path, query, body = self._asked()
        store = self.server.store
        if store.fail_writes:
            self._fail(403, "AccessDenied")
        elif "/" not in path:
            store.buckets.add(path)
            self._answer(200)
        elif "uploadId" in query:
            with self.server.lock:
                store.uploads[query["uploadId"]][int(query["partNumber"])] = body
            self._answer(200, ETag=f'"{md5(body).hexdigest()}"')
        else:
            store.objects[path] = body
            self._answer(200, ETag=f'"{md5(body).hexdigest()}"')

    def do_POST(self) -> None:
        path, query, body = self._asked()
        store = self.server.store
        if store.fail_writes:
            self._fail(403, "AccessDenied")
        elif "uploads" in query:
            with self.server.lock:
                number = f"upload-{len(store.uploads)}"
                store.uploads[number] = {}
            text = f"<Bucket>{path.partition('/')[0]}</Bucket><Key>{path.partition('/')[2]}</Key><UploadId>{number}</UploadId>"
            self._answer(200, f'<InitiateMultipartUploadResult xmlns="{SPACE}">{text}</InitiateMultipartUploadResult>'.encode())
        elif "uploadId" in query:
            parts = store.uploads.pop(query["uploadId"])
            store.objects[path] = b"".join(parts[number] for number in sorted(parts))
            text = f"<Key>{path.partition('/')[2]}</Key><ETag>x</ETag>"
            self._answer(200, f'<CompleteMultipartUploadResult xmlns="{SPACE}">{text}</CompleteMultipartUploadResult>'.encode())
        elif "delete" in query:
            for key in re.findall(rb"<Key>([^<]+)</Key>", body):
                store.objects.pop(f"{path.strip('/')}/{key.decode()}", None)
            self._answer(200, f'<DeleteResult xmlns="{SPACE}"></DeleteResult>'.encode())
        else:
            self._fail(501, "NotImplemented")

    def do_DELETE(self) -> None:
        path, query, _ = self._asked()
        if "uploadId" in query:
            self.server.store.uploads.pop(query["uploadId"], None)
        else:
            self.server.store.objects.pop(path, None)
        self._answer(204)


@contextmanager
def object_store() -> Iterator[ObjectStore]:
    """A store on a free port of loopback, with one bucket, "lab"."""
    store = ObjectStore()
    server = _Server(store)
    store.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield store
    finally:
        server.shutdown()
        server.server_close()
        thread.join(5.0)
