"""Measure structured output: grammars, masks, and what a hostile schema does to other requests.

    python tools/bench_grammar.py [TOKENIZER.json]

Without a tokenizer the demo's is used; the second part always runs the demo model.
"""

import json
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from dsinfer_jax import demo
from dsinfer_jax.engine.detokenise import TextCodec
from dsinfer_jax.engine.grammar import Matcher, Vocabulary, native_matcher, regex_grammar
from dsinfer_jax.engine.grammar_text import json_grammar
from dsinfer_jax.engine.llm import LLM
from dsinfer_jax.engine.sampling_params import SamplingParams
from dsinfer_jax.engine.slot_state import mask_words
from dsinfer_jax.engine.structured_output import StructuredOutput

_STEPS = 60


def _nested(depth: int) -> dict[str, Any]:
    if depth == 0:
        return {"type": "integer"}
    parts = [
        {"type": "object", "properties": {key: _nested(depth - 1)}, "required": [key],
         "additionalProperties": False}
        for key in "ab"
    ]  # fmt: skip
    return {"anyOf": parts}


def _schemas() -> dict[str, str]:
    fields = {f"p{place}": {"type": ["string", "number"][place % 2]} for place in range(40)}
    record = {"type": "object", "properties": fields, "required": list(fields)}
    words = [f"value{number * 7919}" for number in range(5000)]
    return {
        "any object": json_grammar('{"type": "object"}'),
        "40 fields": json_grammar(json.dumps(record)),
        "5000 words": json_grammar(json.dumps({"enum": words})),
        "256 branches": json_grammar(json.dumps(_nested(8))),
        "4096 branches": json_grammar(json.dumps(_nested(12))),
        "(a+)+b": regex_grammar("(a+)+b"),
        "nested repeats": regex_grammar("(.{1,200}x){1,50}"),
    }


def _measure_masks(codec: TextCodec, count: int) -> None:
    control = sorted(codec.control_tokens.values())
    start = time.perf_counter()
    words = Vocabulary([codec.token_bytes(token) for token in range(count)], control, [1])
    print(f"vocabulary of {count}: {time.perf_counter() - start:.1f} s")
    print(
        f"{'grammar':16} {'build s':>8} {'first mask ms':>14} {'median ms':>10} {'largest ms':>11}"
    )
    for name, grammar in _schemas().items():
        start = time.perf_counter()
        matcher = Matcher(native_matcher(words, grammar), (), [1])
        built = time.perf_counter() - start
        times = _mask_times(matcher, count)
        rest = times[1:] or times
        print(f"{name:16} {built:8.2f} {times[0]:14.2f} {np.median(rest):10.3f} {max(rest):11.2f}")


def _mask_times(matcher: Matcher, count: int) -> list[float]:
    """Milliseconds for each mask of a random walk."""
    random, mask, times = np.random.default_rng(0), np.zeros(mask_words(count), np.int32), []
    for _ in range(_STEPS):
        start = time.perf_counter()
        matcher.fill(mask)
        times.append((time.perf_counter() - start) * 1e3)
        bits = np.unpackbits(mask.view(np.uint8), bitorder="little")[:count]
        bits[1] = 0
        if not bits.any() or not matcher.accept(int(random.choice(np.flatnonzero(bits)))):
            break
    return times


def _measure_company() -> None:
    config, params, tokenizer = demo.load()
    llm = LLM(config, params, TextCodec(tokenizer, config.bos_token_id))
    plain = SamplingParams(max_tokens=400, temperature=0, ignore_eos=True)
    llm.generate(["warm up"] * 4, plain)
    llm.generate("x", SamplingParams(structured_output=StructuredOutput("json_object")))

    def median_step() -> float:
        times, last = [], time.perf_counter()
        for delta in llm.stream(["a", "b", "c", "d"], plain):
            if delta.index == 0:
                now = time.perf_counter()
                times.append(now - last)
                last = now
        return float(np.median(times)) * 1e3

    alone = median_step()
    beside = _while(lambda done: _hostile_grammars(llm, done), median_step)
    print(f"step of four plain requests: {alone:.2f} ms, {beside:.2f} ms while grammars are built")


def _while(background: Callable[[threading.Event], None], measure: Callable[[], float]) -> float:
    done = threading.Event()
    thread = threading.Thread(target=background, args=(done,))
    thread.start()
    try:
        return measure()
    finally:
        done.set()
        thread.join()


def _hostile_grammars(llm: LLM, done: threading.Event) -> None:
    """Submit large schemas, each another, until told to stop."""
    compiler = llm.engine._pending._compiler
    assert compiler is not None
    number = 0
    while not done.is_set():
        number += 1
        schema = {**_nested(12), "title": str(number)}
        compiler.submit(StructuredOutput("json_schema", json.dumps(schema))).result()


def main() -> None:
    """Print both tables."""
    if len(sys.argv) > 1:
        codec, count = TextCodec(sys.argv[1], 0), 129_280
    else:
        config, _, tokenizer = demo.load()
        codec, count = TextCodec(tokenizer, config.bos_token_id), config.vocab_size
    _measure_masks(codec, count)
    _measure_company()


if __name__ == "__main__":
    main()
