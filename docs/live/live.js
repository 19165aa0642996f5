// Live pages: each block of Python gets Run, Edit and Reset, each exercise an editor and Mark.
// No Python is loaded before a reader presses Run; then it runs in a worker (worker.js), which stays while he reads on.
"use strict";
const Live = (() => {
  const here = new URL(".", document.currentScript.src), page = document.documentElement;
  let worker, end, turn = 0, line = Promise.resolve(), cells = [], exercises = [], visits = 0, editor;

  /** A text of this script in the page's language: `{}` stands for a value. */
  const words = text => LIVE.words[page.lang]?.[text] ?? text;
  const t = (text, ...values) => values.reduce((said, value) => said.replace("{}", value), words(text));
  const button = (text, onclick) => make("button", { type: "button", onclick }, t(text));
  const row = (...parts) => make("div", { className: "live-buttons" }, ...parts);
  const aside = text => make("span", { className: "live-why", role: "status" }, text);

  // ---- Python
  const status = make("span", { role: "status" });
  const bar = make("div", { className: "live-bar", hidden: true }, make("progress"), status, button("Stop", stop));
  function say(text, ...values) {
    status.textContent = t(text, ...values);
    bar.hidden = !text;
  }
  /** Have the worker call a function of live_page.py; what that shows goes to `show(kind, text)`. */
  function call(name, args, show) {
    const file = t("This page is opened as a file. To run Python, serve its folder: make serve, or python -m http.server in it.");
    if (location.protocol === "file:") return show("error", file);
    say("Loading Python");
    worker ??= new Worker(new URL("worker.js", here));
    return new Promise(resolve => {
      end = ok => { say(""); resolve(ok); };
      worker.onmessage = ({ data: { kind, text, ok, values = [] } }) => {
        if (kind === "status") say(text, ...values);
        else if (kind === "done") end(ok);
        else show(kind, text);
      };
      worker.onerror = ({ message = "" }) => { show("error", t("Python cannot be loaded here. {}", message)); stop(); };
      worker.postMessage({ call: name, args, language: page.lang });
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

  /** Give a page inside this one its theme: its own, or that of the reader's machine. */
  function themed(frame) {
    const { theme } = document.body.dataset, scheme = theme === "auto" || !theme ? "light dark" : theme;
    frame.srcdoc = frame.page.replace("<html", `<html style="color-scheme: ${scheme}"`);
    return frame;
  }
  const SHOWN = {
    image: src => make("img", { src, alt: t("Picture drawn by this code") }),
    page: page => themed(make("iframe", { title: t("Page"), page, sandbox: "allow-scripts" })), // it reaches nothing here
  };
  /** A box for what a run shows. */
  function output(name) {
    const box = make("div", { className: "live-output", role: "region", ariaLive: "polite", ariaLabel: t("Output of {}", name) });
    const show = (kind, text) => {
      const last = box.lastElementChild, pre = text => make("pre", { className: kind, tabIndex: 0 }, text);
      if (kind === "text" && last?.className === "text") last.append(text);
      else box.append((SHOWN[kind] ?? pre)(text));
    };
    return { box, show, clear: () => box.replaceChildren() };
  }

  // ---- blocks
  /** Fetch one of somebody else's files for the page itself. */
  function fetched(name) {
    const { url, integrity = "" } = LIVE.parts[name], address = new URL(url, here);
    const said = { integrity, crossOrigin: "anonymous", rel: "stylesheet", href: address, src: address };
    return new Promise((onload, reject) => {
      const onerror = () => reject(new Error(`${address} cannot be loaded.`));
      const element = make(name.endsWith("css") ? "link" : "script", { ...said, onload, onerror });
      document.head.prepend(element); // live.css has the last word
    });
  }
  async function loadEditor() {
    await Promise.all([fetched("codemirror.css"), fetched("codemirror.js")]);
    await fetched("python.js");
  }

  /** A block of code with its buttons and its output; `pre` shows it until it is edited. */
  class Cell {
    constructor(pre, name, text) {
      Object.assign(this, { pre, name, original: text, output: output(name), buttons: row(), ran: false });
      this.run = this.button("Run", () => inTurn(() => runFrom(this)));
      this.edit = this.button("Edit", () => this.open());
      this.reset = this.button("Reset", () => this.restore());
      this.reset.hidden = true;
    }
    button(text, onclick) {
      const made = Object.assign(button(text, onclick), { ariaLabel: `${t(text)} ${this.name}` });
      this.buttons.append(made);
      return made;
    }
    get text() { return this.editor?.getValue() ?? this.original; }
    async open(focus = true) {
      await (editor ??= loadEditor());
      const run = () => this.run.click(), leave = () => this.run.focus();
      const keys = { "Ctrl-Enter": run, "Cmd-Enter": run, "Shift-Enter": run, Esc: leave, Tab: "indentMore", "Shift-Tab": "indentLess" };
      this.pre.hidden = this.edit.hidden = true;
      this.editor = CodeMirror(host => this.pre.after(host), {
        value: this.original, mode: "python", indentUnit: 4, inputStyle: "contenteditable", lineNumbers: true, extraKeys: keys,
        screenReaderLabel: t("{}; Escape leaves the editor", this.name),
      });
      this.editor.on("change", () => this.changed());
      if (focus) this.editor.focus();
    }
    changed() { this.ran = this.reset.hidden = false; }
    restore() {
      this.editor?.setValue(this.original);
      this.output.clear();
      [this.ran, this.reset.hidden] = [false, true];
    }
    /** Whether later blocks may go on. */
    async execute() {
      const { output: { show, box } } = this;
      this.output.clear();
      this.reset.hidden = false;
      const ok = await call("run", [this.text, this.name, this.visit ?? visits], show);
      if (ok === "stopped") show("note", t("Stopped. The next Run starts Python again, and runs the blocks before it."));
      if (ok === true && !box.hasChildNodes()) show("quiet", t("Done; there is nothing to show."));
      return (this.ran = ok === true || (ok === false && Boolean(this.raises)));
    }
  }
  /** Run a block after those before it that have not run; one of them that goes wrong ends it. */
  async function runFrom(cell) {
    for (const earlier of cells.slice(0, Math.max(0, cells.indexOf(cell)))) {
      if (earlier.ran || (await earlier.execute())) continue;
      cell.output.clear();
      return cell.output.show("note", t("Not run: {}, which comes before, did not come to its end.", earlier.name));
    }
    await cell.execute();
  }
  /** Buttons for a block. docs/conf.py has put the comments above it, such as `<!-- raises: ... -->`, into its data. */
  function addBlock(block) {
    const pre = block.querySelector("pre"), { skip, browser = skip } = block.dataset;
    if (browser) return block.after(aside(t("Does not run in this page: {}.", browser)));
    const cell = new Cell(pre, t("block {}", cells.length + 1), pre.textContent);
    cell.raises = block.dataset.raises ?? pre.textContent.match(/^\w+Error/m)?.[0]; // in what a prompt shows
    if (cell.raises) cell.buttons.append(aside(t("raises {}, as it should", cell.raises.split(":")[0])));
    cells.push(cell);
    block.classList.add("live-block");
    block.append(cell.buttons, cell.output.box);
  }

  // ---- exercises
  const KEY = "tinygrad_attn:", read = name => JSON.parse(localStorage.getItem(KEY + name)) ?? {};
  const write = (name, value) => localStorage.setItem(KEY + name, JSON.stringify(value));
  const download = (name, text) => make("a", { href: URL.createObjectURL(new Blob([text])), download: name }).click();

  /** The answer to an exercise, kept in the browser under a key. */
  class Exercise extends Cell {
    constructor(name, stub, key = name) {
      super(make("pre"), t("exercise {}", name), stub);
      Object.assign(this, { exercise: name, key, visit: 0, sign: aside("") });
      this.edit.remove();
      this.button("Mark", () => inTurn(() => this.mark()));
      this.button(t("Save {}", `${name}.py`), () => download(`${name}.py`, this.text));
      this.button("Copy link", () => this.link());
    }
    /** Show the exercise after an element, below `more`. */
    async place(element, ...more) {
      const parts = [...more, this.pre, this.buttons, this.sign, this.output.box];
      element.after(make("div", { className: "live-exercise" }, ...parts));
      await this.open(false).catch(error => this.output.show("error", error.message));
      exercises.push(this);
      this.load();
    }
    load() {
      const { text = this.original, passed } = read(this.key);
      if (this.text !== text) this.editor.setValue(text);
      this.reset.hidden = text === this.original;
      this.sign.textContent = passed ? t("✓ passed") : "";
    }
    changed() {
      super.changed();
      if (this.text !== (read(this.key).text ?? this.original)) this.keep(false);
    }
    keep(passed) {
      write(this.key, { text: this.text, passed });
      this.load();
    }
    restore() {
      localStorage.removeItem(KEY + this.key);
      super.restore();
      this.load();
    }
    async link() {
      const code = encodeURIComponent(this.text), address = new URL(`#solution=${this.exercise}:${code}`, location);
      const copied = await navigator.clipboard?.writeText(address).then(() => true, () => false);
      this.output.show("note", `${copied ? t("Copied: ") : ""}${address}`);
    }
    async mark() {
      let known = "", limit = 0, told, timer, slow, ok;
      this.output.clear();
      do { // again, in a new Python, if a check came to no end: it alone is lost
        slow = undefined;
        ok = await call("mark", [this.text, this.exercise, known, limit], (kind, text) => {
          if (kind !== "told") return this.output.show(kind, text);
          told = text;
          clearTimeout(timer);
          timer = setTimeout(() => { slow = told; stop(); }, LIVE.limit * 1000);
        });
        clearTimeout(timer);
        [known, limit] = [slow, LIVE.limit];
      } while (slow);
      return ok === "stopped" ? this.output.show("note", t("Stopped.")) : this.keep(ok === true);
    }
  }

  /** An editor for an exercise, and one for another's answer, if the page's address or the browser has one. */
  async function addExercise(block, name, file) {
    const folder = LIVE.words[page.lang] ? `exercises/${page.lang}` : "exercises", linked = `linked_${name}`;
    const stub = await (await fetch(new URL(`${folder}/${file}.py`, here))).text();
    const [, shared, code] = location.hash.match(/^#solution=(\w+):(.*)$/) ?? [];
    if (shared === name) {
      write(linked, { text: decodeURIComponent(code) });
      history.replaceState(null, "", location.pathname);
    }
    await new Exercise(name, stub).place(block);
    if (read(linked).text) await new Exercise(name, stub, linked).place(block.nextSibling, aside(t("from a link")));
    if (shared === name) block.nextSibling.nextSibling.scrollIntoView();
  }
  /** Practice: a button for each level makes a task, an exercise with hints. The page's table has the topics. */
  function addPractice(block) {
    const exercise = new Exercise("practice", ""), { clear, show } = exercise.output, task = output(t("the task"));
    const codes = [...document.querySelectorAll("td:first-child code")], topics = codes.map(code => new Option(code.textContent));
    const topic = make("select", { ariaLabel: t("Topic") }, ...topics);
    let hints = 0, level = 1;
    const another = wanted => inTurn(() => {
      [level, hints] = [wanted, 0];
      task.clear();
      return call("practice", [topic.value, level], (kind, text) => {
        if (kind !== "stub") return task.show(kind, text);
        exercise.original = text;
        exercise.restore();
      });
    });
    exercise.button("Hint", () => inTurn(() => {
      clear();
      return call("hint", [exercise.text, (hints++ % 3) + 1], show);
    }));
    const levels = [1, 2, 3, 4, 5, 6].map(n => button(t("Level {}", n), () => another(n)));
    task.box.classList.add("formula");
    exercise.place(block, row(topic, ...levels, button("Another one", () => another(level))), task.box);
  }
  /** In the course's table: which exercises are begun and which are done, and all answers as one file. */
  function showProgress(table) {
    for (const code of table.querySelectorAll("td code")) {
      const { text, passed } = read(code.textContent);
      if (text) code.after(" ", passed ? t("✓ passed") : t("(begun)"));
    }
    const keys = () => Object.keys(localStorage).filter(key => key.startsWith(KEY)).map(key => key.slice(KEY.length));
    const answers = () => JSON.stringify(Object.fromEntries(keys().map(key => [key, read(key)])), null, 1);
    const file = make("input", { type: "file", accept: ".json", hidden: true });
    file.addEventListener("change", async () => {
      try {
        const found = JSON.parse(await file.files[0].text());
        for (const [key, { text, passed }] of Object.entries(found)) write(key, { text, passed });
        location.reload();
      } catch { alert(t("This file is not one that Export has written.")); }
    });
    const saving = button("Export my answers", () => download("tinygrad_attn-answers.json", answers()));
    table.after(row(saving, button("Import", () => file.click()), file));
  }

  // ---- pages
  const COMMAND = /^python -m tinygrad_attn (exercise|exam|practice)(?: (\w+))?(\.py)?$/;
  function begin() {
    [cells, exercises, visits] = [[], [], visits + 1];
    document.querySelectorAll("div.highlight-python, div.highlight-pycon").forEach(addBlock);
    for (const block of document.querySelectorAll("div.highlight-sh")) {
      const [, kind, name] = block.querySelector("pre").textContent.trim().match(COMMAND) ?? [];
      if (kind === "practice") addPractice(block);
      else if (kind && name !== "zoo") addExercise(block, kind === "exam" ? kind : name, name);
    }
    document.querySelectorAll("table:has(a[href^='00-'])").forEach(showProgress);
    if (byId("digit")) readDigits(byId("digit"));
  }
  /** Show another live page in this one's place, so that Python need not be loaded again. */
  async function visit(url) {
    const text = await (await fetch(url)).text(), next = new DOMParser().parseFromString(text, "text/html").documentElement;
    if (!next.querySelector("script[src*='live/live.js']")) return location.reload();
    turn += 1; // what waits belongs to the page before
    page.lang = next.lang;
    page.dataset.content_root = next.dataset.content_root;
    for (const part of ["title", ".sidebar-drawer", "article", "footer", ".toc-drawer"]) {
      document.querySelector(part).replaceWith(next.querySelector(part));
    }
    begin();
  }
  window.navigation?.addEventListener("navigate", event => {
    const { url } = event.destination, { pathname } = new URL(url), other = pathname !== location.pathname;
    const plain = event.canIntercept && event.downloadRequest === null && event.navigationType !== "reload";
    if (worker && plain && other && /(\/|\.html)$/.test(pathname)) event.intercept({ handler: () => visit(url) });
  });
  document.addEventListener("DOMContentLoaded", () => {
    const stays = document.querySelectorAll("header a[href], link[rel~=icon]");
    for (const link of stays) link.href = link.href; // whole, whichever page is shown below
    document.body.append(bar);
    begin();
    const again = () => document.querySelectorAll(".live-output iframe").forEach(themed);
    new MutationObserver(again).observe(document.body, { attributeFilter: ["data-theme"] });
  });
  window.addEventListener("storage", () => exercises.forEach(exercise => exercise.load()));
  window.addEventListener("hashchange", () => { if (location.hash.startsWith("#solution=")) location.reload(); });
  return { call, inTurn, output, t, button, row };
})();
