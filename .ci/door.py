"""Submits, waits and follows live events by httpx2, over TLS. The arguments are the address and the file of its authority."""

import os
import ssl
import sys

import httpx2

address, authority = sys.argv[1:]


def client(token=None, trust=authority):
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    return httpx2.Client(base_url=address, headers=headers, verify=ssl.create_default_context(cafile=trust), timeout=30)


def submit(planner, name):
    space = "shared:household"
    answer = planner.post("/v1/actions", json={
        "action_id": name,
        "subject_id": "agent://planner@deviceA",
        "space_id": space,
        "tool_id": "files.write_text",
        "params": {"path": f"workspace/{name}.txt", "text": name, "space_id": space},
    })
    assert answer.status_code in (200, 202), answer.text
    ended = planner.get(f"/v1/actions/{name}/wait")
    assert ended.status_code == 200 and ended.json()["receipt"]["outcome"] == "executed", ended.text
    return ended.json()["receipt"]["receipt_id"]


def told(event):
    return event.event, event.json()["id"]


try:
    client(trust=None).get("/healthz")
    raise AssertionError("an unknown authority is trusted")
except httpx2.ConnectError as error:
    assert "CERTIFICATE_VERIFY_FAILED" in str(error), error
with client() as nobody:
    assert nobody.get("/healthz").status_code == 200
    refused = nobody.get("/v1/whoami")
    assert (refused.status_code, refused.headers["www-authenticate"]) == (401, "Bearer"), refused.headers
    assert refused.json()["code"] == "unauthenticated", refused.text

with client(os.environ["EFFECTD_TOKEN"]) as planner, client(os.environ["LISTENER_TOKEN"]) as listener:
    assert planner.get("/v1/whoami").json()["principal"] == "account://home/planner"
    with listener.sse("/v1/stream") as stream:
        receipt = submit(planner, "door-1")
        first = next(iter(stream))
        assert told(first) == ("action_completed", "account://home/planner/door-1"), first
    # Nothing is done twice.
    assert submit(planner, "door-1") == receipt
    # What happens while nobody listens is told afterwards, in order, and then what happens next.
    submit(planner, "door-2")
    submit(planner, "door-3")
    with listener.sse("/v1/stream", headers={"Last-Event-ID": first.id}) as stream:
        events = iter(stream)
        heard = [told(next(events)), told(next(events))]
        submit(planner, "door-4")
        heard.append(told(next(events)))
        assert heard == [("action_completed", f"account://home/planner/door-{number}") for number in (2, 3, 4)], heard
    unknown = listener.get("/v1/stream", headers={"Last-Event-ID": "none"})
    assert (unknown.status_code, unknown.json()["code"]) == (400, "header_invalid"), unknown.text
