"""An agent by the official client, in each of its modes, over TCP with a token and by `effectd mcp`.

Arguments: the program, and the address. It runs in the folder of the project; the token is in $EFFECTD_TOKEN. Where a call waits for a
person, `effectd approvals approve` is that person.
"""

import asyncio
import json
import os
import subprocess
import sys
import time

import httpx2
from mcp import Client, MCPError, StdioServerParameters
from mcp.client.streamable_http import streamable_http_client

PROGRAM, URL = sys.argv[1:3]
WANTED = {"files_write_text", "files_delete", "effectd_wait", "effectd_undo", "effectd_preview"}


def effectd(*arguments):
    return subprocess.run([PROGRAM, *arguments], check=True, capture_output=True, text=True).stdout


def approve():
    """The person: waits for the one question, and approves it."""
    end = time.monotonic() + 30
    while not (pending := json.loads(effectd("approvals", "list", "-o", "json"))):
        assert time.monotonic() < end, "nobody asks"
        time.sleep(0.1)
    [question] = pending
    effectd("approvals", "approve", question["approval_id"])


def receipts():
    listed = json.loads(effectd("receipts", "list", "--limit", "100", "-o", "json"))
    return {receipt["receipt_id"] for receipt in listed}


async def works(client, name):
    """Writes a file, is refused, deletes the file once a person agrees, and undoes that."""
    before = receipts()
    tools = {tool.name: tool for tool in (await client.list_tools()).tools}
    assert WANTED <= tools.keys(), tools.keys()
    assert tools["files_read_text"].annotations.read_only_hint and tools["files_delete"].annotations.destructive_hint
    path = f"workspace/{name}.txt"
    written = await client.call_tool("files_write_text", {"path": path, "text": name})
    assert not written.is_error, written
    refused = await client.call_tool("files_write_text", {"path": "workspace/.git/config", "text": name})
    assert refused.is_error and refused.structured_content["code"] == "path_denied", refused
    try:
        await client.call_tool("files_nothing", {})
    except MCPError as error:
        assert error.code == -32602, error
    else:
        raise AssertionError("there is no such tool")
    person = asyncio.create_task(asyncio.to_thread(approve))
    deleted = await client.call_tool("files_delete", {"path": path})
    if deleted.structured_content.get("status") == "awaiting_approval":
        deleted = await client.call_tool("effectd_wait", {"action_id": deleted.structured_content["action_id"]})
    await person
    assert not deleted.is_error and not os.path.exists(f"{name}.txt"), deleted
    undone = await client.call_tool("effectd_undo", {"receipt_id": deleted.structured_content["_receipt"]})
    assert not undone.is_error, undone
    with open(f"{name}.txt", encoding="utf-8") as file:
        assert file.read() == name
    ids = {done.meta["effectd/receiptId"] for done in (written, refused, deleted, undone)}
    assert len(ids) == 4 and receipts() - before == ids, (ids, receipts() - before)
    shown = await client.read_resource(f"effectd://receipts/{undone.structured_content['_receipt']}")
    assert json.loads(shown.contents[0].text)["tool_id"] == "files.undo", shown


async def main():
    token = {"Authorization": f"Bearer {os.environ['EFFECTD_TOKEN']}"}
    for mode in ("auto", "legacy", "2026-07-28"):
        async with httpx2.AsyncClient(headers=token, timeout=60) as http:
            async with Client(streamable_http_client(URL, http_client=http), mode=mode) as client:
                await works(client, f"tcp-{mode}")
        bridge = StdioServerParameters(command=PROGRAM, args=["mcp"], env=dict(os.environ))
        async with Client(bridge, mode=mode) as client:
            await works(client, f"stdio-{mode}")
        print(f"mcp, {mode}: works over TCP and by `effectd mcp`")


asyncio.run(main())
