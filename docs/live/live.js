// Live pages: each block of Python gets Run, Edit and Reset, each exercise an editor and Mark.
// Nothing is loaded before a reader presses Run; the worker (worker.js) is Python.
"use strict";
const Live = (() => {
  const here = new URL(".", document.currentScript.src), parts = LIVE.parts, cells = [];
  let worker, job, turn = 0, line = Promise.resolve();

  function make(tag, attributes = {}, ...inside) {
    const element = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) {
      if (typeof value === "function") element.addEventListener(name, value);
      else if (value !== false) element.setAttribute(name, value === true ? "" : value);
    }
    element.append(...inside);
    return element;
  }

  // ---- Python

  const status = make("span", { role: "status" }), stopping = make("button", { click: () => stop() }, "Stop");
  const bar = make("div", { class: "live-bar", hidden: true }, make("progress"), status, stopping);
  function say(text) {
    status.textContent = text;
    bar.hidden = !text;
  }

  /** Have the worker call a function of live_page.py; what it shows goes to `show(kind, text)`. */
  function call(name, args, show) {
    if (!worker) {
      say("Loading Python");
      worker = new Worker(new URL("worker.js", here));
      worker.onmessage = ({ data }) => job?.hear(data);
      worker.onerror = event => job?.hear({ kind: "error", text: `Python cannot be loaded here. ${event.message ?? ""}` },
        stop());
    }
    return new Promise(resolve => {
      job = {
        end: resolve,
        hear({ kind, text, ok }) {
          if (kind === "loading") say(text);
          else if (kind === "running") say("Running");
          else if (kind === "done") finish(ok);
          else show(kind, text);
        },
      };
      worker.postMessage({ call: name, args });
    });
  }
  function finish(ok) {
    const { end } = job ?? {};
    job = undefined;
    say("");
    end?.(ok);
  }
  /** End Python: what runs and what waits is given up, and the next Run begins anew. */
  function stop() {
    worker?.terminate();
    worker = undefined;
    turn += 1;
    for (const cell of cells) cell.ran = false;
    finish("stopped");
  }
  /** One after another: what is pressed while Python is busy waits. */
  function inTurn(work) {
    const mine = turn;
    return (line = line.then(() => mine === turn && work()).catch(error => say(String(error))));
  }

  // ---- what a run shows

  class Output {
    constructor(name) {
      this.box = make("div", { class: "live-output", role: "region", "aria-label": name, "aria-live": "polite", hidden: true });
    }
    clear() {
      this.box.replaceChildren();
      this.box.hidden = true;
    }
    show(kind, text) {
      this.box.hidden = false;
      const last = this.box.lastElementChild;
      if (kind === "alt") return void (this.alt = text);
      if (kind === "text" && last?.className === "text") return last.append(text);
      if (kind === "text" || kind === "error" || kind === "note") {
        return this.box.append(make("pre", { class: kind, tabindex: 0 }, text));
      }
      if (kind === "page") { // somebody's HTML: it can reach nothing of this page
        return this.box.append(make("iframe", { sandbox: "allow-scripts", srcdoc: text, title: "Page" }));
      }
      const data = kind === "png" ? `data:image/png;base64,${text}` : `data:image/svg+xml,${encodeURIComponent(text)}`;
      this.box.append(make("img", { src: data, alt: kind === "png" ? "Figure" : this.alt ?? "Picture" }));
    }
  }

  // ---- editors

  let editors;
  function addScript(name) {
    const { url, integrity } = parts[name];
    const common = { integrity: integrity ?? false, crossorigin: integrity ? "anonymous" : false };
    return new Promise((resolve, reject) => {
      const own = { load: resolve, error: () => reject(new Error(`${url} cannot be loaded.`)) }, at = new URL(url, here);
      document.head.append(name.endsWith("css") ? make("link", { rel: "stylesheet", href: at, ...common, ...own })
        : make("script", { src: at, ...common, ...own }));
    });
  }
  const loadEditors = () => (editors ??= Promise.all([addScript("codemirror.css"), addScript("codemirror.js")])
    .then(() => addScript("python.js")));

  /** A block of code with its buttons and its output, below `pre`, which shows it until it is edited. */
  class Cell {
    constructor(pre, name, text) {
      Object.assign(this, { pre, name, original: text, output: new Output(`Output of ${name}`), ran: false });
      this.buttons = make("div", { class: "live-buttons", role: "group", "aria-label": name });
      this.run = this.button("Run", () => runFrom(this));
      this.edit = this.button("Edit", () => this.open(true));
      this.reset = this.button("Reset", () => this.restore());
      this.reset.hidden = true;
    }
    button(text, click) {
      const button = make("button", { type: "button", click, "aria-label": `${text} ${this.name}` }, text);
      this.buttons.append(button);
      return button;
    }
    get text() { return this.editor?.getValue() ?? this.original; }
    set text(text) { this.editor ? this.editor.setValue(text) : (this.pre.textContent = this.original = text); }
    async open(focus) {
      await loadEditors();
      if (!this.editor) {
        this.pre.hidden = this.edit.hidden = true;
        this.editor = CodeMirror(host => this.pre.after(host), {
          value: this.original, mode: "python", indentUnit: 4, viewportMargin: Infinity, lineWrapping: false,
          inputStyle: "contenteditable", screenReaderLabel: `${this.name}; Escape leaves the editor`,
          extraKeys: {
            "Ctrl-Enter": () => this.run.click(), "Cmd-Enter": () => this.run.click(), "Shift-Enter": () => this.run.click(),
            Esc: () => this.run.focus(), "Shift-Tab": "indentLess",
            Tab: editor => editor.somethingSelected() ? editor.indentSelection("add") : editor.execCommand("insertSoftTab"),
          },
        });
        this.editor.on("change", () => this.changed());
      }
      if (focus) this.editor.focus();
    }
    changed() {
      this.ran = false;
      this.reset.hidden = false;
    }
    restore() {
      if (this.editor) {
        this.editor.getWrapperElement().remove();
        this.editor = undefined;
      }
      this.pre.hidden = this.edit.hidden = this.ran = false;
      this.reset.hidden = true;
      this.output.clear();
    }
    async execute() {
      this.output.clear();
      this.buttons.setAttribute("aria-busy", "true");
      const ok = await call("run", [this.text, this.name, this.interactive ?? false, this.fresh ?? false],
        (kind, text) => this.output.show(kind, text));
      this.buttons.removeAttribute("aria-busy");
      if (ok === "stopped") this.output.show("note", "Stopped. The next Run starts Python again and rebuilds what this page had.");
      else this.ran = true;
      this.reset.hidden = false;
      return ok === true || ok !== "stopped" && Boolean(this.raises);
    }
  }

  /** Run a block after those before it that have not run; one of them that goes wrong ends it. */
  function runFrom(cell) {
    return inTurn(async () => {
      for (const earlier of cells.slice(0, cells.indexOf(cell))) {
        if (!earlier.ran && !(await earlier.execute())) {
          cell.output.clear();
          return cell.output.show("note", `Not run: ${earlier.name}, which comes before, did not come to its end.`);
        }
      }
      await cell.execute();
    });
  }

  /** The comments above a block: `<!-- raises: ... -->`, `<!-- skip: ... -->`. */
  function notesAbove(block) {
    const notes = {};
    for (let node = block.previousSibling; node; node = node.previousSibling) {
      const found = node.nodeType === Node.COMMENT_NODE && node.data.match(/^\s*(\w+):\s*(.*?)\s*$/s);
      if (found) notes[found[1]] = found[2];
      else if (node.nodeType !== Node.TEXT_NODE || node.data.trim()) break;
    }
    return notes;
  }

  function addBlock(block) {
    const pre = block.querySelector("pre"), notes = notesAbove(block), interactive = block.matches(".highlight-pycon");
    const prompts = text => text.split("\n").filter(row => /^(>>>|\.\.\.)( |$)/.test(row)).map(row => row.slice(4)).join("\n");
    const why = notes.skip ?? notes.browser;
    if (why) return block.after(make("p", { class: "live-why" }, `Does not run in this page: ${why}.`));
    const text = interactive ? prompts(pre.textContent) : pre.textContent;
    const cell = new Cell(pre, `block ${cells.length + 1}`, text);
    const raises = notes.raises ?? (interactive && pre.textContent.match(/^\w+Error/m)?.[0]);
    Object.assign(cell, { interactive, raises });
    cells.push(cell);
    if (raises) cell.buttons.append(make("span", { class: "live-why" }, `raises ${raises.split(":")[0]}, as it should`));
    block.classList.add("live-block");
    block.append(cell.buttons, cell.output.box);
  }

  // ---- exercises

  const store = {
    read: name => JSON.parse(localStorage.getItem(`tinygrad_attn:${name}`) ?? "{}"),
    write: (name, value) => localStorage.setItem(`tinygrad_attn:${name}`, JSON.stringify(value)),
    names: () => Object.keys(localStorage).map(key => key.match(/^tinygrad_attn:(.*)/)?.[1]).filter(Boolean),
  };
  const through = async (bytes, way) => new Uint8Array(await new Response(new Blob([bytes]).stream().pipeThrough(way)).arrayBuffer());
  async function pack(text) {
    const bytes = await through(new TextEncoder().encode(text), new CompressionStream("deflate-raw"));
    return btoa(String.fromCharCode(...bytes)).replace(/\+/g, "-").replace(/\//g, "_").replace(/=+$/, "");
  }
  async function unpack(code) {
    const bytes = Uint8Array.from(atob(code.replace(/-/g, "+").replace(/_/g, "/")), sign => sign.charCodeAt());
    return new TextDecoder().decode(await through(bytes, new DecompressionStream("deflate-raw")));
  }
  function download(name, text) {
    const address = URL.createObjectURL(new Blob([text]));
    make("a", { href: address, download: name }).click();
    setTimeout(() => URL.revokeObjectURL(address), 10000);
  }

  class Exercise extends Cell {
    constructor(pre, name, stub) {
      super(pre, `exercise ${name}`, stub);
      Object.assign(this, { key: name, stub, fresh: true });
      this.edit.remove();
      this.markButton = this.button("Mark", () => inTurn(() => this.mark()));
      this.button(`Save ${name}.py`, () => download(`${name}.py`, this.text));
      this.button("Copy link", () => this.link());
      this.sign = make("span", { class: "live-why", role: "status" });
      this.buttons.append(this.sign);
      this.load();
      window.addEventListener("hashchange", () => this.load());
      window.addEventListener("storage", event => event.key === `tinygrad_attn:${name}` && !this.editor?.hasFocus() && this.load());
    }
    /** The text of a link, else what was written before, else the stub. */
    async load() {
      const saved = store.read(this.key), [, name, code] = location.hash.match(/^#solution=(\w+):([\w-]+)$/) ?? [];
      const linked = name === this.key && (await unpack(code).catch(() => undefined));
      this.loading = true;
      this.text = linked || (saved.text ?? this.stub);
      this.loading = false;
      this.reset.hidden = this.text === this.stub;
      this.sign.textContent = linked ? "from a link; it is kept when you change or mark it" : saved.passed ? "✓ passed" : "";
      if (linked) this.buttons.scrollIntoView({ block: "end" });
    }
    changed() {
      if (this.loading) return;
      super.changed();
      store.write(this.key, { text: this.text, passed: false });
      this.sign.textContent = "";
    }
    restore() {
      localStorage.removeItem(`tinygrad_attn:${this.key}`);
      this.output.clear();
      history.replaceState(null, "", location.pathname);
      this.load();
    }
    async link() {
      const address = new URL(`#solution=${this.key}:${await pack(this.text)}`, location.href).href;
      await navigator.clipboard.writeText(address).then(() => (this.sign.textContent = "The link is copied."),
        () => location.assign(address));
    }
    async mark() {
      this.output.clear();
      let known = "", limit = 0, ok, slow;
      do { // again, in a new Python, if a check came to no end: it alone is lost
        let timer, told = "";
        const patient = () => {
          clearTimeout(timer);
          timer = setTimeout(() => { slow = told; stop(); }, LIVE.limit * 1000);
        };
        slow = undefined;
        ok = await call("mark", [this.text, this.key, known, limit], (kind, text) => {
          if (kind !== "told") return this.output.show(kind, text);
          told = text;
          patient();
        });
        clearTimeout(timer);
        [known, limit] = [slow, LIVE.limit];
      } while (slow);
      if (ok === "stopped") return this.output.show("note", "Stopped.");
      store.write(this.key, { text: this.text, passed: ok === true });
      this.sign.textContent = ok === true ? "✓ passed" : "";
    }
  }

  async function addExercise(block, name) {
    const answer = await fetch(new URL(`exercises/${name}.py`, here));
    if (!answer.ok) return;
    const pre = make("pre", { tabindex: 0 }), box = make("div", { class: "live-exercise highlight live-block" }, pre);
    const exercise = new Exercise(pre, name, await answer.text());
    box.append(exercise.buttons, exercise.output.box);
    block.after(box);
    exercise.text = exercise.text;
    new IntersectionObserver(([seen], observer) => {
      if (!seen.isIntersecting) return;
      observer.disconnect();
      exercise.open(false);
    }).observe(box);
  }

  /** In the course's table: which exercises are begun and which are done, and all answers as one file. */
  function showProgress(table) {
    for (const code of table.querySelectorAll("td code")) {
      const saved = store.names().includes(code.textContent) && store.read(code.textContent);
      if (saved) code.after(saved.passed ? " ✓ passed" : " (begun)");
    }
    const all = () => JSON.stringify(Object.fromEntries(store.names().map(name => [name, store.read(name)])), null, 1);
    table.after(make("p", { class: "live-buttons" },
      make("button", { type: "button", click: () => download("tinygrad_attn-answers.json", all()) }, "Export my answers")));
  }

  document.addEventListener("DOMContentLoaded", () => {
    document.body.append(bar);
    document.querySelectorAll("div.highlight-python, div.highlight-pycon").forEach(addBlock);
    for (const block of document.querySelectorAll("div.highlight-sh")) {
      const found = block.querySelector("pre").textContent.trim().match(/^python -m tinygrad_attn exercise (\w+)$/);
      if (found) addExercise(block, found[1]);
    }
    const table = [...document.querySelectorAll("table")].find(one => one.querySelector("a[href^='00-']"));
    if (table) showProgress(table);
  });
  return { call, inTurn, make, Output };
})();
