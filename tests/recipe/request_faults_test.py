"""Known faults of systems like this one, on the way in (one test for each kind)."""

from __future__ import annotations

import base64
import io
from pathlib import Path
from random import Random
from typing import Any, ClassVar

import pytest
from request_maker import PNG, RequestMaker
from small_tokenizer import FIRST_CONTROL_ID, small_tokenizer_json

from dsinfer_jax.recipe import (
    AssistantMessage,
    BytesImageSource,
    ChatCompletionRequest,
    Conversation,
    ConversionError,
    ConversionOptions,
    DeepseekV4Encoding,
    DeepseekV41Encoding,
    ImageError,
    ImageQuota,
    ImageResolver,
    MessagesRequest,
    OpenCvImagePreprocessor,
    ReasoningContentBehavior,
    ReqwestImageFetcher,
    ResponsesRequest,
    SystemMessage,
    Tokenizer,
    ToolCall,
    ToolDefinition,
    ToolMessage,
    UserMessage,
)
from dsinfer_jax.recipe.plain_encoder import PART_CHARACTERS

MODEL = "DeepSeek-V4.1-Flash"
USER = {"role": "user", "content": "hello"}
SHARED_TOKENIZER = Path(__file__).parents[2] / "../shared/recipe_cases/tokenizer_v41.json.gz"


def chat_prompt(options: ConversionOptions | None = None, **body: Any) -> str:
    request = ChatCompletionRequest({"model": MODEL, "messages": [USER], **body})
    converted = request.convert(options or ConversionOptions())
    return DeepseekV41Encoding().render_conversation(converted.conversation).prompt


def messages_prompt(**body: Any) -> str:
    request = MessagesRequest({"model": MODEL, "max_tokens": 5, "messages": [USER], **body})
    conversation = request.convert(ConversionOptions()).conversation
    return DeepseekV41Encoding().render_conversation(conversation).prompt


def call(call_id: str, arguments: str = "{}") -> dict[str, Any]:
    function = {"name": "f", "arguments": arguments}
    return {"id": call_id, "type": "function", "function": function}


TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}


class TestR10ArgumentsAsAParameterName:
    @pytest.mark.parametrize("encoding", [DeepseekV4Encoding(), DeepseekV41Encoding()])
    def test_a_parameter_called_arguments_keeps_its_name(self, encoding: Any) -> None:
        message = AssistantMessage("", None, [ToolCall("1", "run", '{"arguments":{"a":[1,null]}}')])
        prompt = encoding.render_conversation(Conversation([message])).prompt
        assert 'parameter name="arguments" string="false">{"a": [1, null]}</' in prompt

    @pytest.mark.parametrize("text", ["[1]", "oops", '"x"'])
    def test_other_arguments_are_one_string_of_that_name(self, text: str) -> None:
        message = AssistantMessage("", None, [ToolCall("1", "run", text)])
        prompt = DeepseekV41Encoding().render_conversation(Conversation([message])).prompt
        assert f'parameter name="arguments" string="true">{text}</' in prompt


class TestR12Effort:
    NUMBERS: ClassVar = {
        "minimal": 50,
        "low": 50,
        "medium": 75,
        "high": 75,
        "xhigh": 75,
        "max": 100,
    }

    @pytest.mark.parametrize(("effort", "number"), NUMBERS.items())
    def test_the_release_table(self, effort: str, number: int) -> None:
        assert f"Reasoning Effort: {number} (range" in chat_prompt(reasoning_effort=effort)

    def test_the_default_and_a_budget(self) -> None:
        assert "Reasoning Effort: 75 (range" in chat_prompt()
        budget = {"type": "enabled", "budget_tokens": 2000}
        assert "Reasoning Effort: 75 (range" in messages_prompt(thinking=budget)

    def test_an_integer_is_refused(self) -> None:
        with pytest.raises(ValueError, match="integer `7`, expected string or map"):
            chat_prompt(reasoning_effort=7)


class TestR18BillingLine:
    LINE = "x-anthropic-billing-header: cch={};"

    def system(self, nonce: int) -> list[dict[str, str]]:
        texts = (self.LINE.format(nonce), "Be brief.")
        return [{"type": "text", "text": text} for text in texts]

    def test_requests_that_differ_in_it_have_the_same_prompt(self) -> None:
        first = messages_prompt(system=self.system(1))
        assert first == messages_prompt(system=self.system(2))
        assert "billing" not in first
        assert "Be brief." in first

    def test_the_words_stay_everywhere_else(self) -> None:
        line = self.LINE.format(1)
        assert line in messages_prompt(messages=[{"role": "user", "content": line}])
        last = [{"type": "text", "text": text} for text in ("Be brief.", line)]
        assert line in messages_prompt(system=last)


class TestR27OldReasoning:
    HISTORY = (
        USER,
        {"role": "assistant", "content": "a1", "reasoning_content": "because"},
        USER,
        {"role": "assistant", "content": "a2"},
        USER,
    )

    def test_it_is_kept_with_tools(self) -> None:
        prompt = chat_prompt(messages=list(self.HISTORY), tools=[TOOL])
        assert "<think>because</think>a1" in prompt
        assert "<think></think>a2" in prompt

    def test_it_is_dropped_without(self) -> None:
        prompt = chat_prompt(messages=list(self.HISTORY))
        assert "because" not in prompt
        assert "<｜Assistant｜></think>a1" in prompt

    def test_it_may_be_demanded(self) -> None:
        options = ConversionOptions(reasoning_content_behavior=ReasoningContentBehavior.Reject)
        history = [USER, {"role": "assistant", "tool_calls": [call("1")]}]
        history.append({"role": "tool", "tool_call_id": "1", "content": "r"})
        with pytest.raises(ConversionError, match="must be passed back to the API"):
            chat_prompt(options, messages=history, tools=[TOOL])


class TestR31ParallelResults:
    def history(self, *ids: str) -> list[dict[str, Any]]:
        results = [{"role": "tool", "tool_call_id": i, "content": f"r-{i}"} for i in ids]
        calls = {"role": "assistant", "tool_calls": [call("b"), call("a")]}
        return [USER, calls, *results, USER]

    def test_results_follow_the_order_of_the_calls(self) -> None:
        prompt = chat_prompt(messages=self.history("a", "b"))
        assert prompt == chat_prompt(messages=self.history("b", "a"))
        assert prompt.index("r-b") < prompt.index("r-a")

    def test_an_orphan_is_a_clear_error(self) -> None:
        orphan = {"role": "tool", "tool_call_id": "z", "content": "r"}
        with pytest.raises(ConversionError, match="must be a response to a preceding message"):
            chat_prompt(messages=[USER, orphan])

    def test_responses_pair_in_any_order(self) -> None:
        def items(*order: str) -> list[dict[str, Any]]:
            calls = [
                {"type": "function_call", "call_id": i, "name": "f", "arguments": "{}"}
                for i in ("2", "1")
            ]
            outputs = [
                {"type": "function_call_output", "call_id": i, "output": f"r-{i}"} for i in order
            ]
            return [*calls, *outputs]

        def prompt(*order: str) -> str:
            request = ResponsesRequest({"model": MODEL, "input": items(*order)})
            conversation = request.convert(ConversionOptions()).conversation
            return DeepseekV41Encoding().render_conversation(conversation).prompt

        assert prompt("1", "2") == prompt("2", "1")


class TestR37OnePassForEachStretch:
    """Ids equal one pass over each stretch between control tokens, joins and cuts included."""

    def test_random_conversations(self) -> None:
        tokenizer = Tokenizer.from_str(small_tokenizer_json())
        for seed in range(1_000):
            maker = RequestMaker(Random(seed))
            request = ChatCompletionRequest(
                {"model": MODEL, "messages": [{"role": "user", "content": maker.text()}] * 3}
            )
            conversation = request.convert(ConversionOptions()).conversation
            encoding = DeepseekV41Encoding().with_tokenizer(tokenizer)
            rendered = encoding.render_conversation(conversation)
            assert encoding.encode(conversation) == one_pass(rendered, tokenizer)

    @pytest.mark.skipif(not SHARED_TOKENIZER.is_file(), reason="needs the tokenizer in ../shared")
    def test_the_published_tokenizer_and_cut_stretches(self) -> None:
        import gzip

        tokenizer = Tokenizer.from_str(gzip.decompress(SHARED_TOKENIZER.read_bytes()).decode())
        random = Random(3)
        pieces = (
            "word ",
            "two words",
            "。今天",
            "天气，",
            "\n\n",
            " 123456",
            "x\n",
            "\t  ",
            "é",
            "=>",
            "🙂",
        )
        for _ in range(30):
            text = "".join(random.choices(pieces, k=PART_CHARACTERS))
            [cut] = tokenizer._plain.encode([text])
            whole = tokenizer._plain._library.encode(text, add_special_tokens=False).ids
            assert list(cut) == whole
        system = SystemMessage("ends with a newline\n")
        tools = [ToolDefinition("f", "d", {"type": "object"})]
        conversation = Conversation([system, UserMessage("12345"), UserMessage("67")], tools=tools)
        encoding = DeepseekV41Encoding().with_tokenizer(tokenizer)
        rendered = encoding.render_conversation(conversation)
        assert encoding.encode(conversation) == one_pass(rendered, tokenizer)


def one_pass(rendered: Any, tokenizer: Tokenizer) -> list[int]:
    ids: list[int] = []
    end = 0
    library = tokenizer._plain._library
    for start, stop in [*rendered.special_ranges, (len(rendered.prompt), None)]:
        ids += library.encode(rendered.prompt[end:start], add_special_tokens=False).ids
        if stop is not None:
            spelling = rendered.prompt[start:stop]
            number = tokenizer.added_token_id(spelling)
            assert number is not None
            ids.append(number)
            end = stop
    return ids


def test_the_cache_never_changes_an_id_and_stays_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dsinfer_jax.recipe.plain_encoder.CACHE_CHARACTERS", 1_000)
    tokenizer = Tokenizer.from_str(small_tokenizer_json())
    random = Random(5)
    texts = ["".join(random.choices("ab é<think>", k=random.randint(0, 80))) for _ in range(60)]
    for _ in range(600):
        some = random.choices(texts, k=4)
        expected = [
            tokenizer._plain._library.encode(text, add_special_tokens=False).ids for text in some
        ]
        assert [list(ids) for ids in tokenizer.encode_plain(some)] == expected
        assert tokenizer._plain._cache_characters <= 1_000
        held = sum(map(len, tokenizer._plain._cache))
        assert held == tokenizer._plain._cache_characters


class TestR40Namespaces:
    TOOLS: ClassVar = [
        {
            "type": "namespace",
            "name": name,
            "tools": [{"type": "function", "name": "read", "parameters": {"type": "object"}}],
        }
        for name in ("fs", "db")
    ]

    def test_names_and_routing_differ(self) -> None:
        request = ResponsesRequest({"model": MODEL, "input": "x", "tools": self.TOOLS})
        routes = request.namespace_tool_map(ConversionOptions())
        assert routes == {"fs::read": ("fs", "read"), "db::read": ("db", "read")}
        tools = request.convert(ConversionOptions()).conversation.tools
        assert [tool.name for tool in tools] == ["fs::read", "db::read"]


class TestR43ImageParts:
    IMAGE: ClassVar = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + PNG}}

    def rendered(self, content: list[Any]) -> Any:
        body = {"model": MODEL, "messages": [{"role": "user", "content": content}]}
        conversation = ChatCompletionRequest(body).convert(ConversionOptions()).conversation
        return DeepseekV41Encoding().render_conversation(conversation)

    def test_the_order_of_parts_is_kept(self) -> None:
        before, after = ({"type": "text", "text": text} for text in ("before", "after"))
        rendered = self.rendered([before, self.IMAGE, after])
        assert "before\n\n<｜image｜>\n\nafter" in rendered.prompt
        assert len(rendered.image_sources) == 1
        two = self.rendered([self.IMAGE, before, self.IMAGE])
        assert "<｜image｜>\n\nbefore\n\n<｜image｜>" in two.prompt
        assert len(two.image_sources) == 2

    def test_an_image_in_a_tool_result(self) -> None:
        result = ToolMessage("see <｜image｜>", "1", [BytesImageSource(b"x")])
        calls = AssistantMessage("", None, [ToolCall("1", "f", "{}")])
        rendered = DeepseekV41Encoding().render_conversation(Conversation([calls, result]))
        assert "<tool_result>see <｜image｜></tool_result>" in rendered.prompt
        assert len(rendered.image_sources) == 1

    def test_an_unknown_part_is_named(self) -> None:
        with pytest.raises(ValueError, match="unknown variant `audio`, expected one of `text`"):
            self.rendered([{"type": "audio"}])


class TestR45ExtremeImages:
    def resolve(self, data: bytes) -> Any:
        resolver = ImageResolver(ReqwestImageFetcher(), OpenCvImagePreprocessor())
        return resolver.resolve([BytesImageSource(data)], ImageQuota())

    def picture(self, width: int, height: int, **options: Any) -> bytes:
        image = pytest.importorskip("PIL.Image")
        file = io.BytesIO()
        image.new("RGB", (width, height)).save(file, options.pop("format", "PNG"), **options)
        return file.getvalue()

    @pytest.mark.parametrize("size", [(1, 5000), (5000, 1), (1, 1), (8192, 2)])
    def test_thin_ones_have_at_least_one_cell_each_way(self, size: tuple[int, int]) -> None:
        [image] = self.resolve(self.picture(*size)).images
        assert image.width >= 14
        assert image.height >= 14

    def test_a_turned_picture(self) -> None:
        image = pytest.importorskip("PIL.Image")
        exif = image.Exif()
        exif[0x0112] = 6  # to be turned by a quarter
        [resolved] = self.resolve(self.picture(1200, 600, format="JPEG", exif=exif)).images
        assert resolved.width > resolved.height  # the mark is ignored, as officially

    def test_broken_files_are_refused(self) -> None:
        whole = self.picture(60, 40)
        for broken in (b"", b"hello", whole[:40], whole[: len(whole) - 20]):
            with pytest.raises(ImageError):
                self.resolve(broken)

    def test_a_data_url_of_the_wrong_kind(self) -> None:
        body = base64.b64encode(b"x").decode()
        url = {"url": "data:image/bmp;base64," + body}
        with pytest.raises(ConversionError, match="unsupported image"):
            chat_prompt(
                messages=[{"role": "user", "content": [{"type": "image_url", "image_url": url}]}]
            )


def test_control_ids_start_where_the_small_tokenizer_says() -> None:
    tokenizer = Tokenizer.from_str(small_tokenizer_json())
    assert min(tokenizer.added_tokens) == FIRST_CONTROL_ID
