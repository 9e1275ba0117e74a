// graphile-worker as its page on performance (worker.graphile.org/docs/performance) runs it: jobs fetched into a local
// queue, completions written in batches, a pool of one connection more than there are concurrent jobs.
import { createRequire } from "node:module";
import { parseArgs } from "node:util";

const require = createRequire(import.meta.url); // Unlike `import`, it looks into NODE_PATH.
const { Logger, makeWorkerUtils, run } = require("graphile-worker");
const { Pool } = require("pg");

const connectionString = process.env.BENCH_DSN;
const SHORT = ["W1", "W4", "W6", "W7", "W8", "W10"].includes(process.env.BENCH_WORKLOAD);
const IMMEDIATE = { completeJobBatchDelay: 0, failJobBatchDelay: 0 }; // Batched, without a delay.
const UNMEASURED = 50;
const CHUNK = 10_000; // Jobs of one addJobs call.

const sleep = (ms) => new Promise((done) => setTimeout(done, ms));
const now = () => (performance.timeOrigin + performance.now()) / 1000;
const logger = new Logger(() => (level, message) => {
  if (level === "error" || level === "warning") console.error(level, message);
});

// For jobs that take next to no time the page's own figures: 24 at once from a local queue of 500. For others, which must
// not wait in a local queue while there are idle slots elsewhere, its starting point: one more than run at once.
function settings(slots) {
  const concurrentJobs = SHORT ? 24 : slots;
  const size = SHORT ? 500 : slots + 1;
  return { concurrentJobs, maxPoolSize: concurrentJobs + 1, localQueue: { size }, ...IMMEDIATE };
}

async function worker(slots) {
  const own = new Pool({ connectionString, max: 20 });
  const taskList = {
    noop: () => {},
    sleep: ({ i }) => sleep(50 + ((i * 37) % 151)),
    hold: ({ i }) => (i === 0 ? sleep(10_000) : undefined),
    stamp: ({ i }) => own.query("INSERT INTO bench_started (i, at) VALUES ($1, $2)", [i, now()]),
  };
  const runner = await run({ preset: { worker: { connectionString, logger, ...settings(slots) } }, taskList });
  await runner.promise;
  await own.end();
}

async function many(utils, identifier, count) {
  for (let first = 0; first < count; first += CHUNK) {
    const length = Math.min(CHUNK, count - first);
    await utils.addJobs(Array.from({ length }, (_, k) => ({ identifier, payload: { i: first + k } })));
  }
}

async function single(utils, count) {
  const calls = [];
  for (let i = 0; i < UNMEASURED + count; i++) {
    const began = performance.now();
    await utils.addJob("noop", { i });
    calls.push((performance.now() - began) / 1000);
  }
  await save(utils, calls.slice(UNMEASURED));
}

async function bulk(utils, count) {
  const began = performance.now();
  await many(utils, "noop", count);
  await save(utils, [(performance.now() - began) / 1000]);
}

const save = (utils, calls) =>
  utils.withPgClient((client) =>
    client.query("INSERT INTO bench_call (seconds) SELECT unnest($1::double precision[])", [calls]),
  );

async function trickle(utils, count, rate) {
  await utils.addJob("noop", { i: 0 }); // Connects.
  const sent = [];
  const began = performance.now();
  for (let i = 0; i < count; i++) {
    await sleep(Math.max(0, began + (i * 1000) / rate - performance.now()));
    sent.push(now());
    await utils.addJob("stamp", { i });
  }
  await utils.withPgClient((client) =>
    client.query(
      "INSERT INTO bench_sent (i, at) SELECT place - 1, at FROM unnest($1::double precision[]) WITH ORDINALITY AS u (at, place)",
      [sent],
    ),
  );
}

async function produce(command, words) {
  const utils = await makeWorkerUtils({ preset: { worker: { connectionString, logger } } });
  const numbers = words.map(Number);
  if (command === "setup") await utils.migrate();
  else if (command === "fill") await many(utils, words[0], numbers[1]);
  else if (command === "single") await single(utils, ...numbers);
  else if (command === "bulk") await bulk(utils, ...numbers);
  else if (command === "trickle") await trickle(utils, ...numbers);
  else throw new Error(`no command ${command}`);
  await utils.release();
}

const { values, positionals } = parseArgs({
  allowPositionals: true,
  options: { slots: { type: "string" }, async: { type: "boolean" } },
});
const [command, ...words] = positionals;
await (command === "worker" ? worker(Number(values.slots)) : produce(command, words));
