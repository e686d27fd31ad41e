// BullMQ on the Redis that syncs always: a job under an id of the caller's is added, taken by a worker, and completed.

import { createRequire } from "node:module";
import { depths, measure, message } from "./loop.mjs";

const require = createRequire(process.env.PEERS_NODE + "/");
const { Queue, Worker } = require("bullmq");
const { version } = require("bullmq/package.json");

const connection = { path: process.argv[2], maxRetriesPerRequest: null };
const queue = new Queue("decisions", { connection });
const waiting = new Map();
const worker = new Worker("decisions", async (job) => job.data.params.text.length, {
  connection,
  concurrency: Math.max(...depths),
});
// Said when the completion has been written, which with this Redis means: synced.
worker.on("completed", (job) => {
  waiting.get(job.id)();
  waiting.delete(job.id);
});
await worker.waitUntilReady();

for (const depth of depths) {
  await measure({ peer: "bullmq", version, work: "queue", depth }, async (lane, turn) => {
    const jobId = `b${depth}-${lane}-${turn}`;
    const done = new Promise((resolve) => waiting.set(jobId, resolve));
    await queue.add("decision", message(jobId), { jobId });
    await done;
  });
}
await worker.close();
await queue.close();
