"""Detached signatures of bundles in minisign's format, verified offline; the only file that imports cryptography.

A signature states who guarantees a file's bytes; the digest inside a bundle only shows that it is complete.  Keys and signatures are
those of `minisign` (https://jedisct1.github.io/minisign/): Ed25519 over the file's BLAKE2b-512 ("ED"), and a second signature over the
first and its trusted comment.  The user chooses the trusted key; no key is built in.
"""

import base64
import binascii
import hashlib
from pathlib import Path
from typing import Final

from estimator.bundle.content import Bundle
from estimator.vocabulary.documents import printable
from estimator.vocabulary.regular_files import MOST_DATA_BYTES, read_regular
from estimator.vocabulary.values import frozen
from fitter.errors import SignatureError

KEY_KIND: Final = b"Ed"
HASHED: Final = b"ED"
"""First bytes of a public key, and of a signature over a file's hash."""

SUFFIX: Final = ".minisig"
TRUSTED: Final = "trusted comment: "
UNTRUSTED: Final = "untrusted comment: "
FILE: Final = "file:"
"""Prefix of the signed file's name in the default trusted comment of minisign."""


@frozen
class Signed:
    """Content of a valid signature: key number as minisign prints it, name of the signed file ("" if not stated), signed comment."""

    key: str
    file: str
    comment: str


def verify(bundle: Path, key: Path) -> Signed:
    """Check the signature of a bundle's bytes, in the file beside it, with the public key in a file; return its content.

    Raises SignatureError if the signature is not that key's signature of these bytes, for damaged files, and without cryptography.
    """
    number, public = _key(key)
    signature = Path(f"{bundle}{SUFFIX}")
    lines = _lines(signature, "signature")
    if len(lines) < 4 or not lines[0].startswith(UNTRUSTED) or not lines[2].startswith(TRUSTED):
        raise SignatureError(f"{signature}: is no minisign signature")
    first, second = _decoded(lines[1], 74, str(signature)), _decoded(lines[3], 64, str(signature))
    kind, own, sealed = first[:2], first[2:10], first[10:]  # algorithm, number of the key, signature
    if kind != HASHED:
        raise SignatureError(f"{signature}: is not over the hash of a file; sign with minisign 0.10 or later")
    if own != number:
        raise SignatureError(f"{signature}: was made with key {_printed(own)}, not with {_printed(number)}")
    message = hashlib.blake2b(_content(bundle, MOST_DATA_BYTES, "bundle")).digest()
    comment = lines[2].removeprefix(TRUSTED)
    if not _good(public, sealed, message):
        raise SignatureError(f"{bundle}: is not what {signature} was made for: it was changed after signing, or the signature is forged")
    if not _good(public, second, sealed + comment.encode("utf-8")):
        raise SignatureError(f"{signature}: its trusted comment was changed")
    file = next((word.removeprefix(FILE) for word in comment.split("\t") if word.startswith(FILE)), "")
    return Signed(key=_printed(number), file=file, comment=printable(comment))


def check_name(path: Path, bundle: Bundle, signed: Signed) -> None:
    """Raise SignatureError for a bundle whose file name differs from the signed one, such as an old release renamed to a new one.

    Valid names are the signed file name, and the bundle's name with its version.
    """
    whole = f"{bundle.name}-{bundle.version}.json"
    if path.name not in (signed.file, whole):
        was = f" as {signed.file}" if signed.file else ""
        raise SignatureError(f"{path}: is {bundle.name} {bundle.version}, signed{was}, under another name; call it {whole}")


def _good(public: bytes, signature: bytes, message: bytes) -> bool:
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    try:
        Ed25519PublicKey.from_public_bytes(public).verify(signature, message)
    except (InvalidSignature, ValueError):  # ValueError: bytes that are not a point of the curve
        return False
    return True


def _key(path: Path) -> tuple[bytes, bytes]:
    """Number and bytes of a public key."""
    line = next((one for one in _lines(path, "key") if one and not one.startswith(UNTRUSTED)), "")
    decoded = _decoded(line, 42, str(path))
    if decoded[:2] != KEY_KIND:
        raise SignatureError(f"{path}: is no minisign public key")
    return decoded[2:10], decoded[10:]


def _lines(path: Path, what: str) -> list[str]:
    try:
        return _content(path, 16_384, what).decode("utf-8").replace("\r\n", "\n").split("\n")
    except UnicodeDecodeError as error:
        raise SignatureError(f"{path}: is no minisign {what}") from error


def _content(path: Path, most: int, what: str) -> bytes:
    try:
        return read_regular(path, most)
    except OSError as error:
        raise SignatureError(f"{path}: the {what} cannot be read ({error.strerror})") from error


def _decoded(line: str, length: int, at: str) -> bytes:
    try:
        found = base64.b64decode(line.strip().encode("ascii"), validate=True)
    except (binascii.Error, UnicodeEncodeError) as error:
        raise SignatureError(f"{at}: is damaged, base64 is wanted") from error
    if len(found) != length:
        raise SignatureError(f"{at}: holds {len(found)} bytes where {length} are wanted")
    return found


def _printed(number: bytes) -> str:
    """A key's number as minisign prints it."""
    return number[::-1].hex().upper()
