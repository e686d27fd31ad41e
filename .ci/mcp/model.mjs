// The model of an agent, by a script. The first argument is its port for Claude Code and Gemini CLI, the second one that for Codex, whose
// tools have a name in two parts. `Tidy up` writes a file, deletes it, waits for the person and undoes the deletion; `Correct` edits one,
// and runs a program on it; `Draft` writes one and edits it by Claude Code's own tools.
import http from "node:http";
import { LLMock } from "@copilotkit/aimock";

// What comes after the last call: another one, or the last words.
function next(asked, called, told) {
  const [, task, folder, file] = asked.match(/(Tidy up|Correct|Draft) ([\w/.-]*?)([a-z]+\.txt)/);
  const path = `workspace/${file}`;
  const waits = told.match(/effectd_wait with action_id ([0-9a-zA-Z-]+)/);
  if (waits) return ["effectd_wait", { action_id: waits[1] }];
  if (task === "Correct") {
    if (!called) return ["files_edit_text", { path, find: "helo", replace: "hello" }];
    if (called === "files_edit_text") return ["command_run", { argv: ["wc", "-w", file] }];
    return `${file} is correct now.`;
  }
  if (task === "Draft") {
    const file_path = folder + file;
    if (!called) return ["Write", { file_path, content: `helo ${file}\n` }];
    if (called === "Write" && told.includes("Done: effectd")) return ["Read", { file_path }];
    if (called === "Read") return ["Edit", { file_path, old_string: "helo", new_string: "hello" }];
    return `The last answer: ${told}`;
  }
  if (!called) return ["files_write_text", { path, text: `by ${file}` }];
  if (called === "files_write_text") return ["files_delete", { path }];
  if (called === "effectd_undo") return "All is as it was.";
  return ["effectd_undo", { receipt_id: told.match(/_receipt[^0-9a-z]+([0-9a-z-]+)/)[1] }];
}

const text = (messages) => JSON.stringify(messages);

function chat({ messages, tools }) {
  // Titles and the like, which agents ask for beside their work.
  if (!tools?.length) return { content: "none" };
  const is_gemini = tools.some((tool) => tool.function.name.startsWith("mcp_effectd_"));
  const prefix = is_gemini ? "mcp_effectd_" : "mcp__effectd__";
  const last = messages.flatMap((message) => message.tool_calls ?? []).at(-1);
  const [asked, told] = ["user", "tool"].map((wanted) => messages.filter(({ role }) => role === wanted));
  const move = next(text(asked), last?.function.name.replace(prefix, ""), text(told.slice(-1)));
  if (typeof move === "string") return { content: move };
  // Those of Claude Code itself begin with a capital letter.
  const name = /^[A-Z]/.test(move[0]) ? move[0] : prefix + move[0];
  return { toolCalls: [{ name, arguments: JSON.stringify(move[1]) }] };
}

const mock = new LLMock({ port: Number(process.argv[2]) });
mock.addFixture({ match: { predicate: () => true }, response: chat });
await mock.start();

function respond({ input, tools }) {
  const { name: namespace } = tools.find(({ name, type }) => type === "namespace" && name.includes("effectd"));
  const last = input.findLast(({ type }) => type === "function_call");
  const told = input.findLast(({ type }) => type === "function_call_output");
  const move = next(text(input.filter(({ role }) => role === "user")), last?.name, text(told?.output ?? ""));
  if (typeof move === "string") return { type: "message", role: "assistant", content: [{ type: "output_text", text: move }] };
  const [name, params] = move;
  return { type: "function_call", call_id: `call-${input.length}`, namespace, name, arguments: JSON.stringify(params) };
}

http
  .createServer(async (request, response) => {
    let body = "";
    for await (const piece of request) body += piece;
    const usage = { input_tokens: 1, output_tokens: 1, total_tokens: 2 };
    const events = [
      { type: "response.created", response: { id: "one" } },
      { type: "response.output_item.done", item: respond(JSON.parse(body)) },
      { type: "response.completed", response: { id: "one", usage } },
    ];
    response.setHeader("content-type", "text/event-stream");
    response.end(events.map((event) => `event: ${event.type}\ndata: ${JSON.stringify(event)}\n\n`).join(""));
  })
  .listen(Number(process.argv[3]), "127.0.0.1");
