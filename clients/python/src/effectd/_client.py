"""The clients: `Effectd`, and `AsyncEffectd` with the same names. Both drive the generators of `_core.py`."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from os import PathLike
from typing import Any, Generic, Self, TypeVar, Unpack

import httpx2

from . import _core as core
from . import _target, errors
from .models import Approval, Batch, Decision, Done, Event, PlanResult, Preview, Receipt, Status

T = TypeVar("T")
FilePath = str | PathLike[str]


class _Options:
    """What both clients are made of."""

    def __init__(
        self,
        url: str | None = None,
        token: str | None = None,
        *,
        socket: FilePath | None = None,
        state: FilePath | None = None,
        context: str | None = None,
        ca: FilePath | None = None,
        subject_id: str | None = None,
        space_id: str | None = None,
        retry_for: float = 30.0,
    ) -> None:
        """Finds the daemon: what is named here, in the environment, by the current context, or on this machine (docs/python.md).

        `subject_id` and `space_id` are for calls that name none. `retry_for` bounds, in seconds, the repeats of one request."""
        self._target = _target.find(url=url, token=token, socket=socket, state=state, context=context, ca=ca)
        self._link = core.Link(str(self._target), subject_id, space_id, retry_for)
        self._open()

    def _open(self) -> None:
        raise NotImplementedError

    def _settings(self) -> dict[str, Any]:
        token = self._target.token
        headers = {"authorization": f"Bearer {token}"} if token else {}
        timeout = httpx2.Timeout(core.ANSWER_TIME_MAX_S, connect=10.0)
        # Neither a proxy nor a password of the environment is for a token of effectd.
        return {"base_url": self._target.url, "headers": headers, "timeout": timeout, "trust_env": False}

    def _transport(self) -> dict[str, Any]:
        socket = self._target.socket
        return {"verify": self._target.trust(), "uds": str(socket) if socket else None, "trust_env": False}


def _arguments(request: core.Request) -> dict[str, Any]:
    json = {"content-type": "application/json"} if request.body is not None else {}
    headers = {**request.headers, **json, "accept-encoding": "identity"}
    return {
        "method": request.method,
        "url": request.path,
        "params": request.params(),
        "content": request.content(),
        "headers": headers,
    }


def _grown(body: bytearray, more: bytes) -> None:
    body += more
    if len(body) > core.ANSWER_BYTES_MAX:
        raise errors.UnexpectedAnswer(f"the answer is longer than {core.ANSWER_BYTES_MAX} bytes")


@dataclass(frozen=True, slots=True)
class Tool(core.Described):
    """A tool for a model, and its call."""

    client: Effectd = field(repr=False)
    options: core.ActionOptions = field(repr=False)

    def call(
        self,
        params: Mapping[str, Any],
        *,
        timeout: float | None = None,
        **options: Unpack[core.ActionOptions],
    ) -> Done:
        """Executes it: every call is an action of its own."""
        every: core.ActionOptions = {**self.options, **options}
        return self.client._run(core.call_tool(self.client._link, self.tool_id, params, every, timeout))


@dataclass(frozen=True, slots=True)
class AsyncTool(core.Described):
    """A tool for a model, and its call."""

    client: AsyncEffectd = field(repr=False)
    options: core.ActionOptions = field(repr=False)

    async def acall(
        self,
        params: Mapping[str, Any],
        *,
        timeout: float | None = None,  # noqa: ASYNC109
        **options: Unpack[core.ActionOptions],
    ) -> Done:
        """Executes it: every call is an action of its own."""
        every: core.ActionOptions = {**self.options, **options}
        return await self.client._run(core.call_tool(self.client._link, self.tool_id, params, every, timeout))


@dataclass(frozen=True, slots=True)
class Action:
    """An action that was submitted."""

    action_id: str
    client: Effectd = field(repr=False)

    def wait(self, timeout: float | None = None) -> Done:
        return self.client.wait(self.action_id, timeout)

    def status(self) -> Status:
        return self.client.status(self.action_id)

    def cancel(self) -> Status:
        return self.client.cancel(self.action_id)


@dataclass(frozen=True, slots=True)
class AsyncAction:
    """An action that was submitted."""

    action_id: str
    client: AsyncEffectd = field(repr=False)

    async def wait(self, timeout: float | None = None) -> Done:  # noqa: ASYNC109
        return await self.client.wait(self.action_id, timeout)

    async def status(self) -> Status:
        return await self.client.status(self.action_id)

    async def cancel(self) -> Status:
        return await self.client.cancel(self.action_id)


class Items(Generic[T]):
    """An iterator over pages."""

    def __init__(self, client: Effectd, source: core.Source[T]) -> None:
        self._client, self._source = client, source

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> T:
        item = self._client._run(self._source.next())
        if item is None:
            raise StopIteration
        return item

    def close(self) -> None:
        self._client._run(self._source.close())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class AsyncItems(Generic[T]):
    """An iterator over pages."""

    def __init__(self, client: AsyncEffectd, source: core.Source[T]) -> None:
        self._client, self._source = client, source

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> T:
        item = await self._client._run(self._source.next())
        if item is None:
            raise StopAsyncIteration
        return item

    async def close(self) -> None:
        await self._client._run(self._source.close())

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


class _Cursor:
    _source: core.Source[Receipt]

    @property
    def cursor(self) -> int | None:
        """For `receipts(cursor=…)`: the page that is being read. Receipts may repeat, and none is missing."""
        assert isinstance(self._source, core.ReceiptSource)  # noqa: S101 made so
        return self._source.cursor


class Receipts(_Cursor, Items[Receipt]):
    """Receipts, page by page."""


class AsyncReceipts(_Cursor, AsyncItems[Receipt]):
    """Receipts, page by page."""


class Replay(Items[Event]):
    """Events of a topic. An event is acknowledged when the next one is asked for, a page at a time; `ack` does it now."""

    def ack(self) -> None:
        assert isinstance(self._source, core.ReplaySource)  # noqa: S101 made so
        self._client._run(self._source.ack())


class AsyncReplay(AsyncItems[Event]):
    """Events of a topic. An event is acknowledged when the next one is asked for, a page at a time; `ack` does it now."""

    async def ack(self) -> None:
        assert isinstance(self._source, core.ReplaySource)  # noqa: S101 made so
        await self._client._run(self._source.ack())


def _yes(approval: Approval, how: str, calls: int | None, seconds: int | None, org: bool, reason: str | None) -> dict[str, Any]:
    terms = {"calls_max": calls, "lasts_s": seconds, "reason": reason}
    return {"digest": approval.digest, "how": how, "org": org, **terms}


class Approvals:
    """Questions to people, for those who decide."""

    def __init__(self, client: Effectd) -> None:
        self._client = client

    def list(self) -> Items[Approval]:
        """What is pending, oldest first."""
        return Items(self._client, core.ApprovalSource(self._client._link))

    def show(self, approval_id: str) -> Approval:
        return self._client._run(core.show_approval(self._client._link, approval_id))

    def approve(
        self,
        approval: Approval,
        *,
        how: str = "once",
        calls: int | None = None,
        seconds: int | None = None,
        org: bool = False,
        reason: str | None = None,
        timeout: float = core.WAIT_STEP_S,
    ) -> Decision:
        """Approves what was shown; raises `AskChanged` if the question has changed since. Waits at most 30 s for the end."""
        body = _yes(approval, how, calls, seconds, org, reason)
        return self._client._run(core.decide(self._client._link, approval, "approve", body, timeout))

    def deny(self, approval: Approval, *, reason: str | None = None) -> Decision:
        return self._client._run(core.decide(self._client._link, approval, "deny", {"reason": reason}, 0))


class AsyncApprovals:
    """Questions to people, for those who decide."""

    def __init__(self, client: AsyncEffectd) -> None:
        self._client = client

    def list(self) -> AsyncItems[Approval]:
        """What is pending, oldest first."""
        return AsyncItems(self._client, core.ApprovalSource(self._client._link))

    async def show(self, approval_id: str) -> Approval:
        return await self._client._run(core.show_approval(self._client._link, approval_id))

    async def approve(
        self,
        approval: Approval,
        *,
        how: str = "once",
        calls: int | None = None,
        seconds: int | None = None,
        org: bool = False,
        reason: str | None = None,
        timeout: float = core.WAIT_STEP_S,  # noqa: ASYNC109
    ) -> Decision:
        """Approves what was shown; raises `AskChanged` if the question has changed since. Waits at most 30 s for the end."""
        body = _yes(approval, how, calls, seconds, org, reason)
        return await self._client._run(core.decide(self._client._link, approval, "approve", body, timeout))

    async def deny(self, approval: Approval, *, reason: str | None = None) -> Decision:
        return await self._client._run(core.decide(self._client._link, approval, "deny", {"reason": reason}, 0))


class Effectd(_Options):
    """A client of effectd."""

    def _open(self) -> None:
        self._http = httpx2.Client(transport=httpx2.HTTPTransport(**self._transport()), **self._settings())
        self.approvals = Approvals(self)

    def close(self) -> None:
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _run(self, flow: core.Flow[T]) -> T:
        try:
            asked = next(flow)
            while True:
                try:
                    reply = self._answer(asked)
                except httpx2.RequestError as error:
                    asked = flow.throw(error)
                else:
                    asked = flow.send(reply)
        except StopIteration as end:
            made: T = end.value
            return made

    def _answer(self, asked: core.Request | core.Pause) -> core.Reply | None:
        if isinstance(asked, core.Pause):
            time.sleep(asked.seconds)
            return None
        body = bytearray()
        with self._http.stream(**_arguments(asked)) as response:
            for piece in response.iter_bytes():
                _grown(body, piece)
        return core.Reply(response.status_code, response.headers, bytes(body))

    def execute(
        self,
        tool_id: str,
        params: Mapping[str, Any],
        *,
        timeout: float | None = None,
        **options: Unpack[core.ActionOptions],
    ) -> Done:
        """Executes an action and waits for its receipt. Raises `ApprovalPending` at once if a person must decide, and the error
        of the action if it was refused or failed."""
        return self._run(core.execute(self._link, tool_id, params, options, timeout))

    def submit(self, tool_id: str, params: Mapping[str, Any], **options: Unpack[core.ActionOptions]) -> Action:
        """Returns when the action is durable: from then on it runs or is refused, also after a crash."""
        return Action(self._run(core.submit(self._link, tool_id, params, options)).action_id, self)

    def wait(self, action_id: str, timeout: float | None = None) -> Done:
        """Waits until an action has ended, also for a person's decision."""
        return self._run(core.wait(self._link, action_id, timeout))

    def status(self, action_id: str) -> Status:
        """Where an action is. An action that was refused or failed is no error here."""
        return self._run(core.status(self._link, action_id))

    def cancel(self, action_id: str) -> Status:
        """Withdraws an action that has not begun."""
        return self._run(core.cancel(self._link, action_id))

    def preview(self, tool_id: str, params: Mapping[str, Any], **options: Unpack[core.ActionOptions]) -> Preview:
        """What the policy says, and what would change. Nothing is done or recorded."""
        return self._run(core.preview(self._link, tool_id, params, options))

    def batch(
        self,
        items: Sequence[core.BatchItem],
        mode: str = "atomic",
        *,
        timeout: float | None = None,
        **options: Unpack[core.BatchOptions],
    ) -> Batch:
        """Runs several actions in order: `atomic`, all or nothing, or `ordered`, until one fails. Waits until the batch has
        ended, or waits for a person, or the `timeout` is over: then its `state` is `accepted`, and it goes on. A batch that was
        refused or undone is no error here: see its `result`."""
        return self._run(core.batch(self._link, items, mode, options, timeout))

    def batch_of(self, batch_id: str) -> Batch:
        """Where a batch is."""
        return self._run(core.batch_of(self._link, batch_id))

    def plan(self, plan: Mapping[str, Any], *, session: str | None = None, timeout: float | None = None) -> PlanResult:
        """Carries out a plan: execute, verify, repair once, roll back. Its status says how it ended; `queued` means that it
        waits for a person."""
        return self._run(core.plan(self._link, plan, session, timeout))

    def plan_result(self, action_id: str, timeout: float | None = None) -> PlanResult:
        """What a plan came to; another result follows a `queued` one."""
        return self._run(core.plan_result(self._link, action_id, timeout))

    def undo(self, receipt_id: str, *, timeout: float | None = None, **options: Unpack[core.ActionOptions]) -> Done:
        """Undoes what an action changed, if nothing has changed since: an action of its own."""
        return self._run(core.undo(self._link, receipt_id, options, timeout))

    def receipt(self, receipt_id: str) -> Receipt:
        return self._run(core.receipt(self._link, receipt_id))

    def receipts(
        self,
        filter: str = "",  # noqa: A002 the word of docs/receipts.md
        *,
        newest: bool = False,
        cursor: int | None = None,
        limit: int | None = None,
        follow: bool = False,
    ) -> Receipts:
        """Receipts by the filter language of docs/receipts.md, oldest first. With `follow`, waits for new ones."""
        return Receipts(self, core.ReceiptSource(self._link, filter, newest, cursor, limit, follow))

    def replay(self, group: str, topic: str = "ACTION_EXECUTED", *, follow: bool = False) -> Replay:
        """Events that a consumer group has not read. With `follow`, waits for new ones."""
        return Replay(self, core.ReplaySource(self._link, group, topic, follow))

    def tools(self, **options: Unpack[core.ActionOptions]) -> list[Tool]:
        """The tools that the policy could allow to a subject in a space, for a model."""
        found = self._run(core.tools(self._link, self._link.place(options)))
        return [Tool(**tool.parts(), client=self, options=options) for tool in found]

    def call(self, method: str, path: str, query: Mapping[str, Any] | None = None, body: Any = None) -> Any:
        """Any other route of docs/openapi.json, in JSON. Only GET is repeated after a lost answer."""
        return self._run(core.call(self._link, method, path, query, body))


class AsyncEffectd(_Options):
    """A client of effectd, for asyncio."""

    def _open(self) -> None:
        transport = httpx2.AsyncHTTPTransport(**self._transport())
        self._http = httpx2.AsyncClient(transport=transport, **self._settings())
        self.approvals = AsyncApprovals(self)

    async def close(self) -> None:
        await self._http.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _run(self, flow: core.Flow[T]) -> T:
        try:
            asked = next(flow)
            while True:
                try:
                    reply = await self._answer(asked)
                except httpx2.RequestError as error:
                    asked = flow.throw(error)
                else:
                    asked = flow.send(reply)
        except StopIteration as end:
            made: T = end.value
            return made

    async def _answer(self, asked: core.Request | core.Pause) -> core.Reply | None:
        if isinstance(asked, core.Pause):
            await asyncio.sleep(asked.seconds)
            return None
        body = bytearray()
        async with self._http.stream(**_arguments(asked)) as response:
            async for piece in response.aiter_bytes():
                _grown(body, piece)
        return core.Reply(response.status_code, response.headers, bytes(body))

    async def execute(
        self,
        tool_id: str,
        params: Mapping[str, Any],
        *,
        timeout: float | None = None,  # noqa: ASYNC109
        **options: Unpack[core.ActionOptions],
    ) -> Done:
        """Executes an action and waits for its receipt. Raises `ApprovalPending` at once if a person must decide, and the error
        of the action if it was refused or failed."""
        return await self._run(core.execute(self._link, tool_id, params, options, timeout))

    async def submit(self, tool_id: str, params: Mapping[str, Any], **options: Unpack[core.ActionOptions]) -> AsyncAction:
        """Returns when the action is durable: from then on it runs or is refused, also after a crash."""
        return AsyncAction((await self._run(core.submit(self._link, tool_id, params, options))).action_id, self)

    async def wait(self, action_id: str, timeout: float | None = None) -> Done:  # noqa: ASYNC109
        """Waits until an action has ended, also for a person's decision."""
        return await self._run(core.wait(self._link, action_id, timeout))

    async def status(self, action_id: str) -> Status:
        """Where an action is. An action that was refused or failed is no error here."""
        return await self._run(core.status(self._link, action_id))

    async def cancel(self, action_id: str) -> Status:
        """Withdraws an action that has not begun."""
        return await self._run(core.cancel(self._link, action_id))

    async def preview(self, tool_id: str, params: Mapping[str, Any], **options: Unpack[core.ActionOptions]) -> Preview:
        """What the policy says, and what would change. Nothing is done or recorded."""
        return await self._run(core.preview(self._link, tool_id, params, options))

    async def batch(
        self,
        items: Sequence[core.BatchItem],
        mode: str = "atomic",
        *,
        timeout: float | None = None,  # noqa: ASYNC109
        **options: Unpack[core.BatchOptions],
    ) -> Batch:
        """Runs several actions in order: `atomic`, all or nothing, or `ordered`, until one fails. Waits until the batch has
        ended, or waits for a person, or the `timeout` is over: then its `state` is `accepted`, and it goes on. A batch that was
        refused or undone is no error here: see its `result`."""
        return await self._run(core.batch(self._link, items, mode, options, timeout))

    async def batch_of(self, batch_id: str) -> Batch:
        """Where a batch is."""
        return await self._run(core.batch_of(self._link, batch_id))

    async def plan(
        self,
        plan: Mapping[str, Any],
        *,
        session: str | None = None,
        timeout: float | None = None,  # noqa: ASYNC109
    ) -> PlanResult:
        """Carries out a plan: execute, verify, repair once, roll back. Its status says how it ended; `queued` means that it
        waits for a person."""
        return await self._run(core.plan(self._link, plan, session, timeout))

    async def plan_result(self, action_id: str, timeout: float | None = None) -> PlanResult:  # noqa: ASYNC109
        """What a plan came to; another result follows a `queued` one."""
        return await self._run(core.plan_result(self._link, action_id, timeout))

    async def undo(
        self,
        receipt_id: str,
        *,
        timeout: float | None = None,  # noqa: ASYNC109
        **options: Unpack[core.ActionOptions],
    ) -> Done:
        """Undoes what an action changed, if nothing has changed since: an action of its own."""
        return await self._run(core.undo(self._link, receipt_id, options, timeout))

    async def receipt(self, receipt_id: str) -> Receipt:
        return await self._run(core.receipt(self._link, receipt_id))

    def receipts(
        self,
        filter: str = "",  # noqa: A002 the word of docs/receipts.md
        *,
        newest: bool = False,
        cursor: int | None = None,
        limit: int | None = None,
        follow: bool = False,
    ) -> AsyncReceipts:
        """Receipts by the filter language of docs/receipts.md, oldest first. With `follow`, waits for new ones."""
        return AsyncReceipts(self, core.ReceiptSource(self._link, filter, newest, cursor, limit, follow))

    def replay(self, group: str, topic: str = "ACTION_EXECUTED", *, follow: bool = False) -> AsyncReplay:
        """Events that a consumer group has not read. With `follow`, waits for new ones."""
        return AsyncReplay(self, core.ReplaySource(self._link, group, topic, follow))

    async def tools(self, **options: Unpack[core.ActionOptions]) -> list[AsyncTool]:
        """The tools that the policy could allow to a subject in a space, for a model."""
        found = await self._run(core.tools(self._link, self._link.place(options)))
        return [AsyncTool(**tool.parts(), client=self, options=options) for tool in found]

    async def call(self, method: str, path: str, query: Mapping[str, Any] | None = None, body: Any = None) -> Any:
        """Any other route of docs/openapi.json, in JSON. Only GET is repeated after a lost answer."""
        return await self._run(core.call(self._link, method, path, query, body))
