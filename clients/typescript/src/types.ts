/** Names for what the API's document generates (`openapi.ts`), and the options of calls. */
import type { components, operations } from "./openapi.js";

export type Schemas = components["schemas"];
export type Action = Schemas["ActionView"];
export type Receipt = Schemas["Receipt"];
type Calls = { [Call in Schemas["ToolCall"] as Call["tool_id"]]: Call["params"] };
/** The id of a tool. Of effectd's own tools, the parameters and the results are known. */
export type ToolId = keyof Calls | (string & {});
export type Params<T> = T extends keyof Calls ? Calls[T] : Record<string, unknown>;
export type Result<T> = T extends keyof Calls ? Schemas[`${T}-result`] : Record<string, unknown>;
/** An action that is done, now or earlier; or that was only checked, if its request had `dry_run`: see `outcome`. */
export type Done<T = string> = Omit<Action, "result" | "receipt"> & { receipt: Receipt; result?: Result<T> };
export type Place = { subject_id: string; space_id: string };
export type Signal = { signal?: AbortSignal };
/** The members of a request beside its tool. An `action_id` that is left out is made once, before the first attempt. */
export type Call = Omit<Schemas["ActionRequest"], "action_id" | "tool_id" | "params"> & { action_id?: string; session?: string } & Signal;
export type ReceiptOptions = Omit<NonNullable<operations["receipts_list"]["parameters"]["query"]>, "wait_ms"> & { follow?: boolean } & Signal;
export type Receipts = AsyncIterable<Receipt> & { cursor: number | undefined };
export type ReplayOptions = { topic?: string; follow?: boolean } & Signal;
/** What a person has seen of an approval: its digest covers the parameters, the tool, the rules, and the present state of the paths. */
export type Question = Pick<Schemas["ApprovalView"], "approval_id" | "digest">;
export type Yes = Omit<Schemas["ApproveBody"], "digest"> & { wait_ms?: number };
/** An action that was submitted. `cancel` withdraws it, if it has not begun. */
export type Submitted<T> = { action_id: string; wait: (until?: Signal) => Promise<Done<T>> } & Record<"status" | "cancel", () => Promise<Action>>;
/** An event of a topic, as CloudEvents has it. */
export type TopicEvent = { offset: number; id: string; type: string; data?: Record<string, unknown>; [member: string]: unknown };
/** A tool as a model needs it: the model gets `name`, `description` and `schema`, and `call` the arguments that the model chose. */
export type Tool = { name: string; description: string; schema: Record<string, unknown>; risk: Schemas["RiskTier"]; tool_id: string } & {
  call: (params: Record<string, unknown>, options?: Partial<Call>) => Promise<Done>;
};
