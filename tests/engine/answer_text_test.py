"""Stop strings: any cutting of the tokens gives the same text and the same match."""

import random

import noise_model
import pytest

from dsinfer_jax.engine.answer_text import AnswerText
from dsinfer_jax.engine.detokenise import TextCodec
from dsinfer_jax.engine.sampling_params import SamplingParams


@pytest.fixture(scope="module")
def codec() -> TextCodec:
    config, _, tokenizer = noise_model.load()
    return TextCodec(tokenizer, config.bos_token_id)


def run(
    codec: TextCodec, text: str, params: SamplingParams, sizes: list[int]
) -> tuple[str, str | None]:
    """Feed a text's tokens in pieces; pieces given out must join to the text."""
    tokens = codec.encode(text)[1:]
    answer, pieces = AnswerText(codec, params), []
    while tokens and answer.stop is None:
        size = sizes.pop(0) if sizes else 1
        part, tokens = tokens[:size], tokens[size:]
        pieces.append(answer.add(part, last=not tokens))
    assert "".join(pieces) == answer.text
    if answer.stop is None:
        assert answer.tokens == len(codec.encode(text)) - 1
    else:
        assert answer.tokens == first_complete(codec, text, params)
    return answer.text, answer.stop


def first_complete(codec: TextCodec, text: str, params: SamplingParams) -> int:
    """The fewest tokens of a text whose characters hold a stop string."""
    tokens = codec.encode(text)[1:]
    early = b"".join(map(codec.token_bytes, tokens[: params.min_tokens]))
    for count in range(params.min_tokens, len(tokens) + 1):
        data = b"".join(map(codec.token_bytes, tokens[:count]))[len(early) :]
        if any(stop.encode() in data for stop in params.stop_strings):
            return count
    raise AssertionError("there is no stop string")


def expected(text: str, stops: tuple[str, ...]) -> tuple[str, str | None]:
    """By the definition: character by character, the longest match that ends there."""
    for end in range(len(text) + 1):
        found = [stop for stop in stops if text[:end].endswith(stop)]
        if found:
            stop = max(found, key=len)
            return text[: end - len(stop)], stop
    return text, None


@pytest.mark.parametrize(
    ("text", "stops"),
    [
        ("one two three", ("two",)),
        ("one two three", ("three", " t")),
        ("aaab", ("aab",)),
        ("abcabd", ("abd", "bd")),
        ("ends with a start: END", ("END of it",)),
        ("日本語🙂のテキスト", ("🙂の", "語🙃")),
        ("x\n\ny", ("\n\n",)),
        ("nothing", ("QQQQ",)),
        ("at once", ("a",)),
    ],
)
def test_cases_in_any_cutting(codec: TextCodec, text: str, stops: tuple[str, ...]) -> None:
    params = SamplingParams(stop=stops)
    random_sizes = random.Random(text)
    for sizes in ([99], [], *([random_sizes.randint(1, 5) for _ in range(9)] for _ in range(20))):
        assert run(codec, text, params, sizes) == expected(text, stops)


def test_random_texts_follow_the_definition(codec: TextCodec) -> None:
    source = random.Random(7)
    for _ in range(300):
        text = "".join(source.choice("aab b\nc") for _ in range(source.randint(0, 30)))
        stops = tuple(
            "".join(source.choice("ab c") for _ in range(source.randint(1, 4))) for _ in range(3)
        )
        sizes = [source.randint(1, 6) for _ in range(30)]
        assert run(codec, text, SamplingParams(stop=stops), sizes) == expected(text, stops)


def test_text_before_the_least_length_is_no_match(codec: TextCodec) -> None:
    tokens = len(codec.encode("abab")) - 1
    params = SamplingParams(stop="ab", min_tokens=tokens, max_tokens=99)
    for sizes in ([99], [], [2, 3]):
        text, stop = run(codec, "abab cd ab", params, sizes)
        assert (text, stop) == ("abab cd ", "ab")


def test_one_text_is_as_good_as_a_list() -> None:
    assert SamplingParams(stop="x").stop_strings == ("x",)
    assert SamplingParams(stop=["x", "y"]).stop_strings == ("x", "y")
    assert SamplingParams().stop_strings == ()
