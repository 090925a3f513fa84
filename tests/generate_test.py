"""The command line: bad input is one sentence and code 2 before anything heavy loads."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from dsinfer_jax._jax import keep_programs
from dsinfer_jax.engine.request import Delta, FinishReason
from dsinfer_jax.generate import main
from dsinfer_jax.generate.chat import structured_output
from dsinfer_jax.generate.options import DEFAULT_PROMPT, build_parser, parse
from dsinfer_jax.generate.output import TextWriter
from dsinfer_jax.generate.run import _say
from dsinfer_jax.settings import NUMERICS, PREFIX_CACHES, SETTINGS, SettingError, read_settings

ROOT = Path(__file__).resolve().parents[1]
PROGRAM_CACHE = ROOT / ".cache" / "test-programs"  # of tests/conftest.py


@pytest.fixture(autouse=True)
def no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for setting in SETTINGS:
        monkeypatch.delenv(setting.environment, raising=False)


def refusal(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The sentence that a command line is refused with."""
    try:
        code = main(arguments)
    except SystemExit as error:
        code = error.code  # type: ignore[assignment]
    captured = capsys.readouterr()
    assert code == 2
    assert captured.out == ""
    assert captured.err.startswith("generate: ")
    assert captured.err.count("\n") == 1
    return captured.err.removeprefix("generate: ").strip()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--temperature", "-1"], "temperature is -1.0; it must be a finite number, 0 or more"),
        (["--temperature", "warm"], "invalid float value: 'warm'"),
        (["--top-p", "0"], "top_p is 0.0; it must be above 0"),
        (["--top-k", "-5"], "top_k is -5; it must be a whole number from -1"),
        (["--max-tokens", "0"], "max_tokens is 0; it must be a whole number from 1"),
        (["--seed", "-1"], "seed is -1"),
        (["--numerics", "fast"], "--numerics is 'fast'; it must be one of exact, runtime"),
        (["--keep-tokens", "-1"], "--keep-tokens is '-1'; it must be 0 or more"),
        (["--keep-tokens", "x"], "--keep-tokens is 'x'; it must be a whole number"),
        (["--slots", "4"], "--slots is '4'; it must be 8 or more"),
        (["--prefix-cache", "on"], "--prefix-cache is 'on'; it must be one of off, exact, bounded"),
        (["--sync", "1"], "unrecognized arguments: 1"),
        (["--prompt-ids", "1,two"], "--prompt-ids is '1,two'; it must be whole numbers"),
        (["--prompts", "absent.jsonl"], "absent.jsonl cannot be read (No such file"),
        (["--chat", "absent.json"], "absent.json cannot be read (No such file"),
        (["--model", "absent"], "absent/config.json cannot be read (No such file"),
        (["--no-such-option"], "unrecognized arguments: --no-such-option"),
        (["--temp", "1"], "unrecognized arguments: --temp 1"),
    ],
)
def test_bad_options(capsys: pytest.CaptureFixture[str], arguments: list[str], words: str) -> None:
    assert words in refusal(capsys, *arguments)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("{", "is not valid JSON"),
        ("17", "must be a string or an object with either"),
        ("{}", "must be a string or an object with either"),
        ('{"prompt": "a", "prompt_token_ids": [1]}', "with either prompt or prompt_token_ids"),
        ('{"prompt": 5}', "has a prompt that is not a string"),
        ('{"prompt_token_ids": [1, true]}', "not a list of whole numbers"),
        ('{"prompt": "a", "temprature": 1}', "has the unknown field 'temprature'"),
        ('{"prompt": "a", "top_p": 2}', "top_p is 2; it must be above 0"),
    ],
)
def test_bad_lines_are_named_by_number(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, line: str, words: str
) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text(f'"good"\n\n{line}\n')
    sentence = refusal(capsys, "--prompts", str(path))
    assert f"{path}, line 3" in sentence
    assert words in sentence


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("[", "is not valid JSON"),
        ("5", "must hold a chat request or a list of messages"),
        ('{"messages": 3}', "is not a chat request"),
        ('[{"role": "wizard", "content": "hi"}]', "is not a chat request"),
    ],
)
def test_bad_chats(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, body: str, words: str
) -> None:
    path = tmp_path / "chat.json"
    path.write_text(body)
    assert words in refusal(capsys, "--chat", str(path))


def test_a_chat_sets_only_what_it_says(tmp_path: Path) -> None:
    path = tmp_path / "chat.json"
    messages = [{"role": "user", "content": "hi"}]
    path.write_text(json.dumps(messages))
    (item,) = parse(["--chat", str(path), "--max-tokens", "7"]).prompts
    assert (item.params.max_tokens, item.params.temperature) == (7, 0.0)
    path.write_text(json.dumps({"messages": messages, "max_tokens": 9, "seed": 0}))
    (item,) = parse(["--chat", str(path), "--max-tokens", "7", "--seed", "4"]).prompts
    assert (item.params.max_tokens, item.params.seed, item.params.temperature) == (9, 0, 0.0)


TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}


@pytest.mark.parametrize(
    ("fields", "kind", "trigger"),
    [
        ({}, None, ()),
        ({"response_format": {"type": "json_object"}}, "json_object", (4,)),
        (
            {"response_format": {"type": "json_object"}, "thinking": {"type": "disabled"}},
            "json_object",
            (),
        ),
        ({"tools": [TOOL]}, "tool_calls", (9,)),
        (
            {"tools": [TOOL], "tool_choice": "required", "thinking": {"type": "disabled"}},
            "tool_calls",
            (),
        ),
    ],
)
def test_what_a_chat_demands_of_the_output(
    tmp_path: Path, fields: dict[str, Any], kind: str | None, trigger: tuple[int, ...]
) -> None:
    from noise_model import TOKENIZER

    from dsinfer_jax.engine.detokenise import TextCodec

    path = tmp_path / "chat.json"
    path.write_text(json.dumps({"messages": [{"role": "user", "content": "json"}], **fields}))
    (item,) = parse(["--chat", str(path)]).prompts
    if kind is None:
        assert item.constraint is None
        return
    assert item.constraint is not None
    output = structured_output(item.constraint, TextCodec(TOKENIZER, 0))
    assert (output.kind, output.trigger_token_ids) == (kind, trigger)
    assert output.after_marker is (kind == "tool_calls" and not trigger)


def test_prompt_files_that_are_not_text(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_bytes(b'"\xff"\n')
    assert "is not UTF-8 text (byte 1)" in refusal(capsys, "--prompts", str(path))


@pytest.mark.parametrize(
    ("config", "words"),
    [("{", "is not valid JSON"), ('{"architectures": ["Other"]}', "architectures")],
)
def test_bad_configurations(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, config: str, words: str
) -> None:
    (tmp_path / "config.json").write_text(config)
    assert words in refusal(capsys, "--model", str(tmp_path))


def test_a_refusal_and_the_help_load_nothing_heavy(tmp_path: Path) -> None:
    program = (
        "import sys; from dsinfer_jax.generate import main\n"
        "try: code = main(sys.argv[1:])\n"
        "except SystemExit as error: code = error.code\n"
        "assert 'jax' not in sys.modules and 'numpy' not in sys.modules\n"
        "sys.exit(code)"
    )
    for arguments, code in ((["--model", str(tmp_path)], 2), (["--top-p", "7"], 2), (["-h"], 0)):
        done = run_python("-c", program, *arguments)
        assert done.returncode == code, done.stderr


def test_prompts_keep_their_order_and_their_own_parameters(tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text('"plain \\u2028"\n{"prompt_token_ids": [0, 5], "max_tokens": 3, "seed": 9}\n')
    job = parse(["--prompt", "a", "--prompt-ids", "0,7", "--prompts", str(path), "--prompt", "b",
                 "--top-k", "5"])  # fmt: skip
    assert [item.content for item in job.prompts] == ["a", "b", [0, 7], "plain \u2028", [0, 5]]
    assert all(item.params.top_k == 5 for item in job.prompts)
    assert [item.params.max_tokens for item in job.prompts] == [64, 64, 64, 64, 3]
    assert job.prompts[-1].params.seed == 9


def test_without_prompts_there_is_a_default_and_an_empty_file_stays_empty(tmp_path: Path) -> None:
    assert [item.content for item in parse([]).prompts] == [DEFAULT_PROMPT]
    path = tmp_path / "empty.jsonl"
    path.write_text("\n")
    assert parse(["--prompts", str(path)]).prompts == []


def test_settings_come_from_options_then_environment_then_defaults() -> None:
    environment = {"DSINFER_NUMERICS": "exact", "DSINFER_MAX_NUM_SEQS": ""}
    assert read_settings({}, environment)["numerics"] == "exact"
    assert read_settings({"numerics": "reference"}, environment)["numerics"] == "reference"
    assert read_settings({}, environment)["slots"] == 8
    assert read_settings({"cache_dir": "off"}, {})["cache_dir"] is None
    name = "DSINFER_ZERO_OVERHEAD_SCHEDULING"
    assert read_settings({}, {})["asynchronous"] is True
    assert read_settings({}, {name: "0"})["asynchronous"] is False
    assert read_settings({}, {name: "True"})["asynchronous"] is True
    assert read_settings({"asynchronous": "0"}, {name: "1"})["asynchronous"] is False
    with pytest.raises(SettingError, match=f"{name} is 'quick'; it must be 0 or 1"):
        read_settings({}, {name: "quick"})
    with pytest.raises(SettingError, match="DSINFER_NUMERICS is 'quick'; it must be one of"):
        read_settings({}, {"DSINFER_NUMERICS": "quick"})


def test_a_cache_folder_that_cannot_be_made_is_said(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    keep_programs(tmp_path / "file" / "programs", _say)
    assert capsys.readouterr().err.startswith("compiled programs are not kept: ")


def test_the_help_names_every_setting_twice() -> None:
    text = build_parser().format_help()
    for setting in SETTINGS:
        assert setting.option in text
        assert setting.environment in text


def test_an_option_without_a_value_sets_what_it_stands_for() -> None:
    assert parse(["--sync"]).settings["asynchronous"] is False
    assert parse([]).settings["asynchronous"] is True


def test_the_policies_are_those_of_the_model() -> None:
    from dsinfer_jax.model.numerics import POLICIES

    assert set(NUMERICS) == set(POLICIES)


@pytest.mark.parametrize("mode", PREFIX_CACHES)
def test_the_prefix_caches_are_those_of_the_engine(mode: str) -> None:
    from dsinfer_jax.config import tiny
    from dsinfer_jax.engine.engine_config import EngineConfig

    EngineConfig.of(tiny(), keep_tokens=14, prefix_cache=mode)


class Collected(list[str]):
    write = list.append

    def flush(self) -> None:
        pass


def test_text_comes_in_the_order_of_the_prompts() -> None:
    stream: Any = Collected()
    writer = TextWriter(["first", "second \x1b[31m"], [1, 1], stream)
    end = FinishReason.LENGTH
    writer.add(Delta(1, [5], [0.0], text="later"))
    writer.add(Delta(0, [5], [0.0], text="now "))
    assert "".join(stream) == '[0] "first"\nnow '
    writer.add(Delta(1, [6], [0.0], text=" too", finish_reason=end))
    writer.add(Delta(0, [6], [0.0], text="done\x1b[0m", finish_reason=end))
    text = "".join(stream)
    assert text == '[0] "first"\nnow done\ufffd[0m\n[1] "second \\u001b[31m"\nlater too\n'


def test_answers_to_one_prompt_come_one_after_the_other() -> None:
    stream: Any = Collected()
    writer = TextWriter(["one"], [2], stream)
    end = FinishReason.STOP
    writer.add(Delta(0, [5], [0.0], text="b", answer=1, finish_reason=end))
    writer.add(Delta(0, [5], [0.0], text="a"))
    assert "".join(stream) == '[0] "one"\na'
    writer.add(Delta(0, [], [], text="!", finish_reason=end))
    assert "".join(stream) == '[0] "one"\na!\n[0, answer 1] "one"\nb\n'


def run_python(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
        cwd=ROOT,
        env={**os.environ, "DSINFER_JIT_CACHE_DIR": str(PROGRAM_CACHE), **environment},
    )


def generate(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    options = ("--numerics", "exact", *arguments)
    return run_python("-m", "dsinfer_jax.generate", *options, **environment)


def test_json_lines_statistics_and_a_failed_request(tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text('"Hello"\n{"prompt_token_ids": [0, 9999]}\n{"prompt": "Hi", "max_tokens": 2}\n')
    done = generate(
        "--prompts", str(path), "--json", "--stats", "--max-tokens", "5", "--ignore-eos"
    )
    assert done.returncode == 1, done.stderr
    results = {result["index"]: result for result in map(json.loads, done.stdout.splitlines())}
    assert sorted(results) == [0, 1, 2]
    for result in results.values():
        assert list(result) == [
            "index", "answer", "prompt_token_ids", "token_ids", "text", "finish_reason",
            "logprobs", "error", "cached_tokens", "why_miss",
        ]  # fmt: skip
    assert len(results[0]["token_ids"]) == len(results[0]["logprobs"]) == 5
    assert all(value <= 0 for value in results[0]["logprobs"])
    assert results[0]["finish_reason"] == "length"
    assert results[0]["error"] is None
    assert len(results[2]["token_ids"]) == 2
    assert results[1]["finish_reason"] == "error"
    assert results[1]["token_ids"] == []
    assert "prompt 1 failed: token 1 of the prompt is 9999" in done.stderr
    for word in ("demo model is small", "prefill", "decode", "tokens/s", "waiting for the device",
                 "cached prefixes", "programs", "memory"):  # fmt: skip
        assert word in done.stderr


def test_json_lines_say_what_the_prefix_cache_had() -> None:
    """The second prompt is the first one up to its token 600; 248 tokens are computed again."""
    first = [3 + place % 400 for place in range(900)]
    prompts = [",".join(map(str, ids)) for ids in (first, [*first[:600], 9, *first[600:]])]
    done = generate(
        "--prompt-ids", prompts[0], "--prompt-ids", prompts[1], "--json", "--max-tokens", "2"
    )  # fmt: skip
    results = {result["index"]: result for result in map(json.loads, done.stdout.splitlines())}
    assert results[0]["cached_tokens"] == 0, done.stderr
    assert results[1]["cached_tokens"] == 512 - 248
    miss = results[1]["why_miss"]
    assert (miss["block"], miss["part"], miss["token"]) == (4, "blocks", 600)
    assert "differs from what is stored at token 600" in miss["detail"]


def test_a_chat_and_the_text_stream(tmp_path: Path) -> None:
    pytest.importorskip("llguidance", reason="the grammar extra is not installed")
    path = tmp_path / "chat.json"
    schema: dict[str, Any] = {"type": "object", "properties": {"n": {"enum": [1, 22]}}}
    schema |= {"required": ["n"], "additionalProperties": False}
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    messages = [{"role": "user", "content": "Say <think> twice, in JSON."}]
    body = {"messages": messages, "response_format": form, "thinking": {"type": "disabled"}}
    path.write_text(json.dumps(body))
    done = generate("--chat", str(path), "--max-tokens", "99", "--sync", "--prefix-cache", "off")
    assert done.returncode == 0, done.stderr
    prompt, answer = done.stdout.split("<｜Assistant｜>")
    assert prompt.startswith("<｜begin▁of▁sentence｜>")
    assert prompt.endswith("<｜User｜>Say <think> twice, in JSON.")
    answer = answer.removeprefix("</think>").replace("\ufffd", "\r")  # how blanks are shown
    assert json.loads(answer)["n"] in (1, 22)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--keep-tokens", "13"], "keep_tokens is 13; with a window of 32 and a rollback of 6"),
        (["--slots", "12"], "slots is 12; it must be a positive multiple of 8"),
        (["--prefix-cache", "bounded"], "prefix_cache is 'bounded'"),
        (["--max-model-len", "5000"], "max_model_len is 5000; it must be from 1 to 4096"),
    ],
)
def test_sizes_that_the_model_refuses(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    words: str,
) -> None:
    monkeypatch.setenv("DSINFER_JIT_CACHE_DIR", "off")
    assert main(arguments) == 2
    assert words in capsys.readouterr().err
