"""Messages requests (recipe.md 2.4, 2.13)."""

from __future__ import annotations

from dsinfer_jax.recipe.conversation_request import ConversationRequest
from dsinfer_jax.recipe.conversion_options import ConversionOptions
from dsinfer_jax.recipe.convert_messages import convert_messages
from dsinfer_jax.recipe.messages_events import MessagesChunkGenerator
from dsinfer_jax.recipe.messages_shape import MESSAGES_REQUEST
from dsinfer_jax.recipe.protocol_request import ProtocolRequest, RequestBody
from dsinfer_jax.recipe.values import instance


class MessagesRequest(ProtocolRequest):
    """A Messages request that was read; ``convert`` uses it up, also when it fails.

    The constructor raises ``ValueError`` for a body of the wrong syntax or types.
    """

    __slots__ = ()
    _shape = MESSAGES_REQUEST

    def __new__(cls, body: RequestBody) -> MessagesRequest:
        return cls._read(body)

    def convert(self, options: ConversionOptions) -> ConversationRequest:
        """The converted request; ``ConversionError`` for the first rule that it breaks."""
        instance("options", options, ConversionOptions)
        return convert_messages(self._take(), options)

    @staticmethod
    def chunk_generator(
        request: ConversationRequest, id: str, model: str
    ) -> MessagesChunkGenerator:
        """A generator of the events of one response named ``id``."""
        instance("request", request, ConversationRequest)
        return MessagesChunkGenerator(id, model, request._conversation._thinking_mode)
