/** The one error of the client. */
import type { Action, Receipt, Schemas } from "./types.js";
/** The codes of problems, and four of the client: no answer, one that is not effectd's, a person must decide, and effects are paused. */
export type Code = Schemas["Problem"]["code"] | "unreachable" | "bad_answer" | "approval_pending" | "paused";
type About = { problem?: Schemas["Problem"]; action?: Action; cause?: unknown };

export class EffectdError extends Error {
  override readonly name = "EffectdError";
  /** What the daemon said, whole. */
  readonly problem: Schemas["Problem"] | undefined;
  /** What has to change, and who can change it. */
  readonly change: Schemas["Change"] | undefined;
  readonly actionId: string | undefined;
  /** The receipt of the action, if it has ended. */
  readonly receipt: Receipt | undefined;
  /** The approval that the action waits for. */
  readonly approval: Schemas["HeldView"] | undefined;

  /** `retryable` says whether the same call, with the same `action_id`, may succeed later. */
  constructor(readonly code: Code, detail: string, readonly retryable: boolean, { problem, action, cause }: About = {}) {
    super(`${code}: ${detail}`, { cause });
    this.problem = problem;
    this.change = problem?.change ?? undefined;
    this.actionId = action?.action_id ?? problem?.action_id ?? undefined;
    this.receipt = action?.receipt ?? problem?.receipt;
    this.approval = action?.approval ?? undefined;
  }
}
