// Live pages: each block of Python gets Run, Edit and Reset, each exercise an editor and Mark.
// No Python is loaded before a reader presses Run; then it runs in a worker (worker.js).
"use strict";
const Live = (() => {
  const here = new URL(".", document.currentScript.src), cells = [];
  let worker, end, turn = 0, line = Promise.resolve();

  function make(tag, attributes = {}, ...inside) {
    const element = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) {
      if (typeof value === "function") element.addEventListener(name, value);
      else element.setAttribute(name, value);
    }
    element.append(...inside);
    return element;
  }

  // ---- Python
  const status = make("span", { role: "status" });
  const bar = make("div", { class: "live-bar" }, make("progress"), status, make("button", { click: () => stop() }, "Stop"));
  bar.hidden = true;
  function say(text) {
    status.textContent = text;
    bar.hidden = !text;
  }

  /** Have the worker call a function of live_page.py; what that shows goes to `show(kind, text)`. */
  function call(name, args, show) {
    say("Loading Python");
    worker ??= new Worker(new URL("worker.js", here));
    return new Promise(resolve => {
      end = ok => { say(""); resolve(ok); };
      worker.onmessage = ({ data: { kind, text, ok } }) => {
        if (kind === "status") say(text);
        else if (kind === "done") end(ok);
        else show(kind, text);
      };
      worker.onerror = event => { show("error", `Python cannot be loaded here. ${event.message ?? ""}`); stop(); };
      worker.postMessage({ call: name, args });
    });
  }
  /** End Python: what runs and what waits is given up, and the next Run begins anew. */
  function stop() {
    worker?.terminate();
    worker = undefined;
    turn += 1;
    for (const cell of cells) cell.ran = false;
    end?.("stopped");
  }
  /** One after another: what is pressed while Python is busy waits. */
  function inTurn(work) {
    const mine = turn;
    return (line = line.then(() => mine === turn && work()).catch(error => say(String(error))));
  }

  /** A box for what a run shows. */
  class Output {
    constructor(name) {
      this.box = make("div", { class: "live-output", role: "region", "aria-label": `Output of ${name}`, "aria-live": "polite" });
      this.clear();
    }
    clear() {
      this.box.replaceChildren();
      this.box.hidden = true;
    }
    show(kind, text) {
      const last = this.box.lastElementChild;
      this.box.hidden = false;
      if (kind === "text" && last?.className === "text") last.append(text);
      else if (kind === "page" || kind === "formula") { // somebody's HTML: it can reach nothing of this page
        this.box.append(make("iframe", { sandbox: "allow-scripts", srcdoc: text, title: kind, class: kind }));
      } else if (kind === "svg" || kind === "png") {
        const data = kind === "png" ? `png;base64,${text}` : `svg+xml,${encodeURIComponent(text)}`;
        this.box.append(make("img", { src: `data:image/${data}`, alt: "Picture drawn by this code" }));
      } else this.box.append(make("pre", { class: kind, tabindex: 0 }, text));
    }
  }

  // ---- blocks
  /** A block of code with its buttons and its output; `pre` shows it until it is edited. */
  class Cell {
    constructor(pre, name, text) {
      Object.assign(this, { pre, name, original: text, output: new Output(name), ran: false });
      this.buttons = make("div", { class: "live-buttons", role: "group", "aria-label": name });
      this.run = this.button("Run", () => inTurn(() => runFrom(this)));
      this.edit = this.button("Edit", () => this.open());
      this.reset = this.button("Reset", () => this.restore());
      this.reset.hidden = true;
    }
    button(text, click) {
      const button = make("button", { type: "button", click, "aria-label": `${text} ${this.name}` }, text);
      this.buttons.append(button);
      return button;
    }
    get text() { return this.editor?.getValue() ?? this.original; }
    open(focus = true) {
      const run = () => this.run.click(), soft = editor => editor.execCommand("insertSoftTab");
      this.pre.hidden = this.edit.hidden = true;
      this.editor = CodeMirror(host => this.pre.after(host), {
        value: this.original, mode: "python", indentUnit: 4, inputStyle: "contenteditable",
        screenReaderLabel: `${this.name}; Escape leaves the editor`,
        extraKeys: { "Ctrl-Enter": run, "Cmd-Enter": run, "Shift-Enter": run, Esc: () => this.run.focus(),
          "Shift-Tab": "indentLess", Tab: editor => editor.somethingSelected() ? editor.indentSelection("add") : soft(editor) },
      });
      this.editor.on("change", () => this.changed());
      if (focus) this.editor.focus();
    }
    changed() {
      this.ran = this.reset.hidden = false;
    }
    restore() {
      this.editor?.getWrapperElement().remove();
      this.editor = undefined;
      this.pre.hidden = this.edit.hidden = this.ran = false;
      this.reset.hidden = true;
      this.output.clear();
    }
    /** Whether later blocks may go on. */
    async execute() {
      this.output.clear();
      this.reset.hidden = false;
      const options = [this.text, this.name, Boolean(this.interactive), Boolean(this.fresh)];
      const ok = await call("run", options, (kind, text) => this.output.show(kind, text));
      this.ran = ok !== "stopped";
      if (!this.ran) this.output.show("note", "Stopped. The next Run starts Python again, and runs the blocks before it.");
      if (ok === true && this.output.box.hidden) this.output.show("quiet", "Done; there is nothing to show.");
      return ok === true || this.ran && Boolean(this.raises);
    }
  }

  /** Run a block after those before it that have not run; one of them that goes wrong ends it. */
  async function runFrom(cell) {
    for (const earlier of cells.slice(0, Math.max(0, cells.indexOf(cell)))) {
      if (earlier.ran || (await earlier.execute())) continue;
      cell.output.clear();
      return cell.output.show("note", `Not run: ${earlier.name}, which comes before, did not come to its end.`);
    }
    await cell.execute();
  }

  /** The comments above a block: `<!-- raises: ... -->`, `<!-- skip: ... -->`, `<!-- browser: ... -->`. */
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
    const why = notes.skip ?? notes.browser, rows = pre.textContent.split("\n").filter(row => /^(>>>|\.\.\.)( |$)/.test(row));
    if (why) return block.after(make("p", { class: "live-why" }, `Does not run in this page: ${why}.`));
    const cell = new Cell(pre, `block ${cells.length + 1}`, interactive ? rows.map(row => row.slice(4)).join("\n") : pre.textContent);
    const raises = notes.raises ?? (interactive && pre.textContent.match(/^\w+Error/m)?.[0]);
    if (raises) cell.buttons.append(make("span", { class: "live-why" }, `raises ${raises.split(":")[0]}, as it should`));
    cells.push(Object.assign(cell, { interactive, raises }));
    block.classList.add("live-block");
    block.append(cell.buttons, cell.output.box);
  }

  // ---- exercises
  const store = {
    read: name => JSON.parse(localStorage.getItem(`tinygrad_attn:${name}`)) ?? {},
    write: (name, value) => localStorage.setItem(`tinygrad_attn:${name}`, JSON.stringify(value)),
    names: () => Object.keys(localStorage).filter(key => key.startsWith("tinygrad_attn:")).map(key => key.slice(14)),
  };
  const piped = (bytes, way) => new Response(new Blob([bytes]).stream().pipeThrough(way));
  async function pack(text) {
    const bytes = await piped(text, new CompressionStream("deflate-raw")).arrayBuffer();
    return btoa(String.fromCharCode(...new Uint8Array(bytes))).replace(/\+/g, "-").replace(/\//g, "_").replace(/=+$/, "");
  }
  function unpack(code) {
    const bytes = Uint8Array.from(atob(code.replace(/-/g, "+").replace(/_/g, "/")), sign => sign.charCodeAt());
    return piped(bytes, new DecompressionStream("deflate-raw")).text();
  }
  const download = (name, text) => make("a", { href: URL.createObjectURL(new Blob([text])), download: name }).click();

  class Exercise extends Cell {
    constructor(pre, name, stub) {
      super(pre, `exercise ${name}`, stub);
      Object.assign(this, { key: name, stub, fresh: true });
      this.edit.remove();
      this.button("Mark", () => inTurn(() => this.mark()));
      this.button(`Save ${name}.py`, () => download(`${name}.py`, this.text));
      this.button("Copy link", () => this.link());
      this.sign = make("span", { class: "live-why", role: "status" });
      this.buttons.append(this.sign);
      for (const event of ["hashchange", "storage"]) window.addEventListener(event, () => this.load());
    }
    /** The text of a link, else what was written before, else the stub. */
    async load() {
      const saved = store.read(this.key), [, name, code] = location.hash.match(/^#solution=(\w+):([\w-]+)$/) ?? [];
      const linked = name === this.key && (await unpack(code).catch(() => "")), text = linked || (saved.text ?? this.stub);
      this.loading = true;
      if (this.text !== text) this.editor.setValue(text);
      this.loading = false;
      this.reset.hidden = text === this.stub;
      this.sign.textContent = linked ? "from a link; kept when you change or mark it" : saved.passed ? "✓ passed" : "";
      if (linked) this.buttons.scrollIntoView({ block: "end" });
    }
    keep(passed) {
      store.write(this.key, { text: this.text, passed });
      this.sign.textContent = passed ? "✓ passed" : "";
    }
    changed() {
      super.changed();
      if (!this.loading) this.keep(false);
    }
    restore() {
      localStorage.removeItem(`tinygrad_attn:${this.key}`);
      history.replaceState(null, "", location.pathname);
      this.output.clear();
      this.load();
    }
    async link() {
      location.hash = `solution=${this.key}:${await pack(this.text)}`;
      navigator.clipboard?.writeText(location.href).catch(() => {});
      this.sign.textContent = "The link is in the address bar, and copied.";
    }
    async mark() {
      let known = "", limit = 0, told, timer, slow, ok;
      this.output.clear();
      do { // again, in a new Python, if a check came to no end: it alone is lost
        slow = undefined;
        ok = await call("mark", [this.text, this.key, known, limit], (kind, text) => {
          if (kind !== "told") return this.output.show(kind, text);
          told = text;
          clearTimeout(timer);
          timer = setTimeout(() => { slow = told; stop(); }, LIVE.limit * 1000);
        });
        clearTimeout(timer);
        [known, limit] = [slow, LIVE.limit];
      } while (slow);
      return ok === "stopped" ? this.output.show("note", "Stopped.") : this.keep(ok === true);
    }
  }

  /** An editor for an exercise, or for the exam of an engine, which begins with another exercise's file. */
  async function addExercise(block, name, file) {
    const answer = await fetch(new URL(`exercises/${file}.py`, here)), pre = make("pre");
    const exercise = new Exercise(pre, name, await answer.text());
    block.after(make("div", { class: "live-exercise" }, pre, exercise.buttons, exercise.output.box));
    exercise.open(false);
    exercise.load();
  }

  /** Practice: a button for each level makes a task, an exercise with hints. The page's table has the topics. */
  function addPractice(block) {
    const pre = make("pre"), exercise = new Exercise(pre, "practice", ""), task = new Output("the task");
    const names = [...document.querySelectorAll("td:first-child code")].map(code => make("option", {}, code.textContent));
    const topic = make("select", { "aria-label": "Topic" }, ...names), levels = make("div", { class: "live-buttons" }, topic);
    let last = 1, hints = 0;
    const another = level => inTurn(() => {
      [last, hints] = [level, 0];
      task.clear();
      return call("practice", [topic.value, level], (kind, text) => {
        if (kind !== "stub") return task.show(kind, text);
        exercise.stub = text;
        exercise.restore();
      });
    });
    for (const level of [1, 2, 3, 4, 5, 6]) levels.append(make("button", { type: "button", click: () => another(level) }, `Level ${level}`));
    levels.append(make("button", { type: "button", click: () => another(last) }, "Another one"));
    exercise.button("Hint", () => inTurn(() => {
      exercise.output.clear();
      return call("hint", [exercise.text, hints++ % 3 + 1], (kind, text) => exercise.output.show(kind, text));
    }));
    block.after(make("div", { class: "live-exercise" }, levels, task.box, pre, exercise.buttons, exercise.output.box));
    exercise.open(false);
    exercise.load().then(() => exercise.text || another(1));
  }

  /** In the course's table: which exercises are begun and which are done, and all answers as one file. */
  function showProgress(table) {
    for (const code of table.querySelectorAll("td code")) {
      const saved = store.read(code.textContent);
      if (saved.text) code.after(saved.passed ? " ✓ passed" : " (begun)");
    }
    const all = () => JSON.stringify(Object.fromEntries(store.names().map(name => [name, store.read(name)])), null, 1);
    const click = () => download("tinygrad_attn-answers.json", all());
    table.after(make("p", { class: "live-buttons" }, make("button", { type: "button", click }, "Export my answers")));
  }

  document.addEventListener("DOMContentLoaded", () => {
    document.body.append(bar);
    document.querySelectorAll("div.highlight-python, div.highlight-pycon").forEach(addBlock);
    for (const block of document.querySelectorAll("div.highlight-sh pre")) {
      if (block.textContent.trim() === "python -m tinygrad_attn practice") addPractice(block.closest(".highlight-sh"));
      const found = block.textContent.trim().match(/^python -m tinygrad_attn (?:exercise (?!zoo)(\w+)|exam (engine)\.py)$/);
      if (found) addExercise(block.closest(".highlight-sh"), found[1] ?? "exam", found[1] ?? found[2]);
    }
    document.querySelectorAll("table:has(a[href^='00-'])").forEach(showProgress);
  });
  return { call, inTurn, make, Output };
})();
