// Looks whether the effect is as it should be. It can change nothing. No check is a failed check.
"use strict";
const fs = require("node:fs");

const given = JSON.parse(fs.readFileSync(0, "utf8"));
const path = given.input.path.replace(/^workspace\//, "");
const lines = fs.readFileSync(path, "utf8").split("\n").filter((line) => line !== "");
const ok = lines.every((line, at) => at === 0 || lines[at - 1] <= line);
process.stdout.write(JSON.stringify({ checks: [{ name: "sorted", ok }] }));
