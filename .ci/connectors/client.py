"""Calls every tool of an MCP server by effectd, as a client of the conformance suite: `client.py URL`."""

import json
import os
import subprocess
import sys
import uuid

EFFECTD = os.environ["EFFECTD"]
SAMPLES = {"string": "x", "number": 3, "integer": 3, "boolean": True, "object": {}, "array": []}


def effectd(*arguments, stdin=None):
    ran = subprocess.run([EFFECTD, *arguments, "-o", "json"], capture_output=True, text=True, input=stdin)
    sys.stderr.write(ran.stderr)
    try:
        return json.loads(ran.stdout)
    except ValueError:
        sys.exit(f"{arguments}: {ran.returncode}: {ran.stdout}")


def sample(schema):
    properties = schema.get("properties", {})
    return {name: SAMPLES.get(properties.get(name, {}).get("type"), "x") for name in schema.get("required", properties)}


def main():
    url = sys.argv[-1]
    allow = ["--allow", "127.0.0.0/8", "--allow", "::1/128"]
    added = effectd("connectors", "add", "--org", "work", "--name", "suite", "--server", url, *allow, "--yes")
    connector = added["id"]
    try:
        shown = effectd("connectors", "show", connector)
        if shown.get("error"):
            sys.exit(shown["error"])
        refused = {tool["name"] for tool in shown.get("refused", [])}
        tools = [tool for tool in shown.get("tools", []) if tool["name"] not in refused]
        for tool in tools:
            effectd("connectors", "overlay", connector, tool["name"], "--risk", "read", "--yes")
        effectd("connectors", "review", connector, "--yes")
        for tool in tools:
            listed = effectd("tools", "show", f"connector:{connector}.{tool['name']}")
            request = {
                "action_id": str(uuid.uuid4()),
                "subject_id": "agent://planner@deviceA",
                "space_id": "shared:code",
                "tool_id": f"connector:{connector}.{tool['name']}",
                "params": sample(listed["spec"]["params_schema"]),
            }
            print(effectd("run", "-", stdin=json.dumps(request)))
    finally:
        effectd("connectors", "remove", connector, "--yes")


main()
