#!/usr/bin/env python3
"""An agent in a loop: a model with an OpenAI-compatible API thinks, effectd acts. What needs a person waits for one.

    OPENAI_BASE_URL=http://127.0.0.1:11434/v1 OPENAI_API_KEY=none python examples/agents/openai_loop.py --model qwen3 "Tidy up the notes."
"""

import argparse
import json
import sys

from effectd import Effectd, Tool
from effectd.adapters import not_done, schema
from effectd.errors import ApprovalPending, EffectdError
from openai import OpenAI

TURNS_MAX = 20


def call(effectd: Effectd, tool: Tool | None, arguments: str) -> str:
    """Executes what the model asks for. Every end is a text for the model, which may then choose something else."""
    try:
        try:
            if tool is None:
                return "there is no such tool"
            done = tool.call(json.loads(arguments))
        except ApprovalPending as held:
            print(f"waits for a person: effectd approvals approve {held.approval}", file=sys.stderr, flush=True)
            done = effectd.wait(held.action.action_id)
    except (EffectdError, TypeError, ValueError) as error:
        return not_done(error).text
    return json.dumps({**(done.result or {}), "_receipt": done.receipt.receipt_id})


def run(effectd: Effectd, openai: OpenAI, model: str, task: str) -> str:
    tools = {tool.name: tool for tool in effectd.tools()}
    functions = [{"name": tool.name, "description": tool.description, "parameters": schema(tool)} for tool in tools.values()]
    messages = [{"role": "user", "content": task}]
    for _ in range(TURNS_MAX):
        answer = openai.chat.completions.create(
            model=model, messages=messages, tools=[{"type": "function", "function": function} for function in functions]
        )
        message = answer.choices[0].message
        messages.append(message.model_dump(exclude_none=True))
        if not message.tool_calls:
            return message.content or ""
        for asked in message.tool_calls:
            text = call(effectd, tools.get(asked.function.name), asked.function.arguments)
            messages.append({"role": "tool", "tool_call_id": asked.id, "content": text})
    raise SystemExit(f"no end after {TURNS_MAX} turns")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="An agent that acts by effectd.")
    parser.add_argument("task")
    parser.add_argument("--model", required=True)
    parser.add_argument("--subject", default="agent://planner@deviceA")
    parser.add_argument("--space", default="shared:household")
    arguments = parser.parse_args()
    with Effectd(subject_id=arguments.subject, space_id=arguments.space) as effectd:
        print(run(effectd, OpenAI(), arguments.model, arguments.task))
