"""Files that a command line names, read; what cannot be read is one sentence."""

import json
from pathlib import Path
from typing import Any


class PromptError(ValueError):
    """A prompt that cannot be read; one sentence with file, line and remedy."""


def read_text(path: Path) -> str:
    """The text of a file. Raises PromptError."""
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise PromptError(f"{path} cannot be read ({error.strerror}); name a prompt file") from None
    except UnicodeDecodeError as error:
        raise PromptError(f"{path} is not UTF-8 text (byte {error.start}); convert it") from None


def read_json(path: Path) -> Any:
    """The value in a JSON file. Raises PromptError."""
    text = read_text(path)
    try:
        return json.loads(text)
    except ValueError as error:
        raise PromptError(f"{path} is not valid JSON ({error})") from None
