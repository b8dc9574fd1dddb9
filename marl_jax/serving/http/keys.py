"""API keys of clients, and the addresses that a server may use without one."""

from __future__ import annotations

import functools
import hashlib
import ipaddress
import re
from typing import Any

from marl_jax.errors import ConfigError
from marl_jax.serving.http.errors import ApiError


class Keys:
    """Bearer keys and their owners. Keys can be added and removed while the server runs.

    Only digests are stored and compared, so the time of a lookup reveals nothing about the keys.
    """

    def __init__(self, required: bool = True):
        self.required = required
        self._owners: dict[bytes, Any] = {}

    @classmethod
    def of(cls, key: str) -> Keys:
        """Create keys with one key, owned by "admin".

        If the key is "", no key is required.
        """
        keys = cls(required=bool(key))
        if key:
            keys.add(key, "admin")
        return keys

    def add(self, key: str, owner: Any) -> None:
        """Accept a key from now on."""
        if not re.fullmatch(r"[!-~]{8,}", key):
            raise ConfigError(["the key must have at least 8 characters, all printable ASCII without spaces"])
        self._owners[_digest(key.encode())] = owner

    def remove(self, key: str) -> None:
        """Stop accepting a key."""
        self._owners.pop(_digest(key.encode()), None)

    def find(self, key: bytes) -> Any:
        """Return the owner of a key, or None if the key is unknown."""
        return self._owners.get(_digest(key))

    def owner(self, header: bytes) -> Any:
        """Return the owner of the key in an Authorization header.

        Returns None if no key is required and the header has no known key. Raises `ApiError` if a key is required.
        """
        scheme, _, key = header.partition(b" ")
        digest = _digest(key.strip())
        if scheme.lower() == b"bearer" and digest in self._owners:
            return self._owners[digest]
        if not self.required:
            return None
        message = "invalid key" if header else "missing key; send the header 'Authorization: Bearer KEY'"
        raise ApiError(401, message, code="invalid_api_key", headers={"WWW-Authenticate": "Bearer"})


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()


@functools.lru_cache(maxsize=64)
def is_loopback(host: str) -> bool:
    """Return whether an address can be reached from this machine only."""
    try:
        return host == "localhost" or ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def check_address(host: str, keys: Keys, source: str = "set a key") -> None:
    """Reject an address that other machines can reach when no key is required.

    Args:
        host: Address to listen on.
        keys: Keys of the server.
        source: Advice on how to set a key.
    """
    if not keys.required and not is_loopback(host):
        raise ConfigError(
            [f"config.serve.host is {host!r}, which other machines can reach. Set it to 127.0.0.1, or {source}."]
        )
