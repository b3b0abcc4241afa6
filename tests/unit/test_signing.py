"""Keys and envelopes: only what a key signed, written in the one way that it was signed, opens."""

from __future__ import annotations

import base64
import hashlib
import json
import random
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)
from hypothesis import given
from hypothesis import strategies as st
from securesystemslib.signer import CryptoSigner

from fleet.contract.canonical import canonical_json
from fleet.errors import EvidenceError, UsageError
from fleet.evidence import signing
from fleet.evidence.signing import generate, open_envelope, public_key, sign, signer_of
from fleet.evidence.statement import CERTIFICATE, STATEMENT, read_statement, statement

SEED = bytes(range(32))
PAYLOAD: dict[str, Any] = {"_type": "x", "number": 1, "float": 0.1, "text": "a\u00e9", "none": None}
GOLDEN = (
    b'{"payload":"eyJfdHlwZSI6IngiLCJmbG9hdCI6MC4xLCJub25lIjpudWxsLCJudW1iZXIiOjEsInRleHQiOiJhw6ki'
    b'fQ==","payloadType":"application/vnd.in-toto+json","signatures":[{"keyid":"KEYID","sig":"SIG"'
    b"}]}\n"
)


def signer(seed: bytes = SEED) -> CryptoSigner:
    return CryptoSigner(Ed25519PrivateKey.from_private_bytes(seed))


def test_an_envelope_is_what_the_specification_says_by_hand() -> None:
    """DSSE v1: the signature is over PAE(type, payload); Ed25519 (RFC 8032) gives one signature."""
    data = sign(PAYLOAD, signer())
    body = canonical_json(PAYLOAD)
    kind = b"application/vnd.in-toto+json"
    pae = b"DSSEv1 28 application/vnd.in-toto+json " + str(len(body)).encode() + b" " + body
    key = Ed25519PrivateKey.from_private_bytes(SEED)
    public = key.public_key().public_bytes_raw().hex()
    described = {"keytype": "ed25519", "scheme": "ed25519", "keyval": {"public": public}}
    keyid = hashlib.sha256(canonical_json(described)).hexdigest()
    sig = base64.b64encode(key.sign(pae))
    assert len(kind) == 28
    assert data == GOLDEN.replace(b"KEYID", keyid.encode()).replace(b"SIG", sig)
    assert public == "03a107bff3ce10be1d70dd18e74bc09967e4d6309ba50d5f1ddc8664125531b8"
    Ed25519PublicKey.from_public_bytes(bytes.fromhex(public)).verify(
        base64.b64decode(json.loads(data)["signatures"][0]["sig"]), pae
    )


def test_what_was_signed_opens_under_its_key_and_no_other() -> None:
    data = sign(PAYLOAD, signer())
    opened = open_envelope(data, signer().public_key)
    assert (opened.payload, opened.keyid) == (PAYLOAD, signer().public_key.keyid)
    with pytest.raises(EvidenceError, match="wrong-key"):
        open_envelope(data, signer(bytes(32)).public_key)


def test_no_byte_can_change() -> None:
    data, key, chance = sign(PAYLOAD, signer()), signer().public_key, random.Random(0)
    for position in chance.sample(range(len(data)), min(200, len(data))):
        for value in {data[position] ^ 1, data[position] ^ 0x20, chance.randrange(256)}:
            altered = data[:position] + bytes([value]) + data[position + 1 :]
            if altered != data:
                with pytest.raises(EvidenceError):
                    open_envelope(altered, key)


def rewritten(change: Any) -> bytes:
    raw = json.loads(sign(PAYLOAD, signer()))
    change(raw)
    return canonical_json(raw) + b"\n"


def last_bits(raw: dict[str, Any]) -> None:
    """Base64 leaves bits of its last letter unused."""
    sig = raw["signatures"][0]["sig"]
    assert sig.endswith("==")
    letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
    other = letters[letters.index(sig[-3]) ^ 1]
    raw["signatures"][0]["sig"] = f"{sig[:-3]}{other}=="


@pytest.mark.parametrize(
    "data",
    [
        sign(PAYLOAD, signer()) + b"\n",
        sign(PAYLOAD, signer())[:-1],
        sign(PAYLOAD, signer()).replace(b'","payloadType', b'", "payloadType'),
        rewritten(lambda raw: raw.update(more=1)),
        rewritten(lambda raw: raw["signatures"][0].update(more=1)),
        rewritten(lambda raw: raw.update(payloadType="text/plain")),
        rewritten(lambda raw: raw["signatures"].append(raw["signatures"][0])),
        rewritten(lambda raw: raw.update(signatures=[])),
        rewritten(last_bits),
        b"",
        b"[]",
        b"{" * 100_000,
        b"\xff\xfe",
    ],
)
def test_the_same_content_written_otherwise_does_not_open(data: bytes) -> None:
    with pytest.raises(EvidenceError):
        open_envelope(data, signer().public_key)


@pytest.mark.parametrize("body", [b'{"a":1,"a":2}', b'{"b":1,"a":2}', b"[1]", b"1", b"{} ", b"x"])
def test_a_payload_that_reads_in_two_ways_does_not_open_though_it_was_signed(body: bytes) -> None:
    from securesystemslib.dsse import Envelope

    envelope = Envelope(body, signing.PAYLOAD_TYPE, {})
    envelope.sign(signer())
    with pytest.raises(EvidenceError):
        open_envelope(canonical_json(envelope.to_dict()) + b"\n", signer().public_key)


TEXTS = st.text(st.characters(codec="utf-8"))
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXTS,
    lambda inner: st.lists(inner) | st.dictionaries(TEXTS, inner),
    max_leaves=8,
)


@given(st.dictionaries(TEXTS, VALUES))
def test_any_canonical_payload_comes_back_as_it_was(payload: dict[str, Any]) -> None:
    body = canonical_json(payload)
    assert canonical_json(json.loads(body)) == body
    assert open_envelope(sign(payload, signer()), signer().public_key).payload == json.loads(body)
    shuffled = dict(reversed(list(payload.items())))
    assert canonical_json(shuffled) == body and sign(shuffled, signer()) == sign(payload, signer())


# keys


def test_a_key_is_made_once_for_its_owner_only(tmp_path: Path) -> None:
    key = generate(tmp_path / "k")
    assert stat.S_IMODE((tmp_path / "k").stat().st_mode) == 0o600
    assert public_key(tmp_path / "k.pub").keyid == key.keyid
    assert signer_of(tmp_path / "k", None).public_key.keyid == key.keyid
    assert signer_of(None, (tmp_path / "k").read_text()).public_key.keyid == key.keyid
    assert signer_of(None, str(tmp_path / "k")).public_key.keyid == key.keyid
    (tmp_path / "l.pub").write_text("mine")
    for name in ("k", "l"):
        with pytest.raises(UsageError, match="no such file yet"):
            generate(tmp_path / name)
    assert not (tmp_path / "l").exists() and (tmp_path / "l.pub").read_text() == "mine"
    with pytest.raises(UsageError, match="a file that can be made"):
        generate(tmp_path / "no" / "folder")


def pem(key: Any, password: bytes | None = None) -> bytes:
    how = BestAvailableEncryption(password) if password else NoEncryption()
    data: bytes = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, how)
    return data


def test_only_an_ed25519_key_signs_or_verifies(tmp_path: Path) -> None:
    other = generate_private_key(SECP256R1())
    file, mine = tmp_path / "k", Ed25519PrivateKey.from_private_bytes(SEED)
    for data in (pem(other), pem(mine, b"secret"), b"nothing", b""):
        file.write_bytes(data)
        with pytest.raises(UsageError, match="Ed25519 private key"):
            signer_of(file, None)
    spki = Encoding.PEM, PublicFormat.SubjectPublicKeyInfo
    for data in (other.public_key().public_bytes(*spki), pem(mine), b"nothing"):
        file.write_bytes(data)
        with pytest.raises(UsageError, match="Ed25519 public key"):
            public_key(file)
    with pytest.raises(UsageError, match="FLEET_SIGNING_KEY is not set"):
        signer_of(None, None)


def test_a_missing_library_is_one_clear_error_and_reading_verdicts_needs_none() -> None:
    program = (
        "import sys; sys.modules['cryptography'] = None; sys.modules['securesystemslib'] = None\n"
        "import fleet.report.status, fleet.schedule.certify, fleet.report.verification\n"
        "from fleet.evidence.signing import signer_of\n"
        "try: signer_of(None, 'x')\n"
        "except Exception as error: print(type(error).__name__, error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith("CannotRunError") and "fleet[certificates]" in done.stdout


# statements


def test_a_statement_is_the_in_toto_form_and_comes_back() -> None:
    made = statement(CERTIFICATE, {"execution-id": "sha256:" + "ab" * 32}, {"a": 1})
    assert made == {
        "_type": STATEMENT,
        "subject": [{"name": "execution-id", "digest": {"sha256": "ab" * 32}}],
        "predicateType": CERTIFICATE,
        "predicate": {"a": 1},
    }
    assert read_statement(made, CERTIFICATE) == ({"execution-id": "sha256:" + "ab" * 32}, {"a": 1})


@pytest.mark.parametrize(
    "change",
    [
        {"_type": "https://in-toto.io/Statement/v0.1"},
        {"predicateType": "https://fleet.dev/attestation/certificate/v2"},
        {"more": 1},
        {"predicate": []},
        {"subject": [{"name": "x", "digest": {"sha256": "zz"}}]},
        {"subject": [{"name": "x", "digest": {"sha256": "ab" * 32}}] * 2},
    ],
)
def test_another_kind_or_version_of_statement_is_not_read(change: dict[str, Any]) -> None:
    made = statement(CERTIFICATE, {"x": "sha256:" + "ab" * 32}, {}) | change
    with pytest.raises(EvidenceError, match="not a statement"):
        read_statement(made, CERTIFICATE)
