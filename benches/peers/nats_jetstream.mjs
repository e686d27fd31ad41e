// NATS JetStream with a durable pull consumer: published (acknowledged by the server), pulled, acked (confirmed by the server).

import { createRequire } from "node:module";
import { depths, measure, message } from "./loop.mjs";

const require = createRequire(process.env.PEERS_NODE + "/");
const { connect } = require("@nats-io/transport-node");
const { AckPolicy, StorageType, jetstream, jetstreamManager } = require("@nats-io/jetstream");

const server = await connect({ servers: process.argv[2] });
const version = server.info.version;
const manager = await jetstreamManager(server);
await manager.streams.add({ name: "decisions", subjects: ["decisions"], storage: StorageType.File });
await manager.consumers.add("decisions", { durable_name: "workers", ack_policy: AckPolicy.Explicit, max_ack_pending: 1024 });
const stream = jetstream(server);
const consumer = await stream.consumers.get("decisions", "workers");
const pulled = await consumer.consume({ max_messages: 256 });
const waiting = new Map();

const settle = async (got) => {
  const name = got.json().action_id;
  if (!(await got.ackAck())) throw new Error(`the ack of ${name} was not confirmed`);
  waiting.get(name)();
  waiting.delete(name);
};
const consuming = (async () => {
  for await (const got of pulled) settle(got);
})();

for (const depth of depths) {
  await measure({ peer: "nats-jetstream", version, work: "queue", depth }, async (lane, turn) => {
    const name = `n${depth}-${lane}-${turn}`;
    const done = new Promise((resolve) => waiting.set(name, resolve));
    await stream.publish("decisions", JSON.stringify(message(name)));
    await done;
  });
  if (waiting.size) throw new Error("messages were lost");
}
await pulled.close();
await consuming;
await server.close();
