from typing import Any


def openapi_document(settings: Any) -> dict[str, Any]:
    return {}
