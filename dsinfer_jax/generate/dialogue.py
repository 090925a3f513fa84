"""A conversation with a model: what was said so far, and the next answer as it comes."""

import asyncio
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

from dsinfer_jax.engine.async_engine import EngineUnavailableError
from dsinfer_jax.engine.request import Delta, FinishReason
from dsinfer_jax.engine.sampling_params import SamplingParams
from dsinfer_jax.generate.answer_reader import AnswerReader, Show
from dsinfer_jax.generate.chat import ChatCodec, structured_output
from dsinfer_jax.generate.chat_request import MODEL, Message, constraint_of, converted
from dsinfer_jax.generate.chat_start import ChatStart, with_system
from dsinfer_jax.generate.prompt_files import PromptError

if TYPE_CHECKING:
    from dsinfer_jax.recipe import ConversationRequest


class TokenSource(Protocol):
    """The part of AsyncEngine that a chat uses."""

    def generate(
        self, prompt: Sequence[int], params: SamplingParams
    ) -> AsyncGenerator[Delta, None]: ...

    def snapshot(self) -> Mapping[str, float]: ...


class ChatError(Exception):
    """An answer cannot be given; the message is a sentence."""


@dataclass(frozen=True)
class ReplyNumbers:
    """What one answer took.

    Attributes:
        prompt_tokens, cached_tokens: of its prompt, and of those from the prefix cache.
        tokens: of the answer, thinking and markup included.
        first_token_seconds: from the question to the first token.
        seconds: from the first token to the last.
    """

    prompt_tokens: int
    cached_tokens: int
    tokens: int
    first_token_seconds: float
    seconds: float


@dataclass(frozen=True)
class Reply:
    """An answer.

    Attributes:
        message: as it goes into the conversation.
        stopped: it was cancelled before its end.
        cut: it came to a limit of tokens.
        numbers: what it took.
    """

    message: Message
    stopped: bool
    cut: bool
    numbers: ReplyNumbers


@dataclass
class _Meter:
    """Counts while an answer comes; times are of `time.perf_counter()`, 0 before a token."""

    asked_at: float
    first_at: float = 0.0
    last_at: float = 0.0
    tokens: int = 0
    cached: int = 0

    def add(self, delta: Delta) -> None:
        self.cached = delta.cached_tokens
        self.tokens += len(delta.token_ids)
        if delta.token_ids:
            self.last_at = time.perf_counter()
            self.first_at = self.first_at or self.last_at

    def numbers(self, prompt_tokens: int) -> ReplyNumbers:
        return ReplyNumbers(
            prompt_tokens,
            self.cached,
            self.tokens,
            first_token_seconds=max(0.0, self.first_at - self.asked_at),
            seconds=self.last_at - self.first_at,
        )


class Dialogue:
    """A conversation that grows. All attributes may be changed between two answers.

    Args:
        source: makes the tokens.
        codec: of the model.
        start: the conversation so far, and how to go on.

    Attributes:
        messages: of Chat Completions; a system message, if there is one, comes first.
        thinking: whether answers begin with thinking.
        params: how tokens are chosen, and how many.
        last: what the last answer took.
    """

    def __init__(self, source: TokenSource, codec: ChatCodec, start: ChatStart) -> None:
        self.source = source
        self._codec = codec
        self.messages = start.messages
        self.tools = start.tools
        self.params = start.params
        self.thinking = True
        self.last: ReplyNumbers | None = None

    def clear(self) -> None:
        """Forget what was said. The system message stays."""
        self.messages = [message for message in self.messages[:1] if message["role"] == "system"]

    def set_system(self, text: str) -> None:
        """Another system message, or none if the text is empty."""
        self.messages = with_system(self.messages, text)

    async def reply(self, show: Show) -> Reply:
        """The answer to the conversation, which stays as it is.

        Cancelling the task that waits for it stops the answer: what came of it is returned.

        Raises:
            ChatError: there is no answer, or not the whole of it.
            ValueError: the model's tokenizer cannot be used for a chat.
        """
        meter = _Meter(time.perf_counter())
        request = self._request()
        ids = self._codec.encode(request.conversation)
        reader = AnswerReader(request, self._codec.tokenizer, show)
        finish: FinishReason | None = None
        deltas = self.source.generate(ids, self._params(request))
        try:
            async with aclosing(deltas):
                async for delta in deltas:
                    finish = delta.finish_reason
                    if delta.error is not None:
                        raise ChatError(_sentence(finish, delta.error))
                    meter.add(delta)
                    ended = finish is FinishReason.STOP
                    reader.push(delta.token_ids[:-1] if ended else delta.token_ids)
        except asyncio.CancelledError:
            finish = FinishReason.ABORT
        except EngineUnavailableError as error:
            raise ChatError(str(error)) from None
        message = reader.end(cut=finish is not FinishReason.STOP)
        self.last = meter.numbers(len(ids))
        return Reply(
            message,
            stopped=finish is FinishReason.ABORT,
            cut=finish is FinishReason.LENGTH,
            numbers=self.last,
        )

    def _request(self) -> "ConversationRequest":
        body = {
            "model": MODEL,
            "messages": self.messages,
            "thinking": {"type": "enabled" if self.thinking else "disabled"},
        }
        if self.tools.declarations:
            body["tools"] = self.tools.declarations
        try:
            return converted(body, "the conversation")
        except PromptError as error:
            raise ChatError(str(error)) from None

    def _params(self, request: "ConversationRequest") -> SamplingParams:
        constraint = constraint_of(request)
        if constraint is None:
            return self.params
        output = structured_output(constraint, self._codec.text)
        return replace(self.params, structured_output=output)


def _sentence(reason: FinishReason | None, error: str) -> str:
    if reason is FinishReason.PROMPT_TOO_LONG:
        return f"{error}; /clear begins a new conversation, --max-model-len makes room"
    return error
