// The loop that every client for Node runs, and what it prints: the same as loop.py.

const FIRST_MS = 500;
const POINTS = [1, 5, 10, 25, 50, 75, 90, 95, 99, 99.9];

export const seconds = Number(process.env.PEERS_SECONDS ?? 3);
export const depths = (process.env.PEERS_IN_FLIGHT ?? "1,8,64").split(",").map(Number);

export function message(name) {
  return {
    action_id: name,
    subject_id: "agent://planner@deviceA",
    space_id: "shared:household",
    tool_id: "files.write_text",
    params: {
      path: `workspace/${name.slice(0, name.lastIndexOf("-"))}.txt`,
      text: `the text of ${name}, ${"x".repeat(256)}`,
      space_id: "shared:household",
    },
    policy_ctx: { actor: "alice", device: "phone1" },
  };
}

// So many lanes side by side, each one thing after another; then one JSON line.
export async function measure({ peer, version, work, depth }, one) {
  const begun = performance.now();
  const times = [];
  const lane = async (number) => {
    for (let turn = 0; ; turn++) {
      const before = performance.now();
      if (before - begun > FIRST_MS + seconds * 1000) return;
      await one(number, turn);
      if (before - begun > FIRST_MS) times.push(performance.now() - before);
    }
  };
  await Promise.all(Array.from({ length: depth }, (_, number) => lane(number)));
  if (times.length === 0) throw new Error(`${peer}, ${work}, ${depth} in flight: nothing was done within ${seconds} s`);
  times.sort((a, b) => a - b);
  const at = (percent) =>
    Math.round(times[Math.min(Math.floor((times.length * percent) / 100), times.length - 1)] * 1e4) / 10;
  const line = {
    peer,
    version,
    work,
    in_flight: depth,
    seconds,
    done: times.length,
    per_second: Math.round((times.length / seconds) * 10) / 10,
    p50_us: at(50),
    p99_us: at(99),
    quantiles_us: Object.fromEntries(POINTS.map((point) => [String(point), at(point)])),
  };
  console.log(JSON.stringify(line));
}
