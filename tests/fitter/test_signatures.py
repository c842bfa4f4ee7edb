"""Signatures in minisign's format, made here with keys made here, and every way in which they can be wrong."""

import base64
import hashlib
from pathlib import Path
from typing import NamedTuple

import pytest

from fitter.cli import main
from fitter.errors import SignatureError
from fitter.release.signatures import verify
from tests.fitter.measured import planted_bundle, saved

KEY_NUMBER = bytes(range(8))
COMMENT = "timestamp:1700000000\tfile:planted.json\thashed"


class Signer(NamedTuple):
    """A key pair: the public key as minisign writes it, and what signs."""

    public: str
    private: object

    def signature(self, content: bytes, *, comment: str = COMMENT, number: bytes = KEY_NUMBER) -> str:
        """A signature file."""
        sealed = self.private.sign(hashlib.blake2b(content).digest())  # type: ignore[attr-defined]
        second = self.private.sign(sealed + comment.encode())  # type: ignore[attr-defined]
        first = base64.b64encode(b"ED" + number + sealed).decode()
        return f"untrusted comment: made by a test\n{first}\ntrusted comment: {comment}\n{base64.b64encode(second).decode()}\n"


def signer() -> Signer:
    """A new key pair."""
    ed25519 = pytest.importorskip("cryptography.hazmat.primitives.asymmetric.ed25519", reason="the extra [sign] is not installed")
    private = ed25519.Ed25519PrivateKey.generate()
    return Signer(base64.b64encode(b"Ed" + KEY_NUMBER + private.public_key().public_bytes_raw()).decode(), private)


def test_a_signature_is_good_for_the_bytes_that_were_signed_and_no_others(tmp_path: Path) -> None:
    own, bundle = signer(), saved(planted_bundle(), tmp_path)
    signature = tmp_path / "planted.json.minisig"
    signature.write_text(own.signature(bundle.read_bytes()))
    key = tmp_path / "key.pub"
    key.write_text(f"untrusted comment: minisign public key 0706050403020100\n{own.public}\n")
    for given in (str(key), own.public):
        signed = verify(bundle, signature, given)
        assert signed.key == "0706050403020100"
        assert signed.comment == COMMENT.replace("\t", "?")
    content = bytearray(bundle.read_bytes())
    content[len(content) // 2] ^= 1
    bundle.write_bytes(bytes(content))
    with pytest.raises(SignatureError, match="changed after signing"):
        verify(bundle, signature, own.public)


def test_another_key_and_an_edited_comment_are_refused(tmp_path: Path) -> None:
    own, other, bundle = signer(), signer(), saved(planted_bundle(), tmp_path)
    signature = tmp_path / "s.minisig"
    text = own.signature(bundle.read_bytes())
    signature.write_text(text)
    with pytest.raises(SignatureError, match="changed after signing, or the signature is forged"):
        verify(bundle, signature, other.public)
    signature.write_text(text.replace("timestamp:17", "timestamp:18"))
    with pytest.raises(SignatureError, match="trusted comment was changed"):
        verify(bundle, signature, own.public)
    signature.write_text(own.signature(bundle.read_bytes(), number=b"another1"))
    with pytest.raises(SignatureError, match="was made with key 31726568746F6E61"):
        verify(bundle, signature, own.public)


SECOND = base64.b64encode(bytes(64)).decode()
KEY = base64.b64encode(b"Ed" + KEY_NUMBER + bytes(32)).decode()

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
def test_a_damaged_signature_is_refused_in_one_line(tmp_path: Path, name: str) -> None:
    bundle = saved(planted_bundle(), tmp_path)
    text, message = DAMAGED[name]
    path = tmp_path / "s.minisig"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(SignatureError, match=message) as caught:
        verify(bundle, path, KEY)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("key", ["", "AAAA", "none.pub", base64.b64encode(b"XX" + bytes(40)).decode(), "\0", "ä" * 56, "../../etc/passwd"])
def test_a_key_that_is_none_is_refused_in_one_line(tmp_path: Path, key: str) -> None:
    with pytest.raises(SignatureError) as caught:
        verify(saved(planted_bundle(), tmp_path), tmp_path / "s.minisig", key)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "comment", "status"),
    [
        ("planted.json", COMMENT, 0),
        ("planted-{version}.json", "no file is stated", 0),
        ("planted.json", COMMENT.replace("planted", "planted-{version}"), 1),
        ("planted.json", "no file is stated", 1),
        ("planted-9.9.9.json", COMMENT, 1),
    ],
)
def test_a_signed_bundle_does_not_pass_for_another_one_or_for_a_newer_release(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, comment: str, status: int
) -> None:
    own, bundle = signer(), planted_bundle()
    path = saved(bundle, tmp_path)
    path = path.rename(path.with_name(name.format(version=bundle.version)))
    assert main(["verify", str(path), "--key", own.public]) == 1
    assert capsys.readouterr().err.count("\n") == 1
    Path(f"{path}.minisig").write_text(own.signature(path.read_bytes(), comment=comment.format(version=bundle.version)))
    assert main(["verify", str(path), "--key", own.public]) == status
    captured = capsys.readouterr()
    assert ("under another name" in captured.err) == bool(status)
    assert ("signed with key 0706050403020100" in captured.out) != bool(status)
