"""Data URLs and base64, as browsers read them (WHATWG Fetch, "data: URLs")."""

from __future__ import annotations

import re
from base64 import b64decode, b64encode
from typing import NamedTuple
from urllib.parse import unquote_to_bytes

_SCHEME = re.compile(r"data:", re.IGNORECASE)
_BASE64 = re.compile(r";[ ]*base64\Z", re.IGNORECASE)
_NOT_BASE64 = re.compile(rb"[^A-Za-z0-9+/]")


class DataUrl(NamedTuple):
    """The media type in lower case, without parameters, and the data; ``None`` if it is broken."""

    media_type: str
    data: bytes | None


def read_data_url(url: str) -> DataUrl | None:
    """The parts of a data URL, or ``None`` for another kind of address."""
    text = url.lstrip("".join(map(chr, range(0x21)))).translate({9: None, 10: None, 13: None})
    if not _SCHEME.match(text) or "," not in text:
        return None
    header, _, body = text[5:].partition(",")
    header = header.strip(" ")
    data: bytes | None = unquote_to_bytes(body.partition("#")[0])
    marker = _BASE64.search(header)
    if marker is not None and data is not None:
        header = header[: marker.start()]
        data = forgiving_base64(data)
    return DataUrl(header.partition(";")[0].strip().lower(), data)


def forgiving_base64(text: bytes) -> bytes | None:
    """The decoded bytes; blanks are skipped, padding is optional; ``None`` if it is no base64."""
    text = text.translate(None, b" \t\n\r\f")
    if len(text) % 4 == 0:
        text = text.removesuffix(b"=").removesuffix(b"=")
    if len(text) % 4 == 1 or _NOT_BASE64.search(text):
        return None
    return b64decode(text + b"=" * (-len(text) % 4))


def is_unpadded_base64(text: bytes) -> bool:
    """Whether base64 without padding decodes; bits that are left over must be zero."""
    if len(text) % 4 == 1 or _NOT_BASE64.search(text):
        return False
    return b64encode(b64decode(text + b"=" * (-len(text) % 4))).rstrip(b"=") == text
