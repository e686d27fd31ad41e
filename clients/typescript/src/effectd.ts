/** The client of effectd. What is sent and received has the names of the API (`action_id`); what is the client's own is in camel case. */
import { randomUUID } from "node:crypto";
import { setTimeout as sleep } from "node:timers/promises";
import createClient, { type Client } from "openapi-fetch";
import { Agent, fetch, Request, Response } from "undici";
import { EffectdError } from "./error.js";
import type { paths } from "./openapi.js";
import { type Options, target } from "./target.js";
import type { Action, Call, Done, Params, Place, Question, ReceiptOptions, Receipts, ReplayOptions } from "./types.js";
import type { Schemas, Signal, Submitted, Tool, ToolId, TopicEvent, Yes } from "./types.js";

export { EffectdError, type Code } from "./error.js";
export type { components, operations, paths } from "./openapi.js";
export type { Options } from "./target.js";
export type * from "./types.js";

/** How long one request waits for an end, and for the next bytes of an answer; how large an answer is read: a page of the largest receipts fits. */
const [WAIT_MS, ANSWER_MS, ANSWER_BYTES] = [30_000, 90_000, 64 * 1_048_576];
type Answer<T> = Promise<{ data?: T; error?: Partial<Schemas["Problem"]>; response: { ok: boolean; status: number } }>;

export class Effectd {
  /** Every route of the API, typed and without retries. */
  readonly http: Client<paths>;
  readonly #agent: Agent;
  readonly #target: ReturnType<typeof target> & { attempts: number };

  constructor(options: Options = {}) {
    const { url, socket } = (this.#target = { attempts: options.attempts ?? 6, ...target(options) });
    this.#agent = new Agent({ headersTimeout: ANSWER_MS, bodyTimeout: ANSWER_MS, connect: socket ? { socketPath: socket } : {} });
    // Node's own `fetch` may refuse the dispatcher of another version of undici, so this is undici's.
    this.http = createClient<paths>({ baseUrl: url, redirect: "error", Request: Request as never, fetch: (request) => this.#send(request) });
  }

  /** Carries out an action and waits for its receipt. If a person must decide first, it throws `approval_pending`. */
  async execute<T extends ToolId>(tool: T, params: Params<T>, options: Call): Promise<Done<T>> {
    const action = await this.#submit(tool, params, options, String(WAIT_MS));
    if (action.state === "accepted") return this.wait<T>(action.action_id, options);
    if (action.state !== "held") return done(action);
    const detail = `${action.approval?.reasons.join("; ")}; wait(${JSON.stringify(action.action_id)}) waits for the person`;
    throw new EffectdError("approval_pending", detail, false, { action });
  }

  /** Submits an action. From the answer on it is durable, and goes on by itself. */
  async submit<T extends ToolId>(tool: T, params: Params<T>, options: Call): Promise<Submitted<T>> {
    const { action_id } = await this.#submit(tool, params, options);
    const init = { params: { path: { id: action_id } } };
    const status = () => this.#ask(() => this.http.GET("/v1/actions/{id}", init));
    const cancel = () => this.#ask(() => this.http.DELETE("/v1/actions/{id}", init));
    return { action_id, wait: (until?: Signal) => this.wait<T>(action_id, until), status, cancel };
  }

  /** Waits until an action has ended, also for a person. The signal ends the wait, not the action. */
  async wait<T = string>(action_id: string, { signal }: Signal = {}): Promise<Done<T>> {
    const init = { params: { path: { id: action_id }, query: { timeout_ms: WAIT_MS } }, signal };
    for (;;) {
      const action = await this.#ask(() => this.http.GET("/v1/actions/{id}/wait", init), signal);
      if (action.state !== "accepted" && action.state !== "held") return done(action);
    }
  }

  /** What the policy would decide, and what would change. Nothing is done or recorded. */
  preview<T extends ToolId>(tool: T, params: Params<T>, { session, signal, ...rest }: Call): Promise<Schemas["PreviewView"]> {
    const init = { params: { query: { session } }, body: request(tool, params, rest), signal };
    return this.#ask(() => this.http.POST("/v1/preview", init), signal);
  }

  /** Undoes what an action changed, for its subject in its space. It is an action of its own, which can be undone as well. */
  async undo(receipt_id: string, options: Partial<Call> = {}): Promise<Done<"files.undo">> {
    const init = { params: { path: { id: receipt_id } }, signal: options.signal };
    const { subject_id, space_id } = await this.#ask(() => this.http.GET("/v1/receipts/{id}", init), options.signal);
    return this.execute("files.undo", { receipt_id, space_id }, { subject_id, space_id, ...options });
  }

  /** Receipts; with `follow`, also those to come. Another loop goes on with `after: cursor`, at the page that was being read. */
  receipts({ follow = false, signal, ...filter }: ReceiptOptions = {}): Receipts {
    const all = { ...filter, wait_ms: follow ? WAIT_MS : undefined };
    const page = (after?: number) => this.#ask(() => this.http.GET("/v1/receipts", { params: { query: { ...all, after } }, signal }), signal);
    return {
      cursor: filter.after,
      async *[Symbol.asyncIterator]() {
        for (let more = true; more; ) {
          const { receipts, next, follow: last } = await page(this.cursor);
          yield* receipts;
          this.cursor = next ?? last ?? this.cursor;
          more = follow || next != null;
        }
      },
    };
  }

  /** What waits for a person. `approve` takes what was shown, and waits at most 30 s for the end. After a lost answer, `show` says if it counted. */
  readonly approvals = {
    list: (query: { after?: string } = {}): Promise<Schemas["ApprovalList"]> => this.#ask(() => this.http.GET("/v1/approvals", { params: { query } })),
    show: (id: string): Promise<Schemas["ApprovalView"]> => this.#ask(() => this.http.GET("/v1/approvals/{id}", { params: { path: { id } } })),
    approve: ({ approval_id: id, digest }: Question, { wait_ms = WAIT_MS, ...how }: Yes = {}): Promise<Schemas["DecisionView"]> => {
      const init = { params: { path: { id }, query: { wait_ms: Math.min(wait_ms, WAIT_MS) } }, body: { ...how, digest } };
      return this.#ask(() => this.http.POST("/v1/approvals/{id}/approve", init), undefined, false);
    },
    deny: ({ approval_id: id }: Pick<Question, "approval_id">, body: Schemas["DenyBody"] = {}): Promise<Schemas["DecisionView"]> =>
      this.#ask(() => this.http.POST("/v1/approvals/{id}/deny", { params: { path: { id } }, body }), undefined, false),
  };

  /** Events that a group has not read. Asking for the next one acknowledges one; after an error in the loop, or a crash, it comes again. */
  async *replay(group: string, { topic = "ACTION_EXECUTED", follow = false, signal }: ReplayOptions = {}): AsyncGenerator<TopicEvent, void> {
    const path = { topic, group };
    const position = await this.#ask(() => this.http.GET("/v1/store/topics/{topic}/groups/{group}", { params: { path }, signal }), signal);
    for (let from = position.offset, end = Infinity; follow || from < end; ) {
      const query = { from: String(from), wait_ms: follow ? WAIT_MS : undefined };
      const page = await this.#ask(() => this.http.GET("/v1/store/topics/{topic}", { params: { path: { topic }, query }, signal }), signal);
      let read = from;
      try {
        for (const event of page.events as TopicEvent[]) {
          yield event;
          read = event.offset + 1;
        }
        read = page.next;
      } finally {
        const params = { path, query: { to: String(read) } };
        if (read > from) await this.#ask(() => this.http.POST("/v1/store/topics/{topic}/groups/{group}", { params }));
      }
      [from, end] = [page.next, page.end];
    }
  }

  /** The tools that the policy could allow this subject in this space. */
  async tools({ subject_id, space_id, signal }: Place & Signal): Promise<Tool[]> {
    type Listed = Omit<Tool, "schema"> & { inputSchema: Tool["schema"]; _meta?: { "effectd/tool": string; "effectd/risk": Tool["risk"] } };
    type Said = Answer<{ result?: { tools: Listed[] }; error?: { message: string } }>; // The API's document leaves MCP out.
    const body = { jsonrpc: "2.0", id: 1, method: "tools/list" };
    const init = { params: { query: { subject: subject_id, space: space_id } }, body, signal } as never;
    const { result, error } = await this.#ask(() => this.http.POST("/mcp" as never, init) as unknown as Said, signal);
    if (!result) throw new EffectdError("bad_answer", error?.message ?? "no list of tools", false);
    return result.tools.flatMap(({ name, description, inputSchema, _meta }) => {
      if (!_meta?.["effectd/tool"]) return []; // It is about calls by MCP, and no action.
      const { "effectd/tool": tool_id, "effectd/risk": risk } = _meta;
      const call: Tool["call"] = async (params, options) => {
        const { spec } = await this.#ask(() => this.http.GET("/v1/tools/{id}", { params: { path: { id: tool_id } } }), options?.signal);
        const takesSpace = "space_id" in ((spec?.params_schema as { properties?: object } | undefined)?.properties ?? {});
        return this.execute(tool_id, takesSpace ? { ...params, space_id } : params, { subject_id, space_id, ...options });
      };
      return [{ name, description, schema: inputSchema, risk, tool_id, call }];
    });
  }

  /** Closes the connections. A program ends without it as well. */
  readonly close = (): Promise<void> => this.#agent.close();

  #submit(tool: string, params: unknown, { session, signal, ...rest }: Call, wait?: string): Promise<Action> {
    const init = { params: { query: { wait, session } }, body: request(tool, params, rest), signal };
    return this.#ask(() => this.http.POST("/v1/actions", init), signal);
  }

  /** Sends a request, and again for at most 30 s if that may help and is safe: a repeat does nothing twice, or the daemon did not take the first. */
  async #ask<T>(send: () => Answer<T>, signal?: AbortSignal, isSafe = true): Promise<T> {
    for (let attempt = 1, until = Infinity; ; attempt++) {
      try {
        return understood(await send());
      } catch (error) {
        if (error instanceof SyntaxError) throw new EffectdError("bad_answer", "the answer is no JSON", false);
        const { retryable = false, problem = undefined } = error instanceof EffectdError ? error : {};
        const mayHelp = retryable && attempt < this.#target.attempts && (isSafe || [429, 503].includes(problem?.status ?? 0));
        const pause = Math.max(problem?.retry_after_ms ?? 0, Math.min(100 * 2 ** attempt, 5_000) * (0.5 + Math.random() / 2));
        until = Math.min(until, performance.now() + WAIT_MS);
        if (!mayHelp || performance.now() + pause > until) throw error;
        await sleep(pause, undefined, { signal });
      }
    }
  }

  /** Sends a request and reads its whole answer, except a stream: whatever can break does so here. */
  async #send(request: globalThis.Request): Promise<globalThis.Response> {
    const { url, token } = this.#target;
    if (token) request.headers.set("authorization", `Bearer ${token}`);
    try {
      const response = await fetch(request as unknown as Request, { dispatcher: this.#agent });
      const isStream = response.headers.get("content-type")?.startsWith("text/event-stream");
      return (isStream ? response : new Response(await whole(response), response)) as unknown as globalThis.Response;
    } catch (cause) {
      request.signal.throwIfAborted();
      if (cause instanceof EffectdError) throw cause;
      const why = (cause as { cause?: Error }).cause?.message ?? String(cause);
      throw new EffectdError("unreachable", `no whole answer came from ${url} (${why})`, true, { cause });
    }
  }
}

/** The body of an answer; `null` if there is none. */
async function whole({ body }: Response): Promise<Buffer | null> {
  const parts: Uint8Array[] = [];
  let size = 0;
  for await (const part of body ?? []) {
    parts.push(part);
    if ((size += part.length) > ANSWER_BYTES) throw new EffectdError("bad_answer", `the answer is longer than ${ANSWER_BYTES} bytes`, false);
  }
  return body && Buffer.concat(parts);
}

/** Made once, so that every attempt is the same action. */
function request(tool_id: string, params: unknown, { action_id = randomUUID(), ...rest }: Omit<Call, "session" | "signal">) {
  return structuredClone({ ...rest, action_id, tool_id, params: params as Record<string, unknown> });
}

function done<T>(action: Action): Done<T> {
  if (action.state === "done" && action.receipt) return action as Done<T>;
  if (action.state !== "ended") throw new EffectdError("bad_answer", "the answer is no action", false);
  throw new EffectdError("paused", "nothing was done; when effects resume, send it under a new action_id", false, { action });
}

function understood<T>({ data, error, response }: Awaited<Answer<T>>): T {
  if (response.ok && data !== undefined) return data;
  if (error?.code && error.detail) throw new EffectdError(error.code, error.detail, error.retryable ?? false, { problem: error as Schemas["Problem"] });
  // A proxy says with 502 or more that it cannot reach the daemon.
  throw new EffectdError("bad_answer", `HTTP ${response.status}, and not an answer of effectd`, response.status >= 502);
}
