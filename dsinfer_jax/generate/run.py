"""Load the model, generate, write. Imports of heavy modules wait until they are needed."""

import sys
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from dsinfer_jax.config import ModelConfig
from dsinfer_jax.engine.request import SamplingParams
from dsinfer_jax.generate.chat import ChatCodec, structured_output
from dsinfer_jax.generate.options import Job
from dsinfer_jax.generate.output import TextStream, TextWriter, json_line, stats_lines
from dsinfer_jax.generate.prompts import PromptItem
from dsinfer_jax.generate.stats_view import StatsView
from dsinfer_jax.mesh.hosts import Hosts
from dsinfer_jax.settings import llm_options

if TYPE_CHECKING:
    from dsinfer_jax.engine.llm import LLM

_PREFILL_ROWS = 256
_LONG_PREFILL_ROWS = 1024  # a second prefill program, worth its compilation for long prompts


def run(job: Job, hosts: Hosts | None = None) -> int:
    """Run a job; returns the exit code. Raises ValueError for a model that cannot be used.

    Args:
        hosts: the processes that run the same job; None: this one alone.
    """
    llm, prompts, load_seconds = _load(job, hosts)
    if job.chat is not None:
        from dsinfer_jax.generate.interactive import chat_with

        chat_with(llm, job.chat)
        return 0
    shown = [_shown(job, index, ids, llm) for index, ids in enumerate(prompts)]
    if not job.stats:
        return _generate(job, llm, prompts, shown, sys.stdout).code
    with StatsView(llm.engine.snapshot, sys.stderr, sys.stdout) as view:
        run = _generate(job, llm, prompts, shown, view.text_stream)
    for line in stats_lines(llm.engine, load_seconds, run.first_token_seconds):
        _say(line)
    return run.code


@dataclass(frozen=True)
class _Run:
    """How a run went: the exit code, and the seconds from the start to the first token."""

    code: int
    first_token_seconds: float


def _generate(
    job: Job, llm: "LLM", prompts: list[list[int]], shown: list[str], stream: TextStream
) -> _Run:
    """Generate and write."""
    params = [_params(item, llm) for item in job.prompts]
    writer = None if job.as_json else TextWriter(shown, [one.n for one in params], stream)
    first_token_seconds = 0.0
    failures = 0
    for delta in llm.stream(prompts, params):
        if delta.token_ids and not first_token_seconds:
            first_token_seconds = time.perf_counter() - job.started
        if writer is not None:
            writer.add(delta)
        elif delta.output is not None:
            stream.write(json_line(delta.output) + "\n")
            stream.flush()
        if delta.error is not None:
            failures += 1
            _say(f"prompt {delta.index} failed: {delta.error}")
    return _Run(1 if failures else 0, first_token_seconds)


def _load(job: Job, hosts: Hosts | None) -> tuple["LLM", list[list[int]], float]:
    """The model ready to run, the prompts as token ids, and the seconds until it was loaded."""
    settings = job.settings
    model = settings["model"]
    if model != "demo":
        ModelConfig.from_pretrained(model)  # refuse a bad folder before jax is imported

    from dsinfer_jax import _jax
    from dsinfer_jax.engine.llm import LLM, open_model

    _jax.keep_programs(settings["cache_dir"], _say)
    if model == "demo":
        from dsinfer_jax import demo

        _say(demo.DESCRIPTION)
    config, weights, codec = open_model(model, settings["native_checkpoint"])
    open_seconds = time.perf_counter() - job.started
    chat = ChatCodec(codec)
    prompts = [
        codec.encode(content) if isinstance(content, str)
        else content if isinstance(content, list)
        else chat.encode(content)
        for content in (item.content for item in job.prompts)
    ]  # fmt: skip
    if hosts is not None:
        hosts.agree("the prompts", _prompt_facts(job, prompts))
    prefill_rows = [_PREFILL_ROWS]
    if any(len(ids) >= _LONG_PREFILL_ROWS for ids in prompts):
        prefill_rows.append(_LONG_PREFILL_ROWS)
    llm = LLM(
        config,
        weights,
        codec,
        **llm_options(settings),
        prefill_rows=prefill_rows,
        progress=_say if sys.stderr.isatty() else None,
        hosts=hosts,
    )
    return llm, prompts, open_seconds + llm.engine.load_seconds


def _prompt_facts(job: Job, prompts: list[list[int]]) -> dict[str, str]:
    """What all processes must be asked alike, by name."""
    return {
        f"prompt {number}": f"{ids} {item.params} {item.constraint}"
        for number, (ids, item) in enumerate(zip(prompts, job.prompts))
    }


def _params(item: PromptItem, llm: "LLM") -> SamplingParams:
    """How to answer a prompt, with what its chat demands of the output."""
    if item.constraint is None:
        return item.params
    assert llm.codec is not None
    return replace(item.params, structured_output=structured_output(item.constraint, llm.codec))


def _shown(job: Job, index: int, ids: list[int], llm: "LLM") -> str:
    """A prompt as the reader knows it: its text, or the spelling of its ids."""
    content = job.prompts[index].content
    if isinstance(content, str):
        return content
    assert llm.codec is not None
    return b"".join(map(llm.codec.token_bytes, ids)).decode(errors="replace")


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
