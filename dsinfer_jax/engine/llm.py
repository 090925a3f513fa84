"""LLM: the offline API. Prompts in, finished requests out, or a stream of what each step added."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dsinfer_jax.config import ModelConfig
from dsinfer_jax.engine.answer_text import AnswerText
from dsinfer_jax.engine.detokenise import TextCodec
from dsinfer_jax.engine.engine_config import EngineConfig
from dsinfer_jax.engine.llm_engine import LLMEngine
from dsinfer_jax.engine.request import (
    Delta,
    FinishReason,
    Request,
    RequestOutput,
    SamplingParams,
)
from dsinfer_jax.engine.structured_output import GrammarError
from dsinfer_jax.model.numerics import POLICIES, RUNTIME, Numerics
from dsinfer_jax.model.params import Params

if TYPE_CHECKING:  # it needs the grammar extra
    from dsinfer_jax.engine.grammar_compiler import GrammarCompiler

Prompt = str | Sequence[int]
DEMO = "demo"


class LLM:
    """A model that is ready to generate: every program is compiled at construction.

    Args:
        config, params: the model; see `checkpoint.load_pretrained`.
        codec: for prompts and output as text; without it prompts are token ids and texts empty.
        numerics: a rounding policy or the name of one.
        max_model_len: most tokens of prompt plus output; None: 4096, or what the model allows.
        slots: requests that run at the same time, a multiple of 8; the others wait.
        keep_tokens: 0 computes whole prompts; more is the suffix that consumer layers compute.
        prefill_rows: prompt tokens of a step, one program each.
        blocks: cache blocks of 128 tokens; None: enough for every slot.
        prefix_cache: "off"; "exact": prompts that begin alike share computed blocks and every
            answer has the bits of a run without a cache; "bounded": as published, less is computed
            again and answers are approximate; needs keep_tokens.
        asynchronous: hand a step to the device before the tokens of the last one are read.
        deterministic: equal prompts and parameters give equal bits, whatever else runs, however
            prompts are cut or cached and whatever is drafted; requests without a seed get one from
            their prompt. What would break it is refused (docs/sampling.md).
        progress: called with one line for each program that is prepared.

    Raises:
        ValueError: a size that cannot be used, in one sentence.
    """

    def __init__(
        self,
        config: ModelConfig,
        params: Params,
        codec: TextCodec | None = None,
        *,
        numerics: Numerics | str = RUNTIME,
        max_model_len: int | None = None,
        slots: int = 8,
        keep_tokens: int = 0,
        prefill_rows: Sequence[int] = (256,),
        blocks: int | None = None,
        prefix_cache: str = "exact",
        asynchronous: bool = True,
        deterministic: bool = False,
        progress: Callable[[str], None] | None = None,
    ) -> None:
        sizes = EngineConfig.of(
            config,
            max_model_len=max_model_len,
            slots=slots,
            prefill_rows=prefill_rows,
            keep_tokens=keep_tokens,
            blocks=blocks,
            prefix_cache=prefix_cache,
            asynchronous=asynchronous,
            deterministic=deterministic,
        )
        if isinstance(numerics, str):
            if numerics not in POLICIES:
                raise ValueError(
                    f"numerics is {numerics!r}; it must be one of {', '.join(POLICIES)}"
                )
            numerics = POLICIES[numerics]
        self.config, self.codec = config, codec
        grammars = self._grammar_compiler if codec else None
        self.engine = LLMEngine(config, params, numerics, sizes, progress, grammars=grammars)
        self._running = False  # deltas are told apart by their place in one call

    @classmethod
    def from_pretrained(cls, model: str | Path, **options: Any) -> "LLM":
        """Load a checkpoint folder, or "demo", the embedded model.

        Args:
            options: keyword arguments of the constructor.

        Raises:
            ConfigError, CheckpointError: the folder cannot be used.
            ValueError: as the constructor.
        """
        return cls(*load_model(model), **options)

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
    ) -> list[RequestOutput]:
        """Run prompts to their ends.

        Args:
            prompts: texts, which get a BOS in front, or token ids, which are taken as they are.
            sampling_params: for all prompts or one for each; None: the defaults.

        Returns:
            One result for each prompt, in order, or `n` in a row. A prompt that cannot run, or
            whose output is not finite, is a result with an error in its place.

        Raises:
            ValueError: text or stop strings without a tokenizer, or lists of unequal length.
        """
        outputs = [delta.output for delta in self.stream(prompts, sampling_params) if delta.output]
        return sorted(outputs, key=lambda output: (output.index, output.answer))

    def stream(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
    ) -> Iterator[Delta]:
        """Like `generate`, but yields what each step added, for all prompts as it comes.

        The last delta of each answer has its finish reason and the whole output. Closing the
        iterator early aborts what still runs. One call runs at a time: another one before the end
        raises RuntimeError.
        """
        return self._run(self._requests(prompts, sampling_params))

    def close(self) -> None:
        """End what runs beside the model: the process that builds grammars."""
        self.engine.close()

    def token_ids(self, prompt: Prompt) -> list[int]:
        """A prompt as the model will see it. Raises ValueError for text without a tokenizer."""
        if not isinstance(prompt, str):
            return list(prompt)
        if self.codec is None:
            raise ValueError("a prompt is text, but the model has no tokenizer; give token ids")
        return self.codec.encode(prompt)

    def _grammar_compiler(self) -> "GrammarCompiler":
        assert self.codec is not None
        try:
            from dsinfer_jax.engine.grammar_compiler import compiler_for
        except ImportError as error:
            raise GrammarError(
                "structured_output needs llguidance; install the extra named grammar"
            ) from error
        return compiler_for(self.codec, self.config.vocab_size, [self.config.eos_token_id])

    def _requests(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None,
    ) -> list[Request]:
        items: Sequence[Any] = prompts
        if isinstance(prompts, str) or (prompts and isinstance(prompts[0], int)):
            items = [prompts]
        if sampling_params is None or isinstance(sampling_params, SamplingParams):
            params = [sampling_params or SamplingParams()] * len(items)
        else:
            params = list(sampling_params)
        if len(params) != len(items):
            raise ValueError(
                f"sampling_params has {len(params)} entries for {len(items)} prompts; "
                "give one for all, or one for each"
            )
        if self.codec is None and any(chosen.stop_strings for chosen in params):
            raise ValueError(
                "stop needs a tokenizer, which the model lacks; use stop_token_ids instead"
            )
        return [
            _request(index, answer, self.token_ids(item), chosen)
            for index, (item, chosen) in enumerate(zip(items, params))
            for answer in range(chosen.n)
        ]

    def _run(self, requests: list[Request]) -> Iterator[Delta]:
        if self._running:
            raise RuntimeError(
                "the model is busy with another call; finish its stream, or close it, first"
            )
        answers = {(request.index, request.answer): request for request in requests}
        texts = {
            place: AnswerText(self.codec, request.params) if self.codec else None
            for place, request in answers.items()
        }
        self._running = True
        try:
            for delta in self._deltas(requests):
                place = delta.index, delta.answer
                yield self._complete(delta, answers[place], texts[place])
        finally:
            self._running = False
            for request in requests:
                self.engine.abort_request(request)

    def _complete(self, delta: Delta, request: Request, text: AnswerText | None) -> Delta:
        """A delta with its text; the end of the request if a stop string is in it."""
        new = _new_text(delta, text)
        if text is not None and text.stop is not None:
            self.engine.stop_request(request, text.stop, len(request.token_ids))
            delta = replace(delta, finish_reason=request.finish_reason)
        output = None
        if delta.finish_reason is not None:
            output = _output(request, text.text if text else "")
        return replace(delta, text=new, output=output)

    def _deltas(self, requests: list[Request]) -> Iterator[Delta]:
        for request in requests:
            yield from self.engine.add_request(request)
        while self.engine.has_unfinished_requests():
            yield from self.engine.step()


def load_model(model: str | Path) -> tuple[ModelConfig, Params, TextCodec]:
    """Configuration, weights and tokenizer of a checkpoint folder, or of "demo".

    Raises:
        ConfigError, CheckpointError: the folder cannot be used.
    """
    if model == DEMO:
        from dsinfer_jax import demo

        config, params, tokenizer = demo.load()
    else:
        from dsinfer_jax.checkpoint import load_pretrained

        config, params = load_pretrained(model)
        tokenizer = Path(model) / "tokenizer.json"
    return config, params, TextCodec(tokenizer, config.bos_token_id)


def _request(index: int, answer: int, prompt: list[int], params: SamplingParams) -> Request:
    request = Request(index, prompt, params, answer=answer)
    request.seed = params.answer_seed(request.seed, answer)
    return request


def _new_text(delta: Delta, writer: AnswerText | None) -> str:
    if writer is None:
        return ""
    stopped = delta.finish_reason is FinishReason.STOP  # the token that stops is not text
    tokens = delta.token_ids[:-1] if stopped else delta.token_ids
    return writer.add(tokens, last=delta.finish_reason is not None)


def _output(request: Request, text: str) -> RequestOutput:
    assert request.finish_reason is not None
    return RequestOutput(
        index=request.index,
        prompt_token_ids=list(request.prompt_token_ids),
        token_ids=request.token_ids,
        text=text,
        finish_reason=request.finish_reason,
        logprobs=request.logprobs if request.params.logprobs else None,
        error=request.error,
        cached_tokens=request.cached_tokens,
        why_miss=request.why_miss,
        stop_reason=request.stop_reason,
        top_logprobs=request.top_logprobs if request.params.top_logprobs else None,
        answer=request.answer,
    )
