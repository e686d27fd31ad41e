"""Finds the daemon, in the order of docs/http.md: what the caller names, the environment, the current context, this machine."""

from __future__ import annotations

import hashlib
import ipaddress
import os
import ssl
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

SYSTEM_STATE = Path("/var/lib/effectd")
SYSTEM_SOCKET = Path("/run/effectd/effectd.sock")


@dataclass(frozen=True, slots=True)
class Target:
    """A socket, or a URL with a token."""

    socket: Path | None = None
    url: str = "http://effectd"
    token: str | None = None
    ca: Path | None = None

    def __str__(self) -> str:
        return str(self.socket or self.url)

    def __repr__(self) -> str:
        return f"Target({self})"

    def trust(self) -> ssl.SSLContext | bool:
        """The authorities: those of the context, or the system's."""
        return ssl.create_default_context(cafile=self.ca) if self.url.startswith("https:") else False


def find(
    *,
    url: str | None = None,
    token: str | None = None,
    socket: str | os.PathLike[str] | None = None,
    state: str | os.PathLike[str] | None = None,
    context: str | None = None,
    ca: str | os.PathLike[str] | None = None,
) -> Target:
    """The target that the arguments, the environment, the contexts of the user or this machine name."""
    authority = Path(ca) if ca else None
    named = {"url": url, "socket or state": socket or state, "context": context}
    if _only_one(named) is None:
        url, context = os.environ.get("EFFECTD_URL"), os.environ.get("EFFECTD_CONTEXT")
        socket, state = os.environ.get("EFFECTD_SOCKET"), os.environ.get("EFFECTD_STATE")
        _only_one({"EFFECTD_URL": url, "EFFECTD_SOCKET or EFFECTD_STATE": socket or state, "EFFECTD_CONTEXT": context})
    if url:
        token = token or os.environ.get("EFFECTD_TOKEN")
        if not token:
            raise ValueError(f"{url} needs a token: set EFFECTD_TOKEN")
        return Target(url=_checked(url), token=_printable(token), ca=authority)
    if socket:
        return Target(Path(socket))
    if state:
        return Target(_socket_of(Path(state)))
    return _of_context(context) or Target(_here())


def _only_one(named: dict[str, Any]) -> str | None:
    given = [name for name, value in named.items() if value]
    if len(given) > 1:
        raise ValueError(f"{given[0]} and {given[1]} name two targets; leave one of them out")
    return given[0] if given else None


def _checked(url: str) -> str:
    """The URL, if a token may be sent there."""
    if "@" in url:
        raise ValueError("the URL has a user or a password; a token has a variable of its own")
    parts = urlsplit(url)
    if parts.path not in ("", "/") or parts.query or parts.fragment:
        raise ValueError(f"{url!r} has a path; name only host and port")
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"{url!r} does not begin with https://, or http:// on this machine")
    if parts.scheme == "http" and not _is_this_machine(parts.hostname):
        raise ValueError(f"over http, a token for {url!r} could be read on the way; use https beyond this machine")
    return url.rstrip("/")


def _is_this_machine(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _printable(token: str) -> str:
    token = token.strip()
    if not token.isascii() or not token.isprintable() or " " in token:
        raise ValueError("the token is not one line of printable characters")
    return token


def _of_context(name: str | None) -> Target | None:
    """The named context, or the current one; None for this machine."""
    folder = _folder("XDG_CONFIG_HOME", ".config")
    file = folder and folder / "contexts.toml"
    known: dict[str, Any] = tomllib.loads(file.read_text()) if file and file.is_file() else {}
    chosen: str = name or known.get("current") or "local"
    if chosen == "local":
        return None
    context: dict[str, str] | None = known.get("contexts", {}).get(chosen)
    if folder is None or context is None:
        raise ValueError(f"there is no context {chosen!r}; `effectd context list` lists them")
    token = folder / "tokens" / chosen
    if token.stat().st_mode & 0o077:
        raise ValueError(f"{token} has a token, and others may read it: `chmod 600` it")
    ca = Path(context["ca"]) if context.get("ca") else None
    return Target(url=_checked(context["url"]), token=_printable(token.read_text()), ca=ca)


def _folder(variable: str, below_home: str) -> Path | None:
    """A folder of effectd's in the user's home."""
    named = Path(os.environ.get(variable, ""))
    home = Path(os.environ.get("HOME", ""))
    if named.is_absolute():
        return named / "effectd"
    return home / below_home / "effectd" if home.is_absolute() else None


def _here() -> Path:
    """The socket of this folder's state, or of this machine's."""
    here, states = Path.cwd().resolve(), _folder("XDG_STATE_HOME", ".local/state")

    def installed(project: Path) -> Path | None:
        """The state that `effectd mcp install` made for a project."""
        digest = hashlib.sha256(os.fsencode(project)).hexdigest()[:16]
        return states / digest if states and (states / digest).is_dir() else None

    found = installed(here) or (Path(".effectd") if Path(".effectd").is_dir() else None)
    found = found or next((state for project in here.parents if (state := installed(project))), None)
    if found:
        return _socket_of(found)
    system = _socket_of(SYSTEM_STATE)
    return system if system.exists() or not SYSTEM_SOCKET.exists() else SYSTEM_SOCKET


def _socket_of(state: Path) -> Path:
    """The socket of the daemon of a state; its configuration may name another than the default."""
    try:
        settings = tomllib.loads((state / "config.toml").read_text())
    except OSError:
        settings = {}
    return Path(settings.get("gateway", {}).get("socket") or state / "run" / "effectd.sock").absolute()
