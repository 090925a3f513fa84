"""What a native checkpoint was made of: the file that says whether it may stand in for its source.

A native checkpoint is a folder with this manifest, written last, so one without is incomplete. Its
form says how the leaves of the parameter table are stored: as files (`native.py`), or by Orbax
(`orbax_tree.py`). Both store what no mesh has changed: experts by number, once, and no padding.
"""

import hashlib
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from dsinfer_jax.checkpoint.errors import CheckpointError
from dsinfer_jax.checkpoint.index import INDEX_NAME, shard_names
from dsinfer_jax.checkpoint.vocabulary import TOKENIZER_NAME
from dsinfer_jax.config import ModelConfig

MANIFEST_NAME = "manifest.json"
FORMAT = 1
LEAF_FILES, ORBAX = _FORMS = "leaf-files", "orbax"


@dataclass(frozen=True)
class SourceFile:
    """A file of the source as it was: enough to notice that it has been replaced."""

    name: str
    size: int  # bytes
    modified: int  # nanoseconds


@dataclass(frozen=True)
class Manifest:
    """The contents of `manifest.json`.

    Attributes:
        form: LEAF_FILES or ORBAX.
        config: digest of config.json's values.
        source: files of the checkpoint that was converted; None: a tree in memory was saved.
    """

    form: str
    config: str
    source: tuple[SourceFile, ...] | None

    @classmethod
    def of(cls, form: str, config: ModelConfig, source: Path | None) -> "Manifest":
        """The manifest of what is about to be converted."""
        files = None if source is None else tuple(_source_files(source, config))
        return cls(form, _digest(config), files)

    def write(self, folder: Path) -> None:
        values = {"format": FORMAT} | asdict(self)
        (folder / MANIFEST_NAME).write_text(json.dumps(values, indent=2) + "\n", encoding="utf-8")

    def check(self, folder: Path, config: ModelConfig, source: Path | None) -> None:
        """Refuse a native checkpoint that its source has left behind.

        Args:
            folder: where the manifest lies, for the sentence.
            source: None: not compared.

        Raises:
            CheckpointError: another configuration, or files that have changed.
        """
        remedy = "delete the folder, or name another, and it is written again"
        if self.config != _digest(config):
            raise CheckpointError(
                f"{folder} was written for another config.json than the model's; {remedy}"
            )
        if source is None or self.source is None:
            return
        before, now = set(self.source), set(_source_files(source, config))
        if before != now:
            name = min(file.name for file in before ^ now)
            raise CheckpointError(
                f"{folder} is stale: {source / name} has changed since it was written; {remedy}"
            )


def read_manifest(folder: Path) -> Manifest:
    """The manifest of a native checkpoint.

    Raises:
        CheckpointError: there is none, or one of another format.
    """
    path = folder / MANIFEST_NAME
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        if values["format"] != FORMAT:
            raise CheckpointError(
                f"{folder} has format {values['format']}; this version reads format {FORMAT}: "
                "delete the folder, or name another, and it is written again"
            )
        return _manifest(values)
    except OSError as error:
        raise CheckpointError(
            f"{folder} holds no complete native checkpoint: {MANIFEST_NAME} cannot be read "
            f"({error.strerror}); name a folder that does not exist yet, and it is written"
        ) from error
    except (ValueError, TypeError, KeyError) as error:
        if isinstance(error, CheckpointError):
            raise
        raise CheckpointError(
            f"{path} is not a manifest ({error}); delete the folder, and it is written again"
        ) from error


def _manifest(values: dict[str, Any]) -> Manifest:
    if values["form"] not in _FORMS:
        raise ValueError(f"form is {values['form']!r}; it must be one of {', '.join(_FORMS)}")
    files = values["source"]
    source = None if files is None else tuple(SourceFile(**file) for file in files)
    return Manifest(values["form"], values["config"], source)


def _digest(config: ModelConfig) -> str:
    text = json.dumps(config.raw, sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()


def _source_files(folder: Path, config: ModelConfig) -> Iterator[SourceFile]:
    names = [INDEX_NAME, *shard_names(folder)]
    if config.engram is not None:
        names.append(TOKENIZER_NAME)  # the derived leaves come from it
    for name in names:
        try:
            found = (folder / name).stat()
        except OSError as error:
            raise CheckpointError(
                f"{folder / name} cannot be read ({error.strerror}); put the file back"
            ) from error
        yield SourceFile(name, found.st_size, found.st_mtime_ns)
