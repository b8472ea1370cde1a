// The Inspector's command line: a session for each method. NODE is the Node that it needs.
import { spawnSync } from "node:child_process";
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { find, plan } from "./shared.mjs";

const TIMEOUT_MS = 30_000;
const launcher = join(dirname(find("/package.json")), "clients/launcher/build/index.js");
const place = mkdtempSync(join(tmpdir(), "inspector-"));
const config = join(place, "config.json");
const [command, ...args] = plan.command;
const server = { type: "stdio", command, args, env: process.env };
writeFileSync(config, JSON.stringify({ mcpServers: { real: server } }));
const ask = (method, ...more) => {
  const options = ["--cli", "--config", config, "--server", "real", "--method", method, ...more];
  const env = { ...process.env, HOME: place };
  const done = spawnSync(process.env.NODE, [launcher, ...options], { env, timeout: TIMEOUT_MS });
  return [method, done.status, done.stdout.toString()];
};
const call = ([name, given]) => {
  const pairs = Object.entries(given).map(([key, value]) => `${key}=${JSON.stringify(value)}`);
  return ask("tools/call", "--tool-name", name, ...(pairs.length ? ["--tool-arg", ...pairs] : []));
};
const seen = [ask("tools/list"), ...plan.calls.map(call)];
rmSync(place, { recursive: true });
process.stdout.write(JSON.stringify(seen));
