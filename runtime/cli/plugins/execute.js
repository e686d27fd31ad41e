// Has the effect. The input is JSON on standard input, the output is one JSON object on standard output. Paths begin at the space's root.
"use strict";
const fs = require("node:fs");

const given = JSON.parse(fs.readFileSync(0, "utf8"));
const path = given.input.path.replace(/^workspace\//, "");
const lines = fs.readFileSync(path, "utf8").split("\n").filter((line) => line !== "").sort();
fs.writeFileSync(path, lines.map((line) => line + "\n").join(""));
process.stdout.write(JSON.stringify({ lines: lines.length }));
