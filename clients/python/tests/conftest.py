"""A real daemon for the tests, and both clients behind one face."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import json
import os
import re
import signal
import subprocess
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from effectd import AsyncEffectd, Effectd

ROOT = Path(os.environ.get("CHECKOUT") or Path(__file__).resolve().parents[3])
EFFECTD = os.environ.get("EFFECTD", str(ROOT / "target/release/effectd"))
SUBJECT, SPACE = "agent://planner@deviceA", "shared:household"
ACCOUNTS = """
[principals."account://home/planner"]
subjects = ["agent://planner@deviceA"]
actors = ["alice"]
"""


class Daemon:
    """`effectd serve` on a state of its own; its workspace is beside the state."""

    def __init__(self, folder: Path, *options: str) -> None:
        self.options = options
        self.folder, self.state = folder, folder / ".effectd"
        self.socket = self.state / "run/effectd.sock"
        self.url = ""
        self.cli("init")
        policy = self.state / "policy/policy.toml"
        # The policy of the household rests at night.
        policy.write_text(policy.read_text().replace('"22:00"', '"00:00"').replace('"06:00"', '"00:00"') + ACCOUNTS)
        self.start()

    def cli(self, *arguments: str, code: int = 0) -> str:
        command = [EFFECTD, *arguments, "--state", str(self.state)]
        done = subprocess.run(command, cwd=self.folder, capture_output=True, text=True, timeout=120)
        assert done.returncode == code, (arguments, done.returncode, done.stdout, done.stderr)
        return done.stdout

    def start(self) -> None:
        command = [EFFECTD, "serve", "--state", str(self.state), "--listen", "127.0.0.1:0", "--log", "text"]
        command += self.options
        with (self.folder / "serve.log").open("a") as log:
            self.process = subprocess.Popen(command, cwd=self.folder, stdout=subprocess.PIPE, stderr=log, text=True)
        assert self.process.stdout is not None
        said = self.process.stdout.readline()
        listens = re.search(r"https?://[0-9.:]+", said)
        assert listens, (said, (self.folder / "serve.log").read_text())
        self.url = listens.group()

    def end(self, by: signal.Signals) -> None:
        self.process.send_signal(by)
        self.process.wait(60)
        assert self.process.stdout is not None
        self.process.stdout.close()

    def token(self, kind: str, name: str) -> str:
        return self.cli("tokens", "create", "--kind", kind, "--org", "home", "--name", name, "--yes").strip()

    def text(self, path: str) -> str:
        return (self.folder / "workspace" / path).read_text()

    def receipts(self, filter: str) -> list[dict[str, Any]]:  # noqa: A002
        return [json.loads(line) for line in self.cli("receipts", "export", filter).splitlines()]


@pytest.fixture(scope="session")
def daemon() -> Iterator[Daemon]:
    with tempfile.TemporaryDirectory() as folder:
        running = Daemon(Path(folder))
        yield running
        running.end(signal.SIGTERM)


@pytest.fixture
def own_daemon() -> Iterator[Daemon]:
    """For a test that kills it."""
    with tempfile.TemporaryDirectory() as folder:
        running = Daemon(Path(folder))
        yield running
        running.end(signal.SIGTERM)


class Blocking:
    """An object of the async client as one of the other: the same test speaks to both."""

    def __init__(self, inner: Any, runner: asyncio.Runner) -> None:
        self.inner, self.runner = inner, runner

    def blocking(self, value: Any) -> Any:
        if inspect.isawaitable(value):

            async def awaited() -> Any:
                return await value

            return self.blocking(self.runner.run(awaited(), context=contextvars.copy_context()))
        if isinstance(value, list):
            return [self.blocking(one) for one in value]
        return Blocking(value, self.runner) if type(value).__name__.startswith("Async") else value

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.inner, "acall" if name == "call" and hasattr(self.inner, "acall") else name)
        if not callable(found):
            return self.blocking(found)
        return lambda *given, **named: self.blocking(found(*given, **named))

    def __iter__(self) -> Iterator[Any]:
        items: AsyncIterator[Any] = aiter(self.inner)
        while (item := self.blocking(anext(items, None))) is not None:
            yield item

    def __enter__(self) -> Any:
        self.blocking(self.inner.__aenter__())
        return self

    def __exit__(self, *given: object) -> None:
        self.blocking(self.inner.__aexit__(*given))


class Clients:
    """Makes clients of one kind."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.runner = asyncio.Runner()

    def __call__(self, **named: Any) -> Any:
        named = {"subject_id": SUBJECT, "space_id": SPACE, **named}
        return Effectd(**named) if self.kind == "sync" else Blocking(AsyncEffectd(**named), self.runner)


@pytest.fixture(params=["sync", "async"])
def clients(request: pytest.FixtureRequest) -> Iterator[Clients]:
    made = Clients(request.param)
    with made.runner:
        yield made


@pytest.fixture
def effectd(clients: Clients, daemon: Daemon) -> Iterator[Any]:
    with clients(socket=daemon.socket) as client:
        yield client


def write(path: str, text: str = "hello") -> dict[str, Any]:
    return {"path": f"workspace/{path}", "text": text, "space_id": SPACE}
