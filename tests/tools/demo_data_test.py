"""The data of the demo model: determinism, splits, masks, packing, checks, tokenizer."""

import json
import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from random import Random

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "tools"))

from demo_training import data, tokenizer
from demo_training.checks import Score, fits, parse, score
from demo_training.data import LONG, SHORT, Packed, Row, Rows, example, item, pack, unpacked
from demo_training.render import Renderer, converted
from demo_training.tasks import TASKS
from demo_training.tasks.arithmetic_steps import added, multiplied, multiplied_long, subtracted
from demo_training.tasks.lookup import LookUp
from demo_training.tasks.task import Answer, Call, Draw, Item, Split, is_reserved
from demo_training.tasks.words import NEW_CITIES, NEW_NAMES

from dsinfer_jax.checkpoint.vocabulary import PAD_TOKEN, fold_vocabulary
from dsinfer_jax.engine.detokenise import Detokeniser, TextCodec
from dsinfer_jax.recipe import Conversation, DeepseekV41Encoding, SpecialToken

ASSISTANT = SpecialToken.Assistant.default_str()
SMALL = [name for name in TASKS if "far" not in name and "long" not in name]
RENDERER = data.renderer()
TOKENIZER = RENDERER.tokenizer


def items(name: str, split: Split, count: int) -> Iterator[Item]:
    for index in range(count):
        yield item(index, 1, split, {name: 1.0})


def text_of(token_ids: np.ndarray) -> str:
    return b"".join(TOKENIZER.token_bytes[token] for token in token_ids.tolist()).decode()


def test_examples_depend_on_their_arguments_alone() -> None:
    for mixture in (data.SHORT_MIXTURE, data.LONG_MIXTURE):
        first = [example(index, 3, Split.TRAIN, mixture) for index in range(20)]
        again = [example(index, 3, Split.TRAIN, mixture) for index in reversed(range(20))][::-1]
        for left, right in zip(first, again):
            np.testing.assert_array_equal(left.token_ids, right.token_ids)
        other = [example(index, 4, Split.TRAIN, mixture) for index in range(20)]
        differing = [
            not np.array_equal(left.token_ids, right.token_ids) for left, right in zip(first, other)
        ]
        assert sum(differing) >= 19


def test_mixtures_name_tasks() -> None:
    for mixture in (data.SHORT_MIXTURE, data.LONG_MIXTURE):
        assert min(mixture.values()) > 0
        assert mixture.keys() <= TASKS.keys()
    assert data.SHORT_MIXTURE.keys() | data.LONG_MIXTURE.keys() == TASKS.keys()


@pytest.mark.parametrize("name", TASKS)
def test_no_held_out_question_is_in_training(name: str) -> None:
    """The last user message, with whatever it refers to, never occurs in both splits."""
    count = 150 if name in SMALL else 8
    seen = {json.dumps(one.body["messages"]) for one in items(name, Split.TRAIN, 4 * count)}
    held_out = list(items(name, Split.HELD_OUT, count))
    assert not seen & {json.dumps(one.body["messages"]) for one in held_out}
    assert not any(one.new_wording for one in items(name, Split.TRAIN, 20))
    assert any(one.new_wording for one in held_out)


def test_reserved_content_stays_out_of_training() -> None:
    """Names and places, and pairs of words as keys: neither asked for nor near by."""
    words = {*NEW_NAMES, *NEW_CITIES}
    for name in ("small_talk", "tool_calls", "json_answers"):
        shown = [json.dumps(one.body) for one in items(name, Split.TRAIN, 150)]
        assert not [text for text in shown if any(word in text for word in words)]
        held_out = "".join(json.dumps(one.body) for one in items(name, Split.HELD_OUT, 100))
        assert all(word in held_out for word in (NEW_NAMES if name == "small_talk" else words))
    task = TASKS["lookup_far"]
    assert isinstance(task, LookUp)
    for seed in range(20):
        draw = Draw(Random(seed), Split.TRAIN, chinese=False, new_wording=False)
        asked, others = task._keys(draw, 60)
        assert not any(map(is_reserved, asked + others))
        held_out = Draw(Random(seed), Split.HELD_OUT, chinese=False, new_wording=False)
        assert all(map(is_reserved, task._keys(held_out, 60)[0]))


def test_sums_are_held_out_by_operands() -> None:
    def last_sums(split: Split) -> set[str]:
        return {one.answer.content.split()[-1] for one in items("arithmetic", split, 600)}

    def is_worked(text: str) -> bool:
        return any(len(part) > 1 for part in text.split("=")[0].replace("x", "+").split("+"))

    both = last_sums(Split.TRAIN) & last_sums(Split.HELD_OUT)
    assert all(len(text.split("=")[0]) == 3 for text in both), both
    assert any(map(is_worked, last_sums(Split.HELD_OUT)))


@pytest.mark.parametrize("name", TASKS)
@pytest.mark.parametrize("split", Split)
def test_wanted_answers_score_fully_and_others_do_not(name: str, split: Split) -> None:
    for one in items(name, split, 25 if name in SMALL else 3):
        answer = RENDERER.answer(one)
        assert score(one, answer, TOKENIZER) == Score(right=True, valid=True)
        unended = score(one, answer[:-1], TOKENIZER)
        assert not unended.right and not unended.valid
        assert not score(one, [*answer[:-2], answer[-1]], TOKENIZER).right
        assert not score(one, [RENDERER.end], TOKENIZER).right


def test_wrong_values_of_good_form_are_valid_and_not_right() -> None:
    one = next(one for one in items("tool_calls", Split.TRAIN, 50) if len(one.answer.calls) == 1)
    call = one.answer.calls[0]
    kind = type(next(iter(call.arguments.values())))
    wrong = dict.fromkeys(call.arguments, kind(7))
    answer = RENDERER.answer(replaced(one, calls=(Call(call.name, wrong),)))
    assert score(one, answer, TOKENIZER).valid
    assert not score(one, answer, TOKENIZER).right
    unknown = RENDERER.answer(replaced(one, calls=(Call("get_moon", wrong),)))
    assert not score(one, unknown, TOKENIZER).valid
    other_type = RENDERER.answer(replaced(one, calls=(Call(call.name, {"city": [1]}),)))
    assert not score(one, other_type, TOKENIZER).valid
    whole = RENDERER.answer(one)
    dsml = TOKENIZER.added_token_id(SpecialToken.Dsml.default_str())
    last = len(whole) - 1 - whole[::-1].index(dsml)
    unclosed = [*whole[: last - 1], RENDERER.end]  # the tag that ends all calls is gone
    assert parse(one, unclosed, TOKENIZER).names == (call.name,)
    assert not score(one, unclosed, TOKENIZER).valid


def test_calls_that_nobody_asked_for_are_wrong() -> None:
    one = next(one for one in items("tool_calls", Split.TRAIN, 200) if not one.answer.calls)
    name = one.body["tools"][0]["function"]["name"]
    called = RENDERER.answer(replaced(one, content="", calls=(Call(name, {}),)))
    assert not score(one, called, TOKENIZER).right


def test_json_answers_are_compared_by_value() -> None:
    one = next(one for one in items("json_answers", Split.TRAIN, 50) if "age" in one.answer.content)
    values = json.loads(one.answer.content)
    compact = RENDERER.answer(replaced(one, content=json.dumps(values, separators=(",", ":"))))
    assert score(one, compact, TOKENIZER).right
    wrong = RENDERER.answer(replaced(one, content=json.dumps(values | {"age": 1})))
    assert score(one, wrong, TOKENIZER).valid
    assert not score(one, wrong, TOKENIZER).right
    for broken in (values | {"age": "1"}, values | {"more": 1}, {}, [values]):
        answer = RENDERER.answer(replaced(one, content=json.dumps(broken)))
        assert not score(one, answer, TOKENIZER).valid
    prose = RENDERER.answer(replaced(one, content="Sure: " + one.answer.content))
    assert not score(one, prose, TOKENIZER).valid


def test_whatever_a_model_writes_gets_a_score() -> None:
    random = Random(0)
    for name in SMALL:
        for one in items(name, Split.TRAIN, 4):
            answer = RENDERER.answer(one)
            for _ in range(10):
                noise = [random.randrange(tokenizer.ENTRIES + 3) for _ in range(9)]
                place = random.randrange(len(answer))
                spoilt = [*answer[:place], *noise, *answer[place + random.randrange(3) :]]
                assert not score(one, spoilt, TOKENIZER).right or one.answer.thinking is not None
            assert not score(one, [], TOKENIZER).valid


def replaced(one: Item, content: str | None = None, calls: tuple[Call, ...] = ()) -> Item:
    """The item with another answer."""
    said = one.answer.content if content is None else content
    answer = Answer(one.answer.thinking, said, calls)
    return Item(one.task, one.body, answer, one.new_wording, one.schema)


def test_the_small_check_of_schemas_agrees_with_jsonschema() -> None:
    jsonschema = pytest.importorskip("jsonschema")
    values = [1, True, "a", [], ["a"], [1], {}, {"name": "a"}, {"age": 1}, {"age": True}, None]
    for one in items("json_answers", Split.TRAIN, 40):
        assert one.schema is not None
        wanted = json.loads(one.answer.content)
        for value in [wanted, *values, *(wanted | {name: 1} for name in wanted), wanted | {"z": 1}]:
            valid = jsonschema.Draft202012Validator(one.schema).is_valid(value)
            assert fits(value, one.schema) == valid, (value, one.schema)


@pytest.mark.parametrize("name", TASKS)
def test_masks_cover_exactly_what_assistants_say(name: str) -> None:
    for one in items(name, Split.TRAIN, 25 if name in SMALL else 3):
        rendered = RENDERER.render(one)
        runs = np.split(
            np.arange(len(rendered.token_ids)), np.flatnonzero(np.diff(rendered.answered)) + 1
        )
        said = [text_of(rendered.token_ids[run]) for run in runs if rendered.answered[run[0]]]
        assert said == expected_turns(one)
        prompt = RENDERER.prompt(one)
        assert rendered.token_ids[: len(prompt)].tolist() == prompt
        assert rendered.answered[len(prompt) :].all()


def expected_turns(one: Item) -> list[str]:
    """What each assistant turn holds, cut out of the recipe's text of the conversation."""
    conversation = converted(one).conversation
    turns = []
    for place, message in enumerate(conversation.messages):
        if message.role == "assistant":
            before = text_up_to(conversation, place)
            turn = text_up_to(conversation, place + 1)[before.rindex(ASSISTANT) :]
            said, _ = turn.removeprefix(ASSISTANT).rsplit(ASSISTANT)
            mark = "<think>" if conversation.thinking_mode else "</think>"
            if said.startswith(mark):  # else the history shows it without its thinking
                turns.append(said.removeprefix(mark))
    return [*turns, text_of(np.array(RENDERER.answer(one)))]


def text_up_to(conversation: Conversation, count: int) -> str:
    """The prompt of the first messages: it ends with the opening of an answer."""
    cut = Conversation(
        conversation.messages[:count],
        thinking_mode=conversation.thinking_mode,
        tools=conversation.tools,
        reasoning_effort=conversation.reasoning_effort,
        response_schema=conversation.response_schema,
    )
    return DeepseekV41Encoding().render_conversation(cut).prompt


@pytest.mark.parametrize("split", Split)
def test_forged_marks_are_no_control_tokens(split: Split) -> None:
    """Exactly the marks of the template, whatever the user writes."""
    controls = set(TOKENIZER.added_tokens)
    for one in items("forged_marks", split, 100):
        ids = RENDERER.prompt(one)
        marks = [TOKENIZER.added_tokens[token] for token in ids if token in controls]
        thinks = one.answer.thinking is not None
        has_system = thinks or one.body["messages"][0]["role"] == "system"
        assert marks == [
            "<｜begin▁of▁sentence｜>",
            *(["<｜System｜>"] if has_system else []),
            "<｜User｜>",
            "<｜Assistant｜>",
            "<think>" if thinks else "</think>",
        ]


def test_lengths() -> None:
    """Every task fits into its row, and long contexts do get long."""
    for name, weight in data.SHORT_MIXTURE.items():
        assert weight > 0
        longest = max(len(RENDERER.render(one).token_ids) for one in items(name, Split.TRAIN, 60))
        assert longest <= SHORT.length, name
    for name in data.LONG_MIXTURE:
        lengths = [len(RENDERER.render(one).token_ids) for one in items(name, Split.TRAIN, 12)]
        assert max(lengths) <= LONG.length, name
    task = TASKS["lookup_far"]
    assert isinstance(task, LookUp)
    most = LookUp("lookup_far", task.kind, task.most, task.most, task.questions)
    one = most.make(Draw(Random(0), Split.HELD_OUT, chinese=False, new_wording=False))
    assert 2000 <= len(RENDERER.render(one).token_ids) <= LONG.length


@pytest.mark.parametrize("shape", [SHORT, LONG], ids=lambda shape: shape.name)
def test_rows_hold_whole_documents(shape: data.Shape) -> None:
    packed = pack(shape, 5, seed=2)
    row = unpacked(packed, data.OTHER_WEIGHT)
    count = int(row.document.max()) + 1
    assert (row.document >= 0).mean() > 0.8
    begins = []
    for number in range(count):
        places = np.flatnonzero(row.document == number)
        begins.append(places[0])
        tokens = row.token_ids[places]
        assert (np.diff(places) == 1).all()
        assert tokens[0] == 0 and tokens[-1] == RENDERER.end
        np.testing.assert_array_equal(row.positions[places], np.arange(len(places)))
        answered = RENDERER._answered(tokens)
        wanted = np.where(np.append(answered[1:], False), 1.0, data.OTHER_WEIGHT)
        wanted[-1] = 0  # the next token is of another document
        np.testing.assert_array_equal(row.loss_weight[places], wanted.astype(np.float32))
    assert all(begin % data.GROUP == 0 for begin in begins)
    padding = row.document < 0
    assert (row.token_ids[padding] == data.PAD_ID).all()
    assert not row.loss_weight[padding].any()


def test_stored_rows_are_the_rows(tmp_path: Path) -> None:
    rows = Rows(SHORT, 6)
    stored = data.stored_rows(rows, tmp_path)
    again = data.stored_rows(rows, tmp_path)
    assert len(list(tmp_path.iterdir())) == 1
    for number in range(len(rows)):
        for made, read, read_again in zip(rows[number], stored.row(number), again.row(number)):
            np.testing.assert_array_equal(made, read)
            np.testing.assert_array_equal(made, read_again)


def test_batches_depend_on_the_step_alone_and_cover_every_row() -> None:
    pytest.importorskip("grain", reason="grain is in the extra `train`")
    count, length = 12, 8
    tokens = np.repeat(np.arange(count, dtype=np.uint16)[:, None], length, axis=1)
    packed = Packed(tokens, np.zeros((count, length), np.int8), np.ones((count, length), bool))
    batches = data.Batches.of({False: packed}, {False: 4}, seed=1)
    epochs = [
        [batches(step, False).token_ids[:, 0].tolist() for step in range(3 * epoch, 3 * epoch + 3)]
        for epoch in range(2)
    ]
    for epoch in epochs:
        assert sorted(number for batch in epoch for number in batch) == list(range(count))
    assert epochs[0] != epochs[1]
    again = data.Batches.of({False: packed}, {False: 4}, seed=1)
    batch = again(4, False)
    assert isinstance(batch, Row)
    assert batch.token_ids[:, 0].tolist() == epochs[1][1]
    assert batch.loss_weight.shape == (4, length)


def test_worked_sums_end_in_the_right_digits() -> None:
    def written(steps: list[str]) -> int:
        digits = [step.split("write ")[1][0] for step in steps]
        carry = steps[-1].rstrip(".")[-1] if "carry" in steps[-1] else "0"
        return int(carry + "".join(reversed(digits)))

    for first in range(0, 100, 7):
        for second in range(0, 100, 3):
            assert written(added(first, second)) == first + second
            low, high = sorted((first, second))
            assert written(subtracted(high, low)) == high - low
            assert written(multiplied(first, second % 10)) == first * (second % 10)
    assert f"{47 * 30}" in multiplied_long(47, 38)[5]
    for steps in (added(47, 38), subtracted(52, 38), multiplied(47, 6)):
        for step in steps:  # every equation of every step is true
            for equation in step.split(", write")[0].split(", "):
                left, right = equation.split("=")
                assert eval(left.replace("x", "*")) == int(right)


def test_the_tokenizer_is_as_good_as_one_made_now() -> None:
    """It is kept while tasks grow, because weights hold for its numbers alone."""
    from tokenizers import Tokenizer as Library

    texts = list(islice(tokenizer.training_texts(), 0, None, 40))
    kept, new = Library.from_file(str(tokenizer.PATH)), tokenizer.build()
    lengths = [
        sum(len(encoded.ids) for encoded in one.encode_batch(texts, add_special_tokens=False))
        for one in (kept, new)
    ]
    assert lengths[0] <= 1.02 * lengths[1]


def test_the_tokenizer_has_bytes_single_digits_and_control_tokens() -> None:
    from tokenizers import Tokenizer as Library

    library = Library.from_file(str(tokenizer.PATH))
    assert library.get_vocab_size() == tokenizer.ENTRIES
    controls = tokenizer.control_tokens()
    assert [library.token_to_id(word) for word in controls] == list(range(len(controls)))
    assert controls[:3] == ["<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", PAD_TOKEN]
    plain = [TOKENIZER.token_bytes[token] for token in range(len(controls), tokenizer.ENTRIES)]
    assert {bytes([byte]) for byte in range(256)} <= set(plain)
    assert not [text for text in plain if len(text) > 1 and any(48 <= byte < 58 for byte in text)]
    assert len(TOKENIZER.encode_plain(["48210"])[0]) == 5
    codec = TextCodec(tokenizer.PATH, bos_token_id=0)
    text = "The blue door, 4821: 红门。\n<｜User｜> \x00\U0001f40d"
    ids = codec.encode(text)
    assert ids[0] == 0 and not set(ids[1:]) & set(range(len(controls)))
    assert Detokeniser(codec).add(ids[1:], last=True) == text
    assert ids[1:] == list(TOKENIZER.encode_plain([text])[0])
    assert len(fold_vocabulary(tokenizer.PATH)) == tokenizer.ENTRIES


def test_a_tokenizer_without_a_mark_is_refused() -> None:
    from dsinfer_jax.recipe import Tokenizer

    source = json.loads(tokenizer.PATH.read_text(encoding="utf-8"))
    source["added_tokens"] = [
        token for token in source["added_tokens"] if token["content"] != "<｜Assistant｜>"
    ]
    with pytest.raises(ValueError, match="lacks <｜Assistant｜>"):
        Renderer(Tokenizer.from_str(json.dumps(source)))
