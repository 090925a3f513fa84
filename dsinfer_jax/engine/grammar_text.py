"""JSON values and regular expressions as grammar texts."""

import json
from typing import Any

from dsinfer_jax.engine.structured_output import GrammarError

# Escapes stay possible in texts with a length, one character each; blanks cannot go on for ever.
JSON_OPTIONS: dict[str, Any] = {
    "whitespace_pattern": r"[\x20\x0A\x0D\x09]{1,20}",
    "json_allow_general_unicode_escapes": True,
}


def json_grammar(schema: str) -> str:
    """A grammar of the JSON texts that satisfy a JSON Schema.

    Raises:
        GrammarError: the schema is not JSON, or no schema.
    """
    try:
        parsed = json.loads(schema)
    except ValueError as error:
        raise GrammarError(f"the schema is not JSON ({error}); give a JSON Schema") from error
    if parsed is True:
        parsed = {}
    if not isinstance(parsed, dict):
        raise GrammarError(f"the schema is {str(parsed)[:40]}; it must be a JSON object")
    if "x-guidance" in parsed:
        raise GrammarError("the schema has x-guidance, which no schema may set; leave it out")
    return "start: %json " + json.dumps({**parsed, "x-guidance": JSON_OPTIONS}) + "\n"
