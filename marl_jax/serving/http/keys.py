"""Keys of clients, and the addresses on which a server may listen without one."""

from __future__ import annotations

import functools
import hashlib
import ipaddress
import re
from typing import Any

from marl_jax.errors import ConfigError
from marl_jax.serving.http.errors import ApiError


class Keys:
    """Bearer keys and whom each belongs to; keys can come and go while the server runs.

    Only digests are kept, and a key is found by its digest, so the time a look-up takes says nothing about the keys.
    """

    def __init__(self, required: bool = True):
        self.required = required
        self._owners: dict[bytes, Any] = {}

    @classmethod
    def of(cls, key: str) -> Keys:
        """One key, whose owner is "admin"; none is required where it is ""."""
        keys = cls(required=bool(key))
        if key:
            keys.add(key, "admin")
        return keys

    def add(self, key: str, owner: Any) -> None:
        """Accepts a key from now on."""
        if not re.fullmatch(r"[!-~]{8,}", key):
            raise ConfigError(["a key needs 8 or more characters, all of them printable ASCII without spaces"])
        self._owners[_digest(key.encode())] = owner

    def remove(self, key: str) -> None:
        """Accepts a key no more."""
        self._owners.pop(_digest(key.encode()), None)

    def find(self, key: bytes) -> Any:
        """Whom a key belongs to; None where it is none of them."""
        return self._owners.get(_digest(key))

    def owner(self, header: bytes) -> Any:
        """Whom the value of an Authorization header belongs to; None where no key is needed and none is known."""
        scheme, _, key = header.partition(b" ")
        digest = _digest(key.strip())
        if scheme.lower() == b"bearer" and digest in self._owners:
            return self._owners[digest]
        if not self.required:
            return None
        message = "this key is not accepted" if header else "a key is needed: the header 'Authorization: Bearer KEY'"
        raise ApiError(401, message, code="invalid_api_key", headers={"WWW-Authenticate": "Bearer"})


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()


@functools.lru_cache(maxsize=64)
def is_loopback(host: str) -> bool:
    """Whether an address can be reached from this machine only."""
    try:
        return host == "localhost" or ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def check_address(host: str, keys: Keys, source: str = "a key") -> None:
    """Refuses to listen on an address that others can reach where no key is required; `source` says how to set one."""
    if not keys.required and not is_loopback(host):
        raise ConfigError(
            [f"config.serve.host is {host!r}, which others can reach, but must be 127.0.0.1, or {source}"]
        )
