// The model of an agent, by a script: it writes a file, deletes it, waits for the person, and undoes the deletion. The argument is its port.
import { LLMock } from "@copilotkit/aimock";

const PATH = "workspace/claude.txt";
const call = (name, args) => ({ toolCalls: [{ name: `mcp__effectd__${name}`, arguments: JSON.stringify(args) }] });

function next({ messages, tools }) {
  // Titles and the like, which agents ask for beside their work.
  if (!tools?.length) return { content: "none" };
  const calls = messages.flatMap((message) => message.tool_calls ?? []);
  const told = JSON.stringify(messages.filter(({ role }) => role === "tool").at(-1)?.content ?? "");
  const named = (name) => told.match(new RegExp(`${name}[^0-9a-zA-Z]+([0-9a-zA-Z/_.-]+)`))?.[1];
  switch (calls.at(-1)?.function.name.replace("mcp__effectd__", "")) {
    case undefined:
      return call("files_write_text", { path: PATH, text: "by claude" });
    case "files_write_text":
      return call("files_delete", { path: PATH });
    case "files_delete":
    case "effectd_wait":
      if (told.includes("awaiting_approval")) return call("effectd_wait", { action_id: named("action_id") });
      return call("effectd_undo", { receipt_id: named("_receipt") });
    default:
      return { content: "All is as it was." };
  }
}

const mock = new LLMock({ port: Number(process.argv[2]) });
mock.addFixture({ match: { predicate: () => true }, response: next });
await mock.start();
