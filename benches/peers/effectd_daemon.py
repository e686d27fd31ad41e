"""effectd itself, through its daemon's socket: the whole action, from the decision to its signed receipt.

A connection for each lane, one request after another on it. `write` replaces a small file; `again` sends the same decision
again, under a new action id, and gets the receipt of the first time.
"""

import asyncio
import json
import sys

import loop


class Connection:
    def __init__(self, path):
        self.path, self.ends = path, None

    async def exec(self, decision):
        """Posts one decision and waits for its receipt: status and body."""
        if self.ends is None:
            self.ends = await asyncio.open_unix_connection(self.path)
        reader, writer = self.ends
        body = json.dumps(decision).encode()
        head = "POST /v1/actions?wait HTTP/1.1\r\nhost: effectd\r\ncontent-type: application/json\r\n"
        writer.write(b"%scontent-length: %d\r\n\r\n%s" % (head.encode(), len(body), body))
        answer = await reader.readuntil(b"\r\n\r\n")
        lines = answer.decode().lower().split("\r\n")
        length = next(int(line.split(":")[1]) for line in lines if line.startswith("content-length:"))
        return int(lines[0].split()[1]), await reader.readexactly(length)


async def main():
    path, version = sys.argv[1:3]
    seconds, depths = loop.settings()
    connections = [Connection(path) for _ in range(max(depths))]

    async def send(lane, decision):
        status, body = await connections[lane].exec(decision)
        if status != 200:
            raise RuntimeError("%d: %s" % (status, body.decode()))

    for depth in depths:

        async def write(lane, turn):
            decision = loop.message("w%d-%d-%d" % (depth, lane, turn))
            decision["params"]["path"] = "workspace/lane-%d.txt" % lane
            await send(lane, decision)

        times = await loop.lanes(depth, seconds, write)
        loop.report("effectd", version, "whole action", depth, seconds, times)
    for depth in depths:

        async def again(lane, turn):
            decision = loop.message("again-%d" % lane)
            decision["params"]["path"] = "workspace/again-%d.txt" % lane
            decision["action_id"] = "again-%d-%d-%d" % (depth, lane, turn)
            await send(lane, decision)

        times = await loop.lanes(depth, seconds, again)
        loop.report("effectd", version, "same request again", depth, seconds, times)


asyncio.run(main())
