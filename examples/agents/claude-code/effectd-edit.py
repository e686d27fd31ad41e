#!/usr/bin/env python3
"""A PreToolUse hook of Claude Code: effectd makes the edits that Claude wants to make with its own tools Write and Edit.

Claude Code runs this before the tool, with the call as JSON on standard input. effectd does the edit, and the answer denies the tool with
the reason that it is done: so the edit is made once, by effectd. Whatever goes wrong here ends with 2, which stops the tool as well. So does a
time limit of its own, which is shorter than that of the settings: a hook that Claude Code itself breaks off may let the tool run.
"""

import hashlib
import json
import os
import signal
import subprocess
import sys


def call_of(tool, edit, root):
    """The edit as a call of effectd's tools."""
    if not os.path.isabs(edit["file_path"]):
        sys.exit(f"{edit['file_path']} is no absolute path")
    path = os.path.realpath(edit["file_path"])
    inside = os.path.relpath(path, root)
    if inside == ".." or inside.startswith("../"):
        sys.exit(f"{path} is outside of the project {root}, where effectd changes nothing")
    if os.path.exists(path) and not os.path.isfile(path):
        sys.exit(f"{path} is no regular file")
    path_there = os.path.join("workspace", inside)
    if tool == "Write":
        return "files_write_text", {"path": path_there, "text": edit["content"]}
    find, replace = edit["old_string"], edit["new_string"]
    try:
        with open(path, encoding="utf-8", newline="") as file:
            text = file.read()
    except FileNotFoundError:
        text = ""
    if not find:
        if text:
            sys.exit(f"{path} is not empty: say in old_string what to replace")
        return "files_write_text", {"path": path_there, "text": replace}
    count = text.count(find) if edit.get("replace_all") else 1
    return "files_edit_text", {"path": path_there, "find": find, "replace": replace, "count": max(count, 1)}


def state_of(root):
    """The state that `effectd mcp install` made for exactly this folder: in another one, `workspace` would be another folder."""
    states = os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
    state = os.path.join(states, "effectd", hashlib.sha256(os.fsencode(root)).hexdigest()[:16])
    if not os.path.isdir(state):
        sys.exit(f"effectd is not set up for {root}: run `effectd mcp install claude-code` there, and start Claude Code there")
    return state


def ask(name, arguments, key, root):
    """What effectd answers. With Claude's own id of the call, a repeat is the same action."""
    params = {"name": name, "arguments": arguments, "_meta": {"claudecode/toolUseId": key}}
    request = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params})
    command = ["effectd", "--state", state_of(root), "mcp"]
    with subprocess.Popen(command, cwd=root, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, encoding="utf-8") as effectd:
        effectd.stdin.write(request + "\n")
        effectd.stdin.flush()
        for line in effectd.stdout:
            answer = json.loads(line)
            if "result" in answer or "error" in answer:  # A line that is too long is answered without its id.
                effectd.stdin.close()
                return answer
    raise EOFError("effectd has ended without an answer; `effectd receipts list` shows what it did")


def told(answer, path):
    """What Claude is told."""
    if "error" in answer:
        return f"Not done, effectd could not take the edit: {answer['error']['message']}"
    result = answer["result"]
    text = "\n".join(part["text"] for part in result["content"] if part["type"] == "text")
    if result.get("isError"):
        return f"Not done, effectd refused the edit: {text}"
    receipt = result.get("_meta", {}).get("effectd/receiptId")
    if receipt is None:  # A person must decide, or it takes long.
        return text
    return f"Done: effectd has made this edit of {path} (receipt {receipt}). Do not repeat it. Read the file before you edit it again."


def late(*_):
    """Ends at once, whatever else is waited for; `effectd mcp` ends with its input."""
    os.write(2, b"effectd has not answered in 100 s; `effectd receipts list` shows what it did\n")
    os._exit(2)


def main():
    event = json.load(sys.stdin.buffer)
    tool, edit = event["tool_name"], event["tool_input"]
    root = os.path.realpath(os.environ.get("CLAUDE_PROJECT_DIR") or event["cwd"])
    if tool not in ("Write", "Edit"):
        sys.exit(f"effectd does no {tool}: use Write or Edit")
    name, arguments = call_of(tool, edit, root)
    reason = told(ask(name, arguments, event["tool_use_id"], root), edit["file_path"])
    decision = {"hookEventName": "PreToolUse", "permissionDecision": "deny", "permissionDecisionReason": reason}
    print(json.dumps({"hookSpecificOutput": decision}))


signal.signal(signal.SIGALRM, late)
signal.alarm(100)
try:
    main()
except SystemExit as why:
    print(f"Not done: {why}", file=sys.stderr)
    sys.exit(2)
except Exception as error:  # No failure may let Claude's own tool run.
    print(f"effectd cannot be asked about this edit: {error!r}", file=sys.stderr)
    sys.exit(2)
