"""What happens when answers are lost: a proxy drops them after the effect, the daemon is killed, nothing answers at all."""

from __future__ import annotations

import json
import signal
import socket
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import Clients, Daemon, write

from effectd import errors
from effectd.adapters import not_done

Fault = Callable[[int, bytes], bytes | None]


class Proxy:
    """A unix socket before the daemon's. `before` gets the number of each request, and may answer it. `fault` gets the daemon's
    answer, too, and says what the client gets instead; None closes the connection."""

    def __init__(self, folder: Path, daemon: Daemon, fault: Fault, before: Callable[[int], bytes | None]) -> None:
        self.path, self.daemon, self.fault, self.before = folder / "proxy.sock", daemon, fault, before
        self.requests = 0
        self.server = socket.socket(socket.AF_UNIX)
        self.server.bind(str(self.path))
        self.server.listen()
        self.thread = threading.Thread(target=self.serve, daemon=True)
        self.thread.start()

    def serve(self) -> None:
        while True:
            try:
                client, _ = self.server.accept()
            except OSError:
                return
            with client:
                self.handle(client)

    def handle(self, client: socket.socket) -> None:
        client.settimeout(60)
        request = read_message(client)
        number, self.requests = self.requests, self.requests + 1
        answer = self.before(number)
        if answer is None:
            with socket.socket(socket.AF_UNIX) as daemon:
                daemon.settimeout(60)
                try:
                    daemon.connect(str(self.daemon.socket))
                    daemon.sendall(request)
                    answer = self.fault(number, read_message(daemon))
                except OSError:
                    answer = None
        if answer:
            # One answer for a connection.
            client.sendall(answer.replace(b"\r\n", b"\r\nconnection: close\r\n", 1))

    def close(self) -> None:
        self.server.shutdown(socket.SHUT_RDWR)
        self.server.close()
        self.thread.join(60)


def read_message(stream: socket.socket) -> bytes:
    """A message of HTTP with a content-length, or none."""
    message = b""
    while b"\r\n\r\n" not in message:
        more = stream.recv(65_536)
        if not more:
            return message
        message += more
    head, _, body = message.partition(b"\r\n\r\n")
    length = next((int(line[15:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")), 0)
    while len(body) < length:
        more = stream.recv(65_536)
        if not more:
            return message
        body += more
    return head + b"\r\n\r\n" + body


def answer_of(status: str, *headers: str, body: str = "{}") -> bytes:
    lines = [f"HTTP/1.1 {status}", f"content-length: {len(body)}", *headers, "", body]
    return "\r\n".join(lines).encode()


@pytest.fixture
def proxied(daemon: Daemon) -> Iterator[Callable[..., Proxy]]:
    proxies: list[Proxy] = []
    with tempfile.TemporaryDirectory() as folder:

        def make(
            fault: Fault = lambda _, answer: answer,
            before: Callable[[int], bytes | None] = lambda _: None,
            to: Daemon = daemon,
        ) -> Proxy:
            proxies.append(Proxy(Path(folder), to, fault, before))
            return proxies[-1]

        yield make
        for proxy in proxies:
            proxy.close()


@pytest.mark.parametrize("lost", [1, 3])
def test_a_lost_answer_is_one_effect_and_one_receipt(
    clients: Clients, daemon: Daemon, proxied: Callable[..., Proxy], lost: int
) -> None:
    path = f"{uuid.uuid4().hex}.txt"
    proxy = proxied(lambda number, answer: None if number < lost else answer)
    with clients(socket=proxy.path) as effectd:
        done = effectd.execute("files.append_text", write(path, "once\n"))
    assert proxy.requests == lost + 1
    assert done.outcome == "executed"
    assert daemon.text(path) == "once\n"
    receipts = daemon.receipts(f"action:{done.action_id}")
    assert [receipt["receipt_id"] for receipt in receipts] == [done.receipt.receipt_id]


def test_half_an_answer_is_a_lost_one(clients: Clients, daemon: Daemon, proxied: Callable[..., Proxy]) -> None:
    path = f"{uuid.uuid4().hex}.txt"
    proxy = proxied(lambda number, answer: answer[:-20] if number == 0 else answer)
    with clients(socket=proxy.path) as effectd:
        effectd.execute("files.append_text", write(path, "once\n"))
    assert (proxy.requests, daemon.text(path)) == (2, "once\n")


def test_an_answer_that_cannot_be_decoded_is_a_lost_one(clients: Clients, daemon: Daemon, proxied: Callable[..., Proxy]) -> None:
    path = f"{uuid.uuid4().hex}.txt"
    garbled = answer_of("200 OK", "content-encoding: gzip")
    proxy = proxied(lambda number, answer: garbled if number == 0 else answer)
    with clients(socket=proxy.path) as effectd:
        effectd.execute("files.append_text", write(path, "once\n"))
    assert (proxy.requests, daemon.text(path)) == (2, "once\n")


@pytest.mark.parametrize("lost", [None, answer_of("504 Gateway Timeout"), answer_of("200 OK")[:-1]])
def test_a_model_does_not_repeat_what_may_have_happened(
    clients: Clients, daemon: Daemon, proxied: Callable[..., Proxy], lost: bytes | None
) -> None:
    path = f"{uuid.uuid4().hex}.txt"
    problem = {"type": "", "title": "", "status": 429, "detail": "why", "code": "rate_limited", "retryable": True}
    limited = answer_of("429 Too Many Requests", body=json.dumps(problem))
    proxy = proxied(lambda number, _: lost if number == 0 else limited)
    with clients(socket=proxy.path, retry_for=1.0) as effectd:
        with pytest.raises(errors.RateLimited) as after_lost:
            effectd.execute("files.append_text", write(path))
        with pytest.raises(errors.RateLimited) as never_lost:
            effectd.preview("files.append_text", write(path))
    assert daemon.text(path) == "hello"
    assert "Do not send it again" in not_done(after_lost.value).text
    assert "may succeed later" in not_done(never_lost.value).text


@pytest.mark.parametrize("body", ["[" * 100_000, "{}", "[]", "1"])
def test_every_strange_answer_is_an_error_of_effectd(clients: Clients, proxied: Callable[..., Proxy], body: str) -> None:
    proxy = proxied(before=lambda _: answer_of("200 OK", body=body))
    with clients(socket=proxy.path) as effectd:
        asks: list[Callable[[], Any]] = [
            lambda: effectd.execute("files.write_text", write("a.txt")),
            lambda: effectd.tools(),
            lambda: list(effectd.receipts()),
            lambda: list(effectd.approvals.list()),
            lambda: list(effectd.replay("group")),
        ]
        for ask in asks:
            with pytest.raises(errors.UnexpectedAnswer) as strange:
                ask()
            assert "Do not send it again" in not_done(strange.value).text


@pytest.mark.parametrize("status", ["429 Too Many Requests", "503 Service Unavailable"])
def test_retry_after_is_waited_for(clients: Clients, daemon: Daemon, proxied: Callable[..., Proxy], status: str) -> None:
    proxy = proxied(before=lambda number: answer_of(status, "retry-after: 1") if number == 0 else None)
    with clients(socket=proxy.path) as effectd:
        begun = time.monotonic()
        effectd.execute("files.write_text", write(f"{uuid.uuid4().hex}.txt"))
    assert (proxy.requests, time.monotonic() - begun >= 1) == (2, True)


def test_a_refusal_is_not_repeated(clients: Clients, proxied: Callable[..., Proxy]) -> None:
    proxy = proxied()
    with clients(socket=proxy.path) as effectd, pytest.raises(errors.PolicyDenied):
        effectd.execute("files.write_text", write("a.txt"), subject_id="agent://stranger@deviceA")
    assert proxy.requests == 1


def test_repeats_are_bounded_in_time(clients: Clients, proxied: Callable[..., Proxy]) -> None:
    proxy = proxied(lambda _, answer: None)
    begun = time.monotonic()
    with clients(socket=proxy.path, retry_for=1.0) as effectd, pytest.raises(errors.ConnectionLost) as lost:
        effectd.status("x")
    assert lost.value.retryable and time.monotonic() - begun < 10
    assert 2 <= proxy.requests <= 10


def test_a_decision_whose_answer_is_lost_is_not_repeated(clients: Clients, daemon: Daemon, proxied: Callable[..., Proxy]) -> None:
    path = f"{uuid.uuid4().hex}.txt"
    with clients(socket=daemon.socket) as effectd:
        effectd.execute("files.write_text", write(path))
        with pytest.raises(errors.ApprovalPending) as held:
            effectd.execute("files.delete", {k: v for k, v in write(path).items() if k != "text"})
    proxy = proxied(lambda number, answer: None if number == 1 else answer)
    with clients(socket=proxy.path) as effectd:
        shown = effectd.approvals.show(held.value.approval)
        with pytest.raises(errors.ConnectionLost):
            effectd.approvals.approve(shown)
        assert proxy.requests == 2
        assert effectd.approvals.show(held.value.approval).state == "approved"


def test_a_proxy_s_503_repeats_only_what_is_harmless(clients: Clients, proxied: Callable[..., Proxy]) -> None:
    proxy = proxied(before=lambda _: answer_of("503 Service Unavailable"))
    with clients(socket=proxy.path, retry_for=1.0) as effectd, pytest.raises(errors.UnexpectedAnswer):
        effectd.call("POST", "/v1/receipts/x/amendments", body={})
    assert proxy.requests == 1


def test_no_daemon_is_said_at_once(clients: Clients, tmp_path: Path) -> None:
    begun = time.monotonic()
    with clients(socket=tmp_path / "none.sock") as effectd, pytest.raises(errors.ConnectionLost, match="no daemon answers"):
        effectd.execute("files.write_text", write("a.txt"))
    assert time.monotonic() - begun < 5


@pytest.mark.parametrize("when", ["before the effect", "after the effect"])
def test_a_killed_daemon_is_one_effect_and_one_receipt(
    clients: Clients, own_daemon: Daemon, proxied: Callable[..., Proxy], when: str
) -> None:
    daemon, path = own_daemon, f"{uuid.uuid4().hex}.txt"
    restarted = threading.Event()

    def kill() -> None:
        daemon.end(signal.SIGKILL)
        daemon.start()
        restarted.set()

    def early(number: int) -> bytes | None:
        if number == 0 and when == "before the effect":
            kill()
        return None

    def late(number: int, answer: bytes) -> bytes | None:
        if number == 0 and when == "after the effect":
            kill()
            return None
        return answer

    proxy = proxied(late, early, daemon)
    with clients(socket=proxy.path) as effectd:
        done = effectd.execute("files.append_text", write(path, "once\n"))
    assert restarted.is_set() and done.outcome == "executed"
    assert daemon.text(path) == "once\n"
    assert len(daemon.receipts(f"action:{done.action_id}")) == 1


def test_a_kill_in_the_middle_of_a_call_is_no_second_effect(clients: Clients, own_daemon: Daemon) -> None:
    daemon = own_daemon
    with clients(socket=daemon.socket) as effectd:
        effectd.execute("files.write_text", write("first.txt"))
        ends: list[Any] = []
        for number in range(4):

            def kill(pause: float = number * 0.01) -> None:
                # At once, or when the tool has begun.
                time.sleep(pause)
                daemon.end(signal.SIGKILL)
                daemon.start()

            killer = threading.Thread(target=kill)
            killer.start()
            try:
                ends.append(effectd.execute("files.append_text", write(f"{number}.txt", "once\n")).receipt)
            except errors.DaemonError as error:
                # effectd cannot tell, and says so: that is the receipt.
                ends.append(error.receipt)
            killer.join()
        for number, receipt in enumerate(ends):
            assert receipt is not None
            file = daemon.folder / "workspace" / f"{number}.txt"
            written = file.read_text() if file.exists() else ""
            assert written in ("", "once\n")
            if receipt.outcome == "executed":
                assert written == "once\n"
            assert len(daemon.receipts(f"action:{receipt.action_id}")) == 1
