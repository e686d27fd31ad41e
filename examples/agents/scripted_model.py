"""A model that follows a script, behind a small OpenAI-compatible HTTP server on loopback. It refuses what such APIs refuse."""

import json
import threading
from collections.abc import Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

# The calls of one turn, or the last words.
Turn = list[tuple[str, dict[str, Any] | str]] | str


def refusal(request: dict[str, Any]) -> str | None:
    """Why an API of the field would answer 400."""
    for tool in request.get("tools", []):
        parameters = tool["function"]["parameters"]
        if parameters.get("type") != "object" or {"oneOf", "anyOf", "allOf", "enum", "not"} & parameters.keys():
            name = tool["function"]["name"]
            return f"Invalid schema for function '{name}': schema must have type 'object' and not have 'oneOf'/'anyOf'/… at the top level"
    open_calls: set[str] = set()
    for message in request["messages"]:
        if message["role"] == "tool":
            if message["tool_call_id"] not in open_calls:
                return "messages with role 'tool' must be a response to a preceding message with 'tool_calls'"
            open_calls.remove(message["tool_call_id"])
        elif open_calls:
            return f"an assistant message with 'tool_calls' must be followed by tool messages: {sorted(open_calls)}"
        open_calls |= {call["id"] for call in message.get("tool_calls") or []}
    return f"calls without an answer: {sorted(open_calls)}" if open_calls else None


class ScriptedModel:
    """`with ScriptedModel(turns) as model: OpenAI(base_url=model.url)`. `heard` has every request."""

    def __init__(self, turns: Sequence[Turn]) -> None:
        self.heard: list[dict[str, Any]] = []
        heard = self.heard

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                request = json.loads(self.rfile.read(int(self.headers["content-length"])))
                why = refusal(request) if self.path == "/v1/chat/completions" else f"no such path: {self.path}"
                heard.append(request)
                if why:
                    self.say(400, {"error": {"message": why, "type": "invalid_request_error", "param": None, "code": None}})
                    return
                spoken = sum(message["role"] == "assistant" for message in request["messages"])
                turn = turns[spoken]
                message: dict[str, Any] = {"role": "assistant", "content": turn if isinstance(turn, str) else None}
                if not isinstance(turn, str):
                    message["tool_calls"] = [
                        {"id": f"call_{spoken}_{place}", "type": "function",
                         "function": {"name": name, "arguments": params if isinstance(params, str) else json.dumps(params)}}
                        for place, (name, params) in enumerate(turn)
                    ]
                self.say(200, {
                    "id": "chatcmpl-1", "object": "chat.completion", "created": 0, "model": request["model"],
                    "choices": [{"index": 0, "message": message, "finish_reason": "stop" if isinstance(turn, str) else "tool_calls"}],
                    "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
                })

            def say(self, status: int, body: dict[str, Any]) -> None:
                content = json.dumps(body).encode()
                self.send_response(status)
                self.send_header("content-type", "application/json")
                self.send_header("content-length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/v1"

    def __enter__(self) -> "ScriptedModel":
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.server.shutdown()
        self.server.server_close()
