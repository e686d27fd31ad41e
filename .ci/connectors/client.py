"""Calls the tools of an MCP server by effectd, as a client of the conformance suite: `client.py URL`."""

import json
import os
import subprocess
import sys
import uuid

EFFECTD = os.environ["EFFECTD"]
# What to call, if a scenario says so.
CONTEXT = json.loads(os.environ.get("MCP_CONFORMANCE_CONTEXT", "{}"))
SAMPLES = {"string": "x", "number": 3, "integer": 3, "boolean": True, "object": {}, "array": []}
# Two tools of one scenario: the second one is told the schema of the first, as it was offered.
FOCAL, ECHO = "json_schema_2020_12_tool", "json_schema_echo"


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


def calls(offered):
    """The calls, as pairs of a tool's name and its arguments."""
    if "toolCalls" in CONTEXT:
        for call in CONTEXT["toolCalls"]:
            # What has no value is left out: the schemas allow no null.
            yield call["name"], {name: value for name, value in call["arguments"].items() if value is not None}
    elif ECHO in offered:
        yield ECHO, {"schema": offered[FOCAL]}
    else:
        yield from ((name, sample(schema)) for name, schema in offered.items())


def main():
    url = sys.argv[-1]
    allow = ["--allow", "127.0.0.0/8", "--allow", "::1/128"]
    # Tools that say nothing about their risk ask nobody once they are reviewed.
    added = effectd("connectors", "add", "--org", "work", "--name", "suite", "--server", url, *allow, "--risk", "read", "--yes")
    connector = added["id"]
    try:
        shown = effectd("connectors", "show", connector)
        if shown.get("error"):
            sys.exit(shown["error"])
        effectd("connectors", "review", connector, "--yes")
        own = f"connector:{connector}."
        ids = [tool["tool_id"] for tool in effectd("tools", "list") if tool["tool_id"].startswith(own)]
        offered = {id.removeprefix(own): effectd("tools", "show", id)["spec"]["params_schema"] for id in ids}
        for name, arguments in calls(offered):
            request = {
                "action_id": str(uuid.uuid4()),
                "subject_id": "agent://planner@deviceA",
                "space_id": "shared:code",
                "tool_id": own + name,
                "params": arguments,
                "qos": {"timeout_ms": 5000},
            }
            print(effectd("run", "-", stdin=json.dumps(request)))
    finally:
        effectd("connectors", "remove", connector, "--yes")


main()
