"""The streaming objects as a caller meets them: types, errors, ends, read-only values."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
from stream_support import DIALECTS, TOKENIZER_JSON, Run, Streams

import dsinfer_jax.recipe as recipe

Chunk = recipe.InferenceChunk
FINISHED = "stream processor has finished"
CLOSED = "stream processor is closed"
CONSUMED_CHUNK = "protocol chunk has been consumed"
CONSUMED_GENERATOR = "chunk generator has been consumed"


def chat_processor(streams: Streams, **options: Any) -> recipe.StreamProcessor:
    return streams.processor(Run("chat", True, [], options))


def test_chunks_show_what_belongs_to_their_kind() -> None:
    def shown(chunk: Chunk) -> tuple[Any, ...]:
        return (
            chunk.kind, chunk.content, chunk.token_ids, chunk.finish_reason,
            chunk.token_count, chunk.system_fingerprint,
        )  # fmt: skip

    stop = recipe.InferenceFinishReason.Stop
    assert shown(Chunk.ready()) == ("ready", None, None, None, None, None)
    assert shown(Chunk.ready(system_fingerprint="f"))[5] == "f"
    assert shown(Chunk.text("a", 2)) == ("text", "a", None, None, 2, None)
    assert shown(Chunk.tokens([1, 2])) == ("tokens", None, [1, 2], None, None, None)
    assert shown(Chunk.finish(stop)) == ("finish", None, None, stop, None, None)
    usage = Chunk.ready().prompt_usage
    assert usage is not None
    assert (usage.prompt_tokens, usage.prompt_cache_hit_tokens) == (0, 0)
    assert Chunk.text("a").prompt_usage is None
    ids = Chunk.tokens([1])
    assert ids.token_ids is not None
    ids.token_ids.append(2)
    assert ids.token_ids == [1]


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: Chunk.text(1), TypeError, "argument 'content': 'int' object cannot be cast"),
        (lambda: Chunk.text("\ud800"), UnicodeEncodeError, "surrogates not allowed"),
        (lambda: Chunk.text("a", -1), OverflowError, "can't convert negative int to unsigned"),
        (lambda: Chunk.text("a", 2**64), OverflowError, "int too big to convert"),
        (lambda: Chunk.text("a", 1.0), TypeError, "'float' object cannot be interpreted"),
        (lambda: Chunk.tokens([2**32]), OverflowError, "out of range integral type conversion"),
        (lambda: Chunk.tokens([-1]), OverflowError, "out of range integral type conversion"),
        (lambda: Chunk.tokens("ab"), TypeError, "Can't extract `str` to `Vec`"),
        (lambda: Chunk.tokens(iter([1])), TypeError, "object cannot be cast as 'Sequence'"),
        (lambda: Chunk.tokens([None]), TypeError, "'NoneType' object cannot be interpreted"),
        (lambda: Chunk.tokens([1], [0.5]), TypeError, "'float' object cannot be cast as 'tuple'"),
        (lambda: Chunk.tokens([1], [(1,)]), ValueError, "expected tuple of length 2, but got"),
        (lambda: Chunk.tokens([1], [(1, [(1, "a")])]), TypeError, "must be real number, not str"),
        (lambda: Chunk.finish("stop"), TypeError, "cannot be cast as 'InferenceFinishReason'"),
        (lambda: Chunk.ready(prompt_usage=1), TypeError, "cannot be cast as 'PromptUsage'"),
        (lambda: recipe.PromptUsage(prompt_tokens=-1), OverflowError, "negative int"),
        (lambda: recipe.ParsingOptions(parse_tool_calls=1), TypeError, "cannot be cast as 'bool'"),
        (lambda: recipe.ParsingOptions(stop_sequences="a"), TypeError, "Can't extract `str`"),
        (lambda: recipe.ParsingOptions(stop_sequences=[1]), TypeError, "cannot be cast as 'str'"),
        (lambda: recipe.StreamProcessor(1, recipe.ParsingOptions()), TypeError, "a protocol chunk"),
        (lambda: recipe.MessagesChunkGenerator("a", "b", 1), TypeError, "cast as 'bool'"),
        (lambda: Chunk(), TypeError, "cannot create"),
        (lambda: recipe.ChatCompletionChunk(), TypeError, "cannot create"),
        (lambda: recipe.ResponsesChunkGenerator(), TypeError, "cannot create"),
        (lambda: recipe.ThinkingInitialStage(), TypeError, "cannot create"),
        (lambda: recipe.ChatCompletionResponse("i", "m", -1, 0, 0), OverflowError, "negative int"),
        (lambda: recipe.MessagesResponse("i", 1, 0, 0, 0), TypeError, "cannot be cast as 'str'"),
    ],
)
def test_wrong_arguments_are_refused_at_once(
    make: Callable[[], Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error) as caught:
        make()
    assert message in str(caught.value)


def test_options_can_be_set_and_values_cannot() -> None:
    options = recipe.ParsingOptions(stop_sequences=("a",))
    options.stop_sequences.append("b")
    assert options.stop_sequences == ["a"]
    options.stop_sequences = ["c"]
    options.parse_tool_calls = False
    options.thinking_initial_stage = recipe.ThinkingInitialStage.ReasoningStart
    assert (options.stop_sequences, options.parse_tool_calls) == (["c"], False)
    with pytest.raises(TypeError, match="argument 'value'"):
        options.thinking_initial_stage = "x"  # type: ignore[assignment]
    for value in (Chunk.text("a"), recipe.PromptUsage(), recipe.ResponsesEcho()):
        for change in (
            lambda value=value: setattr(value, "content", "b"),
            lambda value=value: setattr(value, "user", "b"),
            lambda value=value: setattr(value, "prompt_tokens", 1),
            lambda value=value: setattr(value, "anything", "b"),
        ):
            with pytest.raises(AttributeError):
                change()
        with pytest.raises(TypeError, match="cannot pickle"):
            copy.copy(value)
        with pytest.raises(TypeError, match="cannot pickle"):
            pickle.dumps(value)


def test_stages_know_where_they_start() -> None:
    stage = recipe.ThinkingInitialStage
    starts = [
        each.starts_in_reasoning()
        for each in (stage.ReasoningStart, stage.ReasoningContinuation, stage.ContentContinuation)
    ]
    assert starts == [True, True, False]


def test_generators_are_used_up_once(streams: Streams) -> None:
    options = recipe.ParsingOptions()
    generator = streams.generator("chat", True)
    with pytest.raises(TypeError):
        recipe.StreamProcessor(generator, 1)  # type: ignore[arg-type]
    recipe.StreamProcessor(generator, options)
    with pytest.raises(RuntimeError, match=CONSUMED_GENERATOR):
        recipe.StreamProcessor(generator, options)
    with pytest.raises(RuntimeError, match=CONSUMED_GENERATOR):
        generator.with_choices(2)
    messages = streams.generator("messages", True)
    signed = messages.with_signature("s")
    with pytest.raises(RuntimeError, match=CONSUMED_GENERATOR):
        messages.with_signature("s")
    recipe.StreamProcessor(signed, options)
    responses = streams.generator("responses", True)
    with pytest.raises(TypeError, match="cannot be cast as 'ResponsesEcho'"):
        responses.with_echo(1)
    with pytest.raises(TypeError, match="cannot be cast as 'tuple'"):
        responses.with_namespace_tool_map({"a": ["b", "c"]})
    responses.with_echo(recipe.ResponsesEcho()).with_namespace_tool_map({"a": ("b", "c")})
    with pytest.raises(RuntimeError, match=CONSUMED_GENERATOR):
        responses.with_echo(recipe.ResponsesEcho())


@pytest.mark.parametrize("dialect", DIALECTS)
def test_events_are_used_up_by_accumulation(streams: Streams, dialect: str) -> None:
    event = streams.processor(Run(dialect, True, [], {})).push(Chunk.ready())[0]
    response = streams.response(dialect)
    name = response.sse_event_name(event)
    assert name == {
        "chat": None, "responses": "response.created", "messages": "message_start"
    }[dialect]  # fmt: skip
    assert response.sse_done_data() == ("[DONE]" if dialect == "chat" else None)
    response.accumulate(event)
    for use in (response.accumulate, response.sse_event_name, lambda event: event.to_json()):
        with pytest.raises(RuntimeError, match=CONSUMED_CHUNK):
            use(event)
    with pytest.raises(TypeError, match="argument 'chunk'"):
        response.accumulate(1)
    others = {"chat": "messages", "responses": "chat", "messages": "responses"}
    other = streams.processor(Run(others[dialect], True, [], {})).push(Chunk.ready())[0]
    with pytest.raises(TypeError, match="argument 'chunk'"):
        response.accumulate(other)


def test_ends(streams: Streams) -> None:
    stop = Chunk.finish(recipe.InferenceFinishReason.Stop)
    processor = chat_processor(streams)
    with pytest.raises(TypeError, match="argument 'chunk': 'str' object cannot be cast"):
        processor.push("a")  # type: ignore[arg-type]
    assert processor.finished is False
    processor.push(stop)
    assert processor.finished is True
    assert processor.finish() == []
    for chunk in (stop, Chunk.ready(), Chunk.text("a")):
        with pytest.raises(RuntimeError, match=FINISHED):
            processor.push(chunk)
    processor.close()
    assert processor.finished is False
    with pytest.raises(RuntimeError, match=CLOSED):
        processor.push(stop)
    with pytest.raises(RuntimeError, match=CLOSED):
        processor.finish()


def test_a_stop_sequence_ends_the_stream(streams: Streams) -> None:
    processor = chat_processor(streams, stop_sequences=["x"])
    processor.push(Chunk.text("plain", 1))
    assert len(processor.push(Chunk.text("ax", 1))) == 2
    assert processor.finished
    with pytest.raises(RuntimeError, match=FINISHED):
        processor.push(Chunk.text("more", 1))


def test_stream_errors_close_the_stream(streams: Streams) -> None:
    processor = chat_processor(streams)
    with pytest.raises(RuntimeError, match="token chunk received without a tokenizer"):
        processor.push(Chunk.tokens([1]))
    with pytest.raises(RuntimeError, match=CLOSED):
        processor.finish()
    processor = Streams(recipe, TOKENIZER_JSON).processor(Run("chat", True, [], {}))
    with pytest.raises(RuntimeError, match="1 log probabilities for 2 token IDs"):
        processor.push(Chunk.tokens([20, 21], [(-0.5, [])]))
    assert processor.finished is False
    with pytest.raises(RuntimeError, match=CLOSED):
        processor.push(Chunk.text("a"))


def test_a_chunk_may_be_pushed_again_and_lists_are_fresh(streams: Streams) -> None:
    processor = chat_processor(streams)
    chunk = Chunk.text("ab", 1)
    for _ in range(5):
        events = processor.push(chunk)
        assert events[-1].to_json().count('"content":"ab"') == 1
        events.clear()


def test_a_tokenizer_without_byte_level_decodes_by_itself() -> None:
    words = '{"a": 0, "b": 1, "[UNK]": 2}'
    tokenizer_json = (
        '{"version": "1.0", "truncation": null, "padding": null, "added_tokens": [],'
        ' "normalizer": null, "pre_tokenizer": {"type": "Whitespace"}, "post_processor": null,'
        f' "decoder": null, "model": {{"type": "WordLevel", "vocab": {words},'
        ' "unk_token": "[UNK]"}}'
    )
    streams = Streams(recipe, tokenizer_json)
    result = streams.run(Run("chat", False, [[0, 1], [0]], {}))
    assert result.body["choices"][0]["message"]["content"] == "a ba"
