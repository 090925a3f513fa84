"""Downloads: limits, redirects, and the address filter on every hop."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from dsinfer_jax.recipe import ImageError, ReqwestImageFetcher

BODY = b"0123456789"


class Handler(BaseHTTPRequestHandler):
    """Serves /ok, /status/N, /redirect/N (N more hops) and /elsewhere."""

    def log_message(self, *unused: object) -> None:
        return

    def do_GET(self) -> None:
        kind, _, rest = self.path[1:].partition("/")
        if kind == "redirect":
            left = int(rest) - 1
            self.answer(302, location=f"/redirect/{left}" if left else "/ok")
        elif kind == "elsewhere":
            self.answer(302, location=f"http://localhost:{self.server.server_port}/ok")  # type: ignore[attr-defined]
        elif kind == "status":
            self.answer(int(rest))
        else:
            self.answer(200, BODY)

    def answer(self, status: int, body: bytes = b"", location: str | None = None) -> None:
        self.send_response(status)
        if location is not None:
            self.send_header("Location", location)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


@pytest.fixture(scope="module")
def host() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def refusal(url: str, fetcher: ReqwestImageFetcher | None = None) -> tuple[str, bool]:
    with pytest.raises(ImageError) as caught:
        (fetcher or ReqwestImageFetcher()).fetch(url)
    return caught.value.kind, caught.value.is_retryable


def test_redirects_are_followed_five_times(host: str) -> None:
    assert ReqwestImageFetcher().fetch(f"{host}/redirect/5") == BODY
    assert refusal(f"{host}/redirect/6") == ("Fetch", True)


def test_status_and_network_faults(host: str) -> None:
    assert refusal(f"{host}/status/404") == ("FetchStatus", False)
    assert refusal(f"{host}/status/500") == ("FetchStatus", True)
    assert refusal("http://127.0.0.1:1/") == ("Fetch", True)
    assert refusal("file:///etc/hostname") == ("Fetch", True)
    assert ReqwestImageFetcher().fetch(f"{host}/status/204") == b""


def test_large_files_are_cut_off(host: str) -> None:
    assert ReqwestImageFetcher.with_max_bytes(10).fetch(f"{host}/ok") == BODY
    small = ReqwestImageFetcher.with_max_bytes(9)
    assert refusal(f"{host}/ok", small) == ("ImageTooLarge", False)


def test_the_filter_sees_every_hop(host: str) -> None:
    seen: list[tuple[str, str]] = []

    def allow(name: str, address: str) -> bool:
        seen.append((name, address))
        return True

    fetcher = ReqwestImageFetcher().with_destination_filter(allow)
    assert fetcher.fetch(f"{host}/redirect/2") == BODY
    assert seen == [("127.0.0.1", "127.0.0.1")] * 3


def test_a_redirect_to_a_refused_host_is_not_followed(host: str) -> None:
    fetcher = ReqwestImageFetcher().with_destination_filter(lambda name, _: name != "localhost")
    assert fetcher.fetch(f"{host}/ok") == BODY
    assert refusal(f"{host}/elsewhere", fetcher) == ("DestinationRejected", False)


@pytest.mark.parametrize("answer", [False, 1, None, "yes"])
def test_only_true_allows(host: str, answer: object) -> None:
    fetcher = ReqwestImageFetcher().with_destination_filter(lambda *_: answer)  # type: ignore[arg-type,return-value]
    assert refusal(f"{host}/ok", fetcher) == ("DestinationRejected", False)


def test_a_failing_filter_rejects(host: str) -> None:
    def fail(name: str, address: str) -> bool:
        raise RuntimeError("no")

    fetcher = ReqwestImageFetcher().with_destination_filter(fail)
    assert refusal(f"{host}/ok", fetcher) == ("DestinationRejected", False)
