#!/usr/bin/env python3
"""A LangGraph agent whose graph stops where a person must decide, and goes on when they have.

    OPENAI_BASE_URL=http://127.0.0.1:11434/v1 OPENAI_API_KEY=none python examples/agents/langgraph_agent.py --model qwen3 "Tidy up the notes."

The graph's interrupt says what waits. Its resume value says nothing: the node asks effectd again, and only a decision by
`effectd approvals approve`, or `deny`, lets it pass.
"""

import argparse
import json
import uuid

from effectd import Effectd
from effectd.adapters import not_done, schema
from effectd.errors import ApprovalPending, EffectdError
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import ToolMessage
from langchain_core.runnables import RunnableConfig
from langchain_openai import ChatOpenAI
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.graph.state import CompiledStateGraph
from langgraph.types import Command, Send, interrupt


def build(effectd: Effectd, model: BaseChatModel) -> CompiledStateGraph:
    tools = {tool.name: tool for tool in effectd.tools()}
    functions = [{"name": tool.name, "description": tool.description, "parameters": schema(tool)} for tool in tools.values()]
    bound = model.bind_tools([{"type": "function", "function": function} for function in functions])

    def think(state: MessagesState) -> dict:
        return {"messages": [bound.invoke(state["messages"])]}

    def act(asked: dict, config: RunnableConfig) -> dict:
        """Runs again from its beginning when the graph resumes: under the same id, an action happens once."""
        place = f"{config['configurable']['thread_id']}/{asked['turn']}/{asked['call']['id']}"
        action_id = str(uuid.uuid5(uuid.NAMESPACE_URL, place))

        def said(text: str, status: str) -> dict:
            return {"messages": [ToolMessage(text, tool_call_id=asked["call"]["id"], status=status)]}

        tool = tools.get(asked["call"]["name"])
        if tool is None:
            return said("there is no such tool", "error")
        while True:
            try:
                done = tool.call(asked["call"]["args"], action_id=action_id)
                return said(json.dumps({**(done.result or {}), "_receipt": done.receipt.receipt_id}), "success")
            except ApprovalPending as held:
                interrupt({"approval": held.approval, "action": held.action.action_id, "why": held.detail})
            except (EffectdError, TypeError, ValueError) as error:
                return said(not_done(error).text, "error")

    def after(state: MessagesState) -> list[Send]:
        """One run of `act` for each call, so that each has its own interrupt. A call whose parameters are no JSON gets an answer, too."""
        *_, last = messages = state["messages"]
        return [Send("act", {"call": call, "turn": len(messages)}) for call in [*last.tool_calls, *last.invalid_tool_calls]]

    graph = StateGraph(MessagesState)
    graph.add_node("think", think)
    graph.add_node("act", act)
    graph.add_edge(START, "think")
    graph.add_conditional_edges("think", after, ["act"])
    graph.add_edge("act", "think")
    return graph.compile(checkpointer=InMemorySaver())


def run(effectd: Effectd, graph: CompiledStateGraph, task: str) -> str:
    config = {"configurable": {"thread_id": str(uuid.uuid4())}}
    state = graph.invoke({"messages": [("user", task)]}, config)
    while held := state.get("__interrupt__"):
        for each in held:
            print(f"waits for a person: effectd approvals approve {each.value['approval']}", flush=True)
        for each in held:
            try:
                effectd.wait(each.value["action"])
            except EffectdError:
                pass  # denied, expired or failed: the node learns it, and tells the model
        state = graph.invoke(Command(resume={each.id: "look again" for each in held}), config)
    return state["messages"][-1].text


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="A LangGraph agent that acts by effectd.")
    parser.add_argument("task")
    parser.add_argument("--model", required=True)
    parser.add_argument("--subject", default="agent://planner@deviceA")
    parser.add_argument("--space", default="shared:household")
    arguments = parser.parse_args()
    with Effectd(subject_id=arguments.subject, space_id=arguments.space) as effectd:
        print(run(effectd, build(effectd, ChatOpenAI(model=arguments.model)), arguments.task))
