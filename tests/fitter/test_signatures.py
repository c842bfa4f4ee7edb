"""Signatures in minisign's format, made here with keys made here, and every way in which they can be wrong."""

import base64
import hashlib
from pathlib import Path
from typing import NamedTuple

import pytest

from fitter.cli import main
from fitter.errors import SignatureError
from fitter.release.signatures import verify
from tests.estimator.estimating import fails, run
from tests.fitter.measured import PLANTED, saved
from tests.words import one_line

KEY_NUMBER = bytes(range(8))
COMMENT = "timestamp:1700000000\tfile:planted.json\thashed"


class Signer(NamedTuple):
    """A key pair: the file of the public key, and what signs."""

    public: Path
    private: object

    def sign(self, bundle, *, comment=COMMENT, number=KEY_NUMBER):
        """The signature file beside a bundle."""
        sealed = self.private.sign(hashlib.blake2b(bundle.read_bytes()).digest())
        second = self.private.sign(sealed + comment.encode())
        first = base64.b64encode(b"ED" + number + sealed).decode()
        path = Path(f"{bundle}.minisig")
        path.write_text(f"untrusted comment: made by a test\n{first}\ntrusted comment: {comment}\n{base64.b64encode(second).decode()}\n")
        return path


def key_file(folder, content):
    path = folder / f"{len(list(folder.iterdir()))}.pub"
    path.write_text(f"untrusted comment: minisign public key\n{base64.b64encode(content).decode()}\n")
    return path


def signer(folder):
    """A new key pair."""
    ed25519 = pytest.importorskip("cryptography.hazmat.primitives.asymmetric.ed25519", reason="the extra [sign] is not installed")
    private = ed25519.Ed25519PrivateKey.generate()
    return Signer(key_file(folder, b"Ed" + KEY_NUMBER + private.public_key().public_bytes_raw()), private)


def test_a_signature_is_good_for_its_key_its_comment_and_the_bytes_that_were_signed(tmp_path):
    own, other, bundle = signer(tmp_path), signer(tmp_path), saved(PLANTED, tmp_path)
    signature = own.sign(bundle)
    signed = verify(bundle, own.public)
    assert (signed.key, signed.comment) == ("0706050403020100", COMMENT.replace("\t", "?"))
    with pytest.raises(SignatureError, match="changed after signing, or the signature is forged"):
        verify(bundle, other.public)
    signature.write_text(signature.read_text().replace("timestamp:17", "timestamp:18"))
    with pytest.raises(SignatureError, match="trusted comment was changed"):
        verify(bundle, own.public)
    own.sign(bundle, number=b"another1")
    with pytest.raises(SignatureError, match="was made with key 31726568746F6E61"):
        verify(bundle, own.public)
    own.sign(bundle)
    content = bytearray(bundle.read_bytes())
    content[len(content) // 2] ^= 1
    bundle.write_bytes(bytes(content))
    with pytest.raises(SignatureError, match="changed after signing"):
        verify(bundle, own.public)


SECOND = base64.b64encode(bytes(64)).decode()

DAMAGED = {
    "empty": ("", "no minisign signature"),
    "not base64": (f"untrusted comment: \n???\ntrusted comment: \n{SECOND}\n", "base64"),
    "too short": (f"untrusted comment: \n{SECOND}\ntrusted comment: \n{SECOND}\n", "holds 64 bytes where 74"),
    "other algorithm": (
        f"untrusted comment: \n{base64.b64encode(b'Ed' + KEY_NUMBER + bytes(64)).decode()}\ntrusted comment: \n{SECOND}\n",
        "is not over the hash",
    ),
    "giant": ("untrusted comment: " + "x" * 100_000, "larger than"),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_a_damaged_signature_is_refused_in_one_line(tmp_path, name):
    bundle = saved(PLANTED, tmp_path)
    text, message = DAMAGED[name]
    Path(f"{bundle}.minisig").write_text(text)
    with one_line(SignatureError, match=message):
        verify(bundle, key_file(tmp_path, b"Ed" + KEY_NUMBER + bytes(32)))


def test_a_key_that_is_none_is_refused_in_one_line(tmp_path):
    bundle = saved(PLANTED, tmp_path)
    for key in (tmp_path / "none.pub", Path("\0"), bundle, tmp_path, key_file(tmp_path, b"AA"), key_file(tmp_path, b"XX" + bytes(40))):
        with one_line(SignatureError):
            verify(bundle, key)


@pytest.mark.parametrize(
    "name, comment, status",
    [
        ("planted.json", COMMENT, 0),
        ("planted-{version}.json", "no file is stated", 0),
        ("planted.json", COMMENT.replace("planted", "planted-{version}"), 1),
        ("planted.json", "no file is stated", 1),
        ("planted-9.9.9.json", COMMENT, 1),
    ],
)
def test_a_signed_bundle_does_not_pass_for_another_one_or_for_a_newer_release(tmp_path, name, comment, status):
    own, bundle = signer(tmp_path), PLANTED
    path = saved(bundle, tmp_path)
    path = path.rename(path.with_name(name.format(version=bundle.version)))
    words = ("verify", path, "--key", own.public)
    fails(words, program=main)
    own.sign(path, comment=comment.format(version=bundle.version))
    found = run(words, program=main)
    assert found.status == status
    assert ("under another name" in found.err) == bool(status)
    assert ("key: 0706050403020100" in found.out) != bool(status)
