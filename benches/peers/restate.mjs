// Restate: a handler called under an idempotency key, through the server's ingress, with its answer.
//
// Twice: with a handler that does nothing, and with one that writes and syncs a small file in a durable step, unconfined.

import { open } from "node:fs/promises";
import { Agent, request } from "node:http";
import { createRequire } from "node:module";
import { basename, join } from "node:path";
import { depths, measure, message } from "./loop.mjs";

// The SDK is written for Node 22 and asks for no more of it than this.
Promise.withResolvers ??= function () {
  const made = {};
  made.promise = new this((resolve, reject) => Object.assign(made, { resolve, reject }));
  return made;
};
const require = createRequire(process.env.PEERS_NODE + "/");
const restate = require("@restatedev/restate-sdk");
const { version } = require("@restatedev/restate-server/package.json");
const [ingress, admin, port, folder] = process.argv.slice(2);

async function write(decision) {
  const file = await open(join(folder, basename(decision.params.path)), "w");
  await file.writeFile(decision.params.text);
  await file.sync();
  await file.close();
  return decision.params.text.length;
}

const actions = restate.service({
  name: "actions",
  handlers: {
    handle: async (_, decision) => decision.params.text.length,
    write: async (ctx, decision) => ctx.run("write", () => write(decision)),
  },
});
await restate.endpoint().bind(actions).listen(Number(port));
const registered = await fetch(`${admin}/deployments`, {
  method: "POST",
  headers: { "content-type": "application/json" },
  body: JSON.stringify({ uri: `http://127.0.0.1:${port}` }),
});
if (!registered.ok) throw new Error(`not registered: ${registered.status} ${await registered.text()}`);

const agent = new Agent({ keepAlive: true, maxSockets: 256 });
const call = (handler, key, decision) =>
  new Promise((resolve, reject) => {
    const options = {
      method: "POST",
      agent,
      headers: { "content-type": "application/json", "idempotency-key": key },
    };
    const asked = request(`${ingress}/actions/${handler}`, options, (answer) => {
      let text = "";
      answer.on("data", (chunk) => (text += chunk));
      answer.on("end", () =>
        answer.statusCode === 200 ? resolve(JSON.parse(text)) : reject(new Error(`${answer.statusCode}: ${text}`)),
      );
    });
    asked.on("error", reject);
    asked.end(JSON.stringify(decision));
  });

for (const [work, handler] of [["handler", "handle"], ["write, unconfined", "write"]]) {
  for (const depth of depths) {
    await measure({ peer: "restate", version, work, depth }, async (lane, turn) => {
      const key = `${handler}-${depth}-${lane}-${turn}`;
      if ((await call(handler, key, message(key))) < 256) throw new Error("a wrong answer");
    });
  }
}
process.exit(0);
