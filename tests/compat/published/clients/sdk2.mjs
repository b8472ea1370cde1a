// The TypeScript SDK, 2.x.
import { load, plan, play } from "./shared.mjs";

const { Client } = await load();
const { StdioClientTransport } = await load("/stdio");
const [command, ...args] = plan.command;
const options = { capabilities: {}, versionNegotiation: { mode: plan.mode } };
const client = new Client({ name: "compat", version: "1" }, options);
const transport = new StdioClientTransport({ command, args, env: process.env, stderr: "ignore" });
const call = (name, given, options) => client.callTool({ name, arguments: given }, options);
await play(client, transport, call);
