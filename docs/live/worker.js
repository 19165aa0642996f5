// Python in a worker, so that a page lives on while it computes. live_page.py has what it runs.
"use strict";
importScripts("settings.js");
const { parts } = LIVE, fetchPlainly = self.fetch;
let loaded = 0, viz;

const megabytes = bytes => (bytes / 1e6).toFixed(1);
const say = (...said) => postMessage(["status", ...said]);

/** Fetch a part, and say how much there is of what every page's Python begins with. */
async function load(part) {
  const answer = await fetchPlainly(part.url, { integrity: part.integrity ?? "" });
  if (!answer.ok) throw new Error(`${part.url}: ${answer.status} ${answer.statusText}`);
  const transform = (chunk, out) => {
    if (!part.lazy) say("Loading Python: {} of {} MB", megabytes((loaded += chunk.length)), megabytes(LIVE.bytes));
    out.enqueue(chunk);
  };
  const body = answer.body.pipeThrough(new TransformStream({ transform })), headers = { "Content-Type": part.type };
  return new Response(part.gzip ? body.pipeThrough(new DecompressionStream("gzip")) : body, { headers });
}
// Pyodide asks for its files by name, once; it is given these, with their hashes checked.
const early = Object.values(parts).map(part => part.lazy || (part.answer = load(part)));
self.fetch = (address, options) => {
  const part = parts[String(address.url ?? address).split("/").pop()];
  return part ? part.answer ?? load(part) : fetchPlainly(address, options);
};
const script = async name => importScripts(URL.createObjectURL(await (await fetch(name)).blob()));

async function start() {
  await Promise.all(early);
  await script("pyodide.js");
  await script("pyodide.asm.js");
  const pyodide = await loadPyodide({ indexURL: LIVE.index, env: { MPLBACKEND: "Agg", HOME: "/home/pyodide" } });
  await pyodide.loadPackage("numpy", { messageCallback() {} });
  pyodide.unpackArchive(await (await fetch("tinygrad_attn.zip")).arrayBuffer(), "zip", { extractDir: LIVE.folder });
  return { pyodide, page: pyodide.pyimport("live_page") };
}
const ready = start();
ready.catch(error => setTimeout(() => { throw error; })); // the page hears of it, and ends this worker

/** Load what the code needs beside NumPy: Graphviz for pictures, and from the CDN any package. */
async function prepare({ pyodide, page }, code) {
  if (!viz && /viz|graph|_steps/.test(code)) {
    await script("viz-global.js");
    viz = await Viz.instance();
    page.use_graphviz((dot, format) => viz.renderString(dot, { format }));
  }
  const wanted = /viz\.attention\b/.test(code) ? `import matplotlib\n${code}` : code;
  if (!LIVE.offline) await pyodide.loadPackagesFromImports(wanted, { messageCallback() {} }).catch(() => {});
}

onmessage = async ({ data: { call, args, language } }) => {
  const python = await ready, show = (...shown) => postMessage(shown);
  let ok = false;
  try {
    await prepare(python, String(args[0]));
    say("Running");
    python.page.speak(language);
    ok = python.page[call](show, ...args);
  } catch (error) {
    show("error", String(error.message ?? error));
  }
  show("done", ok);
};
