"""The one table of environment names and their command-line twins.

A value on the command line wins over the environment, the environment over the default. Nothing
else in the package reads the environment. This module imports the standard library only.
"""

import argparse
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

NUMERICS = ("exact", "runtime", "reference")  # names of the policies of model.numerics
PREFIX_CACHES = ("off", "exact", "bounded")  # of engine.replay
DRAFTERS = ("off", "lookup", "dspark")  # of engine.drafter
DRAFT_LENGTHS = ("fixed", "variable")  # of engine.length_policy
EXCHANGES = ("auto", "ragged", "slots", "gather")  # of mesh.exchange
_NOT_OF_LLM = ("model", "native_checkpoint", "cache_dir")


class SettingError(ValueError):
    """A setting with a value that cannot be used; one sentence with name, value and remedy."""


@dataclass(frozen=True)
class Setting:
    """One row of the table.

    Attributes:
        name: attribute of the parsed command line.
        environment: variable that gives the value when the option is absent.
        option: the command-line twin.
        default: value when neither is given.
        parse: text to value; raises ValueError with the end of a sentence ("it must be ...").
        meaning: help text.
        flag: text that the option stands for, if it takes no value.
    """

    name: str
    environment: str
    option: str
    default: Any
    parse: Callable[[str], Any]
    meaning: str
    flag: str | None = None

    def read(self, text: str, source: str) -> Any:
        """The value of `text`. Raises SettingError naming `source`, the option or variable."""
        try:
            return self.parse(text)
        except ValueError as error:
            raise SettingError(f"{source} is {text!r}; {error}") from None


def whole_number(lowest: int) -> Callable[[str], int]:
    """Parser of integers from `lowest` on."""

    def parse(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            raise ValueError("it must be a whole number") from None
        if value < lowest:
            raise ValueError(f"it must be {lowest} or more")
        return value

    return parse


def numbers(kind: type[int] | type[float]) -> Callable[[str], tuple[Any, ...]]:
    """Parser of numbers with commas between them."""

    def parse(text: str) -> tuple[Any, ...]:
        try:
            return tuple(kind(part) for part in text.split(","))
        except ValueError:
            raise ValueError("it must be numbers with commas between them") from None

    return parse


def one_of(names: Sequence[str]) -> Callable[[str], str]:
    """Parser of a choice."""

    def parse(text: str) -> str:
        if text not in names:
            raise ValueError(f"it must be one of {', '.join(names)}")
        return text

    return parse


def _switch(text: str) -> bool:
    values = {"0": False, "false": False, "1": True, "true": True}
    if text.lower() not in values:
        raise ValueError("it must be 0 or 1")
    return values[text.lower()]


def _folder(text: str) -> Path | None:
    return None if text == "off" else Path(text).expanduser()


def default_cache_folder() -> Path:
    """`$XDG_CACHE_HOME/dsinfer_jax`, or `~/.cache/dsinfer_jax`."""
    root = os.environ.get("XDG_CACHE_HOME")
    return (Path(root) if root else Path.home() / ".cache") / "dsinfer_jax"


SETTINGS = (
    Setting(
        "model", "DSINFER_MODEL", "--model", "demo", str,
        "checkpoint folder in the Hugging Face layout, or 'demo', the embedded model",
    ),
    Setting(
        "native_checkpoint", "DSINFER_NATIVE_CHECKPOINT", "--native-checkpoint", None, _folder,
        "folder of the model's native checkpoint, which loads faster; it is written if it does not "
        "exist, and refused if the model has changed since",
    ),
    Setting(
        "numerics", "DSINFER_NUMERICS", "--numerics", "runtime", one_of(NUMERICS),
        "rounding policy: 'runtime' has the published rounding points, 'exact' computes in float32 "
        "throughout, 'reference' has the switches of the model authors' own code",
    ),
    Setting(
        "keep_tokens", "DSINFER_YOCO_PREFILL_KEEP_TOKENS", "--keep-tokens", 0, whole_number(0),
        "prompt tokens, counted from the end, that the consumer layers compute; faster for long "
        "prompts, approximate; at least window + 6; 0 computes all",
    ),
    Setting(
        "max_model_len", "DSINFER_MAX_MODEL_LEN", "--max-model-len", None, whole_number(1),
        "longest prompt plus output in tokens; default: 4096, or what the model allows if less",
    ),
    Setting(
        "slots", "DSINFER_MAX_NUM_SEQS", "--slots", 8, whole_number(8),
        "requests that run at the same time, a multiple of 8; the others wait",
    ),
    Setting(
        "prefix_cache", "DSINFER_PREFIX_CACHE", "--prefix-cache", "exact", one_of(PREFIX_CACHES),
        "prompts that begin alike share what is computed: 'exact' gives the bits of a run without, "
        "'bounded' computes less again, is approximate and needs keep_tokens; 'off' shares nothing",
    ),
    Setting(
        "drafter", "DSINFER_DRAFTER", "--drafter", "off", one_of(DRAFTERS),
        "several tokens from a step where a proposal is right; the output is the same: 'lookup' "
        "proposes what followed the same tokens earlier, 'dspark' asks the model's draft block",
    ),
    Setting(
        "draft_tokens", "DSINFER_DRAFT_TOKENS", "--draft-tokens", 5, whole_number(1),
        "most tokens that are proposed for a step, at most 8, or the draft block's size",
    ),
    Setting(
        "draft_lengths", "DSINFER_DRAFT_LENGTHS", "--draft-lengths", "fixed", one_of(DRAFT_LENGTHS),
        "'fixed' verifies every proposed token; 'variable' those that are likely enough to pay, "
        "none where drafting costs more than it brings; the start measures the programs",
    ),
    Setting(
        "decode_rows", "DSINFER_DECODE_ROWS", "--decode-rows", None, numbers(int),
        "rows of the programs for variable lengths, such as 8,16,32; default: slots x 1, 2, ... up "
        "to slots x draft_tokens",
    ),
    Setting(
        "confidence_temperatures", "DSINFER_CONFIDENCE_TEMPERATURES", "--confidence-temperatures",
        None, numbers(float),
        "divide the logits of the draft block's confidences: one number, or one for each place, "
        "with commas; default: 1",
    ),
    Setting(
        "dp", "DSINFER_DP", "--dp", 1, whole_number(1),
        "ranks that have requests, slots and cache of their own",
    ),
    Setting(
        "ep", "DSINFER_EP", "--ep", None, whole_number(1),
        "devices that share the experts, a part of dp x cp; default: all",
    ),
    Setting(
        "cp", "DSINFER_CP", "--cp", 1, whole_number(1),
        "devices of a rank, which share the rows of a prompt",
    ),
    Setting(
        "exchange", "DSINFER_EXCHANGE", "--exchange", "auto", one_of(EXCHANGES),
        "how rows come to their experts on a mesh: 'ragged' sends what there is, 'slots' has room "
        "for all there could be, 'gather' sends every row everywhere; 'auto': ragged on TPUs, else "
        "slots",
    ),
    Setting(
        "redundant_experts", "DSINFER_REDUNDANT_EXPERTS", "--redundant-experts", 0, whole_number(0),
        "copies of experts on each device, for hot ones",
    ),
    Setting(
        "rebalance_steps", "DSINFER_REBALANCE_STEPS", "--rebalance-steps", 0, whole_number(0),
        "place the experts anew every so many steps, while serving; 0: never",
    ),
    Setting(
        "balance_window", "DSINFER_BALANCE_WINDOW", "--balance-window", 1000, whole_number(1),
        "steps whose loads decide where experts go",
    ),
    Setting(
        "asynchronous", "DSINFER_ZERO_OVERHEAD_SCHEDULING", "--sync", True, _switch,
        "wait for each step before the next is chosen; by default they overlap, which is the 1 of "
        "the variable", flag="0",
    ),
    Setting(
        "cache_dir", "DSINFER_JIT_CACHE_DIR", "--cache-dir", None, _folder,
        "folder of compiled programs, which makes the next start fast; 'off' keeps none; default: "
        "~/.cache/dsinfer_jax",
    ),
)  # fmt: skip


def read_settings(
    arguments: Mapping[str, str | None], environment: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Value of every setting by name.

    Args:
        arguments: texts given on the command line; None or absent means not given.
        environment: defaults to the process's; an empty variable counts as unset.

    Raises:
        SettingError: a value cannot be used.
    """
    if environment is None:
        environment = os.environ
    values: dict[str, Any] = {}
    for setting in SETTINGS:
        argument, variable = arguments.get(setting.name), environment.get(setting.environment)
        if argument is not None:
            values[setting.name] = setting.read(argument, setting.option)
        elif variable:
            values[setting.name] = setting.read(variable, setting.environment)
        elif setting.name == "cache_dir":
            values[setting.name] = default_cache_folder()
        else:
            values[setting.name] = setting.default
    return values


def add_settings(group: argparse._ArgumentGroup) -> None:
    """An option for every setting; the values stay text, which `read_settings` checks."""
    for setting in SETTINGS:
        default = "" if setting.default is None or setting.flag else f"; default: {setting.default}"
        kind: dict[str, Any] = {"metavar": setting.name.upper()}
        if setting.flag is not None:
            kind = {"action": "store_const", "const": setting.flag}
        group.add_argument(
            setting.option, dest=setting.name,
            help=f"{setting.meaning}{default} [{setting.environment}]", **kind,
        )  # fmt: skip


def llm_options(values: Mapping[str, Any]) -> dict[str, Any]:
    """Those of the values that are keyword arguments of `LLM`."""
    return {name: value for name, value in values.items() if name not in _NOT_OF_LLM}
