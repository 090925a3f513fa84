"""The commands of a chat: lines that begin with a slash."""

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from dsinfer_jax.generate.dialogue import Dialogue, ReplyNumbers
from dsinfer_jax.generate.stats_view import stats_rows

_COUNTED = ("prefix hits", "cache", "drafts")  # rows that are not rates of a span of time
_KEYS = """\
A line that ends with a backslash goes on in the next one; // at its beginning is one slash of text.
Ctrl-C stops a running answer, or leaves a question; Ctrl-D leaves the chat.
"""


@dataclass(frozen=True)
class Command:
    """One command.

    Attributes:
        usage: its name, and what follows it.
        meaning: help text.
        run: does it to a dialogue, with what follows the name; returns what to say, or raises
            ValueError with a sentence.
    """

    usage: str
    meaning: str
    run: Callable[[Dialogue, str], str]


def run_command(dialogue: Dialogue, line: str) -> str:
    """Run the command of a line.

    Returns:
        What to say.

    Raises:
        ValueError: one sentence: there is no such command, or it cannot be done.
        EOFError: the chat is to end.
    """
    name, _, argument = line[1:].partition(" ")
    command = _COMMANDS.get(name)
    if command is None:
        raise ValueError(f"there is no command /{name}; /help lists them")
    return command.run(dialogue, argument.strip())


def _help(dialogue: Dialogue, argument: str) -> str:
    rows = [f"/{command.usage:18}{command.meaning}" for command in _COMMANDS.values()]
    return "\n".join([*rows, _KEYS.rstrip()])


def _clear(dialogue: Dialogue, argument: str) -> str:
    dialogue.clear()
    return "this is a new conversation"


def _system(dialogue: Dialogue, argument: str) -> str:
    dialogue.set_system(argument)
    return "the system message is set" if argument else "there is no system message"


def _thinking(dialogue: Dialogue, argument: str) -> str:
    if argument not in ("on", "off"):
        raise ValueError(f"thinking is {argument!r}; it must be on or off")
    dialogue.thinking = argument == "on"
    return f"thinking is {argument}"


def _temperature(dialogue: Dialogue, argument: str) -> str:
    try:
        temperature = float(argument)
    except ValueError:
        raise ValueError(f"temperature is {argument!r}; it must be a number") from None
    dialogue.params = replace(dialogue.params, temperature=temperature)
    return f"the temperature is {temperature:g}"


def _stats(dialogue: Dialogue, argument: str) -> str:
    rows = dict(stats_rows({}, dialogue.source.snapshot(), 0.0))
    lines = [f"{name:14}{rows[name]}" for name in _COUNTED if name in rows]
    if dialogue.last is not None:
        lines.insert(0, f"{'last answer':14}{_described(dialogue.last)}")
    return "\n".join(lines)


def _described(numbers: ReplyNumbers) -> str:
    rate = ""
    if numbers.seconds:  # not all at once
        rate = f", the others at {(numbers.tokens - 1) / numbers.seconds:.1f} a second"
    return (
        f"{numbers.prompt_tokens} prompt tokens, {numbers.cached_tokens} of them cached; "
        f"{numbers.tokens} tokens, the first after {numbers.first_token_seconds:.2f} s{rate}"
    )


def _save(dialogue: Dialogue, argument: str) -> str:
    if not argument:
        raise ValueError("/save needs the name of a file")
    text = json.dumps(dialogue.messages, ensure_ascii=False, indent=2)
    try:
        path = Path(argument).expanduser()
        path.write_text(text + "\n", encoding="utf-8")
    except (OSError, RuntimeError) as error:  # RuntimeError: ~ of somebody unknown
        reason = error.strerror if isinstance(error, OSError) else error
        raise ValueError(f"{argument} cannot be written ({reason})") from None
    return f"{len(dialogue.messages)} messages are in {path}"


def _quit(dialogue: Dialogue, argument: str) -> str:
    raise EOFError


_COMMANDS = {
    command.usage.partition(" ")[0]: command
    for command in (
        Command("help", "this list", _help),
        Command("clear", "begin a new conversation; the system message stays", _clear),
        Command("system TEXT", "set the system message; without TEXT there is none", _system),
        Command("thinking on|off", "let answers begin with thinking, or not", _thinking),
        Command(
            "temperature X", "0 takes the most likely token, larger is more varied", _temperature
        ),
        Command("stats", "tokens, their speed, hits of the prefix cache, drafts", _stats),
        Command("save FILE", "write the conversation as JSON; --chat FILE goes on from it", _save),
        Command("quit", "leave, as Ctrl-D does", _quit),
    )
}
