// What every client in JavaScript does with a server: MODULES names where packages are.
import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";

const [alias, mode, calls, slow, ...command] = process.argv.slice(2);
export const plan = { mode, calls: JSON.parse(calls), slow: JSON.parse(slow), command };
const CANCEL_MS = 500;

export const find = (path = "") =>
  createRequire(`${process.env.MODULES}/`).resolve(`${alias}${path}`);
export const load = (path) => import(pathToFileURL(find(path)).href);

export async function play(client, transport, call) {
  const seen = [];
  const ask = async (step, work) => {
    try {
      seen.push([step, await work()]);
    } catch (error) {
      seen.push([step, { code: error.code, name: error.name, message: error.message }]);
    }
  };
  await ask("connect", () => client.connect(transport));
  seen.push(["server", [client.getServerVersion(), client.getServerCapabilities()]]);
  await ask("tools", () => client.listTools());
  await ask("prompts", () => client.listPrompts());
  await ask("resources", () => client.listResources());
  for (const [name, given] of plan.calls) await ask(name, () => call(name, given));
  if (plan.slow !== null) {
    const [name, given] = plan.slow;
    await ask("cancel", () => call(name, given, { signal: AbortSignal.timeout(CANCEL_MS) }));
  }
  await ask("ping", () => client.ping());
  await client.close();
  process.stdout.write(`\n${JSON.stringify(seen)}`);
}
