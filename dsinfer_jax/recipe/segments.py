"""Claimed portions of output, sent to the writer of a dialect segment by segment (recipe.md 5.2).

A segment is the portion of one piece under one action; it is sent when the action changes or its
piece is used up. Knows nothing about how portions are found.
"""

from __future__ import annotations

import random
import string
from collections import deque
from collections.abc import Callable
from typing import Any

from dsinfer_jax.recipe.actions import Action, Effect
from dsinfer_jax.recipe.event_writer import EventWriter
from dsinfer_jax.recipe.json_values import quote
from dsinfer_jax.recipe.parser import Portion
from dsinfer_jax.recipe.stream_report import StreamReport
from dsinfer_jax.recipe.tool_arguments import ArgumentWriter, OfficialArguments, StrictArguments

# Every byte as a letter or digit, and as a digit: random bytes become random call ids.
_LETTERS = (string.ascii_letters + string.digits).encode() * 4 + b"01234567"
_DIGITS = string.digits.encode() * 25 + b"012345"


class _Piece:
    """A piece of output whose characters are not all sent yet."""

    __slots__ = ("claimed", "is_control", "length", "logprobs", "sent", "text")

    def __init__(self, text: str, logprobs: str | None, is_control: bool) -> None:
        self.text = text
        self.length = len(text)
        self.logprobs = logprobs
        self.is_control = is_control
        self.claimed = 0  # characters with a known action
        self.sent = 0  # of these, characters already sent


class SegmentSender:
    """The pieces of one stream that wait, and what is sent of them.

    `stop_sequence` is set once one was met; nothing is sent after it. `calls` counts tool calls,
    `answered` says whether any content was sent. `reasoning_text` is kept only with
    `keep_reasoning`.
    """

    __slots__ = (
        "_action",
        "_announced",
        "_arguments",
        "_keep_reasoning",
        "_name",
        "_pieces",
        "_plain_senders",
        "_reasoned",
        "_report",
        "_senders",
        "_strict",
        "_writer",
        "answered",
        "calls",
        "reasoning_text",
        "stop_sequence",
    )

    def __init__(
        self, writer: EventWriter, report: StreamReport, *, strict: bool, keep_reasoning: bool
    ) -> None:
        self._writer = writer
        self._report = report
        self._strict = strict
        self._keep_reasoning = keep_reasoning
        self._arguments: ArgumentWriter
        self._arguments = StrictArguments(report) if strict else OfficialArguments(report)
        self._pieces: deque[_Piece] = deque()
        self._action: Action | None = None
        self._announced = False  # a segment of the current action was sent
        self._name: list[str] = []
        self._reasoned = False  # reasoning that is not empty was sent
        self.reasoning_text: list[str] = []
        self.answered = False
        self.calls = 0
        self.stop_sequence: str | None = None
        self._senders: dict[Effect, Callable[[Action, str, str | None], list[Any]]] = {
            Effect.CONTENT: self._send_content,
            Effect.REASONING: self._send_reasoning,
            Effect.BLANK: self._send_blank,
            Effect.CONTENT_LABEL: self._send_label,
            Effect.STOP: self._stop,
            Effect.CALL_BEGINS: self._begin_call,
            Effect.NAME_TEXT: self._collect_name,
            Effect.NAME_ENDS: self._send_call,
        }
        # For whole pieces of plain text, when there is nothing to note besides.
        self._plain_senders: dict[Effect, Callable[[str], list[Any]]] = {
            Effect.STRING_TEXT: self._send_string,
            Effect.JSON_TEXT: self._send_json,
            # CONTENT and REASONING follow with the first text of their kind.
        }

    def push(
        self,
        text: str,
        portions: list[Portion],
        logprobs: str | None,
        is_control: bool,
        events: list[Any],
    ) -> None:
        """Add a piece, then give the oldest unclaimed characters to the actions of `portions`.

        The events of what can be sent are added to `events`.
        """
        pieces = self._pieces
        if portions:
            action, length = portions[0]
            if length == len(text) and not pieces:  # the usual case: one portion, one segment
                if action is not self._action:
                    self._change_action(action)
                self._send(action, text, logprobs, is_control, events)
                return
            pieces.append(_Piece(text, logprobs, is_control))
            self.claim(portions, events)
            return
        pieces.append(_Piece(text, logprobs, is_control))
        if not text and len(pieces) == 1 and self._action is not None:
            self._use_up_first(events)

    def claim(self, portions: list[Portion], events: list[Any]) -> None:
        """Give characters to actions and add the events of what can be sent."""
        pieces = self._pieces
        for action, length in portions:
            if action is not self._action:
                if pieces[0].claimed > pieces[0].sent:
                    self._send_piece(pieces[0], events)
                self._change_action(action)
            if self.stop_sequence is not None:
                return
            if action.is_text:
                self._claim_text(length, events)
            else:
                self._skip(action, length, events)

    def _claim_text(self, length: int, events: list[Any]) -> None:
        pieces = self._pieces
        while length:
            piece = pieces[0]
            free = piece.length - piece.claimed
            if free > length:
                piece.claimed += length
                return
            piece.claimed = piece.length
            length -= free
            self._use_up_first(events)

    def _skip(self, action: Action, length: int, events: list[Any]) -> None:
        """Claim characters of a marker, or that no event will hold: only the first counts."""
        pieces = self._pieces
        place = action.place
        while length:
            piece = pieces[0]
            free = piece.length - piece.claimed
            if free > length:
                piece.claimed += length
                return
            if place is not None:
                self._report.note_ignored(place, piece.text[piece.sent :])
            elif not self._announced:
                self._send(action, "", piece.logprobs, False, events)
            pieces.popleft()
            length -= free
            while pieces and not pieces[0].length:
                pieces.popleft()

    def end(self) -> list[Any]:
        """The stream ends: send what is held back."""
        self._change_action(None)
        held = self._arguments.end()
        return [] if held is None else self._writer.argument(held)

    @property
    def unclaimed_text(self) -> str:
        """The text whose action is not known yet."""
        return "".join(piece.text[piece.claimed :] for piece in self._pieces)

    def discard(self) -> int:
        """Forget what waits; returns the number of characters."""
        waiting = sum(piece.length - piece.sent for piece in self._pieces)
        self._pieces.clear()
        return waiting

    def plain(self, action: Action) -> Callable[[str], list[Any]] | None:
        """How to send a whole piece under `action` at once, if nothing waits or has to be noted."""
        if not action.is_text or action is not self._action or self._pieces:
            return None
        return self._plain_senders.get(action.effect)

    def _change_action(self, action: Action | None) -> None:
        if self._action is not None and self._action.place is not None:
            self._report.end_stretch(self._action.place)
        self._action = action
        self._announced = False

    def _use_up_first(self, events: list[Any]) -> None:
        """Send and remove the first piece and the empty ones behind it."""
        pieces = self._pieces
        self._send_piece(pieces.popleft(), events)
        while pieces and not pieces[0].length:
            self._send_piece(pieces.popleft(), events)

    def _send_piece(self, piece: _Piece, events: list[Any]) -> None:
        """Send the claimed characters of a piece that were not sent yet."""
        assert self._action is not None
        text = piece.text[piece.sent : piece.claimed]
        piece.sent = piece.claimed
        self._send(self._action, text, piece.logprobs, piece.is_control, events)

    def _send(
        self,
        action: Action,
        text: str,
        logprobs: str | None,
        is_control: bool,
        events: list[Any],
    ) -> None:
        """Send one segment of the current action."""
        effect = action.effect
        if action.is_ignored:
            if action.place is not None:
                self._report.note_ignored(action.place, text)
            return
        if action.is_text:
            if is_control and self._strict:
                self._report.dropped[f"control_token_in_{effect.name.lower()}"] += 1
                return
        elif self._announced:  # a marker counts once, at its first segment
            return
        sender = self._senders.get(effect)
        if sender is not None:
            events += sender(action, text, logprobs)
        else:
            delta = self._arguments.write(effect, text)
            if delta is not None:
                events += self._writer.argument(delta)
        self._announced = True

    def _send_content(self, action: Action, text: str, logprobs: str | None) -> list[Any]:
        if text and not self.answered:
            self.answered = True
            self._plain_senders[Effect.CONTENT] = self._writer.more
        return self._writer.content(text, logprobs)

    def _send_label(self, action: Action, text: str, logprobs: str | None) -> list[Any]:
        return self._send_content(action, action.text, logprobs)

    def _send_blank(self, action: Action, text: str, logprobs: str | None) -> list[Any]:
        assert action.place is not None
        self._report.note_ignored(action.place, text)
        if self._strict and self._announced:
            return []  # one blank for the whole stretch, however it was cut
        return self._writer.content(" ", logprobs)

    def _send_reasoning(self, action: Action, text: str, logprobs: str | None) -> list[Any]:
        if text:
            self._note_reasoning()
            if self._keep_reasoning:
                self.reasoning_text.append(text)
        return self._writer.reasoning(text, logprobs)

    def _note_reasoning(self) -> None:
        """From now on calls are those of a model that reasoned; more of it needs no note."""
        self._reasoned = True
        self._plain_senders[Effect.REASONING] = (
            self._send_more_reasoning if self._keep_reasoning else self._writer.more
        )

    def _send_more_reasoning(self, text: str) -> list[Any]:
        self.reasoning_text.append(text)
        return self._writer.more(text)

    def _stop(self, action: Action, text: str, logprobs: str | None) -> list[Any]:
        self.stop_sequence = action.text
        return []

    def _begin_call(self, action: Action, text: str, logprobs: str | None) -> list[Any]:
        self._name.clear()
        self._arguments.begin()
        return []

    def _collect_name(self, action: Action, text: str, logprobs: str | None) -> list[Any]:
        self._name.append(text)
        return []

    def _send_call(self, action: Action, text: str, logprobs: str | None) -> list[Any]:
        index = self.calls
        self.calls += 1
        unthinking = self._writer.thinking and not self._reasoned
        return self._writer.call(index, _call_id(index, unthinking), "".join(self._name))

    def _send_string(self, text: str) -> list[Any]:
        return self._writer.argument(quote(text)[1:-1])

    def _send_json(self, text: str) -> list[Any]:
        delta = self._arguments.write(Effect.JSON_TEXT, text)
        return [] if delta is None else self._writer.argument(delta)


def _call_id(index: int, unthinking: bool) -> str:
    """A new call id (recipe.md 5.4); `unthinking`: made without reasoning by a thinking model."""
    letters = random.randbytes(20).translate(_LETTERS).decode()
    digits = random.randbytes(4).translate(_DIGITS).decode()
    return f"call_{index:02d}_{'ET_' if unthinking else ''}{letters}{digits}"
