// Live pages: each block of Python gets Run, Edit and Reset, each exercise an editor and Mark.
// No Python is loaded before a reader presses Run; then it runs in a worker (worker.js), which stays while he reads on.
"use strict";
const Live = (() => {
  const here = new URL(".", document.currentScript.src), page = document.documentElement;
  let worker, end, turn = 0, line = Promise.resolve(), cells = [], exercises = [], visits = 0, editor;

  /** A text of this script in the page's language: `{}` stands for a value. */
  const t = (text, ...values) => (LIVE.words[page.lang]?.[text] ?? text).replaceAll("{}", () => values.shift());
  const button = (text, onclick) => make("button", { type: "button", onclick }, t(text));
  const row = (...parts) => make("div", { className: "live-buttons" }, ...parts);
  const aside = text => make("span", { className: "live-why", role: "status" }, text);

  /** The text of a file beside this script, or at an address. */
  async function textOf(address, options) {
    const answer = await fetch(new URL(address, here), options);
    if (!answer.ok) throw new Error(`${answer.url}: ${answer.status} ${answer.statusText}`);
    return answer.text();
  }

  // ---- Python
  const stopped = () => stop("note", t("Stopped. The next Run starts Python again, and runs the blocks before it."));
  const status = make("span", { role: "status" });
  const bar = make("div", { className: "live-bar", hidden: true }, make("progress"), status, button("Stop", stopped));
  function say(text, ...values) {
    status.textContent = t(text, ...values);
    bar.hidden = !text;
  }
  /** Have the worker call a function of live_page.py. What that says goes to on[kind], or is shown in an output. */
  function call(name, args, { clear, show }, on = {}) {
    const file = t("This page is opened as a file. To run Python, serve its folder: make serve, or python -m http.server in it.");
    clear();
    if (location.protocol === "file:") return show("error", file);
    say("Loading Python");
    worker ??= new Worker(new URL("worker.js", here));
    return new Promise(resolve => {
      end = (ok, kind, text) => { say(""); if (kind) show(kind, text); resolve(ok); };
      const heard = { status: say, done: end, ...on };
      worker.onmessage = ({ data: [kind, ...values] }) => heard[kind] ? heard[kind](...values) : show(kind, ...values);
      worker.onerror = ({ message = "" }) => stop("error", t("Python cannot be loaded here. {}", message));
      worker.postMessage({ call: name, args, language: page.lang });
    });
  }
  /** End Python, and say why: what runs and what waits is given up, and the next Run begins anew. */
  function stop(...why) {
    worker?.terminate();
    worker = undefined;
    turn += 1;
    for (const cell of cells) cell.ran = false;
    end?.(undefined, ...why);
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
  /** Fetch the editor, which is somebody else's. */
  async function loadEditor() {
    for (const name of ["codemirror.css", "codemirror.js", "python.js"]) {
      const { url, integrity = "" } = LIVE.parts[name], text = await textOf(url, { integrity });
      document.head.prepend(make(name.endsWith("css") ? "style" : "script", {}, text)); // live.css has the last word
    }
  }

  /** A block of code with its buttons and its output; `pre` shows it until it is edited. */
  class Cell {
    constructor(pre, name, text) {
      const run = button("Run", () => inTurn(() => this.execute()));
      const edit = button("Edit", () => this.open().then(() => this.editor.focus()));
      const reset = button("Reset", () => this.restore());
      const buttons = make("div", { className: "live-buttons", role: "group", ariaLabel: name }, run, edit, reset);
      Object.assign(this, { pre, name, original: text, output: output(name), run, edit, reset, buttons, ran: false });
      reset.hidden = true;
    }
    get text() { return this.editor?.getValue() ?? this.original; }
    async open() {
      await (editor ??= loadEditor());
      const run = () => this.run.click(), leave = () => this.run.focus();
      const keys = { "Ctrl-Enter": run, "Cmd-Enter": run, "Shift-Enter": run, Esc: leave, Tab: "indentMore", "Shift-Tab": "indentLess" };
      this.pre.hidden = this.edit.hidden = true;
      this.editor = CodeMirror(host => this.pre.after(host), {
        value: this.original, mode: "python", indentUnit: 4, inputStyle: "contenteditable", lineNumbers: true, extraKeys: keys,
        screenReaderLabel: t("{}; Escape leaves the editor", this.name),
      });
      this.editor.on("change", () => this.changed());
    }
    changed() { this.ran = this.reset.hidden = false; }
    restore() {
      this.editor?.setValue(this.original);
      this.output.clear();
      [this.ran, this.reset.hidden] = [false, true];
    }
    /** Run it after those before it that have not run, if they come to their end. Return whether it does so, too. */
    async execute() {
      const { output } = this;
      for (const earlier of cells.slice(0, Math.max(0, cells.indexOf(this)))) {
        if (earlier.ran || (await earlier.execute())) continue;
        output.clear();
        return output.show("note", t("Not run: {}, which comes before, did not come to its end.", earlier.name));
      }
      this.reset.hidden = false;
      const ok = await call("run", [this.text, this.name, this.visit ?? visits], output);
      if (ok && !output.box.hasChildNodes()) output.show("quiet", t("Done; there is nothing to show."));
      return (this.ran = ok || (ok === false && Boolean(this.raises)));
    }
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
  const answers = () => JSON.parse(localStorage.getItem("tinygrad_attn")) ?? {}, read = key => answers()[key] ?? {};
  const write = changes => localStorage.setItem("tinygrad_attn", JSON.stringify({ ...answers(), ...changes }));
  const download = (name, text) => make("a", { href: URL.createObjectURL(new Blob([text])), download: name }).click();

  /** The answer to an exercise, kept in the browser under a key. */
  class Exercise extends Cell {
    constructor(name, stub, key = name) {
      super(make("pre"), t("exercise {}", name), stub);
      Object.assign(this, { exercise: name, key, visit: 0, sign: aside("") });
      this.edit.remove();
      const saving = button(t("Save {}", `${name}.py`), () => download(`${name}.py`, this.text));
      const marking = button("Mark", () => inTurn(() => this.mark()));
      this.buttons.append(marking, saving, button("Copy link", () => this.link()));
    }
    /** Show the exercise after an element, below `more`. */
    async place(element, ...more) {
      const parts = [...more, this.pre, this.buttons, this.sign, this.output.box];
      element.after(make("div", { className: "live-exercise" }, ...parts));
      await this.open().catch(error => this.output.show("error", error.message));
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
      if (this.text !== (read(this.key).text ?? this.original)) this.keep({ text: this.text });
    }
    keep(answer) {
      write({ [this.key]: answer });
      this.load();
    }
    restore() {
      this.output.clear();
      this.keep(undefined);
    }
    async link() {
      const code = encodeURIComponent(this.text), address = new URL(`#solution=${this.exercise}:${code}`, location);
      const copied = await navigator.clipboard?.writeText(address).then(() => true, () => false);
      this.output.show("note", `${copied ? t("Copied: ") : ""}${address}`);
    }
    /** Mark it, in a new Python if a check came to no end, with the marks `known` before: it alone is lost. */
    async mark(known = "", limit = 0) {
      let timer, slow;
      const told = text => {
        clearTimeout(timer);
        timer = setTimeout(() => { slow = text; stop(); }, LIVE.limit * 1000);
      };
      const ok = await call("mark", [this.text, this.exercise, known, limit], this.output, { told });
      clearTimeout(timer);
      if (slow) await this.mark(slow, LIVE.limit);
      else if (ok !== undefined) this.keep({ text: this.text, passed: ok });
    }
  }

  /** An editor for an exercise, and one for another's answer, if the page's address or the browser has one. */
  async function addExercise(block, name, file) {
    const stub = await textOf(`exercises/${page.lang}/${file}.py`), linked = `linked_${name}`;
    const [, shared, code] = location.hash.match(/^#solution=(\w+):(.*)$/) ?? [];
    if (shared === name) {
      write({ [linked]: { text: decodeURIComponent(code) } });
      history.replaceState(null, "", location.pathname);
    }
    await new Exercise(name, stub).place(block);
    if (read(linked).text) await new Exercise(name, stub, linked).place(block.nextSibling, aside(t("from a link")));
    if (shared === name) block.nextSibling.nextSibling.scrollIntoView();
  }
  /** Practice: a button for each level makes a task, an exercise with hints. The page's table has the topics. */
  function addPractice(block) {
    const exercise = new Exercise("practice", ""), task = output(t("the task"));
    const topics = [...document.querySelectorAll("td:first-child code")].map(code => new Option(code.textContent));
    const topic = make("select", { ariaLabel: t("Topic") }, ...topics);
    let hints = 0, level = 1;
    const stub = text => { [hints, exercise.original] = [0, text]; exercise.restore(); };
    const another = () => inTurn(() => call("practice", [topic.value, level], task, { stub }));
    const hint = () => inTurn(() => call("hint", [exercise.text, (hints++ % 3) + 1], exercise.output));
    const levels = [1, 2, 3, 4, 5, 6].map(n => button(t("Level {}", n), () => { level = n; another(); }));
    exercise.buttons.append(button("Hint", hint));
    task.box.classList.add("formula");
    exercise.place(block, row(topic, ...levels, button("Another one", another)), task.box);
  }
  /** In the course's table: which exercises are begun and which are done, and all answers as one file. */
  function showProgress(table) {
    for (const code of table.querySelectorAll("td code")) {
      const { text, passed } = read(code.textContent);
      if (text) code.after(" ", passed ? t("✓ passed") : t("(begun)"));
    }
    async function load() {
      try {
        const found = JSON.parse(await file.files[0].text());
        for (const [key, { text, passed }] of Object.entries(found)) write({ [key]: { text, passed } });
        location.reload();
      } catch { alert(t("This file is not one that Export has written.")); }
    }
    const file = make("input", { type: "file", accept: ".json", hidden: true, onchange: load });
    const save = () => download("tinygrad_attn-answers.json", JSON.stringify(answers(), null, 1));
    table.after(row(button("Export my answers", save), button("Import", () => file.click()), file));
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
    const text = await textOf(url).catch(String), next = new DOMParser().parseFromString(text, "text/html").documentElement;
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
