"""Native checkpoints: the leaves of the parameter table as files, which load faster.

A leaf is one safetensors file with one stacked tensor. Nothing is left to be looked up, stacked or
derived: no index of all tensors, no folded vocabulary.
"""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import jax
import numpy as np

from dsinfer_jax.checkpoint.errors import CheckpointError
from dsinfer_jax.checkpoint.leaf_reader import Stored, read_tree
from dsinfer_jax.checkpoint.load import stored_tensors
from dsinfer_jax.checkpoint.manifest import LEAF_FILES, ORBAX, Manifest, read_manifest
from dsinfer_jax.checkpoint.orbax_tree import load_orbax
from dsinfer_jax.checkpoint.places import PlaceRule
from dsinfer_jax.checkpoint.progress import Progress
from dsinfer_jax.checkpoint.safetensors import SafetensorsFile, TensorLayout, write_safetensors
from dsinfer_jax.config import ModelConfig
from dsinfer_jax.model.parameter_table import TensorSpec, parameter_table
from dsinfer_jax.model.params import Params

_TENSOR = "leaf"
_FILE_DTYPES = {"derived int32": "I32", "derived uint32": "U32"}  # others as the checkpoint's


def load_native(
    native: str | Path,
    source: str | Path,
    *,
    config: ModelConfig | None = None,
    place: PlaceRule | None = None,
) -> tuple[ModelConfig, Params]:
    """Load a checkpoint from a native one, which is written first if it does not exist.

    Of several processes the first one writes; the others take the source meanwhile.

    Args:
        native: the folder of the native checkpoint, in either form.
        source: the checkpoint in the Hugging Face layout.
        config: replaces the source's config.json.
        place: as in `load_pretrained`.

    Raises:
        ConfigError: config.json cannot be used.
        CheckpointError: the source cannot be used, or the native checkpoint is stale, damaged or
            cannot be written.
    """
    native, source = Path(native), Path(source)
    if config is None:
        config = ModelConfig.from_pretrained(source)
    if is_absent(native):
        if jax.process_index():
            return config, _load_source(source, config, place)
        write_native(native, source, config=config)
    manifest = read_manifest(native)
    manifest.check(native, config, source)
    if manifest.form == ORBAX:
        return config, load_orbax(native, config, place=place)
    return config, read_tree(config, _stored_leaves(native, config), place, f"loading {native}")


def write_native(
    native: str | Path, source: str | Path, *, config: ModelConfig | None = None
) -> None:
    """Convert a checkpoint. The folder appears when it is complete; no device is used.

    Raises:
        ConfigError: config.json cannot be used.
        CheckpointError: the source cannot be used, or the folder exists or cannot be written.
    """
    native, source = Path(native), Path(source)
    if config is None:
        config = ModelConfig.from_pretrained(source)
    manifest = Manifest.of(LEAF_FILES, config, source)
    stored = stored_tensors(source, config)
    table = parameter_table(config)
    progress = Progress(f"writing {native}", sum(spec.nbytes for spec in table))
    with _appearing(native) as folder:
        for spec in table:

            def parts(_: str, spec: TensorSpec = spec) -> Iterator[np.ndarray]:
                for position in spec.positions():
                    tensor = stored(spec, position)
                    yield tensor
                    progress.add(tensor.nbytes)

            write_safetensors(_file(folder, spec), {_TENSOR: _layout(spec)}, parts)
        manifest.write(folder)
    progress.close()


def is_absent(native: Path) -> bool:
    """There is no such folder, or nothing in it."""
    return not native.exists() or (native.is_dir() and not any(native.iterdir()))


def _load_source(source: Path, config: ModelConfig, place: PlaceRule | None) -> Params:
    return read_tree(config, stored_tensors(source, config), place, f"loading {source}")


def _stored_leaves(native: Path, config: ModelConfig) -> Stored:
    """Views of the files, all of which are checked."""
    leaves, faults = {}, []
    for spec in parameter_table(config):
        try:
            file = SafetensorsFile(_file(native, spec))
        except CheckpointError as error:
            faults.append(str(error))
            continue
        if file.layouts != {_TENSOR: _layout(spec)}:
            faults.append(f"{file.path} holds {file.layouts}; it must be {_layout(spec)}")
            continue
        leaves[spec.path] = file.read(_TENSOR)
    if faults:
        raise CheckpointError(
            f"{native} is damaged; delete the folder, and it is written again:", faults
        )
    return lambda spec, position: leaves[spec.path][position]


def _file(folder: Path, spec: TensorSpec) -> Path:
    return folder / f"{spec.dotted}.safetensors"


def _layout(spec: TensorSpec) -> TensorLayout:
    return TensorLayout(_FILE_DTYPES.get(spec.dtype, spec.dtype), spec.stacked_shape)


@contextmanager
def _appearing(folder: Path) -> Iterator[Path]:
    """A folder to fill, which gets its name at the end, or vanishes."""
    partial = folder.with_name(f".{folder.name}.{os.getpid()}.partial")
    try:
        partial.mkdir(parents=True)
        yield partial
        os.replace(partial, folder)
    except OSError as error:
        raise CheckpointError(
            f"{folder} cannot be written ({error.strerror}); name a folder that does not exist "
            "yet, where there is room"
        ) from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)
