#!/usr/bin/env python3
"""A planner that needs nothing but Python: sends a decision over the unix socket and prints the answer.

    python3 examples/planner.py .effectd/run/effectd.sock examples/write_note.json
"""

import http.client
import json
import socket
import sys


class Effectd(http.client.HTTPConnection):
    def __init__(self, path):
        super().__init__("effectd")
        self.path = path

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.connect(self.path)


if len(sys.argv) != 3:
    sys.exit("usage: planner.py SOCKET DECISION.json")
path, decision = sys.argv[1:]
try:
    with open(decision, encoding="utf-8") as file:
        body = file.read().encode()
except OSError as error:
    sys.exit(f"the decision cannot be read: {error}")
effectd = Effectd(path)
try:
    # If no answer comes, send the same decision again: an action_id is carried out once.
    effectd.request("POST", "/v1/actions?wait", body, {"Content-Type": "application/json"})
    answer = effectd.getresponse()
    print(answer.status, json.dumps(json.load(answer), indent=2))
except (OSError, http.client.HTTPException) as error:
    sys.exit(f"no daemon answers on {path} ({error}); start one with `effectd serve`, or name the socket of its state")
