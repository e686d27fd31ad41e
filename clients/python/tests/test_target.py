"""Where `Effectd()` goes: the order of docs/http.md."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

from effectd import _target
from effectd._target import Target, find


@pytest.fixture(autouse=True)
def nothing_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("URL", "TOKEN", "SOCKET", "STATE", "CONTEXT"):
        monkeypatch.delenv(f"EFFECTD_{name}", raising=False)
    for name in ("XDG_CONFIG_HOME", "XDG_STATE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setattr(_target, "SYSTEM_STATE", tmp_path / "var")
    monkeypatch.setattr(_target, "SYSTEM_SOCKET", tmp_path / "run.sock")
    (tmp_path / "project/inner").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "project/inner")


def test_what_is_named_comes_before_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EFFECTD_SOCKET", "/a.sock")
    assert find() == Target(Path("/a.sock"))
    assert find(socket="/b.sock") == Target(Path("/b.sock"))
    assert find(state="/s") == Target(Path("/s/run/effectd.sock"))
    assert find(url="http://127.0.0.1:1/", token="t") == Target(url="http://127.0.0.1:1", token="t")
    monkeypatch.setenv("EFFECTD_STATE", "/s")
    assert find() == Target(Path("/a.sock"))
    monkeypatch.delenv("EFFECTD_SOCKET")
    assert find() == Target(Path("/s/run/effectd.sock"))
    monkeypatch.setenv("EFFECTD_URL", "http://localhost:1")
    with pytest.raises(ValueError, match="name two targets"):
        find()
    monkeypatch.delenv("EFFECTD_STATE")
    with pytest.raises(ValueError, match="needs a token"):
        find()
    monkeypatch.setenv("EFFECTD_TOKEN", "secret\n")
    assert find() == Target(url="http://localhost:1", token="secret")
    assert "secret" not in repr(find())
    with pytest.raises(ValueError, match="name two targets"):
        find(url="http://localhost", socket="/a.sock")


@pytest.mark.parametrize(
    "url",
    """
    http://effectd.example.org http://127.0.0.1.example.org http://0.0.0.0:7070 ftp://127.0.0.1 127.0.0.1:7070
    http://me:secret@127.0.0.1 https://x/v1 https://x?a=b https:// http://
    """.split(),  # noqa: SIM905 shorter
)
def test_a_token_goes_to_this_machine_or_by_tls_only(url: str) -> None:
    with pytest.raises(ValueError) as refused:
        find(url=url, token="t")
    assert "secret" not in str(refused.value)


def test_a_context_is_the_command_line_s(tmp_path: Path) -> None:
    folder = tmp_path / "home/.config/effectd"
    (folder / "tokens").mkdir(parents=True)
    (folder / "contexts.toml").write_text(
        'current = "work"\n[contexts.work]\nurl = "https://effectd.example.org"\nca = "/ca.pem"\n'
    )
    token = folder / "tokens/work"
    token.write_text("secret")
    token.chmod(0o644)
    with pytest.raises(ValueError, match="others may read it"):
        find()
    token.chmod(0o600)
    expected = Target(url="https://effectd.example.org", token="secret", ca=Path("/ca.pem"))
    assert (find(), find(context="work")) == (expected, expected)
    assert find(context="local") == Target(tmp_path / "var/run/effectd.sock")
    with pytest.raises(ValueError, match="no context 'other'"):
        find(context="other")


def test_a_state_is_found_here_around_here_and_on_this_machine(tmp_path: Path) -> None:
    (tmp_path / "run.sock").touch()
    assert find() == Target(tmp_path / "run.sock")
    states = tmp_path / "home/.local/state/effectd"
    digest = hashlib.sha256(os.fsencode(tmp_path / "project")).hexdigest()[:16]
    (states / digest).mkdir(parents=True)
    assert find() == Target(states / digest / "run/effectd.sock")
    here = tmp_path / "project/inner/.effectd"
    here.mkdir()
    assert find() == Target(here / "run/effectd.sock")
    (here / "config.toml").write_text('[gateway]\nsocket = "/other.sock"\n')
    assert find() == Target(Path("/other.sock"))
