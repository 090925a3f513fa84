"""What the command line writes: a readable stream, JSON lines, statistics."""

import json
import resource
import sys
import unicodedata
from collections.abc import Sequence
from typing import TYPE_CHECKING, TextIO

from dsinfer_jax.engine.request import Delta, RequestOutput

if TYPE_CHECKING:
    from dsinfer_jax.engine.llm_engine import LLMEngine

_SHOWN_PROMPT = 60


class TextWriter:
    """Text as it comes, one request after the other: the first unfinished one is shown live.

    Args:
        prompts: what stands before each text.
        stream: where to write.
    """

    def __init__(self, prompts: Sequence[str], stream: TextIO | None = None) -> None:
        self._prompts = prompts
        self._stream = sys.stdout if stream is None else stream
        self._held = [""] * len(prompts)
        self._ended = [False] * len(prompts)
        self._live = 0
        self._begin()

    def add(self, delta: Delta) -> None:
        """Show the new text, or hold it until its turn."""
        self._held[delta.index] += delta.text
        self._ended[delta.index] |= delta.finish_reason is not None
        while self._live < len(self._prompts):
            self._write(self._held[self._live])
            self._held[self._live] = ""
            if not self._ended[self._live]:
                return
            self._write("\n")
            self._live += 1
            self._begin()

    def _begin(self) -> None:
        if self._live == len(self._prompts):
            return
        prompt = self._prompts[self._live]
        if len(self._prompts) > 1:
            short = prompt if len(prompt) <= _SHOWN_PROMPT else prompt[: _SHOWN_PROMPT - 1] + "…"
            self._write(f"[{self._live}] {json.dumps(short, ensure_ascii=False)}\n")
        else:
            self._write(prompt)

    def _write(self, text: str) -> None:
        if text:
            self._stream.write(_harmless(text))
            self._stream.flush()


def _harmless(text: str) -> str:
    """Control characters as visible signs, so that no output steers a terminal."""
    return "".join("\ufffd" if _is_control(character) else character for character in text)


def _is_control(character: str) -> bool:
    return unicodedata.category(character) == "Cc" and character not in "\n\t"


def json_line(output: RequestOutput) -> str:
    """One result as a JSON object on one line."""
    return json.dumps(
        {
            "index": output.index,
            "prompt_token_ids": output.prompt_token_ids,
            "token_ids": output.token_ids,
            "text": output.text,
            "finish_reason": str(output.finish_reason),
            "logprobs": output.logprobs,
            "error": output.error,
        },
        ensure_ascii=False,
    )


def stats_lines(engine: "LLMEngine", load_seconds: float, first_token_seconds: float) -> list[str]:
    """The statistics of a run, one line each."""
    prefill, decode, memory = engine.prefill_stats, engine.decode_stats, engine.memory
    report, requests = engine.program_report, engine.request_stats
    resident = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024  # kilobytes on Linux
    cached = sum(entry.from_cache for entry in report)
    return [
        *(
            f"{name:9} {phase.tokens} tokens in {phase.steps} steps, {phase.seconds:.2f} s: "
            f"{phase.tokens_per_second:.1f} tokens/s"
            for name, phase in (("prefill", prefill), ("decode", decode))
        ),
        f"host      {engine.host_seconds:.2f} s beside "
        f"{engine.wait_seconds:.2f} s of waiting for the device",
        f"requests  {requests.cached_tokens} of {requests.prompt_tokens} prompt tokens from cached "
        f"prefixes, {engine.preemptions} preemptions; first token after "
        f"{requests.first_token.mean:.3f} s, then every {requests.inter_token.mean * 1e3:.1f} ms",
        f"programs  {len(report)} in {engine.program_seconds:.1f} s, {cached} of them from the "
        "compilation cache",
        *(f"          {entry}" for entry in report),
        f"memory    weights {memory.weights / 1e6:.1f} MB, cache {memory.cache / 1e6:.1f} MB, "
        f"temporaries {memory.temporaries / 1e6:.1f} MB, peak of the process "
        f"{resident / 1e6:.0f} MB",
        f"start     model loaded in {load_seconds:.1f} s, first token after "
        f"{first_token_seconds:.1f} s",
    ]
