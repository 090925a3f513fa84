"""Evaluations that are continued, and what a card says of them."""

import json
import sys
from pathlib import Path

import pytest

pytest.importorskip("optax", reason="the train extra is not installed")
sys.path.insert(0, str(Path(__file__).parents[2] / "tools"))
import eval_demo
from demo_training import card, report
from demo_training.config import demo_config
from demo_training.evaluate import Tally


def test_an_evaluation_goes_on_with_the_same_weights_only(tmp_path: Path) -> None:
    path = tmp_path / "evaluation.json"
    content = eval_demo.earlier(path, "of these")
    assert content["table"] == {}
    content["table"]["runtime"] = {"copying": {"items": 3}}
    path.write_text(json.dumps(content))
    assert eval_demo.earlier(path, "of these") == content
    with pytest.raises(SystemExit, match="is about other weights"):
        eval_demo.earlier(path, "of others")


TALLY = vars(Tally(items=4, right=3, valid=4, tokens=40, steps=16))
TABLE = {
    "runtime": {"copying": TALLY, "lookup": TALLY},
    "constrained": {"lookup": TALLY},
    "dspark": {"copying": TALLY, "lookup": TALLY},
}


def test_a_card_has_every_variant_task_and_place() -> None:
    evaluation = {
        "commands": ["python tools/eval_demo.py --items 4"],
        "table": TABLE,
        "accepted": {"dspark": [0.9, 0.55]},
        "perplexity": {"runtime": 1.25},
        "expert_shares": [[0.5, 1.5], [0.75, 1.25]],
    }
    training = {"command": "python tools/train_demo.py", "seed": 0, "data": "00", "seconds": 7200,
                "cores": 2}  # fmt: skip
    text = card.card(demo_config(1280), 6_000_000, 6_000_000, training, evaluation)
    assert "| runtime | 75 / 100 | 75 / 100 |" in text
    assert "| constrained |  | 75 / 100 |" in text
    assert "2.50 tokens on average" in text
    assert "by place: 90%, 55%" in text
    assert "runtime 1.2500" in text
    assert "0.50 to 1.50 times their share" in text


def test_a_plot_has_variants_that_lack_a_task(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="the train extra is not installed")
    report.plot_table(TABLE, tmp_path / "table.svg")
    assert "constrained" in (tmp_path / "table.svg").read_text()
