"""Detached signatures of bundles in minisign's format, verified offline; the only file that imports cryptography.

A signature says who vouches for a file's bytes; the digest inside a bundle says only that it is whole.  Keys and signatures are those of
`minisign` (https://jedisct1.github.io/minisign/): Ed25519 over the file's BLAKE2b-512 ("ED"), or over the file itself ("Ed"), and a second
signature over the first and its trusted comment.  Which key to trust is for the user to say; none is built in.
"""

import base64
import binascii
import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from estimator.bundle.content import Bundle
from estimator.bundle.files import MAX_FILE_BYTES
from estimator.vocabulary.regular_files import read_regular
from fitter.errors import SignatureError

PLAIN: Final = b"Ed"
HASHED: Final = b"ED"
"""Algorithms: over the file, over its hash.  Public keys say PLAIN whichever is used."""

SUFFIX: Final = ".minisig"
TRUSTED: Final = "trusted comment: "
UNTRUSTED: Final = "untrusted comment: "
FILE: Final = "file:"
"""Before the name of the signed file in the trusted comment that minisign writes by itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Signed:
    """What a good signature says: the key's number as minisign prints it, the name of the file that was signed, "" where it is not
    stated, and the signed comment.
    """

    key: str
    file: str
    comment: str


def verify(bundle: Path, signature: Path, key: str) -> Signed:
    """The signature of a bundle's bytes, checked.

    key: a file as minisign writes it, or the key's one line of base64.
    Raises SignatureError where the signature is not that key's signature of these bytes, for damaged files, and without cryptography.
    """
    number, public = _key(key)
    lines = _lines(signature, "signature")
    if len(lines) < 4 or not lines[0].startswith(UNTRUSTED) or not lines[2].startswith(TRUSTED):
        raise SignatureError(f"{signature}: is no minisign signature")
    first, second = _decoded(lines[1], 74, str(signature)), _decoded(lines[3], 64, str(signature))
    kind, own, sealed = first[:2], first[2:10], first[10:]  # algorithm, number of the key, signature
    if kind not in (PLAIN, HASHED):
        raise SignatureError(f"{signature}: is signed in a way that is not known")
    if own != number:
        raise SignatureError(f"{signature}: was made with key {_printed(own)}, not with {_printed(number)}")
    content = _content(bundle, MAX_FILE_BYTES, "bundle")
    message = hashlib.blake2b(content).digest() if kind == HASHED else content
    comment = lines[2].removeprefix(TRUSTED)
    if not _good(public, sealed, message):
        raise SignatureError(f"{bundle}: is not what {signature} was made for: it was changed after signing, or the signature is forged")
    if not _good(public, second, sealed + comment.encode("utf-8")):
        raise SignatureError(f"{signature}: its trusted comment was changed")
    file = next((word.removeprefix(FILE) for word in comment.split("\t") if word.startswith(FILE)), "")
    return Signed(key=_printed(number), file=file, comment="".join(c if c.isprintable() else "?" for c in comment))


def check_name(path: Path, bundle: Bundle, signed: Signed) -> None:
    """Raises SignatureError for a signed bundle under another name than it was signed with, an old release as a new one, say.

    It may be called as when it was signed, or by its name and version.
    """
    whole = f"{bundle.name}-{bundle.version}.json"
    if path.name not in (signed.file, whole):
        was = f" as {signed.file}" if signed.file else ""
        raise SignatureError(f"{path}: is {bundle.name} {bundle.version}, signed{was}, under another name; call it {whole}")


def _good(public: bytes, signature: bytes, message: bytes) -> bool:
    try:
        from cryptography.exceptions import InvalidSignature
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    except ImportError:
        raise SignatureError("signatures need the package cryptography; install wattprint[sign]: pip install 'wattprint[sign]'") from None
    try:
        Ed25519PublicKey.from_public_bytes(public).verify(signature, message)
    except (InvalidSignature, ValueError):  # ValueError: bytes that are no point of the curve
        return False
    return True


def _key(text: str) -> tuple[bytes, bytes]:
    """Number and bytes of a public key."""
    line, at = text, "the key"
    if Path(text).suffix or _is_file(text):
        lines = _lines(Path(text), "key")
        line, at = next((one for one in lines if one and not one.startswith(UNTRUSTED)), ""), text
    decoded = _decoded(line, 42, at)
    if decoded[:2] != PLAIN:
        raise SignatureError(f"{at}: is no minisign public key")
    return decoded[2:10], decoded[10:]


def _is_file(text: str) -> bool:
    try:
        return Path(text).is_file()
    except (OSError, ValueError):  # a name that no file can have
        return False


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
