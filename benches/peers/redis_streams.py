"""Redis Streams with a consumer group: XADD, XREADGROUP, XACK, each message durable before the next step.

With N in flight, N messages go in as one pipeline, are read as one batch and acknowledged as one pipeline: the way in which
Redis is fastest, since it then writes and syncs its file once for all of them. With `write` beside it, a program in
bubblewrap writes and syncs a small file for every message between reading and acknowledging it.
"""

import json
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import redis

import loop
import sandboxes


def measure(client, version, depth, seconds, effect):
    stream, group = "decisions-%d-%s" % (depth, bool(effect)), "workers"
    client.xgroup_create(stream, group, id="0", mkstream=True)
    times, turn = [], 0
    begun = time.perf_counter()
    while True:
        before = time.perf_counter()
        if before - begun > loop.FIRST_S + seconds:
            break
        into = client.pipeline(transaction=False)
        for lane in range(depth):
            into.xadd(stream, {"d": json.dumps(loop.message("r%d-%d" % (lane, turn)))})
        into.execute()
        got = client.xreadgroup(group, "one", {stream: ">"}, count=depth)[0][1]
        assert len(got) == depth, len(got)
        if effect:
            effect([json.loads(fields[b"d"]) for _, fields in got])
        out = client.pipeline(transaction=False)
        for number, _ in got:
            out.xack(stream, group, number)
        assert all(done == 1 for done in out.execute())
        if before - begun > loop.FIRST_S:
            times += [time.perf_counter() - before] * depth
        turn += 1
    work = "write in bubblewrap" if effect else "queue"
    loop.report("redis-streams", version, work, depth, seconds, times)


def main():
    socket, folder, bwrap = sys.argv[1:4]
    client = redis.Redis(unix_socket_path=socket)
    version = client.info("server")["redis_version"]
    kept = client.config_get("append*")
    assert (kept["appendonly"], kept["appendfsync"]) == ("yes", "always"), kept
    seconds, depths = loop.settings()
    for depth in depths:
        measure(client, version, depth, seconds, None)
    if bwrap == "none":
        return
    with ThreadPoolExecutor(max(depths)) as pool:

        def one(decision):
            name = os.path.basename(decision["params"]["path"])
            command = sandboxes.bubblewrap(bwrap, folder, name)
            subprocess.run(command, input=decision["params"]["text"].encode(), check=True)

        for depth in depths:
            measure(client, version, depth, seconds, lambda decisions: list(pool.map(one, decisions)))


main()
