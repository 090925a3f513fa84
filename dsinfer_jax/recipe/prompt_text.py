"""The literal strings of the two prompt formats (recipe.md 3.2 to 3.5).

Protocol data: every character counts. Control tokens stand in their default spelling and are
replaced by those of a ``SpecialTokens`` when a template is prepared.
"""

from __future__ import annotations

import re

from dsinfer_jax.recipe.special_tokens import SpecialTokens

TOOL_RESULT_OPEN = "<tool_result>"
TOOL_RESULT_CLOSE = "</tool_result>"

_TOOLS_HEAD = """

## Tools

You have access to a set of tools to help answer the user's question. You can invoke tools by \
writing a "<｜DSML｜{calls}>" block like the following:

<｜DSML｜{calls}>
<｜DSML｜{invoke} name="$TOOL_NAME">
<｜DSML｜{parameter} name="$PARAMETER_NAME" string="true|false">\
$PARAMETER_VALUE</｜DSML｜{parameter}>
...
</｜DSML｜{invoke}>
<｜DSML｜{invoke} name="$TOOL_NAME2">
...
</｜DSML｜{invoke}>
</｜DSML｜{calls}>

String parameters should be specified as is and set `string="true"`. For all other types \
(numbers, booleans, arrays, objects), pass the value in JSON format and set `string="false"`.

If thinking_mode is enabled (triggered by <think>), you MUST output your complete reasoning inside \
<think>...</think> BEFORE any tool calls or final response.

Otherwise, output directly after </think> with tool calls or final response.

### Available Tool Schemas

"""
TOOLS_HEAD_V41 = _TOOLS_HEAD.format(calls=" calls", invoke=" invoke", parameter=" parameter")
TOOLS_HEAD_V4 = _TOOLS_HEAD.format(calls="tool_calls", invoke="invoke", parameter="parameter")
TOOLS_TAIL = """
You MUST strictly follow the above defined tool name and parameter schemas to invoke tool calls.
"""
UPDATED_TOOLS_HEAD = "\n\n### Updated Tool Schemas\n\n"

REQUIRED_OPENING_V41 = "\n\n<｜DSML｜ calls>\n"
REQUIRED_OPENING_V4 = "\n\n<｜DSML｜tool_calls>\n"

RESPONSE_FORMAT_HEAD = """

## Response Format:

You MUST strictly adhere to the following schema to reply:
"""
JSON_OBJECT_V41 = RESPONSE_FORMAT_HEAD + '{"type": "json_object"}'
JSON_OBJECT_V4 = """

You are a helpful assistant designed to output JSON.
## Response Format:

Reply with JSON object ONLY."""

_EFFORT_V41 = (
    "Reasoning Effort: {} (range 1-100, the higher the value, the more thorough the reasoning)\n\n"
)
EFFORT_V41 = {
    "low": _EFFORT_V41.format(50),
    "high": _EFFORT_V41.format(75),
    "xhigh": _EFFORT_V41.format(75),
    "max": _EFFORT_V41.format(100),
    None: _EFFORT_V41.format(75),
}
_EFFORT_V4_HIGH = """\
Reasoning Effort: Absolute maximum with no shortcuts permitted.
You MUST be very thorough in your thinking and comprehensively decompose the problem to resolve \
the root cause, rigorously stress-testing your logic against all potential paths, edge cases, and \
adversarial scenarios.
Explicitly write out your entire deliberation process, documenting every intermediate step, \
considered alternative, and rejected hypothesis to ensure absolutely no assumption is left \
unchecked.

"""
_EFFORT_V4_MAX = """\
Reasoning Effort: Beyond maximum — exhaustive, relentless, and uncompromising.
You MUST reason with the utmost depth and rigor, leaving absolutely nothing to chance: \
exhaustively decompose the problem into its most fundamental components, trace every causal chain \
to its root, and resolve the underlying cause rather than any surface symptom.
Do not stop reasoning until you have independently verified the solution from multiple angles and \
are certain that no assumption remains unchecked and no error remains undiscovered.

"""
EFFORT_V4 = {
    "low": "",
    "high": _EFFORT_V4_HIGH,
    "xhigh": _EFFORT_V4_HIGH,
    "max": _EFFORT_V4_MAX,
    None: _EFFORT_V4_HIGH,
}

_CONTROL = re.compile("(｜DSML｜|<think>|</think>)")


def template(text: str, tokens: SpecialTokens) -> list[str]:
    """``text`` cut at its control tokens: plain, spelling, plain, ..., plain."""
    spellings = {
        "｜DSML｜": tokens._dsml,
        "<think>": tokens._thinking_start,
        "</think>": tokens._thinking_end,
    }
    return [spellings.get(piece, piece) for piece in _CONTROL.split(text)]
