"""For the tests of the examples: a real daemon with the preset `household`, and a person who uses the command line."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

HERE = Path(__file__).parent
EFFECTD = os.environ.get("EFFECTD", str(HERE.parent / "target/release/effectd"))
sys.path[:0] = [str(HERE / "agents"), str(HERE / "learner")]


def until(holds: Callable[[], object], seconds: float = 240.0) -> object:
    """What a condition gives when it first holds."""
    end = time.monotonic() + seconds
    while not (found := holds()):
        assert time.monotonic() < end, f"not within {seconds} s"
        time.sleep(0.05)
    return found


@dataclass(frozen=True)
class Daemon:
    folder: Path

    @property
    def state(self) -> Path:
        return self.folder / ".effectd"

    @property
    def workspace(self) -> Path:
        return self.folder / "workspace"

    def effectd(self, *arguments: str) -> str:
        """A command of effectd, as a person gives it in another terminal."""
        command = [EFFECTD, *arguments, "--state", str(self.state)]
        return subprocess.run(command, cwd=self.folder, check=True, text=True, stdout=subprocess.PIPE, timeout=240).stdout

    def json(self, *arguments: str) -> list[dict]:
        return json.loads(self.effectd(*arguments, "-o", "json"))

    def pending(self) -> list[dict]:
        return self.json("approvals", "list")


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[Daemon]:
    daemon = Daemon(tmp_path_factory.mktemp("daemon"))
    daemon.effectd("init")
    policy = daemon.state / "policy/policy.toml"
    # The policy of the household rests at night.
    policy.write_text(policy.read_text().replace('"22:00"', '"00:00"').replace('"06:00"', '"00:00"'))
    settings = [word for setting in getattr(request.module, "SETTINGS", ()) for word in ("--set", setting)]
    with (daemon.folder / "daemon.log").open("w") as log:
        command = [EFFECTD, "serve", "--state", str(daemon.state), *settings]
        process = subprocess.Popen(command, cwd=daemon.folder, stdout=log, stderr=log)
        try:
            until(lambda: process.poll() is not None or (daemon.state / "run/effectd.sock").exists())
            yield daemon
        finally:
            process.terminate()
            process.wait(60)
