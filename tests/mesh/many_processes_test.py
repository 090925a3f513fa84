"""Several processes answer as one, and end together (loopback, emulated devices)."""

import json
import re
import signal
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from engine_program import PIECES
from noise_model import TOKENIZER
from process_runs import GENERATE, Ended, ProcessRun

from dsinfer_jax.checkpoint import save_pretrained
from dsinfer_jax.checkpoint.vocabulary import TOKENIZER_NAME, fold_vocabulary
from dsinfer_jax.config import tiny
from dsinfer_jax.model.init import init

DEVICES = Path(__file__).with_name("devices_program.py")
STEPS = Path(__file__).with_name("steps_program.py")
DIFFERING = Path(__file__).with_name("differing_program.py")
PROMPTS: list[dict[str, Any]] = [
    {"prompt_token_ids": [5, 17, 400, 33]},
    {"prompt_token_ids": [7] * 90, "temperature": 0.9, "top_p": 0.9, "seed": 3},
    {"prompt_token_ids": list(range(3, 303)), "max_tokens": 5},
    {"prompt_token_ids": [250, 9], "temperature": 0.8},  # without a seed: one for all processes
    {"prompt_token_ids": [9], "temperature": 0.8, "seed": 4, "max_tokens": 9},
]
UNSEEDED = 3
PEER_SECONDS = 8.0
LIMITED = ["--peer-timeout", "8"]
MARGIN = 20.0  # seconds beyond the limit, for a machine that has other things to do
LOST = 3


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint of four layers, which compiles fast."""
    folder, words = (tmp_path_factory.mktemp(name) for name in ("model", "words"))
    (words / TOKENIZER_NAME).write_bytes(TOKENIZER.read_bytes())
    config = tiny(**PIECES)
    params = init(config, 7, token_map=fold_vocabulary(TOKENIZER))
    save_pretrained(params, config, folder, tokenizer_folder=words)
    return folder


@pytest.fixture(scope="module")
def asked(model: Path) -> list[str]:
    """Options of a run that answers PROMPTS."""
    path = model / "prompts.jsonl"
    path.write_text("".join(json.dumps(one) + "\n" for one in PROMPTS))
    return [*sizes(model), "--prompts", str(path), "--max-tokens", "7", "--ignore-eos", "--json"]


@pytest.fixture(scope="module")
def wanted(asked: list[str], tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    """The answers of one process with one device."""
    with ProcessRun(GENERATE, asked, 0, 1, tmp_path_factory.mktemp("one")) as run:
        return answers(run.ended(0))


def sizes(model: Path) -> list[str]:
    return ["--model", str(model), "--max-model-len", "1024"]


def answers(ended: Ended) -> list[Any]:
    """Tokens and log-probabilities of the prompts that name a seed or need none."""
    assert ended.code == 0, ended.err[-4000:]
    lines = sorted(map(json.loads, ended.out.splitlines()), key=lambda line: line["index"])
    assert [len(line["token_ids"]) for line in lines] == [7, 7, 5, 7, 9]
    return [
        (line["token_ids"], line["logprobs"], line["text"])
        for line in lines
        if line["index"] != UNSEEDED
    ]


def check_same(
    asked: list[str], layout: Sequence[str], count: int, devices: int, folder: Path, wanted: Any
) -> None:
    options = [*asked, *layout, "--check-digests"]
    with ProcessRun(GENERATE, options, count, devices, folder) as run:
        ended = [run.ended(process) for process in range(count)]
    assert answers(ended[0]) == wanted
    for other in ended[1:]:
        assert (other.code, other.out) == (0, "")
        assert "generate:" not in other.err  # the compiler may complain that it is slow


def test_two_processes_see_the_same_arrays(tmp_path: Path) -> None:
    with ProcessRun([str(DEVICES)], ["--check-digests"], 2, 2, tmp_path) as run:
        ended = [run.ended(process) for process in range(2)]
    assert [one.code for one in ended] == [0, 0], [one.err[-2000:] for one in ended]
    seen, other = (json.loads(one.out.splitlines()[-1]) for one in ended)
    assert seen == other
    assert (seen["processes"], seen["addressable"]) == (2, 2)
    assert seen["drafts"] == [[0, 1, 2], [77, 77, 77], [93, 94, 95]]
    assert seen["laws"] == [[0, 1, 2], [27, 28, 29], [93, 94, 95]]
    assert seen["vectors"] == [[0, 0], [1, 1], [2, 2], [3, 3]]
    assert len(set(seen["seeds"])) == 2
    assert re.match(
        r"the processes differ at step 3: draws.top_k is \w+ in process 0 and \w+ in process 1",
        seen["difference"],
    )


@pytest.mark.slow
def test_two_processes_answer_as_one(asked: list[str], wanted: list[Any], tmp_path: Path) -> None:
    check_same(asked, ["--dp", "2"], 2, 1, tmp_path, wanted)


@pytest.mark.slow
def test_two_processes_of_four_devices(asked: list[str], wanted: list[Any], tmp_path: Path) -> None:
    moving = ["--redundant-experts", "2", "--rebalance-steps", "1", "--balance-window", "1"]
    layout = ["--dp", "4", "--ep", "4", "--cp", "2", *moving]
    check_same(asked, layout, 2, 4, tmp_path, wanted)


@pytest.mark.slow
def test_four_processes_of_four_devices(
    asked: list[str], wanted: list[Any], tmp_path: Path
) -> None:
    check_same(asked, ["--dp", "16", "--ep", "8"], 4, 4, tmp_path, wanted)


@pytest.mark.parametrize(
    "how", [signal.SIGKILL, pytest.param(signal.SIGSTOP, marks=pytest.mark.slow)]
)
def test_a_lost_process_ends_the_others(tmp_path: Path, how: signal.Signals) -> None:
    with ProcessRun([str(STEPS)], LIMITED, 3, 1, tmp_path) as run:
        run.wait_until(lambda: "step 5" in run.out(0))
        run.signal(1, how)
        others = [run.ended(process, PEER_SECONDS + MARGIN) for process in (0, 2)]
    for process, ended in zip((0, 2), others):
        assert ended.code == LOST, ended.err
        last = ended.err.strip().splitlines()[-1]
        assert last.startswith(f"generate: process {process}: ")
        assert ended.out == "" or process == 0
        silent = "process 1 has given no sign of life for 8 s; it has died, is stopped, or cannot"
        failed = "a step failed, as it does when another process is lost: " in last
        assert silent in last or (failed and how == signal.SIGKILL), last


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_a_lost_coordinator_ends_the_others(tmp_path: Path, how: signal.Signals) -> None:
    with ProcessRun([str(STEPS)], LIMITED, 2, 1, tmp_path) as run:
        run.wait_until(lambda: "step 5" in run.out(0))
        run.signal(0, how)
        other = run.ended(1, PEER_SECONDS + MARGIN)
    if how == signal.SIGSTOP:
        assert other.code == LOST
        assert "process 0, the coordinator, has not answered for 8 s" in other.err
    else:  # jax itself aborts, at once and with its own words, where we are not faster
        assert other.code in (LOST, -signal.SIGABRT)
        assert "generate: process 1: " in other.err or "another task died" in other.err


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Ctrl-C interrupts, also where the tests were started in the background, which ignores it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.slow
@pytest.mark.usefixtures("interruptible")
def test_an_interrupted_process_says_so(tmp_path: Path) -> None:
    with ProcessRun([str(STEPS)], LIMITED, 2, 1, tmp_path) as run:
        run.wait_until(lambda: "step 5" in run.out(0))
        run.signal(1, signal.SIGINT)
        ended = [run.ended(process, PEER_SECONDS + MARGIN) for process in (1, 0)]
    assert [one.code for one in ended] == [130, LOST]
    assert ended[0].err.endswith("generate: process 1: it was interrupted\n")
    assert re.search(r"process 0: (process 1 has stopped: it was|a step failed)", ended[1].err)


@pytest.mark.slow
def test_processes_that_decide_differently_stop(asked: list[str], tmp_path: Path) -> None:
    options = [*asked, "--dp", "2", "--check-digests"]
    with ProcessRun([str(DIFFERING)], options, 2, 1, tmp_path) as run:
        ended = [run.ended(process) for process in range(2)]
    assert [one.code for one in ended] == [LOST, LOST]
    said = [one.err.strip().splitlines()[-1] for one in ended]
    differ = (
        r"the processes differ at step \d+: draws.top_k is [0-9a-f]+ in process 0 and [0-9a-f]+ in "
        r"process 1; all of them stop, start them with the same options, files and versions"
    )
    for process, line in enumerate(said):
        assert re.fullmatch(f"generate: process {process}: {differ}", line), line
    assert len({re.search(r"step \d+", line)[0] for line in said}) == 1  # type: ignore[index]


@pytest.mark.slow
def test_other_options_are_named(asked: list[str], tmp_path: Path) -> None:
    """The same command, but process 1 reads another size from its environment."""
    program = tmp_path / "other.py"
    program.write_text(
        "import os, sys\n"
        "from dsinfer_jax.generate import main\n"
        "if sys.argv[sys.argv.index('--process-id') + 1] == '1':\n"
        "    os.environ['DSINFER_MAX_NUM_SEQS'] = '16'\n"
        "sys.exit(main())\n"
    )
    with ProcessRun([str(program)], [*asked, "--dp", "2"], 2, 1, tmp_path) as run:
        ended = [run.ended(process) for process in range(2)]
    for one in ended:
        assert one.code == LOST
        assert "differ at the start: slots is 8 in process 0 and 16 in process 1" in one.err
