"""A job as one of several processes: all run it, the first one prints, and all end together."""

import os
import sys
import traceback

from dsinfer_jax.generate.options import Job
from dsinfer_jax.mesh.hosts import LOST, HostOptions, HostsError, join

_FAILED, _BAD_INPUT, _INTERRUPTED = 1, 2, 130


def run_together(job: Job, options: HostOptions) -> int:
    """Run a job with the other processes; returns the exit code if all went well.

    Otherwise the process ends here, with a sentence on stderr: nothing that waits for a lost peer
    may run any more, and that includes the shutdown of the interpreter.
    """
    errors = os.fdopen(os.dup(sys.stderr.fileno()), "w")

    def say(sentence: str) -> None:
        print(f"generate: {sentence}", file=errors, flush=True)

    try:
        hosts = join(options, say)
    except HostsError as error:
        say(str(error))
        return LOST
    _let_first_print(hosts.first)
    try:
        from dsinfer_jax.generate.run import run

        code = run(job, hosts)
        hosts.leave()
        return code
    except ValueError as error:  # ConfigError, CheckpointError, LayoutError, ...
        hosts.stop(str(error), _BAD_INPUT)
    except BrokenPipeError:
        hosts.stop("the reader of its output is gone", _FAILED)
    except (HostsError, ConnectionError) as error:
        hosts.stop(str(error), LOST)
    except KeyboardInterrupt:
        hosts.stop("it was interrupted", _INTERRUPTED)
    except Exception as error:  # a fault of this program
        traceback.print_exception(error, file=errors)
        hosts.stop(f"it failed with {type(error).__name__}: {error}", _FAILED)


def _let_first_print(first: bool) -> None:
    """Let nothing but the first process's own output out.

    What is below Python prints nowhere: gloo writes to standard output.
    """
    if first:
        sys.stdout = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding=sys.stdout.encoding)
    else:
        sys.stdout = sys.stderr = open(os.devnull, "w")  # noqa: SIM115  open until the end
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.close(nowhere)
