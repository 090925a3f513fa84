"""What an output must look like: the request side of structured output (engine.md 6.1).

Standard library only: a request is checked before anything heavy is loaded.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

Kind = Literal["json_object", "json_schema", "regex", "lark", "tool_calls"]
LONGEST_SOURCE = 1 << 20  # characters
LONGEST_TRIGGER = 255  # tokens


class GrammarError(ValueError):
    """A constraint that cannot be enforced as it stands; the message is a sentence."""


@dataclass(frozen=True)
class StructuredOutput:
    """A constraint on the output.

    Attributes:
        kind: what `source` is.
        source: a JSON Schema as text, a regular expression that the whole output must match, a
            grammar in llguidance's dialect of Lark, or the list of tools as JSON. Empty for
            `json_object`.
        trigger_token_ids: the output is free until these tokens have come one after the other, such
            as the end of thinking; the grammar starts with the next token. Empty: at once.
        after_marker: of `tool_calls`: the calls block has begun. False: with the marker token in
            its opening tag, so the grammar starts there.

    Raises:
        ValueError: one sentence with field, value and what is allowed.
    """

    kind: Kind
    source: str = ""
    trigger_token_ids: tuple[int, ...] = ()
    after_marker: bool = False

    def __post_init__(self) -> None:
        if self.kind not in get_args(Kind):
            raise ValueError(
                f"kind is {self.kind!r}; it must be one of {', '.join(get_args(Kind))}"
            )
        if not isinstance(self.source, str) or len(self.source) > LONGEST_SOURCE:
            raise ValueError(
                f"source has {len(self.source)} characters; it must be a text of at most "
                f"{LONGEST_SOURCE}"
            )
        if bool(self.source) == (self.kind == "json_object"):
            raise ValueError(
                f"source is {self.source[:40]!r}; it must be empty for json_object and only then"
            )
        tokens = self.trigger_token_ids
        fair = all(isinstance(token, int) and 0 <= token < 2**31 for token in tokens)
        if not fair or len(tokens) > LONGEST_TRIGGER:
            raise ValueError(
                f"trigger_token_ids is {tokens!r}; it must be at most {LONGEST_TRIGGER} token ids"
            )

    @classmethod
    def of_constraint(
        cls, kind: str, schema: str, *, thinking_end: Sequence[int], marker: int
    ) -> "StructuredOutput":
        """The constraint that a rendered request carries (recipe.md 2.8).

        Args:
            kind, schema: of the recipe's output constraint.
            thinking_end: tokens that end thinking if the prompt opens it, otherwise empty.
            marker: id of the marker token of tool calls.

        Raises:
            ValueError: an unknown kind.
        """
        if kind == "tool_call":
            return cls("tool_calls", schema, (marker,))
        if kind == "tool_call_required":  # the prompt ends with the block's opening tag
            return cls("tool_calls", schema, after_marker=True)
        kinds: dict[str, Kind] = {"json": "json_schema" if schema else "json_object"}
        kinds["regex"] = "regex"
        if kind not in kinds:
            raise ValueError(f"kind is {kind!r}; the recipe knows json, regex and tool calls")
        return cls(kinds[kind], schema, tuple(thinking_end))
