"""Ed25519 keys and DSSE envelopes: the one place where anything is signed or a signature believed.

An envelope is one line of canonical JSON with one signature. Any other writing of the same content
is refused, so no byte of a file can change and its signature still hold. A key is named by its id:
the SHA-256 that ``securesystemslib`` derives from the public key. Knows no certificate.

``securesystemslib`` and ``cryptography`` are an extra, loaded where a key or signature is at hand.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fleet.contract.canonical import canonical_json
from fleet.errors import CannotRunError, EvidenceError, NoEnvelope, UsageError

if TYPE_CHECKING:
    from securesystemslib.signer import CryptoSigner, SSlibKey

PAYLOAD_TYPE = "application/vnd.in-toto+json"
"""Of an in-toto statement in a DSSE envelope (in-toto attestation framework, spec v1)."""

KEY_VARIABLE = "FLEET_SIGNING_KEY"
KEYGEN = "fleet certificate keygen --out FILE makes a pair"


_KEYS = {"payload", "payloadType", "signatures"}, {"keyid", "sig"}
"""Of an envelope, and of its signature: the library would keep others, which nobody signed."""


@dataclass(frozen=True)
class Opened:
    """The payload of an envelope whose signature holds, and the id of the key that made it."""

    payload: dict[str, Any]
    keyid: str


def generate(path: Path) -> SSlibKey:
    """Write a new private key to ``path``, readable by its owner only, and ``path``.pub beside it.

    Raises:
        UsageError: one of them exists, or cannot be written; nothing is replaced.
    """
    _require_library()
    from securesystemslib.signer import CryptoSigner

    signer = CryptoSigner.generate_ed25519()
    public = path.with_name(path.name + ".pub")
    for file in (path, public):
        if file.exists() or file.is_symlink():
            raise UsageError(str(file), "", "no such file yet", "one", "name another --out")
    try:
        _write_new(path, signer.private_bytes, 0o600)
        _write_new(public, _public_pem(signer.public_key), 0o644)
    except OSError as error:
        got = error.strerror or str(error)
        raise UsageError(str(path), "", "a file that can be made", got, "name another --out") from (
            error
        )
    return signer.public_key


def _write_new(path: Path, data: bytes, mode: int) -> None:
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
        file.write(data)


def _public_pem(key: SSlibKey) -> bytes:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    public = Ed25519PublicKey.from_public_bytes(bytes.fromhex(key.keyval["public"]))
    return public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


def signer_of(file: Path | None, given: str | None) -> CryptoSigner:
    """The private key of a file, or else of :data:`KEY_VARIABLE`, which holds PEM text or a path.

    Raises:
        UsageError: there is none, or it is no unencrypted Ed25519 key. None is ever made here.
    """
    _require_library()
    if file is None and not given:
        where, got = "--key", f"none, and {KEY_VARIABLE} is not set"
        raise UsageError(where, "", "a private key", got, f"pass --key FILE; {KEYGEN}")
    if file is not None:
        return _signer(_read(file), str(file))
    text = given or ""
    if text.lstrip().startswith("-----BEGIN"):
        return _signer(text.encode(), KEY_VARIABLE)
    return _signer(_read(Path(text)), f"{KEY_VARIABLE}={text}")


def _signer(data: bytes, where: str) -> CryptoSigner:
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key
    from securesystemslib.signer import CryptoSigner

    try:
        key = load_pem_private_key(data, password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise _no_key(where, "private", "something else, or one with a password") from error
    if not isinstance(key, Ed25519PrivateKey):
        raise _no_key(where, "private", "a private key of another kind")
    return CryptoSigner(key)


def public_key(file: Path) -> SSlibKey:
    """The public key of a file.

    Raises:
        UsageError: it is not there, or no Ed25519 public key.
    """
    _require_library()
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    from cryptography.hazmat.primitives.serialization import load_pem_public_key
    from securesystemslib.signer import SSlibKey

    data = _read(file)
    if b"PRIVATE KEY" in data:
        raise _no_key(str(file), "public", "a private key, which nobody needs to verify")
    try:
        key = load_pem_public_key(data)
    except (ValueError, UnsupportedAlgorithm) as error:
        raise _no_key(str(file), "public", "something else") from error
    if not isinstance(key, Ed25519PublicKey):
        raise _no_key(str(file), "public", "a public key of another kind")
    return SSlibKey.from_crypto(key)


def key_from_hex(public: str) -> SSlibKey:
    """The public key of 64 hexadecimal digits.

    Raises:
        ValueError: they are none.
    """
    _require_library()
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    from securesystemslib.signer import SSlibKey

    return SSlibKey.from_crypto(Ed25519PublicKey.from_public_bytes(bytes.fromhex(public)))


def sign(payload: dict[str, Any], signer: CryptoSigner) -> bytes:
    """An envelope around canonical JSON: one line."""
    from securesystemslib.dsse import Envelope

    envelope = Envelope(canonical_json(payload), PAYLOAD_TYPE, {})
    envelope.sign(signer)
    return canonical_json(envelope.to_dict()) + b"\n"


def signed_by(data: bytes) -> str:
    """The id of the key that an envelope says it was signed with; nothing is checked.

    Raises:
        NoEnvelope: it is no envelope.
    """
    return str(_parse(data)["signatures"][0]["keyid"])


def unverified(data: bytes) -> dict[str, Any]:
    """The payload of an envelope, before anything is believed of it.

    Raises:
        NoEnvelope: it is no envelope.
        EvidenceError: its payload is no object of canonical JSON.
    """
    from base64 import b64decode

    try:
        payload = b64decode(_parse(data)["payload"], validate=True)
    except ValueError as error:
        raise EvidenceError("evidence-altered", f"the payload does not decode: {error}") from error
    return _object(payload)


def open_envelope(data: bytes, key: SSlibKey) -> Opened:
    """The payload, when this key signed these bytes.

    Raises:
        NoEnvelope: it is no envelope.
        EvidenceError: it was altered, or another key signed it.
    """
    from securesystemslib.dsse import Envelope
    from securesystemslib.exceptions import VerificationError

    raw = _parse(data)
    claimed = signed_by(data)
    exact = set(raw), set(raw["signatures"][0])
    if claimed != key.keyid:
        raise EvidenceError("wrong-key", f"signed with key {claimed}, not with {key.keyid}")
    try:
        envelope = Envelope.from_dict(raw)
        again = canonical_json(envelope.to_dict()) + b"\n"
        envelope.verify([key], 1)
    except (KeyError, TypeError, ValueError, VerificationError) as error:
        raise EvidenceError("evidence-altered", f"the signature does not hold: {error}") from error
    if exact != _KEYS or again != data or envelope.payload_type != PAYLOAD_TYPE:
        raise EvidenceError("evidence-altered", "the envelope is not in canonical form")
    return Opened(_object(envelope.payload), key.keyid)


def _parse(data: bytes) -> dict[str, Any]:
    try:
        raw = json.loads(data)
        (signature,) = raw["signatures"]
        fields = (raw["payload"], raw["payloadType"], signature["keyid"], signature["sig"])
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise NoEnvelope("evidence-altered", "no DSSE envelope with one signature") from error
    if not all(isinstance(value, str) for value in fields):
        raise NoEnvelope("evidence-altered", "no DSSE envelope with one signature")
    found: dict[str, Any] = raw
    return found


def _object(payload: bytes) -> dict[str, Any]:
    """Canonical JSON only: a key twice, or a number written otherwise, is two readings of one."""
    try:
        found = json.loads(payload)
        if isinstance(found, dict) and canonical_json(found) == payload:
            return found
    except (ValueError, RecursionError) as error:
        raise EvidenceError("evidence-altered", f"the payload is no JSON: {error}") from error
    raise EvidenceError("evidence-altered", "the payload is no object of canonical JSON")


def _read(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        got = error.strerror or str(error)
        raise UsageError(str(file), "", "a key file", got, KEYGEN) from error


def _no_key(where: str, kind: str, got: str) -> UsageError:
    return UsageError(where, "", f"an Ed25519 {kind} key as PEM", got, KEYGEN)


def _require_library() -> None:
    try:
        import cryptography  # noqa: F401
        import securesystemslib.dsse  # noqa: F401
    except ImportError as error:
        raise CannotRunError(
            "signatures", "", "securesystemslib and cryptography", f"{error.name} missing",
            "pip install 'fleet[certificates]'",
        ) from error  # fmt: skip
