"""What the command line writes: a readable stream, JSON lines, statistics."""

import json
import resource
import unicodedata
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Protocol

from dsinfer_jax.engine.request import Delta, RequestOutput
from dsinfer_jax.generate.stats_view import accepted_drafts, hidden_host_time

if TYPE_CHECKING:
    from dsinfer_jax.engine.llm_engine import LLMEngine

_SHOWN_PROMPT = 60


class TextStream(Protocol):
    """Where text is written: a file, or what stands for one."""

    def write(self, text: str, /) -> object: ...

    def flush(self) -> object: ...


class TextWriter:
    """Text as it comes, one answer after the other: the first unfinished one is shown live.

    Args:
        prompts: what stands before each text.
        counts: how many answers each prompt gets.
        stream: where to write.
    """

    def __init__(self, prompts: Sequence[str], counts: Sequence[int], stream: TextStream) -> None:
        self._prompts, self._stream = prompts, stream
        self._answers = [
            (index, answer) for index, count in enumerate(counts) for answer in range(count)
        ]
        self._held = dict.fromkeys(self._answers, "")
        self._ended: set[tuple[int, int]] = set()
        self._live = 0
        self._begin()

    def add(self, delta: Delta) -> None:
        """Show the new text, or hold it until its turn."""
        self._held[delta.index, delta.answer] += delta.text
        if delta.finish_reason is not None:
            self._ended.add((delta.index, delta.answer))
        while self._live < len(self._answers):
            place = self._answers[self._live]
            self._write(self._held[place])
            self._held[place] = ""
            if place not in self._ended:
                return
            self._write("\n")
            self._live += 1
            self._begin()

    def _begin(self) -> None:
        if self._live == len(self._answers):
            return
        index, answer = self._answers[self._live]
        prompt = self._prompts[index]
        if len(self._answers) > 1:
            short = prompt if len(prompt) <= _SHOWN_PROMPT else prompt[: _SHOWN_PROMPT - 1] + "…"
            again = f", answer {answer}" if answer else ""
            self._write(f"[{index}{again}] {json.dumps(short, ensure_ascii=False)}\n")
        else:
            self._write(prompt)

    def _write(self, text: str) -> None:
        if text:
            self._stream.write(harmless(text))
            self._stream.flush()


def harmless(text: str) -> str:
    """Control characters as visible signs, so that no output steers a terminal."""
    return "".join("\ufffd" if _is_control(character) else character for character in text)


def _is_control(character: str) -> bool:
    return unicodedata.category(character) == "Cc" and character not in "\n\t"


def json_line(output: RequestOutput) -> str:
    """One result as a JSON object on one line."""
    return json.dumps(
        {
            "index": output.index,
            "answer": output.answer,
            "prompt_token_ids": output.prompt_token_ids,
            "token_ids": output.token_ids,
            "text": output.text,
            "finish_reason": str(output.finish_reason),
            "logprobs": output.logprobs,
            "error": output.error,
            "cached_tokens": output.cached_tokens,
            "why_miss": output.why_miss and asdict(output.why_miss),
        },
        ensure_ascii=False,
    )


def stats_lines(engine: "LLMEngine", load_seconds: float, first_token_seconds: float) -> list[str]:
    """The statistics of a run, one line each."""
    prefill, decode, memory = engine.prefill_stats, engine.decode_stats, engine.memory
    report, requests = engine.program_report, engine.request_stats
    resident = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024  # kilobytes on Linux
    cached = sum(entry.from_cache for entry in report)
    snapshot = engine.snapshot()
    drafts = accepted_drafts(snapshot)
    return [
        *(
            f"{name:9} {phase.tokens} tokens in {phase.steps} steps, {phase.seconds:.2f} s: "
            f"{phase.tokens_per_second:.1f} tokens/s"
            for name, phase in (("prefill", prefill), ("decode", decode))
        ),
        f"host      {engine.host_seconds:.2f} s beside "
        f"{engine.wait_seconds:.2f} s of waiting for the device" + hidden_host_time({}, snapshot),
        f"requests  {requests.cached_tokens} of {requests.prompt_tokens} prompt tokens from cached "
        f"prefixes, {engine.preemptions} preemptions; first token after "
        f"{requests.first_token.mean:.3f} s, then every {requests.inter_token.mean * 1e3:.1f} ms",
        *([f"drafts    {drafts}"] if drafts else []),
        f"programs  {len(report)} in {engine.program_seconds:.1f} s, {cached} of them from the "
        "compilation cache",
        *(f"          {entry}" for entry in report),
        f"memory    weights {memory.weights / 1e6:.1f} MB, cache {memory.cache / 1e6:.1f} MB, "
        f"temporaries {memory.temporaries / 1e6:.1f} MB, peak of the process "
        f"{resident / 1e6:.0f} MB",
        f"start     model loaded in {load_seconds:.1f} s, first token after "
        f"{first_token_seconds:.1f} s",
    ]
