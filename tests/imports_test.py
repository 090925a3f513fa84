"""Who may import whom (design.md 2), and what costs nothing to import."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import dsinfer_jax

PACKAGE = Path(dsinfer_jax.__file__).parent
HEAVY = ("jax", "jaxlib", "numpy", "ml_dtypes", "flax", "orbax", "safetensors")

# room -> rooms it may import; every room may import itself
ROOMS: dict[str, set[str]] = {
    "config": set(),
    "settings": set(),
    "_jax": set(),  # the seam over jax versions: any room that uses jax may use it
    "recipe": set(),
    "kernels": {"_jax"},
    "mesh": {"config", "_jax"},
    "model": {"kernels", "config", "_jax"},
    "checkpoint": {"model", "config", "_jax"},
    "demo": {"checkpoint", "model", "config"},
    "engine": {"model", "mesh", "checkpoint", "demo", "config", "settings", "_jax"},
    "server": {"recipe", "engine", "settings", "_jax"},
}
# packages besides the standard library, for the rooms where the design limits them
PACKAGES: dict[str, set[str]] = {
    "config": set(),
    "settings": set(),
    "_jax": {"jax"},
    "recipe": {"tokenizers", "PIL"},  # PIL behind the vision extra
    "kernels": {"jax"},
    "model": {"jax", "numpy"},
}
ROOM_OF_MODULE = {"config_rules": "config"}  # modules at the root that belong to a room
ENTRY_POINTS = {"__init__", "generate", "plan", "doctor"}  # they tie rooms together


def modules() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def room_of(dotted: str) -> str:
    """The room of `dsinfer_jax.x.y`: x, or the room that a root module belongs to."""
    parts = dotted.split(".")
    name = parts[1] if len(parts) > 1 else "__init__"
    return ROOM_OF_MODULE.get(name, name)


def imports(path: Path) -> Iterator[str]:
    """Dotted names a module imports, wherever in the module; relative ones resolved."""
    package = ["dsinfer_jax", *path.relative_to(PACKAGE).parts[:-1]]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            origin = ".".join([*base, *([node.module] if node.module else [])])
            if origin == "dsinfer_jax":
                yield from (f"dsinfer_jax.{name.name}" for name in node.names)
            else:
                yield origin


def faults(path: Path) -> list[str]:
    relative = path.relative_to(PACKAGE)
    room = ROOM_OF_MODULE.get(relative.parts[0].removesuffix(".py"), relative.parts[0])
    room = room.removesuffix(".py")
    if room in ENTRY_POINTS:
        return []
    if room not in ROOMS:
        return [f"{relative} lies in no room; give it one in ROOMS"]
    found = []
    for name in imports(path):
        top = name.split(".")[0]
        if top == "dsinfer_jax":
            target = room_of(name)
            if target not in {room} | ROOMS[room]:
                found.append(f"{relative} imports {name}: {room} must not import {target}")
        elif top not in sys.stdlib_module_names and top not in PACKAGES.get(room, {top}):
            found.append(f"{relative} imports {name}: not for {room}")
    return found


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_follow_the_arrows(path: Path) -> None:
    assert faults(path) == []


@pytest.mark.parametrize(
    ("room", "line", "fault"),
    [
        ("kernels", "from dsinfer_jax.model.params import Params", "must not import model"),
        ("kernels", "from dsinfer_jax import model", "must not import model"),
        ("kernels", "from ..model import params", "must not import model"),
        ("model", "def f():\n    import dsinfer_jax.checkpoint.load", "must not import checkpoint"),
        ("recipe", "import dsinfer_jax.config", "must not import config"),
        ("recipe", "import numpy as np", "not for recipe"),
        ("recipe", "from jax import numpy", "not for recipe"),
        ("elsewhere", "import json", "lies in no room"),
        ("model", "from dsinfer_jax.kernels import choose", None),
        ("checkpoint", "import tokenizers", None),
    ],
)
def test_a_wrong_arrow_is_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, room: str, line: str, fault: str | None
) -> None:
    monkeypatch.setitem(globals(), "PACKAGE", tmp_path)
    (tmp_path / room).mkdir()
    path = tmp_path / room / "module.py"
    path.write_text(line)
    found = faults(path)
    assert not found if fault is None else fault in found[0]


@pytest.mark.parametrize(
    ("module", "absent"),
    [
        ("dsinfer_jax", (*HEAVY, "tokenizers")),
        ("dsinfer_jax.config", (*HEAVY, "tokenizers")),
        ("dsinfer_jax.config_rules", (*HEAVY, "tokenizers")),
        ("dsinfer_jax.recipe", HEAVY),
        ("dsinfer_jax.settings", (*HEAVY, "tokenizers")),
        ("dsinfer_jax.engine.request", (*HEAVY, "tokenizers")),
        ("dsinfer_jax.generate.options", (*HEAVY, "tokenizers")),
    ],
)
def test_light_modules_load_nothing_heavy(module: str, absent: tuple[str, ...]) -> None:
    program = f"import sys, {module}; print(*(name for name in {absent!r} if name in sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == []
