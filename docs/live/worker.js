// Python in a worker, so that a page lives on while it computes. live_page.py has what it runs.
"use strict";
importScripts("settings.js");
const fetchPlainly = self.fetch, parts = LIVE.parts;
const early = new Map(), megabytes = bytes => (bytes / 1e6).toFixed(1);
let loaded = 0, viz;

/** Fetch a part, and say how much there is of what every page's Python begins with. */
async function load(part) {
  const answer = await fetchPlainly(part.url, part.integrity ? { integrity: part.integrity } : {});
  if (!answer.ok) throw new Error(`${part.url}: ${answer.status} ${answer.statusText}`);
  const transform = (chunk, out) => {
    if (!part.lazy) {
      loaded += chunk.length;
      postMessage({ kind: "status", text: `Loading Python: ${megabytes(loaded)} of ${megabytes(LIVE.bytes)} MB` });
    }
    out.enqueue(chunk);
  };
  let body = answer.body.pipeThrough(new TransformStream({ transform }));
  if (part.gzip) body = body.pipeThrough(new DecompressionStream("gzip"));
  return new Response(body, { headers: { "Content-Type": part.type } });
}

// Pyodide asks for its files by name; it is given these, with their hashes checked.
for (const part of Object.values(parts)) if (!part.lazy) early.set(part, load(part));
self.fetch = (address, options) => {
  const part = parts[String(address.url ?? address).split("/").pop()];
  if (!part) return fetchPlainly(address, options);
  const answer = early.get(part) ?? load(part);
  early.delete(part);
  return answer;
};
const script = async name => importScripts(URL.createObjectURL(await (await fetch(name)).blob()));

const ready = (async () => {
  await Promise.all(early.values());
  await script("pyodide.js");
  await script("pyodide.asm.js");
  const pyodide = await loadPyodide({ indexURL: LIVE.index, env: { MPLBACKEND: "Agg", HOME: "/home/pyodide" } });
  await pyodide.loadPackage("numpy", { messageCallback() {} });
  pyodide.unpackArchive(await (await fetch("tinygrad_attn.zip")).arrayBuffer(), "zip", { extractDir: LIVE.folder });
  return { pyodide, page: pyodide.pyimport("live_page") };
})();
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

onmessage = async ({ data: { call, args } }) => {
  const python = await ready;
  let ok = false;
  try {
    await prepare(python, String(args[0]));
    postMessage({ kind: "status", text: "Running" });
    ok = python.page[call]((kind, text) => postMessage({ kind, text }), ...args);
  } catch (error) {
    postMessage({ kind: "error", text: String(error.message ?? error) });
  }
  postMessage({ kind: "done", ok });
};
