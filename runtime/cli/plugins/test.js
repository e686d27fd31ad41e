// Runs the scripts as effectd does, but without its sandbox: node test.js
"use strict";
const assert = require("node:assert");
const { execFileSync } = require("node:child_process");
const fs = require("node:fs");
const os = require("node:os");
const path = require("node:path");

const space = fs.mkdtempSync(path.join(os.tmpdir(), "space-"));
const run = (script, input) => {
  const given = JSON.stringify({ input, failedChecks: [], spaceId: "shared:test" });
  return JSON.parse(execFileSync(process.execPath, [path.join(__dirname, script)], { input: given, cwd: space }));
};
const file = path.join(space, "list.txt");
fs.writeFileSync(file, "pears\napples\n");
const given = { path: "workspace/list.txt" };
assert.deepStrictEqual(run("verify.js", given), { checks: [{ name: "sorted", ok: false }] });
assert.deepStrictEqual(run("execute.js", given), { lines: 2 });
assert.strictEqual(fs.readFileSync(file, "utf8"), "apples\npears\n");
assert.deepStrictEqual(run("verify.js", given), { checks: [{ name: "sorted", ok: true }] });
assert.deepStrictEqual(run("rollback.js", given), {});
fs.rmSync(space, { recursive: true });
console.log("ok");
