// The TypeScript SDK, 1.x.
import { load, plan, play } from "./shared.mjs";

const { Client } = await load("/client/index.js");
const { StdioClientTransport } = await load("/client/stdio.js");
const [command, ...args] = plan.command;
const client = new Client({ name: "compat", version: "1" }, { capabilities: {} });
const transport = new StdioClientTransport({ command, args, env: process.env, stderr: "ignore" });
const call = (name, given, options) =>
  client.callTool({ name, arguments: given }, undefined, options);
await play(client, transport, call);
