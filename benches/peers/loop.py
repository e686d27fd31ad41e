"""The loop that every client in Python runs, and what it prints: one JSON line for each measurement."""

import asyncio
import json
import os
import sys
import threading
import time

# Time that passes before anything is counted.
FIRST_S = 0.5
# Points of the distribution of latencies that are kept for the plots.
POINTS = (1, 5, 10, 25, 50, 75, 90, 95, 99, 99.9)


def settings():
    """How long each measurement takes, and how many are in flight: as `run` says."""
    seconds = float(os.environ.get("PEERS_SECONDS", "3"))
    depths = [int(text) for text in os.environ.get("PEERS_IN_FLIGHT", "1,8,64").split(",")]
    return seconds, depths


def message(name):
    """What is sent to every peer: the decision that effectd gets, about half a KiB of JSON."""
    return {
        "action_id": name,
        "subject_id": "agent://planner@deviceA",
        "space_id": "shared:household",
        "tool_id": "files.write_text",
        "params": {
            "path": "workspace/%s.txt" % name.rsplit("-", 1)[0],
            "text": "the text of %s, %s" % (name, "x" * 256),
            "space_id": "shared:household",
        },
        "policy_ctx": {"actor": "alice", "device": "phone1"},
    }


def report(peer, version, work, in_flight, seconds, times):
    """Prints one measurement. A peer that did nothing has failed."""
    if not times:
        sys.exit("%s, %s, %d in flight: nothing was done within %s s" % (peer, work, in_flight, seconds))
    times.sort()

    def at(percent):
        return round(times[min(int(len(times) * percent / 100), len(times) - 1)] * 1e6, 1)

    line = {
        "peer": peer,
        "version": version,
        "work": work,
        "in_flight": in_flight,
        "seconds": seconds,
        "done": len(times),
        "per_second": round(len(times) / seconds, 1),
        "p50_us": at(50),
        "p99_us": at(99),
        "quantiles_us": {str(point): at(point) for point in POINTS},
    }
    print(json.dumps(line), flush=True)


async def lanes(in_flight, seconds, one):
    """So many lanes side by side, each one thing after another; how long each thing took."""
    begun = time.perf_counter()
    times = []

    async def lane(number):
        turn = 0
        while True:
            before = time.perf_counter()
            if before - begun > FIRST_S + seconds:
                return
            await one(number, turn)
            if before - begun > FIRST_S:
                times.append(time.perf_counter() - before)
            turn += 1

    await asyncio.gather(*(lane(number) for number in range(in_flight)))
    return times


def threads(in_flight, seconds, one):
    """The same with a thread for each lane, for clients that block."""
    begun = time.perf_counter()
    times, faults = [], []

    def lane(number):
        turn = 0
        try:
            while not faults:
                before = time.perf_counter()
                if before - begun > FIRST_S + seconds:
                    return
                one(number, turn)
                if before - begun > FIRST_S:
                    times.append(time.perf_counter() - before)
                turn += 1
        except BaseException as fault:  # handed to the main thread
            faults.append(fault)

    running = [threading.Thread(target=lane, args=(number,)) for number in range(in_flight)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    if faults:
        raise faults[0]
    return times
