// Reads one base64 frame a line and says what a JavaScript server would find in it.
"use strict";
const lines = require("fs").readFileSync(0, "latin1").split("\n").filter((line) => line !== "");
const member = (value, key) =>
  value !== null && typeof value === "object" && Object.hasOwn(value, key) ? value[key] : null;
const answers = lines.map((line) => {
  try {
    const frame = JSON.parse(Buffer.from(line, "base64").toString("utf8"));
    const params = member(frame, "params");
    const args = member(params, "arguments");
    return [member(frame, "method"), member(params, "name"), JSON.stringify(args)];
  } catch {
    return null;
  }
});
process.stdout.write(JSON.stringify(answers));
