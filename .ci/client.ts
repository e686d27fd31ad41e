// Types that openapi-typescript generated: compiled under `tsc --strict`, never run.
import type { components, operations, paths } from "./effectd.js";

type Schemas = components["schemas"];
type Body = paths["/v1/actions"]["post"]["requestBody"]["content"]["application/json"];
type Answer = operations["actions_submit"]["responses"][200]["content"]["application/json"];

const call: Schemas["ToolCall"] = {
  tool_id: "files.write_text",
  params: { path: "workspace/notes.txt", text: "hello", space_id: "shared:household" },
};
export const request: Body = {
  action_id: "a-1",
  subject_id: "agent://planner@deviceA",
  space_id: "shared:household",
  ...call,
};
export const wrong: Schemas["ToolCall"] = {
  tool_id: "files.write_text",
  // @ts-expect-error These are the parameters of another tool.
  params: { argv: ["ls"], space_id: "shared:household" },
};

export function isDone(answer: Answer): boolean {
  return answer.receipt?.outcome === "executed";
}

// The discriminator selects the case.
export function subject(change: Schemas["PolicyChange"]): string {
  return change.change === "set_org_mode" ? change.org : change.change;
}
