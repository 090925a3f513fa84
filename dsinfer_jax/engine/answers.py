"""From what a step added to a request to what its caller reads: text, stop strings, the result."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from dsinfer_jax.engine.answer_text import AnswerText
from dsinfer_jax.engine.detokenise import TextCodec
from dsinfer_jax.engine.llm_engine import LLMEngine
from dsinfer_jax.engine.request import (
    Delta,
    FinishReason,
    Request,
    RequestOutput,
    SamplingParams,
)


class Answer:
    """One answer to a prompt: its request in the engine, and its text as it grows.

    Args:
        request: known to the engine by its `index`.
        codec: of the text; None: texts stay empty.
        place: of the prompt in the call; results carry it as their `index`.
    """

    def __init__(self, request: Request, codec: TextCodec | None, place: int) -> None:
        self.request = request
        self._text = AnswerText(codec, request.params) if codec else None
        self._place = place
        self._given = 0  # tokens in the deltas so far

    def complete(self, delta: Delta, engine: LLMEngine) -> Delta:
        """The engine's delta with its text, and with the whole result if it is the last.

        A stop string ends the request at the token that completes it: tokens after that are
        dropped, here and in the request. Then this delta is the last, whatever the engine gives.
        """
        if self._text is not None:
            self._add_text(self._text, delta, engine)
        delta.index = self._place
        self._given += len(delta.token_ids)
        if delta.finish_reason is not None:
            delta.output = self._output()
        return delta

    def end(self, reason: FinishReason, sentence: str) -> Delta:
        """The last delta of an answer that the engine will not end: it keeps what was given out."""
        request = self.request
        _cut(request, self._given)
        request.fail(reason, sentence)
        text = self._text.add([], last=True) if self._text else ""
        last = Delta(
            self._place, [], [], reason, sentence, text,
            answer=request.answer, cached_tokens=request.cached_tokens,
        )  # fmt: skip
        last.output = self._output()
        return last

    def _add_text(self, text: AnswerText, delta: Delta, engine: LLMEngine) -> None:
        tokens = delta.token_ids
        if delta.finish_reason is FinishReason.STOP:  # the token that stops is not text
            tokens = tokens[:-1]
        delta.text = text.add(tokens, last=delta.finish_reason is not None)
        if text.stop is not None:
            engine.stop_request(self.request, text.stop, text.tokens)
            delta.finish_reason, delta.error = self.request.finish_reason, None
            _cut(delta, text.tokens - self._given)

    def _output(self) -> RequestOutput:
        request = self.request
        assert request.finish_reason is not None
        return RequestOutput(
            index=self._place,
            prompt_token_ids=list(request.prompt_token_ids),
            token_ids=request.token_ids,
            text=self._text.text if self._text else "",
            finish_reason=request.finish_reason,
            logprobs=request.logprobs if request.params.logprobs else None,
            error=request.error,
            cached_tokens=request.cached_tokens,
            why_miss=request.why_miss,
            stop_reason=request.stop_reason,
            top_logprobs=request.top_logprobs if request.params.top_logprobs else None,
            answer=request.answer,
            times=request.times,
            drafted_tokens=request.drafted_tokens,
            accepted_tokens=request.accepted_tokens,
        )


class RunningAnswers:
    """The answers that an engine works on; the engine's deltas become theirs."""

    def __init__(self, engine: LLMEngine) -> None:
        self._engine = engine
        self._answers: dict[tuple[int, int], Answer] = {}

    def __iter__(self) -> Iterator[Answer]:
        return iter(self._answers.values())

    def add(self, answer: Answer) -> list[tuple[Answer, Delta]]:
        """Hand an answer to the engine; what it adds at once is its refusal."""
        self._answers[_key(answer.request)] = answer
        return self.complete(self._engine.add_request(answer.request))

    def complete(self, deltas: Iterable[Delta]) -> list[tuple[Answer, Delta]]:
        """Deltas of a step as their callers read them. Answers whose last one is here are gone."""
        completed = []
        for delta in deltas:
            key = _key(delta)
            answer = self._answers.get(key)
            if answer is None:  # it ended at a stop string in the delta before
                continue
            completed.append((answer, answer.complete(delta, self._engine)))
            if delta.output is not None:
                del self._answers[key]
        return completed

    def abort(self, answers: Iterable[Answer]) -> list[Answer]:
        """End answers in the engine; returns those that had not ended before."""
        aborted = [one for one in answers if self._answers.pop(_key(one.request), None)]
        for answer in aborted:
            self._engine.abort_request(answer.request)
        return aborted


def _key(item: Request | Delta) -> tuple[int, int]:
    return item.index, item.answer


def _cut(tokens: Request | Delta, kept: int) -> None:
    for values in (tokens.token_ids, tokens.logprobs, tokens.top_logprobs):
        del values[kept:]


def answers_to(
    prompt: Sequence[int],
    params: SamplingParams,
    codec: TextCodec | None,
    *,
    index: int,
    place: int,
    **fields: Any,
) -> list[Answer]:
    """The `n` answers to a prompt, not yet handed to an engine.

    Args:
        index: by which the engine tells this prompt's requests from others.
        place: of the prompt in the call.
        fields: of the requests: priority, deadline, tenant.

    Raises:
        ValueError: stop strings without a codec.
    """
    if codec is None and params.stop_strings:
        raise ValueError(
            "stop needs a tokenizer, which the model lacks; use stop_token_ids instead"
        )
    answers = []
    for number in range(params.n):
        request = Request(index, prompt, params, answer=number, **fields)
        request.seed = params.answer_seed(request.seed, number)
        answers.append(Answer(request, codec, place))
    return answers
