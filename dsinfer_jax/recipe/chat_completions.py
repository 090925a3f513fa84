"""Chat Completions requests (recipe.md 2.2, 2.11)."""

from __future__ import annotations

from time import time

from dsinfer_jax.recipe.chat_events import ChatCompletionChunkGenerator, ChatSettings
from dsinfer_jax.recipe.chat_shape import CHAT_COMPLETION_REQUEST
from dsinfer_jax.recipe.conversation_request import ConversationRequest
from dsinfer_jax.recipe.conversion_options import ConversionOptions
from dsinfer_jax.recipe.convert_chat import convert_chat
from dsinfer_jax.recipe.protocol_request import ProtocolRequest, RequestBody
from dsinfer_jax.recipe.values import instance, string


class ChatCompletionRequest(ProtocolRequest):
    """A Chat Completions request that was read; ``convert`` uses it up, also when it fails.

    The constructor raises ``ValueError`` for a body of the wrong syntax or types.
    """

    __slots__ = ()
    _shape = CHAT_COMPLETION_REQUEST

    def __new__(cls, body: RequestBody) -> ChatCompletionRequest:
        return cls._read(body)

    def convert(self, options: ConversionOptions) -> ConversationRequest:
        """The converted request; ``ConversionError`` for the first rule that it breaks."""
        return convert_chat(self._take(), instance("options", options, ConversionOptions))

    @staticmethod
    def chunk_generator(
        request: ConversationRequest, id: str, model: str
    ) -> ChatCompletionChunkGenerator:
        """A generator of the chunks of one response named ``id``."""
        instance("request", request, ConversationRequest)
        stage = request._initial_stage
        return ChatCompletionChunkGenerator._of(
            ChatSettings(
                id=string("id", id),
                model=string("model", model),
                thinking=request._conversation._thinking_mode,
                in_reasoning=stage is not None and stage.starts_in_reasoning(),
                created=int(time()),
                null_usage=request._include_usage or not request._stream,
            )
        )
