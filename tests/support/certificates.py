"""Certificates for tests: an authority of our own, and files as operators have them."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path

import trustme
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.serialization import PrivateFormat as Format


@dataclass(frozen=True)
class Pair:
    """Files of a certificate and its key."""

    certfile: Path
    keyfile: Path

    def flags(self) -> list[str]:
        """The server's flags for this pair."""
        return ["--ssl-certfile", str(self.certfile), "--ssl-keyfile", str(self.keyfile)]


class Authority:
    """Issues certificates, and contexts that trust them. Files go to ``folder``."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._ca = trustme.CA()
        self.file = folder / "ca.pem"
        self._ca.cert_pem.write_to_path(self.file)

    def pair(self, name: str, *identities: str, key: trustme.KeyType = trustme.KeyType.ECDSA) -> Pair:
        """A certificate for ``identities``, this machine's names if none are given."""
        issued = self._ca.issue_cert(*(identities or ("127.0.0.1", "localhost")), key_type=key)
        pair = Pair(self.folder / f"{name}.pem", self.folder / f"{name}.key")
        pair.certfile.write_bytes(b"".join(blob.bytes() for blob in issued.cert_chain_pems))
        pair.keyfile.write_bytes(issued.private_key_pem.bytes())
        return pair

    def context(self, *alpn: str, client: Pair | None = None) -> ssl.SSLContext:
        """A client's context that trusts the authority, offers ``alpn`` and shows ``client``."""
        context = ssl.create_default_context(cafile=str(self.file))
        if alpn:
            context.set_alpn_protocols(list(alpn))
        if client is not None:
            context.load_cert_chain(client.certfile, client.keyfile)
        return context


def rewrite_key(pair: Pair, name: str, form: Format, password: bytes | None = None) -> Pair:
    """The same certificate with its key in another form, encrypted with ``password``."""
    key = serialization.load_pem_private_key(pair.keyfile.read_bytes(), None)
    encryption: serialization.KeySerializationEncryption = serialization.NoEncryption()
    if password is not None:
        encryption = serialization.BestAvailableEncryption(password)
    path = pair.keyfile.with_name(name)
    path.write_bytes(key.private_bytes(serialization.Encoding.PEM, form, encryption))
    return Pair(pair.certfile, path)
