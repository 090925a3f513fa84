"""A server around an engine: settings to a model that is ready, and that to an application.

Only this module of the room loads jax, and only when it is called.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from starlette.applications import Starlette

from dsinfer_jax.recipe import SpecialToken, Tokenizer
from dsinfer_jax.recipe.encoding import control_id
from dsinfer_jax.server.app import create_app
from dsinfer_jax.server.engine_source import EngineSource
from dsinfer_jax.server.settings import ServerSettings
from dsinfer_jax.settings import llm_options

if TYPE_CHECKING:
    from dsinfer_jax.engine.llm import LLM

NEEDED = (SpecialToken.Eos, SpecialToken.ThinkingEnd, SpecialToken.Dsml)
PREFILL_ROWS = 256
LONG_PREFILL_ROWS = 1024  # a second prefill program: what agents send is long


def load_engine(values: Mapping[str, Any], say: Callable[[str], None]) -> tuple[LLM, Tokenizer]:
    """Load a model and compile all its programs.

    Args:
        values: of `dsinfer_jax.settings.SETTINGS`, by name.
        say: called with one line for each thing that is prepared.

    Returns:
        The model, ready to run, and its tokenizer as the protocol layer reads it.

    Raises:
        ValueError: a model or a size that cannot be used, in one sentence.
    """
    say(f"loading the model {values['model']}")
    from dsinfer_jax import _jax
    from dsinfer_jax.engine.llm import LLM, open_model

    _jax.keep_programs(values["cache_dir"], say)
    config, weights, codec = open_model(values["model"], values["native_checkpoint"])
    tokenizer = read_tokenizer(codec.path)
    longest = values["max_model_len"] or config.max_position_embeddings
    is_long = longest > PREFILL_ROWS
    llm = LLM(
        config,
        weights,
        codec,
        **llm_options(values),
        prefill_rows=(PREFILL_ROWS, LONG_PREFILL_ROWS) if is_long else (PREFILL_ROWS,),
        progress=say,
    )
    return llm, tokenizer


def read_tokenizer(path: Path) -> Tokenizer:
    """A model's tokenizer. ValueError if it lacks a control token that every request needs."""
    tokenizer = Tokenizer.from_file(str(path))
    try:
        for token in NEEDED:
            control_id(token.default_str(), tokenizer)
    except RuntimeError as error:
        raise ValueError(f"{path} cannot be served: {error}") from None
    return tokenizer


def create_engine_app(
    llm: LLM, tokenizer: Tokenizer, settings: ServerSettings | None = None
) -> Starlette:
    """The server of a model; its engine runs from the application's start to its end.

    Args:
        llm: used by nobody else meanwhile; it can be used, or served again, afterwards.
        tokenizer: of the model.
        settings: the limit of the context is the engine's where that is less.
    """
    from dsinfer_jax.engine.async_engine import AsyncEngine

    settings = settings or ServerSettings()
    limit = min(settings.context_limit, llm.engine.sizes.max_model_len)
    engine = AsyncEngine(llm)
    source = EngineSource(engine, tokenizer)

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        try:
            async with engine:
                yield
        finally:
            llm.close()

    return create_app(
        source.infer,
        tokenizer,
        replace(settings, context_limit=limit),
        snapshot=source.snapshot,
        lifespan=lifespan,
    )
