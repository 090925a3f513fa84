"""Random conversations built by hand, in the form of the recorded cases."""

from __future__ import annotations

from typing import Any

from request_maker import RequestMaker

Json = dict[str, Any]


def make_conversation(maker: RequestMaker) -> Json:
    """Arguments of ``Conversation``, messages and tools as arguments of their classes."""
    arguments: Json = {"messages": [_message(maker) for _ in range(maker.count(6))]}
    maker.maybe(arguments, "thinking_mode", 0.4, False)
    maker.maybe(arguments, "tools", 0.4, lambda: [_tool(maker) for _ in range(maker.count(3))])
    maker.maybe(arguments, "tool_choice", 0.3, lambda: maker.pick(("auto", "none", "required")))
    maker.maybe(
        arguments, "reasoning_effort", 0.4, lambda: maker.pick(("low", "high", "xhigh", "max"))
    )
    maker.maybe(arguments, "response_format", 0.15, "json_object")
    if "response_format" not in arguments:
        maker.maybe(arguments, "response_schema", 0.15, lambda: maker.json() or {})
    return arguments


def _tool(maker: RequestMaker) -> Json:
    tool: Json = {"name": maker.text()}
    maker.maybe(tool, "description", 0.7, maker.text)
    maker.maybe(tool, "parameters", 0.8, maker.json)
    maker.maybe(tool, "defer_loading", 0.3, True)
    return tool


def _images(maker: RequestMaker, message: Json) -> None:
    if maker.chance(0.25):
        message["image_sources"] = [
            {"url": f"https://x/{number}"} for number in range(maker.count(3))
        ]
        maker.maybe(message, "image_token", 0.3, lambda: maker.pick(("[I]", "a", " ")))
        message["content"] += maker.pick(("", "<｜image｜>", "[I][I]", "<｜image｜> <｜image｜>"))


def _message(maker: RequestMaker) -> Json:
    role = maker.pick(
        ("user", "user", "assistant", "assistant", "tool", "tool", "system", "latest_reminder")
    )
    message: Json = {"role": role, "content": maker.text()}
    if role == "assistant":
        maker.maybe(message, "reasoning_content", 0.5, maker.text)
        maker.maybe(
            message, "tool_calls", 0.5, lambda: [_call(maker) for _ in range(maker.count(3))]
        )
        maker.maybe(message, "prefix", 0.15, True)
    elif role == "tool":
        maker.maybe(message, "tool_call_id", 0.8, lambda: maker.pick("123ab"))
        _images(maker, message)
    elif role in ("user", "system"):
        _images(maker, message)
        if role == "system":
            maker.maybe(
                message, "tools", 0.2, lambda: [_tool(maker) for _ in range(maker.count(2))]
            )
    return message


def _call(maker: RequestMaker) -> Json:
    return {"id": maker.pick("123ab"), "name": maker.text(), "arguments": maker.arguments()}
