"""A source without a model: answers that follow from the request, scripts, and faults on demand.

Real clients can be tested against it. It goes through the same protocol layer as an engine: what
it "generates" are the token ids that a model would, and needs neither jax nor weights.
"""

from dsinfer_jax.server.mock.app import create_mock_app
from dsinfer_jax.server.mock.source import MockOptions, MockSource

__all__ = ["MockOptions", "MockSource", "create_mock_app"]
