/** The client against the real daemon. */
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { after, before, test } from "node:test";
import { Effectd, EffectdError, type Code, type Receipt, type Schemas, type Submitted } from "effectd";
import { Daemon, place, proxy, strange, until } from "./daemon.js";

let daemon: Daemon;
let effectd: Effectd;
before(async () => {
  daemon = await Daemon.start();
  effectd = new Effectd({ socket: daemon.socket });
});
after(async () => {
  await effectd.close();
  await daemon.remove();
});

/** Parameters of a tool that does it again if it is called again. */
const line = (file: string) => ({ path: `workspace/${file}`, text: "once\n", space_id: place.space_id });

async function refusal(promise: Promise<unknown>, code: Code): Promise<EffectdError> {
  const error = await promise.then(() => assert.fail(`it is not refused as ${code}`), (error: unknown) => error);
  assert.ok(error instanceof EffectdError, String(error));
  assert.equal(error.code, code, error.message);
  return error;
}

async function approvalOf<T>(action: Submitted<T>): Promise<Schemas["HeldView"]> {
  await until("the action waits for a person", async () => (await action.status()).state === "held");
  return (await action.status()).approval!;
}

async function all<T>(items: AsyncIterable<T>): Promise<T[]> {
  const list: T[] = [];
  for await (const item of items) list.push(item);
  return list;
}

test("a write has a typed result, and its repeat the same receipt", async () => {
  const params = { path: "workspace/a.txt", text: "hello", space_id: place.space_id };
  const done = await effectd.execute("files.write_text", params, { ...place, action_id: "write-1" });
  const bytes: number | undefined = done.result?.bytes_written;
  assert.equal(bytes, 5);
  assert.equal(daemon.text("workspace/a.txt"), "hello");
  const again = await effectd.execute("files.write_text", params, { ...place, action_id: "write-1" });
  assert.deepEqual([again.already_done, again.receipt.receipt_id], [true, done.receipt.receipt_id]);
  // @ts-expect-error These are the parameters of another tool.
  const wrong = effectd.execute("files.write_text", { argv: ["ls"], space_id: place.space_id }, place);
  const error = await refusal(wrong, "params_invalid");
  assert.equal(error.receipt?.status, "error");
});

test("the types are of the document that the daemon has", async () => {
  const { data } = await effectd.http.GET("/openapi.json");
  assert.deepEqual(data, JSON.parse(readFileSync("../../docs/openapi.json", "utf8")));
});

test("lost answers are one effect and one receipt", async () => {
  await using between = await proxy(daemon, "drop", "cut", "drop");
  const lossy = new Effectd({ socket: between.socket });
  const done = await lossy.execute("files.append_text", line("lost.txt"), place);
  assert.deepEqual([between.left, done.already_done], [[], true]);
  assert.equal(daemon.text("workspace/lost.txt"), "once\n");
  assert.deepEqual(daemon.receipts("files.append_text").map(({ receipt_id }) => receipt_id), [done.receipt.receipt_id]);
  // The control: without the client's ids, a repeat is a second effect.
  await effectd.execute("files.append_text", line("lost.txt"), place);
  assert.equal(daemon.text("workspace/lost.txt"), "once\nonce\n");
  await lossy.close();
});

test("attempts have a bound", async () => {
  await using between = await proxy(daemon, "drop", "drop", "drop", "drop");
  const lossy = new Effectd({ socket: between.socket, attempts: 2 });
  const error = await refusal(lossy.execute("files.append_text", line("bound.txt"), place), "unreachable");
  assert.deepEqual([error.retryable, between.left.length], [true, 2]);
  assert.equal(daemon.text("workspace/bound.txt"), "once\n");
  await lossy.close();
});

test("an action outlives a killed daemon", async () => {
  await daemon.kill();
  const doing = effectd.execute("files.append_text", line("killed.txt"), place);
  await daemon.serve();
  assert.equal((await doing).outcome, "executed");
  assert.equal(daemon.text("workspace/killed.txt"), "once\n");
});

test("who is told to come later comes later", async () => {
  const busy = await Daemon.start("--set", "gateway.token_rate_max=10");
  const client = new Effectd({ url: busy.url, token: busy.token() });
  const many = Array.from({ length: 30 });
  // The control: without the client's patience, some of so many at once are refused.
  const answers = await Promise.all(many.map(() => client.http.GET("/v1/whoami")));
  assert.ok(answers.some(({ error }) => error?.code === "rate_limited"));
  const done = await Promise.all(many.map((_, index) => client.execute("files.append_text", line(`${index}.txt`), place)));
  assert.equal(new Set(done.map(({ receipt }) => receipt.receipt_id)).size, many.length);
  await client.close();
  await busy.remove();
});

test("a refusal says what has to change", async () => {
  const stranger = { ...place, subject_id: "agent://stranger@deviceA" };
  const error = await refusal(effectd.execute("files.append_text", line("refused.txt"), stranger), "policy_denied");
  assert.ok(error.change?.by && error.change.what && error.actionId);
  assert.deepEqual([error.retryable, error.receipt?.outcome], [false, "denied_policy"]);
  await refusal(effectd.undo("no-such-receipt"), "receipt_unknown");
});

test("a person approves, denies, or the planner withdraws", async () => {
  daemon.run("policy", "set-mode", "--org", "home", "--tool", "files.copy", "require_approval", "--yes");
  const copy = (to: string) => ({ from_path: "workspace/a.txt", to_path: `workspace/${to}`, space_id: place.space_id });
  const held = await refusal(effectd.execute("files.copy", copy("yes.txt"), place), "approval_pending");
  const { approvals } = await effectd.approvals.list();
  assert.deepEqual(approvals.map(({ approval_id }) => approval_id), [held.approval?.approval_id]);
  const waiting = effectd.wait<"files.copy">(held.actionId!);
  const shown = await effectd.approvals.show(held.approval!.approval_id);
  assert.equal(shown.tool_id, "files.copy");
  // Another digest is another question: nothing happens.
  await refusal(effectd.approvals.approve({ ...shown, digest: `hmac-sha256:${"0".repeat(64)}` }), "ask_changed");
  await effectd.approvals.approve(shown, { reason: "as discussed" });
  assert.equal((await waiting).outcome, "executed");
  assert.equal(daemon.text("workspace/yes.txt"), "hello");

  const denied = await effectd.submit("files.copy", copy("no.txt"), place);
  const question = await effectd.approvals.show((await approvalOf(denied)).approval_id);
  await effectd.approvals.deny(question);
  await refusal(denied.wait(), "human_denied");
  await refusal(effectd.approvals.approve(question), "already_decided");

  const withdrawn = await effectd.submit("files.copy", copy("never.txt"), place);
  await assert.rejects(withdrawn.wait({ signal: AbortSignal.timeout(100) }), { name: "TimeoutError" });
  await withdrawn.cancel();
  await refusal(withdrawn.wait(), "cancelled");
});

test("an answer without an end, or of another kind, is refused", async () => {
  const head = "HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-type: application/json\r\n";
  const short = (body: string) => `${head}content-length: ${body.length}\r\n\r\n${body}`;
  const limited = { type: "", title: "", status: 429, detail: "later", code: "rate_limited", retryable: true, retry_after_ms: 31_000 };
  const [endless, page, object, later] = [
    `${head}transfer-encoding: chunked\r\n\r\n`, short("<html>"), short("{}"), short(JSON.stringify(limited)).replace("200 OK", "429 Too Many"),
  ];
  for (const [answer, code] of [[endless, "bad_answer"], [page, "bad_answer"], [object, "bad_answer"], [later, "rate_limited"]] as const) {
    await using between = await strange(daemon, answer, answer === endless);
    const client = new Effectd({ socket: between.socket });
    await refusal(client.wait("any"), code);
    await refusal(client.execute("files.append_text", line("strange.txt"), place), code);
    await client.close();
  }
  assert.throws(() => daemon.text("workspace/strange.txt"), { code: "ENOENT" });
});

test("a decision is not repeated after a lost answer", async () => {
  const held = await effectd.submit("files.copy", { from_path: "workspace/a.txt", to_path: "workspace/d.txt", space_id: place.space_id }, place);
  const shown = await effectd.approvals.show((await approvalOf(held)).approval_id);
  await using between = await proxy(daemon, "drop", "drop");
  const lossy = new Effectd({ socket: between.socket });
  await refusal(lossy.approvals.approve(shown), "unreachable");
  assert.equal(between.left.length, 1);
  assert.equal((await held.wait()).outcome, "executed");
  assert.equal((await effectd.approvals.show(shown.approval_id)).state, "approved");
  await lossy.close();
});

test("a preview and a dry run change nothing", async () => {
  const params = { path: "workspace/a.txt", text: "changed", space_id: place.space_id };
  assert.equal((await effectd.preview("files.write_text", params, place)).verdict, "permit");
  assert.equal((await effectd.execute("files.write_text", params, { ...place, dry_run: true })).outcome, "dry_run");
  assert.equal(daemon.text("workspace/a.txt"), "hello");
});

test("effects that an operator has paused are an error", async () => {
  daemon.run("pause", "--yes", "--reason", "a test");
  await refusal(effectd.execute("files.append_text", line("paused.txt"), place), "paused");
  daemon.run("resume", "--yes");
  await effectd.execute("files.append_text", line("paused.txt"), place);
});

test("an undo restores the file, and can be undone", async () => {
  const params = { path: "workspace/a.txt", text: "helo", space_id: place.space_id };
  const done = await effectd.execute("files.write_text", params, place);
  const undone = await effectd.undo(done.receipt.receipt_id);
  assert.equal(daemon.text("workspace/a.txt"), "hello");
  await effectd.undo(undone.receipt.receipt_id);
  assert.equal(daemon.text("workspace/a.txt"), "helo");
});

test("receipts go on where a loop has stopped", async () => {
  const whole = (await all(effectd.receipts())).map(({ receipt_id }) => receipt_id);
  assert.ok(whole.length > 8);
  const first = effectd.receipts({ limit: 3 });
  const seen: string[] = [];
  for await (const { receipt_id } of first) {
    // The fourth one shows that the first page has been read.
    if (seen.length === 3) break;
    seen.push(receipt_id);
  }
  const rest = await all(effectd.receipts({ limit: 3, after: first.cursor! }));
  assert.deepEqual([...seen, ...rest.map(({ receipt_id }) => receipt_id)], whole);
  const writes = await all(effectd.receipts({ tool: "files.write_text", status: "ok" }));
  assert.deepEqual([...new Set(writes.map(({ tool_id }) => tool_id))], ["files.write_text"]);
});

test("receipts to come are followed until the signal", async () => {
  const known = effectd.receipts();
  await all(known);
  const stop = new AbortController();
  const followed: Receipt[] = [];
  const reading = (async () => {
    for await (const receipt of effectd.receipts({ after: known.cursor!, follow: true, signal: stop.signal })) followed.push(receipt);
  })();
  const done = await effectd.execute("files.append_text", line("followed.txt"), place);
  await until("the receipt comes", () => followed.length > 0);
  stop.abort();
  await assert.rejects(reading, { name: "AbortError" });
  assert.deepEqual(followed.map(({ receipt_id }) => receipt_id), [done.receipt.receipt_id]);
});

test("a group reads an event again until it is acknowledged", async () => {
  const failed: string[] = [];
  const failing = async () => {
    for await (const { id } of effectd.replay("learner")) {
      failed.push(id);
      if (failed.length === 3) throw new Error("the third one fails");
    }
  };
  await assert.rejects(failing, /the third one fails/);
  const rest = await all(effectd.replay("learner"));
  assert.equal(rest[0]?.id, failed[2]);
  assert.deepEqual(await all(effectd.replay("learner")), []);
  const other = await all(effectd.replay("other"));
  assert.deepEqual(other.map(({ id }) => id), [...failed.slice(0, 2), ...rest.map(({ id }) => id)]);
});

test("tools are those of the policy, and can be called", async () => {
  const tools = await effectd.tools(place);
  const write = tools.find(({ name }) => name === "files_write_text");
  assert.deepEqual(Object.keys((write?.schema as { properties: object }).properties).sort(), ["path", "text"]);
  assert.deepEqual([write?.tool_id, write?.risk], ["files.write_text", "R1"]);
  const done = await write!.call({ path: "workspace/tool.txt", text: "by a tool" });
  assert.equal(done.receipt.status, "ok");
  assert.equal(daemon.text("workspace/tool.txt"), "by a tool");
  assert.ok(tools.every(({ tool_id }) => tool_id.includes(".")));
  assert.deepEqual(await effectd.tools({ ...place, subject_id: "agent://stranger@deviceA" }), []);
});

test("the environment names the daemon", async () => {
  const settings = ["EFFECTD_URL", "EFFECTD_TOKEN", "EFFECTD_SOCKET", "EFFECTD_STATE"];
  const whoami = async (environment: Record<string, string>) => {
    settings.forEach((name) => delete process.env[name]);
    Object.assign(process.env, environment);
    const client = new Effectd();
    const { data, error } = await client.http.GET("/v1/whoami");
    await client.close();
    return data?.principal ?? error?.code;
  };
  const [url, token] = [daemon.url, daemon.token()];
  const user = await whoami({ EFFECTD_SOCKET: daemon.socket });
  assert.match(String(user), /^user:/);
  assert.equal(await whoami({ EFFECTD_STATE: daemon.state }), user);
  assert.equal(await whoami({ EFFECTD_URL: url, EFFECTD_TOKEN: token, EFFECTD_SOCKET: "/nowhere" }), "account://home/planner");
  assert.equal(await whoami({ EFFECTD_URL: url, EFFECTD_TOKEN: `${token}x` }), "unauthenticated");
  const there = process.cwd();
  process.chdir(daemon.folder);
  assert.equal(await whoami({}), user);
  process.chdir(there);

  const client = new Effectd({ url, token });
  const done = await client.execute("files.append_text", line("token.txt"), { ...place, action_id: "mine" });
  assert.equal(done.receipt.principal, "account://home/planner");
  assert.equal((await client.wait(done.action_id)).receipt.receipt_id, done.receipt.receipt_id);
  assert.equal((await client.tools(place)).some(({ name }) => name === "files_write_text"), true);
  await client.close();
  assert.throws(() => new Effectd({ url: "http://effectd.example.org", token }), /https/);
});
