"""The protocol layer: requests of three dialects to prompts, model output to their responses.

The names are those of the official ``deepseek-recipe`` package, with the same meaning. This room
takes bytes, text and token ids, and gives conversations, prompts, ids, events and JSON. It knows no
engine and no server, and imports nothing but the standard library and ``tokenizers``.
"""

from dsinfer_jax.recipe.chat_completions import ChatCompletionRequest
from dsinfer_jax.recipe.chat_events import (
    ChatCompletionChunk,
    ChatCompletionChunkGenerator,
    ChatCompletionResponse,
)
from dsinfer_jax.recipe.conversation import (
    AssistantMessage,
    Conversation,
    LatestReminderMessage,
    Message,
    SystemMessage,
    ToolCall,
    ToolDefinition,
    ToolMessage,
    UserMessage,
)
from dsinfer_jax.recipe.conversation_request import (
    ConversationRequest,
    InferenceOptions,
    OutputConstraint,
)
from dsinfer_jax.recipe.conversion_options import (
    ConversionOptions,
    ModelVersion,
    ReasoningContentBehavior,
    WebSearchBehavior,
)
from dsinfer_jax.recipe.encoding import DeepseekV4Encoding, DeepseekV41Encoding
from dsinfer_jax.recipe.image_sources import (
    BytesImageSource,
    DataUrlImageSource,
    ImageSource,
    UrlImageSource,
)
from dsinfer_jax.recipe.images import (
    CalcResizeError,
    ImageError,
    ImageInfo,
    ImageQuota,
    ImageResolver,
    MultiModalData,
    OpenCvImagePreprocessor,
    PreprocessOptions,
    ReqwestImageFetcher,
)
from dsinfer_jax.recipe.inference import (
    InferenceChunk,
    InferenceFinishReason,
    ParsingOptions,
    PromptUsage,
    ThinkingInitialStage,
)
from dsinfer_jax.recipe.messages import MessagesRequest
from dsinfer_jax.recipe.messages_events import (
    MessagesChunkGenerator,
    MessagesResponse,
    MessagesStreamEvent,
)
from dsinfer_jax.recipe.rendered_prompt import RenderedPrompt
from dsinfer_jax.recipe.responses import ResponsesRequest
from dsinfer_jax.recipe.responses_events import (
    ResponsesChunkGenerator,
    ResponsesResponse,
    ResponsesStreamEvent,
)
from dsinfer_jax.recipe.responses_object import ResponsesEcho
from dsinfer_jax.recipe.special_tokens import IMAGE_SPECIAL_TOKEN_ID, SpecialToken, SpecialTokens
from dsinfer_jax.recipe.stream import StreamProcessor
from dsinfer_jax.recipe.tokenizer import Tokenizer
from dsinfer_jax.recipe.values import ConversionError

__version__ = "0.2.0"
"""The version of the official package that this one is equal to."""

__all__ = [
    "IMAGE_SPECIAL_TOKEN_ID",
    "AssistantMessage",
    "BytesImageSource",
    "CalcResizeError",
    "ChatCompletionChunk",
    "ChatCompletionChunkGenerator",
    "ChatCompletionRequest",
    "ChatCompletionResponse",
    "Conversation",
    "ConversationRequest",
    "ConversionError",
    "ConversionOptions",
    "DataUrlImageSource",
    "DeepseekV4Encoding",
    "DeepseekV41Encoding",
    "ImageError",
    "ImageInfo",
    "ImageQuota",
    "ImageResolver",
    "ImageSource",
    "InferenceChunk",
    "InferenceFinishReason",
    "InferenceOptions",
    "LatestReminderMessage",
    "Message",
    "MessagesChunkGenerator",
    "MessagesRequest",
    "MessagesResponse",
    "MessagesStreamEvent",
    "ModelVersion",
    "MultiModalData",
    "OpenCvImagePreprocessor",
    "OutputConstraint",
    "ParsingOptions",
    "PreprocessOptions",
    "PromptUsage",
    "ReasoningContentBehavior",
    "RenderedPrompt",
    "ReqwestImageFetcher",
    "ResponsesChunkGenerator",
    "ResponsesEcho",
    "ResponsesRequest",
    "ResponsesResponse",
    "ResponsesStreamEvent",
    "SpecialToken",
    "SpecialTokens",
    "StreamProcessor",
    "SystemMessage",
    "ThinkingInitialStage",
    "Tokenizer",
    "ToolCall",
    "ToolDefinition",
    "ToolMessage",
    "UrlImageSource",
    "UserMessage",
    "WebSearchBehavior",
    "__version__",
]
