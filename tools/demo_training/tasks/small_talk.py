"""Greetings, names, and what the model is: one to three exchanges."""

from dataclasses import dataclass

from demo_training.tasks.named import person
from demo_training.tasks.task import (
    Answer,
    Draw,
    Item,
    Message,
    Request,
    Wordings,
    assistant,
    item,
    user,
)
from demo_training.tasks.tool_set import declared_tools

TOOLS_SHARE = 0.12
THINKING_SHARE = 0.4
WHO_AM_I = "ask_name"
INTRODUCTION = "name"
UNKNOWN_NAME = "unknown_name"


@dataclass(frozen=True)
class Exchange:
    """One question and its answer; `{name}` stands for the user's name."""

    questions: Wordings
    answer: str
    thinking: str


ENGLISH = {
    "hello": Exchange(
        Wordings(
            ("Hello!", "Hi!", "Hello.", "Hi there!", "Hey!", "Good morning!", "hello", "hi"),
            ("Hello there!", "Hi.", "hey"),
        ),
        "Hello! How can I help you?",
        "The user says hello.",
    ),
    INTRODUCTION: Exchange(
        Wordings(
            (
                "My name is {name}.",
                "I am {name}.",
                "Hi, I am {name}.",
                "Hello, my name is {name}.",
                "Hello! I am {name}.",
                "Call me {name}.",
                "i am {name}",
            ),
            ("Hi! My name is {name}.", "Please call me {name}.", "Hello, I am {name}."),
        ),
        "Nice to meet you, {name}!",
        "The name of the user is {name}.",
    ),
    WHO_AM_I: Exchange(
        Wordings(
            ("What is my name?", "Do you know my name?", "Who am I?", "Tell me my name."),
            ("Please tell me my name.", "Hey, what is my name?"),
        ),
        "Your name is {name}.",
        "The name of the user is {name}.",
    ),
    "who": Exchange(
        Wordings(
            (
                "Who are you?",
                "who are you?",
                "What are you?",
                "What is your name?",
                "Tell me who you are.",
            ),
            ("Please tell me who you are.", "Hi, who are you?"),
        ),
        "I am a small demo model.",
        "The user asks who I am.",
    ),
    "can": Exchange(
        Wordings(
            (
                "What can you do?",
                "How can you help me?",
                "Help!",
                "Can you help me?",
                "Tell me what you can do.",
            ),
            ("Please tell me what you can do.", "Hi, what can you do?"),
        ),
        "I can talk, add numbers, copy text, find facts, call tools and write JSON.",
        "The user asks what I can do.",
    ),
    "how": Exchange(
        Wordings(
            ("How are you?", "how are you?", "How are you today?", "Are you well?"),
            ("Hi, how are you?",),
        ),
        "I am well, thank you.",
        "The user asks how I am.",
    ),
    "thanks": Exchange(
        Wordings(("Thank you!", "Thanks!", "Thank you.", "thanks"), ("Thanks.", "thank you")),
        "You are welcome!",
        "The user says thank you.",
    ),
    "bye": Exchange(
        Wordings(("Bye!", "Goodbye!", "Bye.", "Good night!"), ("Goodbye.", "bye")),
        "Goodbye!",
        "The user says goodbye.",
    ),
}
CHINESE = {
    "hello": Exchange(
        Wordings(("你好！", "你好。", "早上好！", "你好"), ("你好呀！",)),
        "你好！我能帮你什么？",
        "用户问好。",
    ),
    INTRODUCTION: Exchange(
        Wordings(("我叫{name}。", "你好，我叫{name}。", "我是{name}。"), ("你好！我是{name}。",)),
        "你好，{name}！",
        "用户叫{name}。",
    ),
    WHO_AM_I: Exchange(
        Wordings(("我叫什么？", "我是谁？"), ("你好，我叫什么？",)),
        "你叫{name}。",
        "用户叫{name}。",
    ),
    "who": Exchange(
        Wordings(("你是谁？", "你叫什么？"), ("你好，你是谁？",)),
        "我是一个小模型。",
        "用户问我是谁。",
    ),
    "can": Exchange(
        Wordings(("你能做什么？", "你能帮我什么？"), ("你好，你能做什么？",)),
        "我能算数、找数字、用工具。",
        "用户问我能做什么。",
    ),
    "thanks": Exchange(Wordings(("谢谢！", "谢谢你！"), ("谢谢。",)), "不用谢！", "用户说谢谢。"),
    "bye": Exchange(Wordings(("再见！", "再见"), ("再见。",)), "再见！", "用户说再见。"),
}
STRANGER = "I do not know your name.", "The user did not say the name."
STRANGER_CHINESE = "我不知道你叫什么。", "用户没说。"


@dataclass(frozen=True)
class SmallTalk:
    """`What is my name?` depends on what was said before; all else on the question alone."""

    name: str = "small_talk"

    def make(self, draw: Draw) -> Item:
        draw = draw.with_new_wording()
        exchanges = CHINESE if draw.chinese else ENGLISH
        thinks = draw.chance(THINKING_SHARE)
        user_name = person(draw)
        tools = declared_tools(draw, []) if draw.chance(TOOLS_SHARE) else []
        messages: list[Message] = []
        is_known = False
        for turn in range(turns := draw.pick((1, 1, 2, 2, 3))):
            kind = self._kind(draw, is_known, turn)
            is_known = is_known or kind == INTRODUCTION
            exchange = exchanges[kind]
            question = draw.wording(exchange.questions).format(name=user_name)
            messages.append(user(question))
            said, thought = exchange.answer, exchange.thinking
            if kind == WHO_AM_I and not is_known:
                said, thought = STRANGER_CHINESE if draw.chinese else STRANGER
            answer = Answer(
                thought.format(name=user_name) if thinks else None, said.format(name=user_name)
            )
            if turn < turns - 1:
                messages.append(assistant(answer))
        return item(self.name, draw, Request(messages, tools), answer)

    def _kind(self, draw: Draw, is_known: bool, turn: int) -> str:
        """Names are worth remembering, so they come often."""
        if is_known and draw.chance(0.5):
            return WHO_AM_I
        if turn == 0 and draw.chance(0.35):
            return INTRODUCTION
        return draw.pick(list(CHINESE if draw.chinese else ENGLISH))
