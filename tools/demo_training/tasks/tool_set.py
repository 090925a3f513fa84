"""The tools that requests declare: what they are called, take and give."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from demo_training.tasks.named import city, person
from demo_training.tasks.task import Call, Draw, Wordings
from demo_training.tasks.words import DAYS, DAYS_CHINESE, NOUNS, NOUNS_CHINESE

Found = dict[str, Any]  # what a result says, by the names of its template

MOST_TOOLS = 3
_WEATHER = ("sunny", "rainy", "cloudy", "windy", "snowy")
_WEATHER_CHINESE = ("晴", "雨", "云", "风", "雪")


@dataclass(frozen=True)
class Tool:
    """A tool in both languages, and what is asked of it.

    `questions`, `result` and `answer` are templates over the value of the parameter and what
    was found; `draw` draws both, with reserved values in the held-out split.
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
    draw: Callable[[Draw], tuple[Any, Found]]

    def declaration(self) -> dict[str, Any]:
        properties = {self.parameter: {"type": self.kind}}
        schema = {"type": "object", "properties": properties, "required": [self.parameter]}
        function = {"name": self.name, "description": self.description, "parameters": schema}
        return {"type": "function", "function": function}


def _weather(draw: Draw) -> tuple[str, Found]:
    weather = draw.pick(_WEATHER_CHINESE if draw.chinese else _WEATHER)
    return city(draw), {"weather": weather, "number": draw.number(0, 35)}


def _time(draw: Draw) -> tuple[str, Found]:
    return city(draw), {"hour": draw.number(0, 23), "minute": f"{draw.number(0, 59):02d}"}


def _sum(draw: Draw) -> tuple[str, Found]:
    first, operation, second = draw.content(
        lambda: (draw.number(100, 999), draw.pick("+-*"), draw.number(100, 999))
    )
    results = {"+": first + second, "-": first - second, "*": first * second}
    return f"{first}{operation}{second}", {"result": results[operation]}


def _events(draw: Draw) -> tuple[str, Found]:
    day = draw.pick(DAYS_CHINESE if draw.chinese else DAYS)
    thing = draw.pick(NOUNS_CHINESE if draw.chinese else NOUNS)
    name = person(draw)
    return day, {"event": f"和{name}看{thing}" if draw.chinese else f"{thing} with {name}"}


def _minutes(draw: Draw) -> tuple[int, Found]:
    return draw.content(lambda: draw.number(1, 99)), {}


WEATHER = Tool(
    "get_weather", "Weather of a city", "city", "string",
    Wordings(
        ("What is the weather in {value}?", "How is the weather in {value}?", "Weather in {value}?",
         "Tell me the weather in {value}.", "Hi, what is the weather in {value}?",
         "Please, how is the weather in {value}?", "Hello, tell me the weather in {value}.",
         "Thanks! Weather in {value}?"),
        ("Please tell me the weather in {value}.", "Hi, how is the weather in {value}?"),
    ),
    Wordings(
        ("{value}的天气怎么样？", "{value}今天的天气？", "你好，{value}的天气怎么样？"),
        ("请问{value}的天气怎么样？",),
    ),
    '{{"weather": "{weather}", "degrees": {number}}}',
    "It is {weather} in {value}, {number} degrees.", "{value}：{weather}，{number}度。",
    _weather,
)  # fmt: skip
TIME = Tool(
    "get_time", "Time in a city", "city", "string",
    Wordings(
        ("What time is it in {value}?", "Time in {value}?", "Tell me the time in {value}.",
         "Hi, what time is it in {value}?", "Please, what time is it in {value}?",
         "Hello, tell me the time in {value}."),
        ("Please tell me the time in {value}.",),
    ),
    Wordings(
        ("{value}现在几点？", "{value}的时间？", "你好，{value}现在几点？"),
        ("请问{value}现在几点？",),
    ),
    '{{"time": "{hour}:{minute}"}}',
    "It is {hour}:{minute} in {value}.", "{value}现在{hour}:{minute}。",
    _time,
)  # fmt: skip
CALCULATOR = Tool(
    "calculate", "Work out a sum", "expression", "string",
    Wordings(
        ("Calculate {value}.", "What is {value}?", "Use the tool for {value}.", "{value}=?",
         "Hi, use the tool for {value}.", "Please, what is {value}?", "Hello, calculate {value}."),
        ("Please calculate {value}.", "Hi, what is {value}?"),
    ),
    Wordings(
        ("用工具算{value}。", "{value}等于多少？", "你好，用工具算{value}。"),
        ("请用工具算{value}。",),
    ),
    "{result}", "{value}={result}.", "{value}={result}。",
    _sum,
)  # fmt: skip
CALENDAR = Tool(
    "get_events", "Events of a day", "day", "string",
    Wordings(
        ("What do I have on {value}?", "What is on {value}?", "Tell me my events on {value}.",
         "Hi, what is on {value}?", "Please, what do I have on {value}?",
         "Hello, tell me my events on {value}."),
        ("Please tell me my events on {value}.", "Hi, what do I have on {value}?"),
    ),
    Wordings(
        ("{value}我有什么事？", "{value}有什么事？", "你好，{value}我有什么事？"),
        ("请问{value}我有什么事？",),
    ),
    '["{event}"]', "On {value}: {event}.", "{value}：{event}。",
    _events,
)  # fmt: skip
TIMER = Tool(
    "set_timer", "Set a timer", "minutes", "integer",
    Wordings(
        ("Set a timer for {value} minutes.", "Timer for {value} minutes.",
         "Set a timer: {value} minutes.", "Hi, set a timer for {value} minutes.",
         "Please, a timer for {value} minutes.", "Hello, set a timer: {value} minutes."),
        ("Please set a timer for {value} minutes.",),
    ),
    Wordings(
        ("请定时{value}分钟。", "{value}分钟后叫我。", "你好，{value}分钟后叫我。"),
        ("请{value}分钟后叫我。",),
    ),
    '"ok"', "The timer is set to {value} minutes.", "好的，{value}分钟。",
    _minutes,
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
    """A question for the tool, and what follows from it."""
    value, found = tool.draw(draw)
    questions = tool.questions_chinese if draw.chinese else tool.questions
    answer = tool.answer_chinese if draw.chinese else tool.answer
    return Use(
        tool,
        draw.wording(questions).format(value=value),
        Call(tool.name, {tool.parameter: value}),
        tool.result.format(value=value, **found),
        answer.format(value=value, **found),
    )
