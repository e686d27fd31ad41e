"""DBOS: a workflow of one step, under an id of the caller's, so that asking again gives the same answer.

Twice: with a step that does nothing, and with one that writes and syncs a small file, unconfined.
"""

import importlib.metadata
import os
import sys

from dbos import DBOS, SetWorkflowID

import loop

url, folder = sys.argv[1:3]
# Threads of its own for all that is in flight.
DBOS(config={
    "name": "peers",
    "system_database_url": url,
    "log_level": "ERROR",
    "run_admin_server": False,
    "sys_db_pool_size": 64,
})  # fmt: skip


@DBOS.step()
def nothing(decision):
    return len(decision["params"]["text"])


@DBOS.step()
def write(decision):
    path = os.path.join(folder, os.path.basename(decision["params"]["path"]))
    with open(path, "wb") as file:
        count = file.write(decision["params"]["text"].encode())
        file.flush()
        os.fsync(file.fileno())
    return count


@DBOS.workflow()
def handle(decision):
    return nothing(decision)


@DBOS.workflow()
def handle_write(decision):
    return write(decision)


def main():
    DBOS.launch()
    version = importlib.metadata.version("dbos") + (" on SQLite" if url.startswith("sqlite") else " on Postgres")
    seconds, depths = loop.settings()
    for work, workflow in (("handler", handle), ("write, unconfined", handle_write)):
        for depth in depths:

            def one(lane, turn):
                name = "%s-%d-%d-%d" % (workflow.__name__, depth, lane, turn)
                with SetWorkflowID(name):
                    assert workflow(loop.message(name)) > 256

            loop.report("dbos", version, work, depth, seconds, loop.threads(depth, seconds, one))
    DBOS.destroy()


main()
