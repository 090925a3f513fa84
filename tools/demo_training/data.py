"""The stream of training examples, as pure functions of numbers.

    example(index, seed, split, mixture)   one conversation
    Rows(shape, seed)[number]              one row of several, for grain or any other loader
    Batches(...)(step, long)               what the trainer asks for

Knows no model: arrays are numpy's.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import numpy as np

from demo_training.render import Renderer
from demo_training.tasks import TASKS
from demo_training.tasks.task import Draw, Item, Split
from demo_training.tokenizer import PATH, control_tokens
from dsinfer_jax.checkpoint.vocabulary import PAD_TOKEN
from dsinfer_jax.recipe import Tokenizer

PAD_ID = control_tokens().index(PAD_TOKEN)
OTHER_WEIGHT = 0.1  # of tokens that no assistant said
HASHED_EXAMPLES = 1000
GROUP = 2  # documents begin at multiples of it: compressed pairs never cross documents

Mixture = Mapping[str, float]
# Relative weights of draws. What does not fit into the rest of a row is drawn again, so that rows
# hold fewer of the longest items: docs/demo_model.md has the shares that come out.
SHORT_MIXTURE: Mixture = {
    "small_talk": 0.06,
    "arithmetic": 0.16,
    "copying": 0.14,
    "lookup": 0.07,
    "lookup_pair": 0.05,
    "copying_notes": 0.14,
    "dates": 0.05,
    "units": 0.04,
    "tool_calls": 0.15,
    "json_answers": 0.13,
    "forged_marks": 0.01,
    "mixed": 0.04,
}
LONG_MIXTURE: Mixture = {
    "lookup_far": 0.10,
    "lookup_pair_far": 0.22,
    "copying_far": 0.60,
    "copying_long": 0.08,
}


@dataclass(frozen=True)
class Example:
    """One conversation.

    Attributes:
        token_ids: [tokens] int32, BOS first.
        loss_mask: [tokens] bool: the token is part of what an assistant says.
    """

    token_ids: np.ndarray
    loss_mask: np.ndarray
    task: str


def item(index: int, seed: int, split: Split, mixture: Mixture) -> Item:
    """The item of an index; nothing else has a say in it."""
    random = Random(f"{seed} {split} {index}")
    name = random.choices(list(mixture), weights=list(mixture.values()))[0]
    return TASKS[name].make(Draw.of(random, split))


def example(index: int, seed: int, split: Split, mixture: Mixture) -> Example:
    """The item of an index, rendered with the demo tokenizer."""
    drawn = item(index, seed, split, mixture)
    rendered = renderer().render(drawn)
    return Example(rendered.token_ids, rendered.answered, drawn.task)


@cache
def renderer() -> Renderer:
    """For the demo tokenizer; read once."""
    return Renderer(Tokenizer.from_file(str(PATH)))


def data_hash(seed: int = 0) -> str:
    """What names the data in a model card: SHA-256 of the first examples of both mixtures."""
    digest = sha256()
    for mixture in (SHORT_MIXTURE, LONG_MIXTURE):
        for index in range(HASHED_EXAMPLES // 2):
            one = example(index, seed, Split.TRAIN, mixture)
            digest.update(one.token_ids.astype("<i4").tobytes() + one.loss_mask.tobytes())
    return digest.hexdigest()


@dataclass(frozen=True)
class Shape:
    """Rows of one length.

    Attributes:
        mixture: of the examples that a row begins with.
        filler: of those that use what is left at its end.
    """

    name: str
    length: int
    mixture: Mixture
    filler: Mixture


SHORT = Shape("short", 576, SHORT_MIXTURE, SHORT_MIXTURE)  # a quarter of a long row
LONG = Shape("long", 2304, LONG_MIXTURE, SHORT_MIXTURE)


class Row(NamedTuple):
    """One row, or with one more axis in front a batch of them; the trainer's names.

    Attributes:
        token_ids: [length] int32, PAD behind the last document.
        positions: [length] int32, from 0 in each document.
        document: [length] int32, 0, 1, ...; -1 on padding, also between documents.
        loss_weight: [length] float32, of predicting the *next* token: 1 for what assistants say.
    """

    token_ids: np.ndarray
    positions: np.ndarray
    document: np.ndarray
    loss_weight: np.ndarray


class Packed(NamedTuple):
    """Rows in the compact form that is kept on disk: [rows, length], or one row [length]."""

    token_ids: np.ndarray  # uint16
    document: np.ndarray  # int8, -1 on padding
    answered: np.ndarray  # bool

    def row(self, number: int, other_weight: float = OTHER_WEIGHT) -> Row:
        """One row with what follows from it."""
        return unpacked(Packed(*(array[number] for array in self)), other_weight)


def pack(shape: Shape, number: int, seed: int, split: Split = Split.TRAIN) -> Packed:
    """Row `number`: examples one after another while they fit, then fillers; arrays [length]."""
    token_ids = np.full(shape.length, PAD_ID, np.uint16)
    document = np.full(shape.length, -1, np.int8)
    answered = np.zeros(shape.length, bool)
    end = 0
    for count, one in enumerate(_fitting(shape, number, seed, split)):
        place = slice(end, end + len(one.token_ids))
        token_ids[place], document[place], answered[place] = one.token_ids, count, one.loss_mask
        end = -(-place.stop // GROUP) * GROUP
    return Packed(token_ids, document, answered)


def _fitting(shape: Shape, number: int, seed: int, split: Split) -> Iterator[Example]:
    """Examples for one row; after a few that do not fit it is full."""
    left = shape.length
    tries, mixture = 4, shape.mixture
    index = number << 8  # no row has 256 examples, so rows share none
    while tries:
        one = example(index, seed, split, mixture)
        index += 1
        if len(one.token_ids) <= left:
            yield one
            left -= -(-len(one.token_ids) // GROUP) * GROUP
        else:
            tries, mixture = tries - 1, shape.filler


def unpacked(packed: Packed, other_weight: float) -> Row:
    """One row of arrays [length] with positions and weights.

    Nothing is predicted across documents: the weight of a last token is 0.
    """
    token_ids, document, answered = packed
    place = np.arange(len(token_ids), dtype=np.int32)
    begins = np.append(True, document[1:] != document[:-1])
    positions = place - np.maximum.accumulate(np.where(begins, place, 0))
    same = (document >= 0) & np.append(document[1:] == document[:-1], False)
    weight = np.where(np.append(answered[1:], False), 1.0, other_weight) * same
    return Row(
        token_ids.astype(np.int32), positions, document.astype(np.int32), weight.astype(np.float32)
    )


@dataclass(frozen=True)
class Rows:
    """A source with random access, `grain.MapDataset.source(Rows(...))` for one."""

    shape: Shape
    count: int
    seed: int = 0
    split: Split = Split.TRAIN

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, number: int) -> Row:
        packed = pack(self.shape, number, self.seed, self.split)
        return unpacked(packed, OTHER_WEIGHT)


def stored_rows(rows: Rows, folder: Path) -> Packed:
    """All rows, made once and kept in `folder`: rendering is slower than reading.

    The file's name holds the data hash, so other data never comes from an old file.
    """
    shape = rows.shape
    what = f"{shape.name}-{shape.length}-{rows.split}-{rows.count}-{rows.seed}"
    path = folder / f"{what}-{data_hash(rows.seed)[:16]}.npz"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        made = [pack(shape, number, rows.seed, rows.split) for number in range(rows.count)]
        unfinished = path.with_suffix(".unfinished.npz")
        token_ids, document, answered = (np.stack(parts) for parts in zip(*made))
        np.savez_compressed(unfinished, token_ids=token_ids, document=document, answered=answered)
        unfinished.replace(path)
    with np.load(path) as stored:
        return Packed(*(stored[name] for name in Packed._fields))


@dataclass(frozen=True)
class Batches:
    """`batches(step, long)`: rows in a new random order in every epoch, by the step alone.

    With grain, so that another order, more workers or another source is one line.
    """

    datasets: Mapping[bool, Any]  # long -> grain.MapDataset of batches

    @classmethod
    def of(
        cls,
        sources: Mapping[bool, Packed | Sequence[Row]],
        sizes: Mapping[bool, int],
        seed: int = 0,
    ) -> "Batches":
        """`sizes`: rows of a batch. 16 short and 4 long rows have 9 216 tokens each."""
        import grain

        datasets = {}
        for long, source in sources.items():
            rows = PackedRows(source) if isinstance(source, Packed) else source
            dataset = grain.MapDataset.source(rows).seed(seed).shuffle().repeat()
            datasets[long] = dataset.batch(sizes[long], drop_remainder=True)
        return cls(datasets)

    def __call__(self, step: int, long: bool) -> Row:
        """A batch: arrays [rows, length]."""
        return Row(*self.datasets[long][step])


@dataclass(frozen=True)
class PackedRows:
    """Stored rows as a source with random access."""

    packed: Packed

    def __len__(self) -> int:
        return len(self.packed.token_ids)

    def __getitem__(self, number: int) -> Row:
        return self.packed.row(number)
