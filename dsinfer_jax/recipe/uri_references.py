"""URI references as far as schemas need them (RFC 3986)."""

from __future__ import annotations

import re

_BAD = re.compile(r"%(?![0-9A-Fa-f]{2})|[^A-Za-z0-9\-._~:/?#\[\]@!$&'()*+,;=%]")
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")


def uri_fault(text: str) -> str | None:
    """What is wrong with a URI reference, as the reference words it, or ``None``."""
    found = _BAD.search(text)
    if found is not None:
        what = "invalid percent-encoded octet" if found[0] == "%" else "unexpected character"
        return f"{what} at index {found.start()}"
    first_segment = re.split("[/?#]", text, maxsplit=1)[0]
    if ":" in first_segment and not _SCHEME.match(text):
        return "unexpected character at index 0"
    start = text.find("#")
    again = text.find("#", start + 1) if start >= 0 else -1
    return None if again < 0 else f"unexpected character at index {again}"


def is_absolute(text: str) -> bool:
    """Whether a reference has a scheme."""
    return _SCHEME.match(text) is not None
