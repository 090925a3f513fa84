from __future__ import annotations
from typing import Any
def check_schema(schema: Any, prefix: str) -> None:
    return None
