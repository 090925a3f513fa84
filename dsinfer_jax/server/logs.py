"""Structured logs: one JSON object a line. Text of prompts and answers only where asked for."""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Any

LOGGER = logging.getLogger("dsinfer_jax.server")


class JsonFormatter(logging.Formatter):
    """A record as one line of JSON: time, level, message, and the fields given as `extra`."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "message": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            line["trace"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False, default=str)


def log(message: str, level: int = logging.INFO, **fields: Any) -> None:
    """One line with fields."""
    if LOGGER.isEnabledFor(level):
        LOGGER.log(level, message, extra={"fields": fields})


def log_failure(message: str, **fields: Any) -> None:
    """One line with fields and the trace of the exception that is being handled."""
    LOGGER.exception(message, extra={"fields": fields})


def log_to_stderr(level: int = logging.INFO) -> None:
    """Write the log as JSON lines to standard error; for a process that is only a server."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter())
    for name in ("dsinfer_jax.server", "uvicorn.error"):
        logger = logging.getLogger(name)
        logger.handlers = [handler]
        logger.propagate = False
        logger.setLevel(level if name.startswith("dsinfer") else logging.WARNING)
