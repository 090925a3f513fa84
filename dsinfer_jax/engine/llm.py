"""LLM: the offline API. Prompts in, finished requests out, or a stream of what each step added."""

import operator
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dsinfer_jax.config import ModelConfig
from dsinfer_jax.engine.answers import Answer, RunningAnswers, answers_to
from dsinfer_jax.engine.detokenise import TextCodec
from dsinfer_jax.engine.engine_config import DEFAULT_BALANCE_WINDOW, EngineConfig
from dsinfer_jax.engine.llm_engine import LLMEngine
from dsinfer_jax.engine.request import Delta, RequestOutput, SamplingParams
from dsinfer_jax.engine.structured_output import GrammarError
from dsinfer_jax.engine.weights import StoredWeights
from dsinfer_jax.mesh.hosts import Hosts
from dsinfer_jax.mesh.layout import MeshLayout
from dsinfer_jax.model.numerics import POLICIES, RUNTIME, Numerics
from dsinfer_jax.model.params import Params

if TYPE_CHECKING:  # it needs the grammar extra
    from dsinfer_jax.engine.grammar_compiler import GrammarCompiler

Prompt = str | Sequence[int]
DEMO = "demo"


class LLM:
    """A model that is ready to generate: every program is compiled at construction.

    Args:
        config, params: the model; see `open_model` and `checkpoint.load_pretrained`.
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
        drafter: "off"; or take several tokens from a step where a proposal is right, with the same
            answers: "lookup" proposes what followed the same tokens earlier in the sequence,
            "dspark" asks the model's draft block.
        draft_tokens: most proposed tokens of a step for each request, 1 to 8.
        draft_lengths: "fixed" verifies all of them; "variable" those that are likely enough to pay,
            and does without where drafting costs more than it brings (docs/engine.md). The law of
            the answers is the same.
        decode_rows: rows of the programs for variable lengths; None: slots x 1, 2, ... up to
            slots x draft_tokens.
        confidence_temperatures: divide the logits of the draft block's confidences, one for all
            places or one for each; None: 1.
        dp, ep, cp: ranks with requests of their own, devices that share the experts (None: all),
            and devices that share the rows of a prompt (docs/sharding.md). Slots, blocks and rows
            are those of each rank.
        exchange: how rows come to their experts on a mesh, see mesh/exchange.py.
        redundant_experts: copies of experts on each device, for hot ones.
        rebalance_steps: place the experts anew every so many steps, one layer between two steps,
            without a change of any answer; 0: never.
        balance_window: steps whose loads decide where they go.
        progress: called with one line for each program that is prepared.
        hosts: the processes whose devices the model runs on, see `mesh.hosts.join`; each of them
            makes the same calls (docs/sharding.md). None: this one alone.

    Raises:
        ValueError: a size that cannot be used, in one sentence.
    """

    def __init__(
        self,
        config: ModelConfig,
        params: Params | StoredWeights,
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
        drafter: str = "off",
        draft_tokens: int = 5,
        draft_lengths: str = "fixed",
        decode_rows: Sequence[int] | None = None,
        confidence_temperatures: Sequence[float] | None = None,
        dp: int = 1,
        ep: int | None = None,
        cp: int = 1,
        exchange: str = "auto",
        redundant_experts: int = 0,
        rebalance_steps: int = 0,
        balance_window: int = DEFAULT_BALANCE_WINDOW,
        progress: Callable[[str], None] | None = None,
        hosts: Hosts | None = None,
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
            drafter=drafter,
            draft_tokens=draft_tokens,
            draft_lengths=draft_lengths,
            decode_rows=decode_rows,
            confidence_temperatures=confidence_temperatures,
            layout=MeshLayout.of(dp, dp * cp if ep is None else ep, cp),
            exchange=exchange,
            redundant_experts=redundant_experts,
            rebalance_steps=rebalance_steps,
            balance_window=balance_window,
        )
        if isinstance(numerics, str):
            if numerics not in POLICIES:
                raise ValueError(
                    f"numerics is {numerics!r}; it must be one of {', '.join(POLICIES)}"
                )
            numerics = POLICIES[numerics]
        grammars = partial(_grammar_compiler, codec, config) if codec else None
        engine = LLMEngine(
            config, params, numerics, sizes, progress, grammars=grammars, hosts=hosts
        )
        self._attach(engine, codec)

    @classmethod
    def from_pretrained(
        cls, model: str | Path, *, native: str | Path | None = None, **options: Any
    ) -> "LLM":
        """Load a checkpoint folder, or "demo", the embedded model. On a mesh every process reads
        what its own devices need.

        Args:
            native: folder of a native checkpoint, which is written if it does not exist and makes
                later starts faster (docs/sharding.md).
            options: keyword arguments of the constructor.

        Raises:
            ConfigError, CheckpointError: the folder cannot be used.
            ValueError: as the constructor.
        """
        return cls(*open_model(model, native), **options)

    @classmethod
    def over_engine(cls, engine: LLMEngine, codec: TextCodec | None = None) -> "LLM":
        """An LLM over an engine that is ready, which nobody else may use."""
        llm = cls.__new__(cls)
        llm._attach(engine, codec)
        return llm

    def _attach(self, engine: LLMEngine, codec: TextCodec | None) -> None:
        self.engine, self.codec, self.config = engine, codec, engine.config
        self._in_use = threading.Lock()  # deltas are told apart by their place in one call

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
        return self._run(self._answers(prompts, sampling_params))

    def close(self) -> None:
        """End what runs beside the model: the process that builds grammars."""
        self.engine.close()

    def token_ids(self, prompt: Prompt) -> list[int]:
        """A prompt as the model will see it.

        Raises:
            ValueError: text without a tokenizer, or ids that are not whole numbers.
        """
        if isinstance(prompt, str):
            if self.codec is None:
                raise ValueError("a prompt is text, but the model has no tokenizer; give token ids")
            return self.codec.encode(prompt)
        try:
            return list(map(operator.index, prompt))
        except TypeError:
            raise ValueError(
                f"a prompt is {str(prompt)[:40]}; it must be text or whole numbers"
            ) from None

    def answers_to(
        self, prompt: Prompt, params: SamplingParams, *, index: int, place: int = 0, **fields: Any
    ) -> list[Answer]:
        """The answers to one prompt, not yet handed to the engine; see `answers.answers_to`.

        Raises:
            ValueError: text or stop strings without a tokenizer, or ids that are no numbers.
        """
        ids = self.token_ids(prompt)
        return answers_to(ids, params, self.codec, index=index, place=place, **fields)

    def claim(self) -> None:
        """Reserve the engine for one caller until `release`. Raises RuntimeError if it is taken."""
        if not self._in_use.acquire(blocking=False):
            raise RuntimeError(
                "the model is busy with another call; finish its stream, or close it, first"
            )

    def release(self) -> None:
        """Let others have the engine."""
        self._in_use.release()

    def _answers(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None,
    ) -> list[Answer]:
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
        return [
            answer
            for place, (item, chosen) in enumerate(zip(items, params))
            for answer in self.answers_to(item, chosen, index=place, place=place)
        ]

    def _run(self, answers: list[Answer]) -> Iterator[Delta]:
        self.claim()
        running = RunningAnswers(self.engine)
        try:
            for answer in answers:
                yield from _deltas(running.add(answer))
            while self.engine.has_unfinished_requests():
                yield from _deltas(running.complete(self.engine.step()))
        finally:
            running.abort(list(running))
            self.release()


def _deltas(completed: list[tuple[Answer, Delta]]) -> Iterator[Delta]:
    return (delta for _, delta in completed)


def open_model(
    model: str | Path, native: str | Path | None = None
) -> tuple[ModelConfig, StoredWeights, TextCodec]:
    """Configuration, weights that are not read yet, and tokenizer of a checkpoint folder, or of
    "demo".

    Args:
        native: as in `LLM.from_pretrained`.

    Raises:
        ConfigError, CheckpointError: the folder cannot be used.
    """
    if model == DEMO:
        from dsinfer_jax import demo

        model = demo.FOLDER
    config = ModelConfig.from_pretrained(model)
    weights = StoredWeights(Path(model), config, Path(native) if native else None)
    return config, weights, TextCodec(Path(model) / "tokenizer.json", config.bos_token_id)


def load_model(model: str | Path) -> tuple[ModelConfig, Params, TextCodec]:
    """The same with all weights on one device.

    Raises:
        ConfigError, CheckpointError: the folder cannot be used.
    """
    config, weights, codec = open_model(model)
    return config, weights.load(None), codec


def _grammar_compiler(codec: TextCodec, config: ModelConfig) -> "GrammarCompiler":
    try:
        from dsinfer_jax.engine.grammar_compiler import compiler_for
    except ImportError as error:
        raise GrammarError(
            "structured_output needs llguidance; install the extra named grammar"
        ) from error
    return compiler_for(codec, config.vocab_size, [config.eos_token_id])
