"""Questions that need a tool: the call, its result, the answer."""

from dataclasses import dataclass

from demo_training.tasks.task import (
    Answer,
    Draw,
    Item,
    Request,
    assistant,
    call_id,
    item,
    user,
)
from demo_training.tasks.tool_set import CALCULATOR, CALENDAR, TOOLS, Use, declared_tools, use_of

THINKING_SHARE = 0.5
TWO_SHARE = 0.3
CALL_ONLY_SHARE = 0.4  # the answer is the call; else the call is history
MISSING_SHARE = 0.08  # the tool is not declared
MISSING = "I have no tool for that."
MISSING_CHINESE = "我没有这个工具。"


@dataclass(frozen=True)
class ToolCalls:
    """One or two calls at once, results in the order of the calls."""

    name: str = "tool_calls"

    def make(self, draw: Draw) -> Item:
        thinks = draw.chance(THINKING_SHARE)
        if draw.chance(MISSING_SHARE):
            return self._without_tool(draw, thinks)
        count = 2 if draw.chance(TWO_SHARE) else 1
        chosen = [draw.pick(TOOLS) for _ in range(count)]
        if CALENDAR in chosen:  # seven days are too few to reserve one
            draw = draw.with_new_wording()
        uses = [use_of(draw, tool) for tool in chosen]
        if len(uses) == 2 and uses[0].call == uses[1].call:
            uses.pop()
        tools = declared_tools(draw, list(dict.fromkeys(use.tool for use in uses)))
        blank = "" if draw.chinese else " "
        messages = [user(blank.join(use.question for use in uses))]
        calls = Answer(_names(draw, uses) if thinks else None, "", tuple(use.call for use in uses))
        if draw.chance(CALL_ONLY_SHARE):
            return item(self.name, draw, Request(messages, tools), calls)
        messages.append(assistant(calls))
        for number, use in enumerate(uses):
            result = {"role": "tool", "tool_call_id": call_id(number), "content": use.result}
            messages.append(result)
        said = "工具回答了。" if draw.chinese else "The tool gave a result."
        answer = Answer(said if thinks else None, blank.join(use.answer for use in uses))
        return item(self.name, draw, Request(messages, tools), answer)

    def _without_tool(self, draw: Draw, thinks: bool) -> Item:
        draw = draw.with_new_wording()
        missing = draw.pick([tool for tool in TOOLS if tool is not CALCULATOR])
        use = use_of(draw, missing)
        others = [tool for tool in TOOLS if tool is not missing]
        offered = draw.random.sample(others, draw.number(0, 2))
        thought = "没有这个工具。" if draw.chinese else "There is no tool for that."
        answer = Answer(thought if thinks else None, MISSING_CHINESE if draw.chinese else MISSING)
        tools = [tool.declaration() for tool in offered]
        return item(self.name, draw, Request([user(use.question)], tools), answer)


def _names(draw: Draw, uses: list[Use]) -> str:
    names = ("和" if draw.chinese else " and ").join(use.tool.name for use in uses)
    return f"我用{names}。" if draw.chinese else f"I call {names}."
