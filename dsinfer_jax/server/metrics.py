"""Counts of a server, and all that is known as one page in the text format of Prometheus."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from dsinfer_jax.engine.stats import Histogram
from dsinfer_jax.recipe import StreamProcessor
from dsinfer_jax.server.dialects import DIALECTS
from dsinfer_jax.server.limits import Admission
from dsinfer_jax.server.record import RequestRecord
from dsinfer_jax.server.source import SourceSnapshot

PREFIX = "dsinfer_server_"
GAUGES = (
    "running",
    "waiting",
    "cache_used",
    "cache_hits",
    "acceptance",
    "balance",
    "hidden_host_time",
)


class Metrics:
    """What requests came to; read by `/metrics` and the status page."""

    def __init__(self) -> None:
        self.requests: Counter[tuple[str, str, int]] = Counter()  # dialect, outcome, status
        self.tokens: Counter[str] = Counter()
        self.reports: Counter[tuple[str, str]] = Counter()  # table and place of a stream report
        self.seconds = {dialect.name: Histogram() for dialect in DIALECTS}
        self.first_output = {dialect.name: Histogram() for dialect in DIALECTS}

    def count(self, record: RequestRecord) -> None:
        """Count a request that has ended."""
        self.requests[record.dialect, record.outcome, record.status] += 1
        self.tokens["prompt"] += record.prompt_tokens
        self.tokens["cached"] += record.cached_tokens
        self.tokens["output"] += record.output_tokens
        self.seconds[record.dialect].add(record.seconds)
        if record.first_output_seconds is not None:
            self.first_output[record.dialect].add(record.first_output_seconds)

    def count_report(self, processor: StreamProcessor) -> None:
        """Count what reading one output dropped, repaired or passed on broken."""
        report = processor.report
        for name in ("dropped", "repaired", "broken"):
            for place, number in getattr(report, name).items():
                self.reports[name, place] += number

    def entries(self, admission: Admission, snapshot: SourceSnapshot) -> dict[str, Any]:
        """All values by their names of Prometheus."""
        entries: dict[str, Any] = {
            f"{PREFIX}running_requests": admission.running,
            f"{PREFIX}body_bytes": admission.body_bytes,
            f"{PREFIX}draining": int(admission.draining),
        }
        for (dialect, outcome, status), number in sorted(self.requests.items()):
            labels = f'dialect="{dialect}",outcome="{outcome}",status="{status}"'
            entries[f"{PREFIX}requests_total{{{labels}}}"] = number
        for kind in ("prompt", "cached", "output"):
            entries[f'{PREFIX}tokens_total{{kind="{kind}"}}'] = self.tokens[kind]
        for (table, place), number in sorted(self.reports.items()):
            labels = f'table="{table}",place="{place}"'
            entries[f"{PREFIX}output_reports_total{{{labels}}}"] = number
        for name, tables in (("request_seconds", self.seconds),
                             ("first_output_seconds", self.first_output)):  # fmt: skip
            for dialect, histogram in tables.items():
                entries.update(_labelled(histogram.entries(PREFIX + name), dialect))
        for gauge in GAUGES:
            if gauge in snapshot:
                entries[f"dsinfer_source_{gauge}"] = snapshot[gauge]  # type: ignore[literal-required]
        return {**entries, **snapshot.get("metrics", {})}


def _labelled(entries: Mapping[str, float], dialect: str) -> dict[str, float]:
    """The entries of a histogram with one more label."""
    labelled = {}
    for name, value in entries.items():
        base, brace, labels = name.partition("{")
        rest = "," + labels if brace else "}"
        labelled[f'{base}{{dialect="{dialect}"{rest}'] = value
    return labelled


def exposition(entries: Mapping[str, Any]) -> str:
    """The page: one line a value, each name with its type in front."""
    lines = []
    typed = set()
    for name, value in entries.items():
        family = name.partition("{")[0]
        for suffix in ("_bucket", "_sum", "_count"):
            family = family.removesuffix(suffix)
        if family not in typed:
            typed.add(family)
            lines.append(f"# TYPE {family} {_kind(name, family)}")
        lines.append(f"{name} {value}")
    return "\n".join(lines) + "\n"


def _kind(name: str, family: str) -> str:
    if name.startswith(f"{family}_bucket"):
        return "histogram"
    return "counter" if family.endswith("_total") else "gauge"
