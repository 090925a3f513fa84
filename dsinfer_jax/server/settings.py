"""The server's settings: one frozen object, every rule checked with a sentence.

Imports the standard library and names of the recipe only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from types import MappingProxyType

from dsinfer_jax.recipe import ConversionOptions, ModelVersion

MODEL = "DeepSeek-V4.1-Flash"
MEBIBYTE = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    """What a server accepts and how long it waits; times in seconds, sizes in bytes.

    Attributes:
        models: accepted model names and the prompt format that each stands for.
        context_limit: longest prompt plus output in tokens.
        default_thinking: whether a request that does not say thinks.
        strict_output: repair markup that the model leaves broken (docs/recipe_streaming.md).
        max_choices: largest `n` of a chat request.
        max_running: requests that generate at the same time; more get 429.
        max_body: longest request body.
        max_bodies: of all bodies in memory together; more get 429.
        body_timeout: for a body to arrive.
        request_timeout: for a whole request; afterwards it ends with an error.
        stall_timeout: longest wait for the next piece of output, the first excepted.
        write_timeout: longest wait for a client that does not read.
        ping_interval: a stream that is quiet for so long gets a ping.
        drain_timeout: how long running requests may go on after SIGTERM.
        retry_after: what a refused client is told to wait; whole seconds.
        api_keys: accepted keys by the name of their owner; empty: everybody may ask.
        cors_origins: web origins that may ask from a browser; empty: none.
        max_stored: of all responses kept for `previous_response_id`; 0: none are.
        log_prompts: write prompts and answers into the log.
    """

    models: Mapping[str, ModelVersion] = field(
        default_factory=lambda: MappingProxyType({MODEL: ModelVersion.DeepseekV41Flash})
    )
    context_limit: int = 131_072
    default_thinking: bool = True
    strict_output: bool = False
    max_choices: int = 8
    max_running: int = 1_024
    max_body: int = 32 * MEBIBYTE
    max_bodies: int = 512 * MEBIBYTE
    body_timeout: float = 60.0
    request_timeout: float = 3_600.0
    stall_timeout: float = 300.0
    write_timeout: float = 60.0
    ping_interval: float = 5.0
    drain_timeout: float = 30.0
    retry_after: int = 1
    api_keys: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    cors_origins: tuple[str, ...] = ()
    max_stored: int = 256 * MEBIBYTE
    log_prompts: bool = False

    def __post_init__(self) -> None:
        if not self.models:
            raise ValueError("models is empty; name at least one model")
        if not 1 <= self.max_choices <= 255:
            raise ValueError(f"max_choices is {self.max_choices}; it must be in 1..255")
        for name in ("context_limit", "max_running", "max_body", "max_bodies"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be 1 or more")
        for each in fields(self):
            if each.type == "float" and not getattr(self, each.name) > 0:
                raise ValueError(
                    f"{each.name} is {getattr(self, each.name)}; it must be a time above 0"
                )
        for name in ("max_stored", "retry_after"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be 0 or more")
        if "" in self.api_keys.values():
            raise ValueError("api_keys holds an empty key; give every owner a key that is not")

    def conversion_options(self) -> ConversionOptions:
        """How request bodies are read."""
        return ConversionOptions(
            default_thinking_mode=self.default_thinking,
            strict=self.strict_output,
            maximum_choices=self.max_choices,
        ).with_model_versions_by_name(dict(self.models))
