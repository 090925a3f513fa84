"""`python -m dsinfer_jax.generate`: the command line.

`options.py` and `prompts.py` read what was asked and load nothing heavy, so that `-h` and every
bad option answer at once; `run.py` loads the model and generates; `together.py` does so as one of
several processes; `output.py` writes. A chat in
the terminal is `interactive.py`: `dialogue.py` is what was said and asks the model, `commands.py`
are lines with a slash, `terminal.py` is what it looks like.
"""

import os
import sys
from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code: 0, 1 if a request failed, 2 for bad input.

    One of several processes ends by itself, with code 3, when another one is lost or differs.
    """
    from dsinfer_jax.generate.options import parse

    try:
        job = parse(sys.argv[1:] if arguments is None else arguments)
        if job.hosts is not None:
            from dsinfer_jax.generate.together import run_together

            return run_together(job, job.hosts)
        from dsinfer_jax.generate.run import run

        return run(job)
    except ValueError as error:  # ConfigError, CheckpointError, SettingError, PromptError, ...
        print(f"generate: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # the reader has seen enough; let the interpreter flush to nowhere
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
