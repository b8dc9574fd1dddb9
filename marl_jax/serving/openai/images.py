"""Images in messages, as data: URLs or https URLs of configured hosts."""

from __future__ import annotations

import base64
import binascii
import re
import urllib.error
import urllib.request
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from marl_jax.serving.http.errors import ApiError

if TYPE_CHECKING:
    import numpy as np

MOST_PIXELS = 1 << 24
MOST_BYTES = 8 << 20  # of a file that is fetched
SECONDS = 10.0
_DATA = re.compile(r"data:image/(png|jpeg|jpg|webp|bmp);base64,", re.IGNORECASE)


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Refusal of redirects, which could lead to other hosts."""

    def redirect_request(self, *args):
        """Return None, so that the redirect is an error."""
        return None


def check_url(url: str, hosts: Collection[str]) -> None:
    """Reject an image that is neither a data: URL nor on one of the hosts."""
    if _DATA.match(url):
        return
    parts = urlsplit(url)
    if parts.scheme == "https" and parts.hostname in hosts and parts.port in (None, 443):
        return
    known = f" or an https URL of one of: {', '.join(hosts)}" if hosts else ""
    raise _refusal(
        f"image_url.url is {url[:80]!r}, but must be data:image/png;base64,… or the same with jpeg, webp or bmp"
        f"{known}. Other hosts need serve.image_hosts"
    )


def read(urls: Sequence[str]) -> list[np.ndarray]:
    """Return the pixels of images, uint8 [H, W, 3], from checked URLs.

    Blocks while it fetches them.
    """
    from models.images import read_image  # server workers have no JAX

    try:
        return [read_image(_contents(url), MOST_PIXELS) for url in urls]
    except (ValueError, ImportError) as error:
        raise _refusal(str(error)[:500]) from None


def _contents(url: str) -> bytes:
    """Return the file of a URL."""
    head = _DATA.match(url)
    if head:
        try:
            return base64.b64decode(url[head.end() :], validate=True)
        except binascii.Error:
            raise _refusal("image_url.url is a data: URL, but its contents are not base64") from None
    try:
        with urllib.request.build_opener(_NoRedirect).open(url, timeout=SECONDS) as reply:
            contents = reply.read(MOST_BYTES + 1)
    except (OSError, urllib.error.URLError) as error:
        raise _refusal(f"image_url.url is {url[:80]!r}, but it cannot be fetched: {error}") from None
    if len(contents) > MOST_BYTES:
        raise _refusal(f"image_url.url is {url[:80]!r}, but the file must have at most {MOST_BYTES:,} bytes")
    return contents


def _refusal(message: str) -> ApiError:
    return ApiError(400, message, param="messages", code="invalid_image")
