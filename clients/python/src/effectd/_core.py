"""What the client does, without a connection: each operation is a generator that yields requests and pauses, and gets the answers.
`_client.py` drives them, with and without asyncio."""

from __future__ import annotations

import copy
import json
import random
import ssl
import time
import uuid
from collections import deque
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Generic, Required, TypedDict, TypeVar
from urllib.parse import quote

import httpx2
from pydantic import ValidationError

from . import errors
from .models import Amendment, Approval, Batch, Decision, Done, Event, Model, PlanResult, Preview, Receipt, Status

T = TypeVar("T")
M = TypeVar("M", bound=Model)

WAIT_STEP_S = 30.0
"""How long one request waits for the end of an action; longer waits take several."""
ANSWER_TIME_MAX_S = 90.0
"""How long an answer may take: longer than a request waits."""
ANSWER_BYTES_MAX = 64 * 1_048_576
"""The largest answer that is read: a page of the largest receipts fits."""
ATTEMPTS_MAX = 10
PAUSE_MIN_S, PAUSE_MAX_S = 0.1, 5.0
PAGE = 500
"""Most receipts in one answer."""


@dataclass(frozen=True, slots=True)
class Request:
    method: str
    path: str
    query: Mapping[str, str | int | None] = field(default_factory=dict[str, str | int | None])
    body: Any = None
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    repeatable: bool = True
    """Whether a repeat is harmless when it is unknown what became of the request."""
    is_begun: bool = False
    """Whether it asks about an action that was sent before."""

    def content(self) -> bytes | None:
        if self.body is None:
            return None
        return json.dumps(self.body, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()

    def params(self) -> dict[str, str | int]:
        return {name: value for name, value in self.query.items() if value is not None}


@dataclass(frozen=True, slots=True)
class Reply:
    status: int
    headers: Mapping[str, str]
    body: bytes


@dataclass(frozen=True, slots=True)
class Pause:
    seconds: float


Flow = Generator[Request | Pause, Reply | None, T]


class ActionOptions(TypedDict, total=False):
    """What a decision may say beside its tool and parameters (docs/planners.md)."""

    subject_id: str
    space_id: str
    action_id: str
    idempotency_key: str
    dry_run: bool
    qos: Mapping[str, Any]
    policy_ctx: Mapping[str, Any]
    rationale: Mapping[str, Any]
    candidates: Sequence[Mapping[str, Any]]
    chosen: str
    propensity: float
    context: Mapping[str, float | str]
    trace_id: str
    session: str


class BatchItem(TypedDict, total=False):
    """One action of a batch (docs/batches.md)."""

    tool_id: Required[str]
    params: Required[Mapping[str, Any]]
    qos: Mapping[str, Any]
    idempotency_key: str


class BatchOptions(TypedDict, total=False):
    """What a batch may say beside its items and its mode (docs/batches.md)."""

    subject_id: str
    space_id: str
    batch_id: str
    dry_run: bool
    timeout_ms: int
    rationale: Mapping[str, Any]
    session: str


@dataclass(slots=True)
class Link:
    """What all operations of one client share."""

    target: str
    subject_id: str | None = None
    space_id: str | None = None
    retry_for: float = 30.0
    was_reached: bool = False
    takes_space: dict[str, bool] = field(default_factory=dict[str, bool])

    def ask(self, request: Request) -> Flow[Reply]:
        """One request, repeated while that is safe and may help."""
        until, outcome_unknown = None, request.is_begun
        for attempt in range(ATTEMPTS_MAX):
            try:
                reply = yield request
            except httpx2.RequestError as lost:
                failure, again = self._lost(request, lost, attempt)
            else:
                if reply is None:
                    raise TypeError("a request was not answered")
                self.was_reached = True
                if reply.status < 400:
                    return reply
                failure = errors.of_answer(reply.status, reply.headers, reply.body)
                again = failure.retryable and (request.repeatable or (failure.problem is not None and reply.status in (429, 503)))
            # Only a receipt settles what an earlier attempt may have done.
            outcome_unknown = failure.outcome_unknown or (outcome_unknown and failure.receipt is None)
            failure.outcome_unknown = outcome_unknown
            until = until or time.monotonic() + self.retry_for
            pause = min(PAUSE_MAX_S, PAUSE_MIN_S * 2**attempt) * random.uniform(0.5, 1)  # noqa: S311 no secret
            pause = max(pause, failure.retry_after or 0)
            if not again or attempt + 1 == ATTEMPTS_MAX or time.monotonic() + pause > until:
                raise failure
            yield Pause(pause)
        raise AssertionError("the last attempt returns or raises")

    def _lost(self, request: Request, lost: httpx2.RequestError, attempt: int) -> tuple[errors.EffectdError, bool]:
        """The error of an attempt without an answer, and whether another attempt is safe and may help."""
        was_sent = not isinstance(lost, httpx2.ConnectError | httpx2.ConnectTimeout | httpx2.PoolTimeout)
        cause: BaseException | None = lost
        while cause and not isinstance(cause, ssl.SSLCertVerificationError):
            cause = cause.__cause__ or cause.__context__
        if cause:
            why = f"the certificate of {self.target} is not trusted; name the file of its authority with ca="
        elif was_sent:
            why = "the connection broke before the answer"
        else:
            why = f"no daemon answers at {self.target}; start one with `effectd serve`, or name its socket, state or URL"
        failure = errors.ConnectionLost(f"{why} ({lost!r})")
        is_there = self.was_reached or attempt > 0
        return failure, cause is None and (request.repeatable if was_sent else is_there)

    def json(self, request: Request) -> Flow[Any]:
        reply = yield from self.ask(request)
        try:
            return json.loads(reply.body)
        except (ValueError, RecursionError):
            raise errors.UnexpectedAnswer("the answer is no JSON", status=reply.status) from None

    def decision(self, tool_id: str, params: Mapping[str, Any], options: ActionOptions) -> dict[str, Any]:
        """The body of a decision. Its id is made here, once, and stays the same in every attempt."""
        body: dict[str, Any] = {"action_id": str(uuid.uuid4()), "tool_id": tool_id, "params": dict(params)}
        body |= {"subject_id": self.subject_id, "space_id": self.space_id}
        body |= {name: value for name, value in options.items() if name != "session" and value is not None}
        for name in ("subject_id", "space_id"):
            if body[name] is None:
                raise ValueError(f"name {name}, here or in Effectd(…)")
        # A repeat sends the same, whatever the caller does with its own meanwhile.
        return copy.deepcopy(body)

    def place(self, options: ActionOptions) -> dict[str, str | int | None]:
        """Who acts where, for a URL; what is left out follows from the policy, or from the session of the token."""
        session = options.get("session")
        subject, space = options.get("subject_id", self.subject_id), options.get("space_id", self.space_id)
        return {"session": session, "subject": subject, "space": space}


def _read(model: type[M], value: Any) -> M:
    try:
        return model.model_validate(value)
    except ValidationError as error:
        # Its values stay out of messages and logs.
        where = "; ".join(".".join(map(str, fault["loc"])) for fault in error.errors(include_input=False))
        raise errors.UnexpectedAnswer(f"the answer is from another version of effectd: {where}") from None


@contextmanager
def _shape() -> Generator[None, None, None]:
    """An answer of another shape is an error of effectd, too."""
    try:
        yield
    except (AttributeError, KeyError, TypeError) as error:
        raise errors.UnexpectedAnswer(f"the answer is from another version of effectd: {error!r}") from None


def _path(*parts: str) -> str:
    return "/v1/" + "/".join(quote(part, safe="") for part in parts)


def _trace() -> dict[str, str]:
    """The headers of the current span, if OpenTelemetry is there."""
    try:
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
    except ImportError:
        return {}
    headers: dict[str, str] = {}
    TraceContextTextMapPropagator().inject(headers)
    return headers


def _send(link: Link, tool_id: str, params: Mapping[str, Any], options: ActionOptions, wait: int | None) -> Flow[Status]:
    body = link.decision(tool_id, params, options)
    query = {"wait": wait, "session": options.get("session")}
    return _read(Status, (yield from link.json(Request("POST", "/v1/actions", query, body, _trace()))))


def submit(link: Link, tool_id: str, params: Mapping[str, Any], options: ActionOptions) -> Flow[Status]:
    return (yield from _send(link, tool_id, params, options, None))


def execute(link: Link, tool_id: str, params: Mapping[str, Any], options: ActionOptions, timeout: float | None) -> Flow[Done]:
    until = _until(timeout)
    status = yield from _send(link, tool_id, params, options, _step_ms(until))
    if status.state == "held":
        raise _pending(status)
    return (yield from _ended(link, status, until))


def wait(link: Link, action_id: str, timeout: float | None) -> Flow[Done]:
    """Waits until an action has ended, also for a person's decision."""
    until = _until(timeout)
    return (yield from _ended(link, (yield from _wait(link, action_id, until)), until))


def _wait(link: Link, action_id: str, until: float | None) -> Flow[Status]:
    request = Request("GET", f"{_path('actions', action_id)}/wait", {"timeout_ms": _step_ms(until)}, is_begun=True)
    return _read(Status, (yield from link.json(request)))


def _ended(link: Link, status: Status, until: float | None) -> Flow[Done]:
    while status.state in ("accepted", "held"):
        if until is not None and time.monotonic() >= until:
            if status.state == "held":
                raise _pending(status)
            raise errors.NotEnded("the action goes on; wait for it with its action_id", status)
        status = yield from _wait(link, status.action_id, until)
    if status.state != "done":
        raise errors.EffectsPaused("effects are paused: nothing was changed", status)
    return _read(Done, status.raw)


def _pending(status: Status) -> errors.ApprovalPending:
    why = "; ".join(status.approval.reasons) if status.approval else ""
    return errors.ApprovalPending(why or "a person must decide", status)


def _until(timeout: float | None) -> float | None:
    return None if timeout is None else time.monotonic() + timeout


def _step_ms(until: float | None) -> int:
    left = WAIT_STEP_S if until is None else min(WAIT_STEP_S, max(0.0, until - time.monotonic()))
    return int(left * 1000)


def status(link: Link, action_id: str) -> Flow[Status]:
    return _read(Status, (yield from link.json(Request("GET", _path("actions", action_id)))))


def cancel(link: Link, action_id: str) -> Flow[Status]:
    return _read(Status, (yield from link.json(Request("DELETE", _path("actions", action_id)))))


def preview(link: Link, tool_id: str, params: Mapping[str, Any], options: ActionOptions) -> Flow[Preview]:
    body, query = link.decision(tool_id, params, options), {"session": options.get("session")}
    return _read(Preview, (yield from link.json(Request("POST", "/v1/preview", query, body))))


def batch(link: Link, items: Sequence[BatchItem], mode: str, options: BatchOptions, timeout: float | None) -> Flow[Batch]:
    body: dict[str, Any] = {"batch_id": str(uuid.uuid4()), "mode": mode, "items": list(items)}
    body |= {"subject_id": link.subject_id, "space_id": link.space_id}
    body |= {name: value for name, value in options.items() if name != "session" and value is not None}
    for name in ("subject_id", "space_id"):
        if body[name] is None:
            raise ValueError(f"name {name}, here or in Effectd(…)")
    body = copy.deepcopy(body)
    until = _until(timeout)
    while True:
        query = {"wait_ms": _step_ms(until), "session": options.get("session")}
        found = _read(Batch, (yield from link.json(Request("POST", "/v1/batches", query, body, _trace()))))
        if found.state != "accepted" or (until is not None and time.monotonic() >= until):
            return found


def batch_of(link: Link, batch_id: str) -> Flow[Batch]:
    return _read(Batch, (yield from link.json(Request("GET", _path("batches", batch_id)))))


def plan(link: Link, plan: Mapping[str, Any], session: str | None, timeout: float | None) -> Flow[PlanResult]:
    """A plan's id is made here, once, so that a repeat after a lost answer is the same plan."""
    place = {"subjectId": link.subject_id, "spaceId": link.space_id}
    body = {
        "actionId": str(uuid.uuid4()),
        **{name: value for name, value in place.items() if value is not None},
        **copy.deepcopy(dict(plan)),
    }
    until = _until(timeout)
    query = {"session": session, "timeout_ms": _step_ms(until)}
    return (yield from _planned(link, (yield from link.json(Request("POST", "/v1/plans", query, body, _trace()))), until))


def plan_result(link: Link, action_id: str, timeout: float | None) -> Flow[PlanResult]:
    answer = yield from link.json(Request("GET", _path("plans", action_id)))
    return (yield from _planned(link, answer, _until(timeout)))


def _planned(link: Link, answer: Any, until: float | None) -> Flow[PlanResult]:
    while isinstance(answer, dict) and "state" in answer:
        status = _read(Status, answer)
        if until is not None and time.monotonic() >= until:
            raise errors.NotEnded("the plan goes on; wait for it with its action_id", status)
        # A failure is a result of the plan, and no error.
        request = Request("GET", f"{_path('actions', status.action_id)}/wait", {"timeout_ms": _step_ms(until)}, is_begun=True)
        try:
            yield from link.ask(request)
        except errors.EffectdError as failure:
            if failure.receipt is None:
                raise
        answer = yield from link.json(Request("GET", _path("plans", status.action_id)))
    return _read(PlanResult, answer)


def receipt(link: Link, receipt_id: str) -> Flow[Receipt]:
    return _read(Receipt, (yield from link.json(Request("GET", _path("receipts", receipt_id)))))


def undo(link: Link, receipt_id: str, options: ActionOptions, timeout: float | None) -> Flow[Done]:
    found = yield from receipt(link, receipt_id)
    place: ActionOptions = {"subject_id": found.subject_id, "space_id": found.space_id}
    params = {"receipt_id": found.receipt_id, "space_id": found.space_id}
    return (yield from execute(link, "files.undo", params, place | options, timeout))


def show_approval(link: Link, approval_id: str) -> Flow[Approval]:
    return _read(Approval, (yield from link.json(Request("GET", _path("approvals", approval_id)))))


def decide(link: Link, approval: Approval, verdict: str, body: dict[str, Any], timeout: float) -> Flow[Decision]:
    """A decision is not repeated when its answer was lost: then `approvals.show` says what became of it."""
    query = {"wait_ms": int(min(timeout, WAIT_STEP_S) * 1000)} if verdict == "approve" else {}
    path = f"{_path('approvals', approval.approval_id)}/{verdict}"
    return _read(Decision, (yield from link.json(Request("POST", path, query, body, repeatable=False))))


def call(link: Link, method: str, path: str, query: Mapping[str, Any] | None, body: Any) -> Flow[Any]:
    request = Request(method, path, query or {}, body, repeatable=method == "GET")
    return (yield from link.json(request))


@dataclass(frozen=True, slots=True)
class Described:
    """A tool as a model reads it."""

    name: str
    """At most 64 letters, digits, `_` and `-`."""
    tool_id: str
    description: str
    schema: dict[str, Any]
    """JSON Schema of the parameters, without the space."""
    risk: str
    """The tier, from R0 to R4."""
    mode: str
    """What the policy answers now: `allow` or `require_approval`. Other parameters can get another answer."""

    def parts(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in Described.__slots__}


def tools(link: Link, place: dict[str, str | int | None]) -> Flow[list[Described]]:
    """The tools that the policy could allow, with names and descriptions for models: the list that MCP clients get."""
    message = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
    answer = yield from link.json(Request("POST", "/mcp", place, message))
    made: list[Described] = []
    with _shape():
        if "error" in answer:
            raise errors.UnexpectedAnswer(str(answer["error"].get("message")))
        for tool in answer["result"]["tools"]:
            meta = tool.get("_meta", {})
            # effectd's own tools, about actions, are methods of the client.
            if "effectd/tool" in meta:
                words = tool["name"], meta["effectd/tool"], tool["description"], tool["inputSchema"]
                made.append(Described(*words, meta["effectd/risk"], meta["effectd/mode"]))
    return made


def call_tool(link: Link, tool_id: str, params: Mapping[str, Any], options: ActionOptions, timeout: float | None) -> Flow[Done]:
    """Executes a tool with the parameters of a model, to which the space is added where the tool takes it."""
    if tool_id not in link.takes_space:
        shown = yield from link.json(Request("GET", _path("tools", tool_id)))
        with _shape():
            link.takes_space[tool_id] = "space_id" in shown["spec"]["params_schema"].get("properties", {})
    space = options.get("space_id", link.space_id)
    added = {"space_id": space} if link.takes_space[tool_id] else {}
    return (yield from execute(link, tool_id, {**params, **added}, options, timeout))


class Source(Generic[T]):
    """Items that come in pages."""

    def __init__(self, link: Link) -> None:
        self.link = link
        self.ready: deque[T] = deque()
        self.is_over = False

    def page(self) -> Flow[None]:
        """Fetches the next page, or finds that it was the last."""
        raise NotImplementedError

    def next(self) -> Flow[T | None]:
        """The next item; None at the end."""
        while not self.ready and not self.is_over:
            yield from self.page()
        return self.take() if self.ready else None

    def take(self) -> T:
        return self.ready.popleft()

    def close(self) -> Flow[None]:
        self.ready.clear()
        self.is_over = True
        yield from ()


class ReceiptSource(Source[Receipt]):
    def __init__(
        self,
        link: Link,
        matching: str,
        newest: bool,
        cursor: int | None,
        limit: int | None,
        follow: bool,
    ) -> None:
        super().__init__(link)
        self.matching, self.newest, self.left, self.follow = matching, newest, limit, follow
        self.cursor, self._following = cursor, cursor
        self.is_over = limit == 0
        if newest and follow:
            raise ValueError("new receipts are followed in the order oldest first")

    def next(self) -> Flow[Receipt | None]:
        if not self.ready:
            # Whoever asks for the next page has handled this one.
            self.cursor = self._following
        return (yield from super().next())

    def page(self) -> Flow[None]:
        query: dict[str, str | int | None] = {
            "q": self.matching or None,
            "order": "newest" if self.newest else "oldest",
            "after": self._following,
            "limit": PAGE if self.left is None else min(PAGE, self.left),
            "amendments": "true",
            "wait_ms": int(WAIT_STEP_S * 1000) if self.follow else None,
        }
        answer = yield from self.link.json(Request("GET", "/v1/receipts", query))
        amended: dict[str, list[Amendment]] = {}
        with _shape():
            for value in answer.get("amendments", []):
                amendment = _read(Amendment, value)
                amended.setdefault(amendment.receipt_id, []).append(amendment)
            for value in answer["receipts"]:
                receipt = _read(Receipt, value)
                receipt.amendments.extend(amended.get(receipt.receipt_id, []))
                self.ready.append(receipt)
            following = answer.get("next")
            self.is_over = following is None and not self.follow
            self._following = following if following is not None else answer.get("follow", self._following)
        if not self.ready:
            self.cursor = self._following

    def take(self) -> Receipt:
        taken = super().take()
        if self.left is not None:
            self.left -= 1
            if self.left <= 0:
                self.ready.clear()
                self.is_over = True
        return taken


class ApprovalSource(Source[Approval]):
    after: str | None = None

    def page(self) -> Flow[None]:
        answer = yield from self.link.json(Request("GET", "/v1/approvals", {"after": self.after}))
        with _shape():
            self.ready.extend(_read(Approval, value) for value in answer["approvals"])
            self.after = answer.get("next")
        self.is_over = self.after is None


class ReplaySource(Source[Event]):
    """Events of a topic for a consumer group. An event is consumed when the next one is asked for, or by `ack`."""

    def __init__(self, link: Link, group: str, topic: str, follow: bool) -> None:
        super().__init__(link)
        self.topic, self.follow = _path("store", "topics", topic), follow
        self.group = f"{self.topic}/groups/{quote(group, safe='')}"
        self.read: int | None = None
        """Where the next page begins."""
        self.taken: Event | None = None
        self.consumed: int | None = None
        """The offset after the last event that was consumed."""
        self.stored: int | None = None

    def page(self) -> Flow[None]:
        yield from self.commit()
        if self.read is None:
            group = yield from self.link.json(Request("GET", self.group))
            with _shape():
                self.read = self.stored = group["offset"]
        wait = int(WAIT_STEP_S * 1000) if self.follow else 0
        answer = yield from self.link.json(Request("GET", self.topic, {"from": self.read, "wait_ms": wait}))
        with _shape():
            self.ready.extend(_read(Event, value) for value in answer["events"])
            self.read, is_last = answer["next"], answer["next"] >= answer["end"]
        if not self.ready:
            # What others may not read counts as read, too.
            self.consumed = self.read
            yield from self.commit()
        self.is_over = not self.follow and is_last

    def next(self) -> Flow[Event | None]:
        self.consume()
        event = yield from super().next()
        if event is None:
            yield from self.commit()
        return event

    def take(self) -> Event:
        self.taken = super().take()
        return self.taken

    def consume(self) -> None:
        if self.taken:
            self.consumed, self.taken = self.taken.offset + 1, None

    def commit(self) -> Flow[None]:
        if self.consumed is not None and self.consumed != self.stored:
            yield from self.link.json(Request("POST", self.group, {"to": self.consumed}))
            self.stored = self.consumed

    def ack(self) -> Flow[None]:
        self.consume()
        yield from self.commit()

    def close(self) -> Flow[None]:
        """Acknowledges what was consumed; not the event that the caller is at."""
        yield from self.commit()
        yield from super().close()
