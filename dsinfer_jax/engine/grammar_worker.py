"""A process that tries grammars out, so that a hostile one costs the engine nothing.

Started as `python -m dsinfer_jax.engine.grammar_worker`. Reads JSON lines: first the vocabulary and
the bytes of memory it may take, then one grammar a line; answers each with one line, an error or
null. It ends with its input.
"""

import base64
import json
import os
import resource
import sys
from pathlib import Path

import numpy as np

from dsinfer_jax.engine.grammar import NICENESS, Vocabulary, native_matcher
from dsinfer_jax.engine.structured_output import GrammarError


def main() -> None:
    """Serve until the input ends."""
    os.nice(NICENESS)
    start = json.loads(sys.stdin.readline())
    tokens = [base64.b64decode(token) for token in start["tokens"]]
    vocabulary = Vocabulary(tokens, start["control"], start["ends"])
    limit = _data_bytes() + start["memory_bytes"]
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    _answer(None)
    mask = np.zeros(-(-len(tokens) // 32), np.int32)
    for line in sys.stdin:
        _answer(_error(vocabulary, json.loads(line), mask))


def _error(vocabulary: Vocabulary, grammar: str, mask: np.ndarray) -> str | None:
    try:
        native = native_matcher(vocabulary, grammar)
        native.unsafe_compute_mask_ptr(mask.ctypes.data, mask.nbytes)  # the first is the dearest
    except (GrammarError, MemoryError) as error:
        return str(error) or "the grammar needs too much memory; make it smaller"
    return None


def _data_bytes() -> int:
    """Memory of this process that counts against the limit; Linux tells."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmData:"):
            return int(line.split()[1]) * 1024  # kilobytes
    return 0


def _answer(error: str | None) -> None:
    sys.stdout.write(json.dumps(error) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
