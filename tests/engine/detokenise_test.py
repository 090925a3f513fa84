"""Text from ids piece by piece, and text to ids without control tokens."""

from pathlib import Path

import noise_model
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsinfer_jax.checkpoint import CheckpointError
from dsinfer_jax.engine.detokenise import Detokeniser, TextCodec

TOKENIZER = noise_model.TOKENIZER
CODEC = TextCodec(TOKENIZER, bos_token_id=0)
BYTE_IDS = {CODEC.token_bytes(token): token for token in range(512)}


def ids_of(data: bytes) -> list[int]:
    return [BYTE_IDS[bytes([byte])] for byte in data]


@settings(deadline=None)
@given(st.text(max_size=60))
def test_text_returns_whole(text: str) -> None:
    bos, *ids = CODEC.encode(text)
    assert bos == 0
    writer = Detokeniser(CODEC)
    assert "".join(writer.add([token]) for token in ids) + writer.add([], last=True) == text


@settings(deadline=None)
@given(st.binary(max_size=40), st.data())
def test_any_cut_of_any_bytes_gives_the_same_text(data: bytes, draw: st.DataObject) -> None:
    ids = ids_of(data)
    writer, text = Detokeniser(CODEC), ""
    while ids:
        count = draw.draw(st.integers(1, len(ids)))
        text += writer.add(ids[:count])
        ids = ids[count:]
    assert text + writer.add([], last=True) == data.decode("utf-8", errors="replace")


def test_a_character_waits_for_its_last_byte() -> None:
    writer = Detokeniser(CODEC)
    euro = ids_of("€".encode())
    assert [writer.add([token]) for token in euro] == ["", "", "€"]
    assert writer.add(euro[:2]) == ""
    assert writer.add([], last=True) == "\ufffd"


@pytest.mark.parametrize("text", ["<think>", "<｜User｜>hi", "<｜end▁of▁sentence｜>", "｜DSML｜"])
def test_no_text_becomes_a_control_token(text: str) -> None:
    controls = {token for token in range(512) if CODEC.token_bytes(token).decode("utf-8", "ignore")
                in ("<think>", "<｜User｜>", "<｜end▁of▁sentence｜>", "｜DSML｜")}  # fmt: skip
    assert len(controls) == 4
    assert not controls & set(CODEC.encode(text)[1:])


def test_unknown_ids_have_no_text() -> None:
    assert Detokeniser(CODEC).add([100_000], last=True) == ""


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (None, "is missing"),
        ("{", "is not a tokenizer file"),
        (
            '{"version":"1.0","added_tokens":[],"model":{"type":"BPE","vocab":{},"merges":[]}}',
            "no byte-level decoder",
        ),
    ],
)
def test_a_file_that_cannot_serve_is_refused(
    tmp_path: Path, content: str | None, reason: str
) -> None:
    path = tmp_path / "tokenizer.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(CheckpointError, match=reason) as error:
        TextCodec(path, 0)
    assert str(path) in str(error.value)
