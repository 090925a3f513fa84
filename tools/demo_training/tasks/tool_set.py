"""The tools that requests declare: what they are called, take and give."""

from dataclasses import dataclass
from typing import Any

from demo_training.tasks.task import Call, Draw, Wordings
from demo_training.tasks.words import (
    CITIES,
    CITIES_CHINESE,
    DAYS,
    DAYS_CHINESE,
    NAMES,
    NAMES_CHINESE,
    NEW_CITIES,
    NEW_CITIES_CHINESE,
    NEW_NAMES,
    NEW_NAMES_CHINESE,
    NOUNS,
    NOUNS_CHINESE,
)

MOST_TOOLS = 3
_WEATHER = ("sunny", "rainy", "cloudy", "windy", "snowy")
_WEATHER_CHINESE = ("晴", "雨", "云", "风", "雪")


@dataclass(frozen=True)
class Tool:
    """A tool in both languages, and what is asked of it.

    `questions`, `result` and `answer` are templates over the parameter and the drawn result.
    """

    name: str
    description: str
    parameter: str
    kind: str  # JSON type of the parameter
    questions: Wordings
    questions_chinese: Wordings
    result: str
    answer: str
    answer_chinese: str

    def declaration(self) -> dict[str, Any]:
        properties = {self.parameter: {"type": self.kind}}
        schema = {"type": "object", "properties": properties, "required": [self.parameter]}
        function = {"name": self.name, "description": self.description, "parameters": schema}
        return {"type": "function", "function": function}


WEATHER = Tool(
    "get_weather", "Weather of a city", "city", "string",
    Wordings(
        ("What is the weather in {value}?", "How is the weather in {value}?", "Weather in {value}?",
         "Tell me the weather in {value}."),
        ("Please tell me the weather in {value}.", "Hi, how is the weather in {value}?"),
    ),
    Wordings(("{value}的天气怎么样？", "{value}今天的天气？"), ("请问{value}的天气怎么样？",)),
    '{{"weather": "{weather}", "degrees": {number}}}',
    "It is {weather} in {value}, {number} degrees.", "{value}：{weather}，{number}度。",
)  # fmt: skip
TIME = Tool(
    "get_time", "Time in a city", "city", "string",
    Wordings(
        ("What time is it in {value}?", "Time in {value}?", "Tell me the time in {value}."),
        ("Please tell me the time in {value}.",),
    ),
    Wordings(("{value}现在几点？", "{value}的时间？"), ("请问{value}现在几点？",)),
    '{{"time": "{hour}:{minute}"}}',
    "It is {hour}:{minute} in {value}.", "{value}现在{hour}:{minute}。",
)  # fmt: skip
CALCULATOR = Tool(
    "calculate", "Work out a sum", "expression", "string",
    Wordings(
        ("Calculate {value}.", "What is {value}?", "Use the tool for {value}.", "{value}=?"),
        ("Please calculate {value}.", "Hi, what is {value}?"),
    ),
    Wordings(("用工具算{value}。", "{value}等于多少？"), ("请用工具算{value}。",)),
    "{result}", "{value}={result}.", "{value}={result}。",
)  # fmt: skip
CALENDAR = Tool(
    "get_events", "Events of a day", "day", "string",
    Wordings(
        ("What do I have on {value}?", "What is on {value}?", "Tell me my events on {value}."),
        ("Please tell me my events on {value}.", "Hi, what do I have on {value}?"),
    ),
    Wordings(("{value}我有什么事？", "{value}有什么事？"), ("请问{value}我有什么事？",)),
    '["{event}"]', "On {value}: {event}.", "{value}：{event}。",
)  # fmt: skip
TIMER = Tool(
    "set_timer", "Set a timer", "minutes", "integer",
    Wordings(
        ("Set a timer for {value} minutes.", "Timer for {value} minutes.",
         "Set a timer: {value} minutes."),
        ("Please set a timer for {value} minutes.",),
    ),
    Wordings(("请定时{value}分钟。", "{value}分钟后叫我。"), ("请{value}分钟后叫我。",)),
    '"ok"', "The timer is set to {value} minutes.", "好的，{value}分钟。",
)  # fmt: skip
TOOLS = (WEATHER, TIME, CALCULATOR, CALENDAR, TIMER)


@dataclass(frozen=True)
class Use:
    """One use of a tool: question, call, result, and what is said of the result."""

    tool: Tool
    question: str
    call: Call
    result: str
    answer: str


def declared_tools(draw: Draw, needed: list[Tool]) -> list[dict[str, Any]]:
    """Declarations of the needed tools and some others, in random order."""
    others = [tool for tool in TOOLS if tool not in needed]
    least = max(0, 1 - len(needed))
    count = draw.number(least, max(least, MOST_TOOLS - len(needed)))
    chosen = [*needed, *draw.random.sample(others, count)]
    return [tool.declaration() for tool in draw.random.sample(chosen, len(chosen))]


def use_of(draw: Draw, tool: Tool) -> Use:
    """A question for the tool with reserved content in the held-out split."""
    chinese = draw.chinese
    held_out = draw.split == "held_out"
    found: dict[str, Any] = {}
    if tool in (WEATHER, TIME):
        known, new = (CITIES_CHINESE, NEW_CITIES_CHINESE) if chinese else (CITIES, NEW_CITIES)
        value: Any = draw.pick(new if held_out else known)
    if tool is WEATHER:
        found["weather"] = draw.pick(_WEATHER_CHINESE if chinese else _WEATHER)
        found["number"] = draw.number(0, 35)
    elif tool is TIME:
        found["hour"], found["minute"] = draw.number(0, 23), f"{draw.number(0, 59):02d}"
    elif tool is CALCULATOR:
        first, operation, second = draw.content(
            lambda: (draw.number(100, 999), draw.pick("+-*"), draw.number(100, 999))
        )
        value = f"{first}{operation}{second}"
        found["result"] = {"+": first + second, "-": first - second, "*": first * second}[operation]
    elif tool is CALENDAR:
        value = draw.pick(DAYS_CHINESE if chinese else DAYS)
        known, new = (NAMES_CHINESE, NEW_NAMES_CHINESE) if chinese else (NAMES, NEW_NAMES)
        name = draw.pick(new if held_out else known)
        thing = draw.pick(NOUNS_CHINESE if chinese else NOUNS)
        found["event"] = f"和{name}看{thing}" if chinese else f"{thing} with {name}"
    elif tool is TIMER:
        value = draw.content(lambda: draw.number(1, 99))
    questions = tool.questions_chinese if chinese else tool.questions
    answer = tool.answer_chinese if chinese else tool.answer
    return Use(
        tool,
        draw.wording(questions).format(value=value),
        Call(tool.name, {tool.parameter: value}),
        tool.result.format(value=value, **found),
        answer.format(value=value, **found),
    )
