"""The text of a custom tool, taken out of JSON arguments that arrive in any pieces."""

from __future__ import annotations

import json
import random

import pytest
from stream_support import CUSTOM_TOOL, DSML, Run, Streams, describe_difference, random_cuts

import dsinfer_jax.recipe
from dsinfer_jax.recipe.custom_tool_input import CustomToolInput

ARGUMENTS = [
    ('{"input": "plain"}', "plain"),
    ('{ "input"\n:\t"blanks"}', "blanks"),
    ('{"input": "a\\n\\"b\\" \\\\ \\u00e9\\ud83d\\ude00"}', 'a\n"b" \\ é😀'),
    ('{"input": "first", "input": "second"}', "first"),
    ('{"input": ""}', ""),
    ('{"input": "cut', "cut"),
    ('{"input": "cut \\u00', "cut \\u00"),
    ('{"input": "bad \\q \\u00zz \\ud83dx \\ude00"}', "bad \\q \\u00zz \\ud83dx \\ude00"),
    ('{"input": "\\ud83d\\u0041"}', "\\ud83d\\u0041"),
    ('{"inputs": "x"}', '{"inputs": "x"}'),
    ('{"input": 5}', '{"input": 5}'),
    ('{"inp', '{"inp'),
    ("{}", "{}"),
    ("", ""),
]


def read(pieces: list[str]) -> str:
    reader = CustomToolInput()
    sent = [reader.feed(piece) for piece in pieces]
    sent.append(reader.end())
    assert "" not in sent
    return "".join(piece for piece in sent if piece)


@pytest.mark.parametrize(("arguments", "text"), ARGUMENTS)
def test_the_text_does_not_depend_on_the_cuts(arguments: str, text: str) -> None:
    assert read([arguments]) == text
    assert read(list(arguments)) == text
    for position in range(len(arguments)):
        assert read([arguments[:position], "", arguments[position:]]) == text


def test_any_text_comes_back() -> None:
    for seed in range(300):
        rng = random.Random(seed)
        text = "".join(rng.choices('ab"\\\n\t\x01é😀/{}:, \u2028', k=rng.randint(0, 20)))
        for ascii_only in (False, True):
            arguments = json.dumps({"input": text}, ensure_ascii=ascii_only)
            assert read(random_cuts(rng, arguments)) == text


def test_strange_arguments_equal_the_official_package() -> None:
    official = Streams(pytest.importorskip("deepseek_recipe"))
    ours = Streams(dsinfer_jax.recipe)
    shreds = [*'\\uan\n"0z', "d83d", "de00", "0041", "\\ud83d", "\\ude00", '\\"', "\\u"]
    for seed in range(300):
        rng = random.Random(seed)
        name = rng.choice(['"input":"', '\n"input"\t:\r"', '"input"', '"inp'])
        name += "".join(rng.choices(shreds, k=rng.randint(0, 8)))
        # The name of a parameter is copied into the arguments as it is.
        opening = f'<{DSML} invoke name="{CUSTOM_TOOL}">parameter name='
        run = Run("responses", False, [opening, *random_cuts(rng, name)], {})
        mine, theirs = ours.run(run), official.run(run)
        assert mine == theirs, describe_difference(run, mine, theirs)
