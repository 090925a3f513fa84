"""The chat in the terminal, with scripted lines and scripted tokens, and once with a real model."""

import asyncio
import io
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import AsyncGenerator, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from dsinfer_jax.engine.async_engine import EngineUnavailableError
from dsinfer_jax.engine.detokenise import TextCodec
from dsinfer_jax.engine.request import Delta, FinishReason
from dsinfer_jax.engine.sampling_params import SamplingParams
from dsinfer_jax.generate.chat import ChatCodec
from dsinfer_jax.generate.chat_start import ChatStart, Tools, read_chat_start
from dsinfer_jax.generate.dialogue import Dialogue
from dsinfer_jax.generate.interactive import Chat
from dsinfer_jax.generate.options import parse
from dsinfer_jax.generate.prompt_files import PromptError
from dsinfer_jax.generate.terminal import Terminal
from dsinfer_jax.recipe import (
    AssistantMessage,
    Conversation,
    DeepseekV41Encoding,
    Message,
    SystemMessage,
    Tokenizer,
    ToolCall,
    ToolDefinition,
    ToolMessage,
    UserMessage,
)
from dsinfer_jax.settings import SETTINGS

ROOT = Path(__file__).resolve().parents[1]
TOKENIZER_FILE = ROOT / "tests" / "data" / "tokenizer_512.json"
TOKENIZER = Tokenizer.from_file(str(TOKENIZER_FILE))
ENCODING = DeepseekV41Encoding().with_tokenizer(TOKENIZER)
CODEC = ChatCodec(TextCodec(TOKENIZER_FILE, 0))
END = TOKENIZER.encode("<｜end▁of▁sentence｜>")
DSML = "｜DSML｜"
IMAGE = "https://example.org/cat.png"
CTRL_C = "\x03"  # in a script: the user presses it

PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
WEATHER = {"type": "function", "function": {"name": "get_weather", "parameters": PARAMETERS}}
NO_TOOLS, TOOLS = Tools(), Tools([WEATHER])


def call_markup(*cities: str) -> str:
    """An answer that asks for the weather."""
    calls = "".join(
        f'<{DSML} invoke name="get_weather">\n'
        f'<{DSML} parameter name="city" string="true">{city}</{DSML} parameter>\n'
        f"</{DSML} invoke>\n"
        for city in cities
    )
    return f"\n\n<{DSML} calls>\n{calls}</{DSML} calls>"


class ScriptedSource:
    """Gives one scripted answer after the other, a token at a time.

    An answer is a text, in which control tokens are spelled, or an exception, or a last delta.
    """

    def __init__(self, answers: Sequence[str | Exception | Delta]) -> None:
        self._answers = iter(answers)
        self.prompts: list[list[int]] = []
        self.params: list[SamplingParams] = []
        self.closed = 0

    async def generate(
        self, prompt: Sequence[int], params: SamplingParams
    ) -> AsyncGenerator[Delta, None]:
        self.prompts.append(list(prompt))
        self.params.append(params)
        answer = next(self._answers)
        try:
            if isinstance(answer, Exception):
                raise answer
            if isinstance(answer, Delta):
                yield answer
                return
            for part in re.split(f"({CTRL_C})", answer):
                if part == CTRL_C:
                    signal.raise_signal(signal.SIGINT)
                    await asyncio.sleep(60)
                for token in TOKENIZER.encode(part):
                    yield Delta(0, [token], [0.0], cached_tokens=7)
            yield Delta(0, END, [0.0], FinishReason.STOP, cached_tokens=7)
        finally:
            self.closed += 1

    def snapshot(self) -> dict[str, float]:
        return {
            "dsinfer_prompt_tokens_total": 100,
            "dsinfer_cached_tokens_total": 40,
            "dsinfer_cache_blocks": 9,
            "dsinfer_cache_blocks_used": 2,
            "dsinfer_cache_blocks_stored": 1,
            "dsinfer_drafted_tokens_total": 8,
            "dsinfer_accepted_tokens_total": 6,
        }


@dataclass
class Chatted:
    """What a chat left: all output, the questions that were asked, and its parts."""

    output: str
    asked: list[str]
    dialogue: Dialogue
    source: ScriptedSource

    @property
    def messages(self) -> list[dict[str, Any]]:
        return self.dialogue.messages


@dataclass
class Lines:
    """Scripted input; exceptions are raised, and the end of the input at its end."""

    lines: Sequence[str | BaseException]
    asked: list[str] = field(default_factory=list)

    def __call__(self, prompt: str) -> str:
        self.asked.append(prompt)
        if len(self.asked) > len(self.lines):
            raise EOFError
        line = self.lines[len(self.asked) - 1]
        if isinstance(line, BaseException):
            raise line
        return line


def chat(
    lines: Sequence[str | BaseException],
    answers: Sequence[str | Exception | Delta] = (),
    *,
    styled: bool = False,
    thinking: bool = False,
    tools: Tools = NO_TOOLS,
    messages: Sequence[dict[str, Any]] = (),
) -> Chatted:
    source, ask, stream = ScriptedSource(answers), Lines(lines), io.StringIO()
    start = ChatStart(list(messages), tools, SamplingParams(max_tokens=50, temperature=0.0))
    dialogue = Dialogue(source, CODEC, start)
    dialogue.thinking = thinking
    with asyncio.Runner() as runner:
        Chat(dialogue, ask, Terminal(stream, styled=styled), runner).run()
    assert source.closed == len(source.prompts)
    return Chatted(stream.getvalue(), ask.asked, dialogue, source)


def prompt_of(*messages: Message, **settings: Any) -> list[int]:
    return ENCODING.encode(Conversation(list(messages), **{"thinking_mode": False, **settings}))


def test_turns_make_one_conversation() -> None:
    done = chat(["Hello", "  ", "More?"], ["Hi there!", "No.\nNever."])
    first, second = done.source.prompts
    assert first == prompt_of(UserMessage("Hello"))
    assert second == prompt_of(
        UserMessage("Hello"), AssistantMessage("Hi there!"), UserMessage("More?")
    )
    assert done.output == "Hi there!\nNo.\nNever.\n"
    assert done.asked == ["> "] * 4
    assert done.messages[-1] == {"role": "assistant", "content": "No.\nNever."}
    assert done.source.params[0].structured_output is None


def test_lines_that_go_on_and_lines_that_only_look_like_commands() -> None:
    done = chat(["one\\", "two\\", "", "//etc"], ["a", "b"])
    assert done.asked == ["> ", ". ", ". ", "> ", "> "]
    said = [message["content"] for message in done.messages if message["role"] == "user"]
    assert said == ["one\ntwo\n", "/etc"]


def test_lines_that_are_not_text_are_left_out() -> None:
    broken = UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte")
    done = chat([broken, "half \ud800", "Hello"], ["Hi!"])
    assert done.output.count("the line is not UTF-8 text; it is left out\n") == 2
    assert done.output.endswith("Hi!\n")


def test_thinking_is_dimmed_on_a_terminal() -> None:
    done = chat(["2 + 2?"], ["two and two\nis four</think>4"], styled=True, thinking=True)
    assert "4\n" in done.output.splitlines(keepends=True)
    thinking, answer = done.output.rsplit("\x1b[0m", 1)
    pieces = re.findall(r"\x1b\[2m([^\x1b]*)\x1b\[0m", done.output)
    assert "".join(pieces) == "two and two\nis four"
    assert answer == "\n4\n"
    assert thinking.startswith("\x1b[2m")
    assert done.messages[-1]["reasoning_content"] == "two and two\nis four"


def test_thinking_has_a_prefix_elsewhere() -> None:
    done = chat(["2 + 2?"], ["two\n\nis four\n</think>4"], thinking=True)
    assert done.output == "thinking: two\nthinking: \nthinking: is four\n4\n"
    assert "\x1b" not in done.output
    assert done.source.prompts[0] == prompt_of(
        UserMessage("2 + 2?"), thinking_mode=True, reasoning_effort="high"
    )


def test_output_cannot_steer_the_terminal() -> None:
    done = chat(["x"], ["a\x1b[31mb" + call_markup("\x07")], tools=TOOLS)
    assert "a\ufffd[31mb\n" in done.output
    assert "\x1b" not in done.output
    assert "\x07" not in done.output


def test_calls_are_shown_and_their_results_are_asked_for() -> None:
    calls = "I look." + call_markup("Paris", "Rome")
    done = chat(["Weather?", "sunny", '{"degrees": 3}'], [calls, "Fine."], tools=TOOLS)
    assert done.output == (
        'I look.\ncall of get_weather\n  {"city": "Paris"}\n'
        'call of get_weather\n  {"city": "Rome"}\nFine.\n'
    )
    assert done.asked == ["> ", "result of get_weather: ", "result of get_weather: ", "> "]
    _, assistant, *results, answer = done.messages
    ids = [call["id"] for call in assistant["tool_calls"]]
    assert [result["tool_call_id"] for result in results] == ids
    assert answer["content"] == "Fine."
    _, prompt = done.source.prompts
    assert prompt == prompt_of(
        UserMessage("Weather?"),
        AssistantMessage(
            "I look.",
            tool_calls=[
                ToolCall(id, "get_weather", json.dumps({"city": city}))
                for id, city in zip(ids, ("Paris", "Rome"))
            ],
        ),
        ToolMessage("sunny", ids[0]),
        ToolMessage('{"degrees": 3}', ids[1]),
        tools=[ToolDefinition("get_weather", parameters=PARAMETERS)],
    )


def test_what_a_model_may_call_is_enforced() -> None:
    done = chat(["Weather?"], ["No."], tools=TOOLS)
    output = done.source.params[0].structured_output
    assert output is not None
    assert output.kind == "tool_calls"
    assert output.trigger_token_ids == tuple(TOKENIZER.encode(DSML))


def test_results_come_from_the_table(tmp_path: Path) -> None:
    path = tmp_path / "tools.json"
    rows = [
        {"name": "get_weather", "arguments": {"city": "Paris"}, "result": "sunny"},
        {"name": "get_weather", "result": {"weather": "雨"}},
    ]
    path.write_text(json.dumps({"tools": [WEATHER], "results": rows}))
    start = read_chat_start(None, str(path), None, SamplingParams())
    answers = [call_markup("Paris", "Rome"), "Done."]
    done = chat(["Weather?"], answers, tools=start.tools)
    assert done.asked == ["> ", "> "]
    assert [m["content"] for m in done.messages if m["role"] == "tool"] == [
        "sunny", '{"weather": "雨"}',
    ]  # fmt: skip
    assert "result of get_weather: sunny\n" in done.output


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Ctrl-C interrupts, also where the tests were started in the background, which ignores it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
def test_ctrl_c_keeps_what_was_answered() -> None:
    done = chat(["Count", "Go on"], [f"one two{CTRL_C} three", "three"])
    assert done.output == "one two\n(stopped)\nthree\n"
    assert [message["content"] for message in done.messages] == [
        "Count", "one two", "Go on", "three",
    ]  # fmt: skip


@pytest.mark.usefixtures("interruptible")
def test_ctrl_c_before_an_answer_takes_the_message_back() -> None:
    done = chat(["Why?", "Hello"], [f"hmm{CTRL_C}", "</think>Hi!"], thinking=True)
    assert done.output == "thinking: hmm\nstopped (the message is taken back)\nHi!\n"
    assert [message["content"] for message in done.messages] == ["Hello", "Hi!"]


@pytest.mark.usefixtures("interruptible")
def test_ctrl_c_within_a_call_drops_the_calls() -> None:
    answer = "I look." + call_markup("Paris", "Rome").replace("Rome", f"Ro{CTRL_C}me")
    done = chat(["Weather?"], [answer], tools=TOOLS)
    assert done.messages[-1] == {"role": "assistant", "content": "I look."}
    assert done.asked == ["> ", "> "]


@pytest.mark.usefixtures("interruptible")
def test_ctrl_c_at_a_question() -> None:
    lines: list[str | BaseException] = [
        KeyboardInterrupt(),
        "Weather?",
        KeyboardInterrupt(),
        "Hello",
    ]
    done = chat(lines, [call_markup("Paris"), "Hi!"], tools=TOOLS)
    assert done.output.startswith("Ctrl-D or /quit leaves\n")
    assert "stopped (the message is taken back)\n" in done.output
    assert [message["content"] for message in done.messages] == ["Hello", "Hi!"]


def test_ctrl_d_leaves_wherever_it_is_pressed() -> None:
    assert chat([]).output == ""
    done = chat(["Weather?"], [call_markup("Paris")], tools=TOOLS)
    assert done.asked == ["> ", "result of get_weather: "]
    assert chat(["/quit", "Hello"]).asked == ["> "]


def failed(reason: FinishReason, sentence: str) -> Delta:
    return Delta(0, [], [], reason, sentence)


@pytest.mark.parametrize(
    ("failure", "words"),
    [
        (
            failed(FinishReason.PROMPT_TOO_LONG, "the prompt has 9 tokens; max_model_len allows 8"),
            "max_model_len allows 8; /clear begins a new conversation, --max-model-len makes room",
        ),
        (failed(FinishReason.ERROR, "the logits of token 3 are not finite"), "are not finite"),
        (EngineUnavailableError("the engine has failed; restart it"), "has failed; restart it"),
    ],
)
def test_errors_are_one_sentence_and_the_chat_goes_on(
    failure: Delta | Exception, words: str
) -> None:
    done = chat(["Hello", "Long", "Again"], ["Hi!", failure, "Yes."])
    _, sentence, _ = done.output.splitlines()
    assert sentence.endswith(f"{words} (the message is taken back)")
    assert [message["content"] for message in done.messages] == ["Hello", "Hi!", "Again", "Yes."]


def test_an_answer_that_is_cut_says_so_and_has_no_half_calls() -> None:
    half = call_markup("Paris", "Rome").split("Rome")[0] + "Ro"
    ids = TOKENIZER.encode(half)
    cut = Delta(0, ids, [0.0] * len(ids), FinishReason.LENGTH)
    done = chat(["Weather?", "sunny"], [cut, "Sun."], tools=TOOLS)
    assert f"(cut off after {len(ids)} tokens)\n" in done.output
    (call,) = done.messages[1]["tool_calls"]
    assert json.loads(call["function"]["arguments"]) == {"city": "Paris"}
    assert done.messages[-1]["content"] == "Sun."


def test_an_empty_answer_says_so() -> None:
    done = chat(["Hello", "Hello?"], ["", "Hi!"])
    assert done.output == "(an empty answer)\nHi!\n"
    assert len(done.messages) == 4


def test_commands_change_the_next_answer() -> None:
    lines = ["/system Be brief.", "/thinking on", "/temperature 0.7", "Hello", "/clear", "Bye"]
    done = chat(lines, ["</think>Hi!", "</think>Bye!"])
    settings: dict[str, Any] = {"thinking_mode": True, "reasoning_effort": "high"}
    system = SystemMessage("Be brief.")
    assert done.source.prompts == [
        prompt_of(system, UserMessage(text), **settings) for text in ("Hello", "Bye")
    ]
    assert [params.temperature for params in done.source.params] == [0.7, 0.7]
    assert done.output == (
        "the system message is set\nthinking is on\nthe temperature is 0.7\nHi!\n"
        "this is a new conversation\nBye!\n"
    )
    done = chat(["/system", "Hello"], ["Hi!"], messages=[{"role": "system", "content": "x"}])
    assert done.source.prompts == [prompt_of(UserMessage("Hello"))]


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("/thinking maybe", "thinking is 'maybe'; it must be on or off"),
        ("/temperature warm", "temperature is 'warm'; it must be a number"),
        ("/temperature -1", "temperature is -1.0; it must be a finite number, 0 or more"),
        ("/save", "/save needs the name of a file"),
        ("/save /absent/file", "/absent/file cannot be written (No such file or directory)"),
        (
            "/save ~nobody-of-that-name/x",
            "/x cannot be written (Could not determine home directory.)",
        ),
        ("/dance", "there is no command /dance; /help lists them"),
        ("/", "there is no command /; /help lists them"),
    ],
)
def test_bad_commands_change_nothing(line: str, sentence: str) -> None:
    done = chat([line, "Hello"], ["Hi!"])
    assert done.output.endswith(f"{sentence}\nHi!\n")
    assert done.output.count("\n") == 2
    assert done.source.params[0].temperature == 0.0


def test_the_help_names_every_command() -> None:
    output = chat(["/help"]).output
    names = ("help", "clear", "system", "thinking", "temperature", "stats", "save", "quit")
    for name in names:
        assert f"\n/{name} " in f"\n{output}"


def test_the_numbers_of_a_chat() -> None:
    done = chat(["/stats", "Hello", "/stats"], ["Hi there!"])
    general = (
        "prefix hits   40 % of 100 prompt tokens\n"
        "cache         2 of 9 blocks in use, 1 findable\n"
        "drafts        75 % of 8 accepted\n"
    )
    assert done.output.startswith(general)
    assert done.output.endswith(general)
    prompt, tokens = len(done.source.prompts[0]), len(TOKENIZER.encode("Hi there!")) + 1
    assert re.search(
        rf"last answer   {prompt} prompt tokens, 7 of them cached; {tokens} tokens, "
        r"the first after \d+\.\d\d s, the others at \d+\.\d a second\n",
        done.output,
    )


def test_an_answer_that_comes_at_once_has_no_rate() -> None:
    ids = TOKENIZER.encode("Hi!")
    whole = Delta(0, [*ids, *END], [0.0] * (len(ids) + 1), FinishReason.STOP)
    output = chat(["Hello", "/stats"], [whole]).output
    assert output.startswith("Hi!\nlast answer ")
    assert "a second" not in output


def test_a_saved_conversation_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "saved.json"
    first = chat(
        ["Weather?", "rain", f"/save {path}"], [call_markup("Oslo"), "Wet. 雨"], tools=TOOLS
    )
    assert first.output.endswith(f"4 messages are in {path}\n")
    start = read_chat_start("Be brief.", None, str(path), SamplingParams())
    system, *others = start.messages
    assert system == {"role": "system", "content": "Be brief."}
    assert others == first.messages
    again = chat(["And now?"], ["Still."], messages=start.messages)
    assert again.messages[:5] == start.messages


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--interactive", "--prompt", "x"], "--prompt does not go with --interactive"),
        (["--interactive", "--prompt-ids", "1"], "--prompt-ids does not go with --interactive"),
        (["--interactive", "--json"], "--json does not go with --interactive; leave one out"),
        (["--interactive", "--stats"], "--stats does not go with --interactive"),
        (["--interactive", "--ignore-eos"], "--ignore-eos does not go with --interactive"),
        (["--system", "x"], "--system is for a chat in the terminal; add --interactive"),
        (["--tools", "x"], "--tools is for a chat in the terminal; add --interactive"),
        (["--interactive", "--tools", "absent"], "absent cannot be read (No such file"),
    ],
)
def test_options_that_do_not_go_together(arguments: list[str], words: str) -> None:
    with pytest.raises(ValueError, match=re.escape(words)):
        parse(arguments)


def test_options_of_a_chat(monkeypatch: pytest.MonkeyPatch) -> None:
    for setting in SETTINGS:
        monkeypatch.delenv(setting.environment, raising=False)
    job = parse(["--interactive", "--system", "Be brief.", "--temperature", "0.5"])
    assert job.prompts == []
    assert job.chat is not None
    assert job.chat.messages == [{"role": "system", "content": "Be brief."}]
    assert (job.chat.params.temperature, job.chat.params.max_tokens) == (0.5, 1024)
    assert parse([]).chat is None
    assert parse([]).prompts[0].params.max_tokens == 64


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("3", "must hold a list of tools, or an object with tools and results"),
        ('{"results": []}', "must hold a list of tools, or an object with tools and results"),
        ('{"tools": [], "more": 1}', "must hold a list of tools"),
        ('[{"type": "function"}]', "is not a chat request"),
        ([WEATHER, WEATHER], "Tool names must be unique"),
        ({"tools": [WEATHER], "results": {}}, "has results that are not a list"),
        ({"tools": [WEATHER], "results": [{"name": "get_weather"}]}, "result 0 must be an object"),
        (
            {"tools": [WEATHER], "results": [{"name": "f", "result": ""}]},
            "result 0 is of 'f', which is not among the tools",
        ),
        (
            {
                "tools": [WEATHER],
                "results": [{"name": "get_weather", "result": "", "arguments": "Paris"}],
            },
            "result 0 has arguments that are not an object",
        ),
    ],
)
def test_bad_tool_files(tmp_path: Path, value: Any, words: str) -> None:
    path = tmp_path / "tools.json"
    path.write_text(value if isinstance(value, str) else json.dumps(value))
    with pytest.raises(PromptError, match=re.escape(words)):
        read_chat_start(None, str(path), None, SamplingParams())


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ({"messages": [], "tools": []}, "has the field 'tools', but with --interactive"),
        ([{"role": "wizard", "content": "x"}], "is not a chat request"),
        (
            [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": IMAGE}}]}],
            "has images",
        ),
    ],
)
def test_bad_saved_chats(tmp_path: Path, value: Any, words: str) -> None:
    path = tmp_path / "saved.json"
    path.write_text(json.dumps(value))
    with pytest.raises(PromptError, match=re.escape(words)):
        read_chat_start(None, None, str(path), SamplingParams())


def test_two_turns_with_a_real_model(tmp_path: Path) -> None:
    """The second turn finds the first one in the prefix cache."""
    path = tmp_path / "saved.json"
    long = " ".join(f"The number of {place} is {place * place}." for place in range(100))
    lines = ["/thinking off", long, "/stats", "Again?", "/stats", f"/save {path}"]
    done = subprocess.run(
        [sys.executable, "-m", "dsinfer_jax.generate", "--numerics", "exact",
         "--interactive", "--max-tokens", "9"],
        input="\n".join(lines), capture_output=True, text=True, timeout=600, check=False, cwd=ROOT,
        env={**os.environ, "DSINFER_JIT_CACHE_DIR": str(ROOT / ".cache" / "test-programs")},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = re.findall(r"(\d+) prompt tokens, (\d+) of them cached", done.stdout)
    (length, cached), (longer, more_cached) = [tuple(map(int, pair)) for pair in found]
    assert cached == 0
    assert length > 300
    assert length < longer < length + 200
    assert more_cached >= length - 248 - 128  # whole blocks, and 248 tokens are computed again
    messages = json.loads(path.read_text())
    assert [message["role"] for message in messages] == ["user", "assistant"] * 2
    assert messages[0]["content"] == long
