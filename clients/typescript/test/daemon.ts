/** A real daemon with a state of its own, and a proxy before it that breaks connections. `$EFFECTD` names the program. */
import { type ChildProcess, execFileSync, spawn } from "node:child_process";
import { once } from "node:events";
import { appendFileSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import net from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { Readable } from "node:stream";
import { pipeline } from "node:stream/promises";
import { setTimeout as sleep } from "node:timers/promises";

const program = process.env["EFFECTD"] ?? "effectd";
export const place = { subject_id: "agent://planner@deviceA", space_id: "shared:household" } as const;

const POLICY = `
[principals."account://home/planner"]
subjects = ["agent://planner@deviceA"]
orgs = { home = "member" }
`;

export class Daemon {
  readonly folder = mkdtempSync(join(tmpdir(), "effectd-ts-"));
  readonly state = join(this.folder, ".effectd");
  readonly socket = join(this.state, "run/effectd.sock");
  url = "";
  #child: ChildProcess | undefined;

  static async start(...options: string[]): Promise<Daemon> {
    const daemon = new Daemon();
    daemon.run("init");
    const policy = join(daemon.state, "policy/policy.toml");
    // The policy of the household sleeps at night.
    writeFileSync(policy, readFileSync(policy, "utf8").replace('"22:00"', '"00:00"').replace('"06:00"', '"00:00"'));
    appendFileSync(policy, POLICY);
    daemon.url = `http://127.0.0.1:${await freePort()}`;
    await daemon.serve(...options);
    return daemon;
  }

  /** A command of effectd, and what it prints. */
  run(...command: string[]): string {
    return execFileSync(program, [...command, "--state", this.state], { cwd: this.folder, encoding: "utf8", stdio: ["ignore", "pipe", "pipe"] });
  }

  async serve(...options: string[]): Promise<void> {
    const listen = this.url.slice("http://".length);
    this.#child = spawn(program, ["serve", "--state", this.state, "--listen", listen, ...options], { cwd: this.folder, stdio: "ignore" });
    await until("the daemon answers", () => answers(this.socket));
  }

  /** A new token of the account `planner`. */
  token(): string {
    return this.run("tokens", "create", "--kind", "service", "--org", "home", "--name", "planner", "--yes").trim();
  }

  async kill(signal: NodeJS.Signals = "SIGKILL"): Promise<void> {
    const child = this.#child!;
    const ended = once(child, "exit");
    child.kill(signal);
    await ended;
  }

  async remove(): Promise<void> {
    await this.kill();
    rmSync(this.folder, { recursive: true });
  }

  text(path: string): string {
    return readFileSync(join(this.folder, path), "utf8");
  }

  receipts(tool: string): { receipt_id: string }[] {
    return JSON.parse(this.run("receipts", "list", "--tool", tool, "--limit", "100", "-o", "json"));
  }
}

export async function until(what: string, holds: () => boolean | Promise<boolean>): Promise<void> {
  for (let tries = 0; tries < 300; tries++) {
    if (await holds()) return;
    await sleep(50);
  }
  throw new Error(`${what}: not within 15 s`);
}

async function freePort(): Promise<number> {
  const server = net.createServer();
  await once(server.listen(0, "127.0.0.1"), "listening");
  const { port } = server.address() as net.AddressInfo;
  await new Promise((closed) => server.close(closed));
  return port;
}

async function answers(socket: string): Promise<boolean> {
  const connection = net.connect(socket);
  const ended = new Promise<boolean>((resolve) => connection.on("error", () => resolve(false)).on("connect", () => resolve(true)));
  return ended.finally(() => connection.destroy());
}

/** What happens to the answers of a connection: they arrive, never arrive, or end in the middle of the first one. */
type Fate = "pass" | "drop" | "cut";

/** Passes requests on to the daemon. The next connections have these fates, and all later ones pass. */
export async function proxy(daemon: Daemon, ...fates: Fate[]): Promise<{ socket: string; left: Fate[] } & AsyncDisposable> {
  const server = net.createServer((client) => {
    const fate = fates.shift() ?? "pass";
    const upstream = net.connect(daemon.socket);
    for (const [one, other] of [[client, upstream], [upstream, client]] as const) {
      one.on("error", () => other.destroy()).on("close", () => other.destroy());
    }
    client.pipe(upstream);
    if (fate === "pass") upstream.pipe(client);
    // The first bytes of the answer come when the action has ended.
    else upstream.once("data", (bytes) => (fate === "cut" ? client.end(bytes.subarray(0, bytes.length / 2)) : client.destroy()));
  });
  const socket = join(daemon.folder, `proxy-${Math.random()}.sock`);
  await once(server.listen(socket), "listening");
  return { socket, left: fates, [Symbol.asyncDispose]: async () => void server.close() };
}

/** Gives every request this answer; one without an end goes on in chunks as long as somebody reads. */
export async function strange(daemon: Daemon, answer: string, isEndless: boolean): Promise<{ socket: string } & AsyncDisposable> {
  const chunk = Buffer.from(`10000\r\n${" ".repeat(0x10000)}\r\n`);
  const chunks = function* () {
    yield Buffer.from(answer);
    while (isEndless) yield chunk;
  };
  const server = net.createServer((client) => void client.once("data", () => void pipeline(Readable.from(chunks()), client).catch(() => {})));
  const socket = join(daemon.folder, `strange-${Math.random()}.sock`);
  await once(server.listen(socket), "listening");
  return { socket, [Symbol.asyncDispose]: async () => void server.close() };
}
