"""Calls of a tool that does nothing, over MCP: how many a second.

Arguments: the name and the version of the peer, the address, and the name of the tool. $PEERS_TOKEN is its token, if it wants one. The
dialect is that of 2025-11-25, which all of them speak. A lane is one connection and one session, if the peer has sessions.
"""

import asyncio
import json
import os
import sys
from urllib.parse import urlsplit

import loop

VERSION = "2025-11-25"


class Session:
    def __init__(self, url):
        self.url, self.ends, self.headers = urlsplit(url), None, {}
        if token := os.environ.get("PEERS_TOKEN"):
            self.headers["authorization"] = "Bearer " + token

    async def begin(self):
        about = {"protocolVersion": VERSION, "capabilities": {}, "clientInfo": {"name": "peers", "version": "1"}}
        headers, _ = await self.post({"id": 0, "method": "initialize", "params": about})
        self.headers["mcp-protocol-version"] = VERSION
        if session := headers.get("mcp-session-id"):
            self.headers["mcp-session-id"] = session
        await self.post({"method": "notifications/initialized"})

    async def call(self, number, tool, text):
        params = {"name": tool, "arguments": {"error_text": text}}
        _, body = await self.post({"id": number, "method": "tools/call", "params": params})
        lines = [line.removeprefix("data: ") for line in body.splitlines()]
        answer = next(json.loads(line) for line in reversed(lines) if line.startswith("{"))
        if answer.get("id") != number or "result" not in answer or answer["result"].get("isError"):
            raise RuntimeError(body)

    async def post(self, message):
        """Sends one message: the headers and the body of the answer."""
        if self.ends is None:
            self.ends = await asyncio.open_connection(self.url.hostname, self.url.port)
        reader, writer = self.ends
        body = json.dumps({"jsonrpc": "2.0", **message}).encode()
        kinds = "content-type: application/json\r\naccept: application/json, text/event-stream\r\n"
        more = "".join("%s: %s\r\n" % pair for pair in self.headers.items())
        head = "POST %s HTTP/1.1\r\nhost: %s\r\n%s%scontent-length: %d\r\n\r\n"
        writer.write((head % (self.url.path, self.url.netloc, kinds, more, len(body))).encode() + body)
        lines = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:])}
        if "content-length" in headers:
            answer = await reader.readexactly(int(headers["content-length"]))
        elif headers.get("transfer-encoding") == "chunked":
            answer = b""
            while size := int(await reader.readline(), 16):
                answer += (await reader.readexactly(size + 2))[:-2]
            await reader.readline()
        else:
            answer = b""
        if headers.get("connection") == "close":
            writer.close()
            self.ends = None
        if int(lines[0].split()[1]) not in (200, 202):
            raise RuntimeError(lines[0] + " " + answer.decode())
        return headers, answer.decode()


async def main():
    peer, version, url, tool = sys.argv[1:5]
    seconds, depths = loop.settings()
    for depth in depths:
        # Each depth has new sessions: servers close connections that are idle for some seconds.
        sessions = [Session(url) for _ in range(depth)]
        for session in sessions:
            await session.begin()

        async def call(lane, turn):
            await sessions[lane].call(turn + 1, tool, "%s %d %d %d" % (peer, depth, lane, turn))

        times = await loop.lanes(depth, seconds, call)
        loop.report(peer, version, "call of a tool over MCP", depth, seconds, times)


asyncio.run(main())
