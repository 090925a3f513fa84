"""A chat in the terminal: lines in, answers and results of tool calls out, until it is left."""

import asyncio
import json
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from dsinfer_jax.generate.chat import ChatCodec
from dsinfer_jax.generate.chat_request import Message
from dsinfer_jax.generate.chat_start import ChatStart
from dsinfer_jax.generate.commands import run_command
from dsinfer_jax.generate.dialogue import ChatError, Dialogue
from dsinfer_jax.generate.terminal import Terminal

if TYPE_CHECKING:
    from dsinfer_jax.engine.llm import LLM

Ask = Callable[[str], str]
"""Shows a prompt and gives the line that follows, like `input`."""

_PROMPT, _MORE = "> ", ". "


class Chat:
    """Asks for messages and commands, and answers them.

    Args:
        dialogue: the conversation.
        ask: where lines come from. EOFError leaves the chat, KeyboardInterrupt what is asked.
        terminal: shows everything else.
        runner: of the event loop that the source of tokens belongs to. While it runs, Ctrl-C
            cancels the answer.
    """

    def __init__(
        self, dialogue: Dialogue, ask: Ask, terminal: Terminal, runner: asyncio.Runner
    ) -> None:
        self._dialogue, self._ask, self._terminal = dialogue, ask, terminal
        self._runner = runner

    def run(self) -> None:
        """Chat until the end of the input."""
        with suppress(EOFError):
            while True:
                self._once()

    def _once(self) -> None:
        """One message with its answer, or one command. Raises EOFError at the end."""
        try:
            text = self._read(_PROMPT)
        except KeyboardInterrupt:
            self._terminal.note("Ctrl-D or /quit leaves")
            return
        if text.startswith("/") and not text.startswith("//"):
            self._command(text)
        elif text.strip():
            self._turn(text.removeprefix("/"))

    def _read(self, prompt: str) -> str:
        """A line, and the next one for each backslash at an end."""
        text = self._line(prompt)
        while text.endswith("\\"):
            text = text[:-1] + "\n" + self._line(_MORE)
        return text

    def _line(self, prompt: str) -> str:
        while True:
            try:
                line = self._ask(prompt)
                line.encode()  # half characters cannot go to a model
            except UnicodeError:
                self._terminal.note("the line is not UTF-8 text; it is left out")
            else:
                return line

    def _command(self, line: str) -> None:
        try:
            self._terminal.note(run_command(self._dialogue, line))
        except ValueError as error:
            self._terminal.note(str(error))

    def _turn(self, text: str) -> None:
        """A message and what follows: answers, and results of the calls in them.

        A turn that does not come to an answer leaves the conversation as it was.
        """
        dialogue, before = self._dialogue, self._dialogue.messages
        dialogue.messages = [*before, {"role": "user", "content": text}]
        try:
            while calls := self._answer():
                dialogue.messages = [*dialogue.messages, *map(self._result, calls)]
        except (ChatError, KeyboardInterrupt) as error:
            dialogue.messages = before
            reason = str(error) or "stopped"
            self._terminal.note(f"{reason} (the message is taken back)")

    def _answer(self) -> list[Message]:
        """One answer; returns its calls. Raises KeyboardInterrupt if it was stopped too early."""
        dialogue, terminal = self._dialogue, self._terminal
        try:
            reply = self._runner.run(dialogue.reply(terminal.show))
        finally:
            terminal.end()
        message = reply.message
        if reply.stopped:
            message = {name: message[name] for name in message if name != "tool_calls"}
            if not message["content"]:
                raise KeyboardInterrupt
            terminal.note("(stopped)")
        elif reply.cut:
            terminal.note(f"(cut off after {reply.numbers.tokens} tokens)")
        elif not message["content"] and "tool_calls" not in message:
            terminal.note("(an empty answer)")
        dialogue.messages = [*dialogue.messages, message]
        calls: list[Message] = message.get("tool_calls", [])
        return calls

    def _result(self, call: Message) -> Message:
        """What a tool says: from the table, else from whoever sits at the terminal."""
        name, arguments = call["function"]["name"], call["function"]["arguments"]
        result = self._dialogue.tools.result(name, json.loads(arguments))
        question = f"result of {name}: "
        if result is None:
            result = self._read(question)
        else:
            self._terminal.note(question + result)
        return {"role": "tool", "tool_call_id": call["id"], "content": result}


def chat_with(llm: "LLM", start: ChatStart) -> None:
    """Chat with a model on the terminal, or with whatever stands for it.

    Args:
        llm: used by nobody else meanwhile; its cache lives as long as the chat.
        start: what the chat begins with.
    """
    from dsinfer_jax.engine.async_engine import AsyncEngine

    assert llm.codec is not None
    terminal = Terminal(sys.stdout, styled=sys.stdout.isatty())
    terminal.note("/help lists the commands")
    with asyncio.Runner() as runner:
        engine = AsyncEngine(llm)
        runner.run(engine.__aenter__())
        try:
            dialogue = Dialogue(engine, ChatCodec(llm.codec), start)
            Chat(dialogue, _line_source(), terminal, runner).run()
        finally:
            runner.run(engine.__aexit__())


def _line_source() -> Ask:
    """Lines of stdin; on a terminal with a prompt, and with a history where Python has one."""
    if not sys.stdin.isatty():
        return lambda prompt: input()
    with suppress(ImportError):
        import readline  # noqa: F401  # input() uses it
    return _ask_terminal


def _ask_terminal(prompt: str) -> str:
    try:
        return input(prompt)
    except (EOFError, KeyboardInterrupt):
        print()  # the cursor is behind the prompt
        raise
