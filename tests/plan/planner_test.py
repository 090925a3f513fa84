"""The planner: published figures, bytes of a device, traffic, time, and what fits."""

import json
import math
import re
import subprocess
import sys
import xml.etree.ElementTree
from dataclasses import replace
from pathlib import Path

import pytest

from dsinfer_jax import plan
from dsinfer_jax.config import ModelConfig, published_values, tiny, v41_flash
from dsinfer_jax.mesh.layout import LayoutError, MeshLayout
from dsinfer_jax.model import cache, params
from dsinfer_jax.plan.chips import CHIPS
from dsinfer_jax.plan.collectives import FORMS, collectives, exchange
from dsinfer_jax.plan.load import Load, Wishes, load_of
from dsinfer_jax.plan.memory import block_bytes, device_memory, slot_bytes
from dsinfer_jax.plan.planner import PhasePlan, plan_phase
from dsinfer_jax.plan.roofline import link_seconds, work_of
from dsinfer_jax.plan.sizes import active_parameters, backbone_parameters, sizes_by_part

WISHES = Wishes(
    context=8192,
    requests=512,
    prefill_rows=1024,
    drafts=0,
    keep=0,
    redundant={"prefill": 4, "decode": 1},
    exchange="ragged",
    memory_share=0.9,
)
GIB = 1 << 30


def load(phase: str, layout: MeshLayout, **wishes: object) -> Load:
    return load_of(v41_flash(), layout, phase, replace(WISHES, **wishes))  # type: ignore[arg-type]


# ---------------------------------------------------------------- published figures


def test_total_parameters_are_the_published_ones() -> None:
    """model.md 1.6 and 8.6, speculative.md 2.2, model.md 11."""
    config = v41_flash()
    sizes = sizes_by_part(config)
    assert backbone_parameters(config) / 1e9 == pytest.approx(552, rel=0.01)
    assert sizes["engram table"].parameters / 1e9 == pytest.approx(197, rel=0.01)
    assert sizes["draft experts"].parameters / 1e9 == pytest.approx(13.6, rel=0.01)
    assert sum(size.bytes for size in sizes.values()) / GIB == pytest.approx(475, rel=0.01)


def test_active_parameters_are_the_published_ones() -> None:
    """model.md 1.6: 16 G in decode, 8 G in prefill, which is given in whole G."""
    config = v41_flash()
    assert active_parameters(config, "decode") / 1e9 == pytest.approx(16, rel=0.01)
    assert round(active_parameters(config, "prefill") / 1e9) == 8


def test_bytes_per_token_are_the_published_ones() -> None:
    assert sum(block_bytes(v41_flash()).values()) / 128 == pytest.approx(890, rel=0.01)


# ---------------------------------------------------------------- memory


@pytest.mark.parametrize("config", [v41_flash(), tiny()], ids=["published", "tiny"])
def test_parts_are_the_whole_model(config: ModelConfig) -> None:
    abstract = cache.tree_bytes(params.abstract(config))
    assert sum(size.bytes for size in sizes_by_part(config).values()) == abstract
    assert sum(slot_bytes(config, 6).values()) == cache.bytes_per_slot(config)
    assert sum(block_bytes(config).values()) == 128 * cache.bytes_per_token(config)


def test_one_device_holds_everything() -> None:
    for phase in ("prefill", "decode"):
        memory = device_memory(v41_flash(), load(phase, MeshLayout(1, 1)), 10**12)
        sizes = sizes_by_part(v41_flash())
        assert memory.weights == {part: size.bytes for part, size in sizes.items()}


def test_experts_and_tables_are_spread_and_the_rest_is_not() -> None:
    layout = MeshLayout(data=2, expert=16)
    memory = device_memory(v41_flash(), load("decode", layout), 10**12)
    sizes = sizes_by_part(v41_flash())
    copies = (384 + 16) / 384  # one more on each device
    assert memory.weights["experts"] == round(sizes["experts"].bytes * copies / 16)
    table = sizes["engram table"].bytes / 32
    assert table <= memory.weights["engram table"] < table + 2 * 264
    for part in ("attention", "embedding", "head", "mixing", "draft"):
        assert memory.weights[part] == sizes[part].bytes


def test_cache_of_a_rank() -> None:
    """512 requests of 8192 tokens on 32 ranks: 16 requests each, 64 blocks each."""
    memory = device_memory(v41_flash(), load("decode", MeshLayout(2, 16)), 10**12)
    assert sum(memory.slots.values()) == 16 * cache.bytes_per_slot(v41_flash())
    assert memory.blocks_wanted == 16 * 64
    assert memory.needed == memory.fixed + 16 * 8192 * 890
    assert memory.tokens // 128 == (10**12 - memory.fixed) // (128 * 890)


# ---------------------------------------------------------------- traffic


def test_forms_of_exchange() -> None:
    """3 rows with 2 choices among 4 devices: 10 bytes a row, 1 a choice, 5 back."""
    sizes = {"rows": 3, "choices": 2, "row_bytes": 10, "choice_bytes": 1, "back_bytes": 5}
    buffers = {
        form: [one.buffer for one in exchange("x", form, 4, 7, most_to_one=2, **sizes)]
        for form in FORMS
    }
    assert buffers["ragged"] == [3 * 2 * 11, 3 * 2 * 5]
    assert buffers["slots"] == [4 * 3 * 2 * 11, 4 * 3 * 2 * 5]
    assert buffers["gather"] == [4 * 3 * 12, 4 * 3 * 2 * 5]
    (there, _) = exchange("x", "slots", 4, 7, most_to_one=1, **sizes)
    assert there.buffer == 4 * 3 * 1 * 11
    assert (there.bytes, there.sent) == (7 * 132, 7 * 132 * 3 // 4)


def test_decode_traffic_of_the_published_model() -> None:
    """8 rows on each of 64 devices: rows to 6 experts in 40 layers, 24 n-gram rows in 2."""
    found = collectives(v41_flash(), load("decode", MeshLayout(1, 64)), "ragged")
    total = {one.name: one.bytes for one in found}
    there, back = 6 * (5120 + 160 + 8), 6 * 5120 * 2
    assert total == {
        "experts, producers: there": 8 * 20 * there,
        "experts, producers: back": 8 * 20 * back,
        "experts, consumers: there": 8 * 20 * there,
        "experts, consumers: back": 8 * 20 * back,
        "n-gram rows: there": 8 * 2 * 24 * 8,
        "n-gram rows: back": 8 * 2 * 24 * 264,
    }
    found = collectives(v41_flash(), load("decode", MeshLayout(1, 64)), "slots")
    total = {one.name: one.bytes for one in found}
    assert total["n-gram rows: asked"] == 64 * 8 * 2 * 24 * 4
    assert total["n-gram rows: answers"] == 64 * 8 * 2 * 24 * 264


def test_context_parallel_prefill_gathers_keys() -> None:
    layout = MeshLayout(1, 1, 4)
    found = {one.name: one for one in collectives(v41_flash(), load("prefill", layout), "slots")}
    assert found["window keys, producers"].bytes == 1024 * 528 * 20
    assert found["gates and values of pairs"].bytes == 1024 * 2 * 512 * 4 * 3
    assert found["latents of single keys"].bytes == 1024 * 512 * 2
    assert "kept rows" not in found
    kept = load("prefill", layout, keep=140)
    assert kept.consumer_rows == 64  # 6 tiles of a rank, on 4 devices
    found = {one.name: one for one in collectives(v41_flash(), kept, "slots")}
    assert found["window keys, consumers"].bytes == 256 * 528 * 20
    assert found["kept rows"].buffer == 256 * (4 * (5120 * 2 + 4) + 8)
    assert found["kept rows"].sent == 2 * found["kept rows"].buffer * 3 // 4


def test_one_device_sends_nothing() -> None:
    for phase in ("prefill", "decode"):
        assert collectives(v41_flash(), load(phase, MeshLayout(1, 1)), "gather") == []


def test_links_of_switches_networks_and_toruses() -> None:
    (inside, _) = exchange("x", "slots", 8, 1, rows=1000, choices=1, most_to_one=1, row_bytes=1000,
                           choice_bytes=0, back_bytes=0)  # fmt: skip
    assert link_seconds(inside, CHIPS["h200"]) == pytest.approx(7e6 / 450e9)
    outside = replace(inside, group=64, buffer=64 * 10**6)
    assert link_seconds(outside, CHIPS["h200"]) == pytest.approx(56e6 / 50e9)
    # 8 x 8 torus: half of all traffic crosses 16 links in each direction
    crossing = 32 * 63e6 / 2 / 16 / (CHIPS["v6e"].link / 4)
    assert link_seconds(outside, CHIPS["v6e"]) == pytest.approx(crossing)
    gathered = replace(outside, operation="all-gather")
    assert link_seconds(gathered, CHIPS["v6e"]) == pytest.approx(63e6 / CHIPS["v6e"].link)
    assert math.isinf(link_seconds(replace(outside, group=512), CHIPS["v6e"]))


# ---------------------------------------------------------------- time


def test_products_of_decode_are_those_of_the_active_parameters() -> None:
    step = load("decode", MeshLayout(1, 64))
    work = work_of(v41_flash(), step)
    flops = sum(sum(work[name].flops.values()) for name in ("dense weights", "experts", "head"))
    assert flops / step.rows / 2 == pytest.approx(
        active_parameters(v41_flash(), "decode"), rel=1e-3
    )


def test_products_of_prefill_are_those_of_the_producer_half() -> None:
    step = replace(load("prefill", MeshLayout(1, 8), keep=140), consumer_rows=0)
    work = work_of(v41_flash(), step)
    flops = sum(sum(work[name].flops.values()) for name in ("dense weights", "experts"))
    assert flops / step.rows / 2 == pytest.approx(
        active_parameters(v41_flash(), "prefill"), rel=1e-3
    )


def test_a_decode_step_reads_every_weight_once_when_there_are_many_rows() -> None:
    step = load("decode", MeshLayout(1, 64), requests=64 * 256)
    work, memory = work_of(v41_flash(), step), device_memory(v41_flash(), step, 1)
    assert work["experts"].bytes == pytest.approx(memory.weights["experts"], rel=1e-3)
    few = work_of(v41_flash(), load("decode", MeshLayout(1, 1), requests=8))
    chosen = 1 - (1 - 1 / 384) ** (8 * 6)
    whole = sizes_by_part(v41_flash())["experts"].bytes
    assert few["experts"].bytes == pytest.approx(whole * chosen, rel=1e-3)


def test_index_scores_grow_with_the_context_and_attention_does_not() -> None:
    short, long = (
        work_of(v41_flash(), load("decode", MeshLayout(1, 64), context=tokens))
        for tokens in (65536, 131072)
    )
    assert long["attention"].bytes == short["attention"].bytes
    assert 1.5 < long["index scores"].bytes / short["index scores"].bytes < 2


def test_chips_are_plausible() -> None:
    for chip in CHIPS.values():
        assert chip.bf16 <= chip.fp8 <= 2.01 * chip.bf16
        assert chip.rate("f32") < chip.rate("bf16")
        assert 1e10 < chip.memory < 1e12 and 5e11 < chip.bandwidth < 1e13
        assert chip.network < chip.link < chip.bandwidth


# ---------------------------------------------------------------- what fits


def planned(layout: MeshLayout, phase: str = "decode", chip: str = "h200", **wishes: object) -> (
    PhasePlan
):  # fmt: skip
    asked = replace(WISHES, **wishes)  # type: ignore[arg-type]
    return plan_phase(v41_flash(), layout, phase, asked, CHIPS[chip])


def test_what_does_not_fit_names_the_nearest_that_does() -> None:
    small = planned(MeshLayout(1, 4))
    assert not small.memory.fits and small.nearest is not None
    assert small.nearest.devices == 8
    assert small.problem is not None
    assert small.problem.startswith("decode with dp 4, ep 4, cp 1 does not fit: a device needs 1")
    assert small.problem.endswith("the nearest that fits is dp 8, ep 4, cp 1 (8 devices)")
    assert planned(small.nearest).problem is None


def test_the_nearest_may_have_the_same_devices() -> None:
    """Experts on every device do not fit; spread over them they do."""
    small = planned(MeshLayout(8, 1))
    assert small.nearest is not None and small.nearest.devices == 8
    assert planned(small.nearest).memory.fits


def test_nothing_may_fit() -> None:
    huge = planned(MeshLayout(1, 64), chip="v5e", memory_share=0.5)
    assert huge.nearest is None
    assert huge.problem is not None and "no layout of up to 1024 devices fits" in huge.problem


def test_rows_that_a_context_does_not_divide() -> None:
    with pytest.raises(LayoutError, match=r"prefill rows are 96, .* cp 2 .* tiles of 32; use 128"):
        planned(MeshLayout(1, 4, 2), "prefill", prefill_rows=96)


# ---------------------------------------------------------------- the command line


def test_command_line_prints_tables(capsys: pytest.CaptureFixture[str]) -> None:
    assert plan.main([]) == 0
    text = capsys.readouterr().out
    for words in ("backbone 551.9 G", "prefill: dp 8, ep 8", "decode: dp 64, ep 64", "890 bytes"):
        assert words in text


def test_command_line_prints_json(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    picture = tmp_path / "layout.svg"
    arguments = ["--json", "--chip", "b200", "--picture", str(picture), "--prefill-cp", "2"]
    assert plan.main([*arguments, "--prefill-rows", "2048", "--dp", "128"]) == 0
    values = json.loads(capsys.readouterr().out)
    decode = values["phases"]["decode"]
    assert decode["layout"]["axes"] == {"data": 1, "expert": 128, "context": 1}
    memory = decode["memory"]
    parts = [sum(memory[group].values()) for group in ("weights", "slots", "blocks")]
    assert sum(parts) + memory["temporaries_estimate"] == memory["needed"]
    assert values["phases"]["prefill"]["layout"]["devices"] == 16
    drawn = xml.etree.ElementTree.parse(picture).getroot()
    assert len(drawn.findall("{http://www.w3.org/2000/svg}rect")) > 16 + 64


def test_command_line_says_what_does_not_fit(capsys: pytest.CaptureFixture[str]) -> None:
    assert plan.main(["--prefill-dp", "2"]) == 1
    assert "prefill with dp 2, ep 2, cp 1 does not fit" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--dp", "8", "--ep", "3"], "plan: ep 3 is impossible with dp 8 and cp 1"),
        (["--cp", "2"], "plan: cp is 2 in decode"),
        (["--model", "/nowhere"], "plan: /nowhere/config.json cannot be read"),
        (["--context", "0"], "plan: --context is 0; it must be 1 or more"),
        (["--memory-share", "2"], "plan: --memory-share is 2.0"),
        (["--picture", "/nowhere/x.svg"], "plan: .*No such file"),
    ],
)
def test_command_line_refuses_the_impossible(
    capsys: pytest.CaptureFixture[str], arguments: list[str], sentence: str
) -> None:
    assert plan.main(arguments) == 2
    assert re.match(sentence, capsys.readouterr().err)


def test_a_small_model_of_a_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    values = published_values()
    values["text_config"].update(num_hidden_layers=40, n_routed_experts=64)
    (tmp_path / "config.json").write_text(json.dumps(values))
    arguments = ["--model", str(tmp_path), "--dp", "16", "--requests", "100"]
    assert plan.main(arguments) == 0
    assert "decode: dp 16, ep 16" in capsys.readouterr().out


def test_planning_touches_no_device() -> None:
    program = (
        "from dsinfer_jax import plan; plan.main(['--json'])\n"
        "import sys; from jax._src import xla_bridge\n"
        "print(len(xla_bridge._backends), file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stderr.split()[-1] == "0"
