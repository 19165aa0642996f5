// Live pages: each block of Python gets Run, Edit and Reset, each exercise an editor and Mark.
// No Python is loaded before a reader presses Run; then it runs in a worker (worker.js), which stays while he reads on.
"use strict";
const Live = (() => {
  const here = new URL(".", document.currentScript.src);
  let worker, end, turn = 0, line = Promise.resolve(), cells = [], exercises = [], visits = 0, path = location.pathname, editors;

  /** A text of this script in the page's language: `{}` stands for a value. */
  const t = (text, ...values) => values.reduce((said, value) => said.replace("{}", value), LIVE.words[document.documentElement.lang]?.[text] ?? text);

  // ---- Python
  const status = make("span", { role: "status" });
  const bar = make("div", { className: "live-bar", hidden: true }, make("progress"), status, make("button", { type: "button", onclick: () => stop() }, t("Stop")));
  function say(text, ...values) {
    status.textContent = t(text, ...values);
    bar.hidden = !text;
  }

  /** Have the worker call a function of live_page.py; what that shows goes to `show(kind, text)`. */
  function call(name, args, show) {
    if (location.protocol === "file:") {
      show("error", t("A browser runs no Python in pages that it opens as files. Serve the folder: make serve, or python -m http.server in it."));
      return Promise.resolve(false);
    }
    say("Loading Python");
    worker ??= new Worker(new URL("worker.js", here));
    return new Promise(resolve => {
      end = ok => { say(""); resolve(ok); };
      worker.onmessage = ({ data: { kind, text, ok, values = [] } }) => {
        if (kind === "status") say(text, ...values);
        else if (kind === "done") end(ok);
        else show(kind, text);
      };
      worker.onerror = event => { show("error", t("Python cannot be loaded here. {}", event.message ?? "")); stop(); };
      worker.postMessage({ call: name, args, language: document.documentElement.lang });
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

  /** Give a page inside this one its theme. */
  function themed(frame) {
    const theme = document.body.dataset.theme, scheme = theme === "dark" || theme === "light" ? theme : "light dark";
    frame.srcdoc = frame.page.replace("<html", `<html style="color-scheme: ${scheme}"`);
  }
  /** A box for what a run shows. */
  class Output {
    constructor(name) {
      this.box = make("div", { className: "live-output", role: "region", ariaLabel: t("Output of {}", name), ariaLive: "polite" });
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
      else if (kind === "page") { // somebody's HTML: it can reach nothing of this page
        const frame = make("iframe", { title: "Page", page: text });
        frame.sandbox.add("allow-scripts");
        themed(frame);
        this.box.append(frame);
      } else if (kind === "svg" || kind === "png") {
        const data = kind === "png" ? `png;base64,${text}` : `svg+xml,${encodeURIComponent(text)}`;
        this.box.append(make("img", { src: `data:image/${data}`, alt: t("Picture drawn by this code") }));
      } else this.box.append(make("pre", { className: kind, tabIndex: 0 }, text));
    }
  }

  // ---- blocks
  /** Fetch one of somebody else's files for the page itself. */
  function fetched(name) {
    const { url, integrity = "" } = LIVE.parts[name], address = new URL(url, here), more = { integrity, crossOrigin: "anonymous" };
    const element = name.endsWith("css") ? make("link", { rel: "stylesheet", href: address, ...more }) : make("script", { src: address, ...more });
    return new Promise((resolve, reject) => {
      Object.assign(element, { onload: resolve, onerror: () => reject(new Error(`${address} cannot be loaded.`)) });
      document.head.prepend(element); // live.css has the last word
    });
  }
  const editor = () => editors ??= Promise.all([fetched("codemirror.css"), fetched("codemirror.js").then(() => fetched("python.js"))]);

  /** A block of code with its buttons and its output; `pre` shows it until it is edited. */
  class Cell {
    constructor(pre, name, text) {
      Object.assign(this, { pre, name, original: text, output: new Output(name), ran: false });
      this.buttons = make("div", { className: "live-buttons", role: "group", ariaLabel: name });
      this.run = this.button("Run", () => inTurn(() => runFrom(this)));
      this.edit = this.button("Edit", () => this.open());
      this.reset = this.button("Reset", () => this.restore());
      this.reset.hidden = true;
    }
    button(text, onclick) {
      const button = make("button", { type: "button", onclick, ariaLabel: `${t(text)} ${this.name}` }, t(text));
      this.buttons.append(button);
      return button;
    }
    get text() { return this.editor?.getValue() ?? this.original; }
    async open(focus = true) {
      await editor();
      const run = () => this.run.click(), soft = editor => editor.execCommand("insertSoftTab");
      this.pre.hidden = this.edit.hidden = true;
      this.editor = CodeMirror(host => this.pre.after(host), {
        value: this.original, mode: "python", indentUnit: 4, inputStyle: "contenteditable", lineNumbers: true,
        screenReaderLabel: t("{}; Escape leaves the editor", this.name),
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
      const options = [this.text, this.name, visits, Boolean(this.interactive), Boolean(this.fresh)];
      const ok = await call("run", options, (kind, text) => this.output.show(kind, text));
      if (ok === "stopped") this.output.show("note", t("Stopped. The next Run starts Python again, and runs the blocks before it."));
      if (ok === true && this.output.box.hidden) this.output.show("quiet", t("Done; there is nothing to show."));
      return (this.ran = ok === true || ok === false && Boolean(this.raises));
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

  /** Buttons for a block. docs/conf.py has put the comments above it, such as `<!-- raises: ... -->`, into its attributes. */
  function addBlock(block) {
    const pre = block.querySelector("pre"), notes = block.dataset, interactive = block.matches(".highlight-pycon");
    const why = notes.skip ?? notes.browser, rows = pre.textContent.split("\n").filter(row => /^(>>>|\.\.\.)( |$)/.test(row));
    if (why) return block.after(make("p", { className: "live-why" }, t("Does not run in this page: {}.", why)));
    const cell = new Cell(pre, t("block {}", cells.length + 1), interactive ? rows.map(row => row.slice(4)).join("\n") : pre.textContent);
    const raises = notes.raises ?? (interactive && pre.textContent.match(/^\w+Error/m)?.[0]);
    if (raises) cell.buttons.append(make("span", { className: "live-why" }, t("raises {}, as it should", raises.split(":")[0])));
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
  const download = (name, text) => make("a", { href: URL.createObjectURL(new Blob([text])), download: name }).click();

  class Exercise extends Cell {
    constructor(pre, name, stub) {
      super(pre, t("exercise {}", name), stub);
      Object.assign(this, { key: name, stub, fresh: true });
      this.edit.remove();
      this.button("Mark", () => inTurn(() => this.mark()));
      this.button(t("Save {}", `${name}.py`), () => download(`${name}.py`, this.text));
      this.button("Copy link", () => this.link());
      this.mine = this.button("Back to mine", () => { store.write(this.key, { text: store.read(this.key).mine }); this.load(); });
      this.sign = make("span", { className: "live-why", role: "status" });
      this.buttons.append(this.sign);
    }
    /** The text of a link, which leaves the reader's own behind a button; else what he wrote before, else the stub. */
    load() {
      const [, name, code] = location.hash.match(/^#solution=(\w+):(.*)$/) ?? [], before = store.read(this.key);
      if (name === this.key) {
        const linked = decodeURIComponent(code);
        if (linked !== before.text) store.write(this.key, { text: linked, mine: before.mine ?? before.text ?? this.stub });
        history.replaceState(history.state, "", location.pathname);
        this.buttons.scrollIntoView({ block: "end" });
      }
      const { text = this.stub, passed, mine } = store.read(this.key);
      this.loading = true;
      if (this.text !== text) this.editor.setValue(text);
      this.loading = false;
      this.reset.hidden = text === this.stub;
      this.mine.hidden = mine === undefined;
      this.sign.textContent = [mine === undefined ? "" : t("from a link"), passed ? t("✓ passed") : ""].filter(Boolean).join(", ");
    }
    keep(passed) {
      store.write(this.key, { ...store.read(this.key), text: this.text, passed });
      this.sign.textContent = passed ? t("✓ passed") : "";
    }
    changed() {
      super.changed();
      if (!this.loading) this.keep(false);
    }
    restore() {
      localStorage.removeItem(`tinygrad_attn:${this.key}`);
      this.output.clear();
      this.load();
    }
    async link() {
      const address = `${location.origin}${location.pathname}#solution=${this.key}:${encodeURIComponent(this.text)}`;
      const copied = await navigator.clipboard?.writeText(address).then(() => true, () => false);
      this.output.show("note", `${copied ? t("Copied: ") : ""}${address}`);
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
      return ok === "stopped" ? this.output.show("note", t("Stopped.")) : this.keep(ok === true);
    }
  }

  /** An editor for an exercise, or for the exam of an engine, which begins with another exercise's file. */
  async function addExercise(block, name, file) {
    const language = document.documentElement.lang, pre = make("pre"), answer = await fetch(new URL(`exercises/${LIVE.words[language] ? `${language}/` : ""}${file}.py`, here));
    const exercise = new Exercise(pre, name, await answer.text());
    block.after(make("div", { className: "live-exercise" }, pre, exercise.buttons, exercise.output.box));
    await exercise.open(false).catch(error => exercise.output.show("error", error.message));
    exercises.push(exercise);
    exercise.load();
  }

  /** Practice: a button for each level makes a task, an exercise with hints. The page's table has the topics. */
  async function addPractice(block) {
    const pre = make("pre"), exercise = new Exercise(pre, "practice", ""), task = new Output("the task"), topic = make("select", { ariaLabel: "Topic" });
    for (const code of document.querySelectorAll("td:first-child code")) topic.append(make("option", {}, code.textContent));
    let hints = 0, level = 1;
    const another = wanted => inTurn(() => {
      [level, hints] = [wanted, 0];
      task.clear();
      return call("practice", [topic.value, level], (kind, text) => {
        if (kind !== "stub") return task.show(kind, text);
        exercise.stub = text;
        exercise.restore();
      });
    });
    const levels = [1, 2, 3, 4, 5, 6].map(n => make("button", { type: "button", onclick: () => another(n) }, `Level ${n}`));
    levels.push(make("button", { type: "button", onclick: () => another(level) }, "Another one"));
    exercise.button("Hint", () => inTurn(() => {
      exercise.output.clear();
      return call("hint", [exercise.text, hints++ % 3 + 1], (kind, text) => exercise.output.show(kind, text));
    }));
    task.box.classList.add("formula");
    block.after(make("div", { className: "live-exercise" }, make("div", { className: "live-buttons" }, topic, ...levels), task.box, pre, exercise.buttons, exercise.output.box));
    await exercise.open(false).catch(error => exercise.output.show("error", error.message));
    exercises.push(exercise);
    exercise.load();
  }

  /** In the course's table: which exercises are begun and which are done, and all answers as one file. */
  function showProgress(table) {
    for (const code of table.querySelectorAll("td code")) {
      const saved = store.read(code.textContent);
      if (saved.text) code.after(" ", saved.passed ? t("✓ passed") : t("(begun)"));
    }
    const all = () => JSON.stringify(Object.fromEntries(store.names().map(name => [name, store.read(name)])), null, 1);
    const file = make("input", { type: "file", accept: ".json", hidden: true, onchange: async () => {
      try {
        for (const [name, { text, passed }] of Object.entries(JSON.parse(await file.files[0].text()))) store.write(name, { text, passed });
        location.reload();
      } catch { said.textContent = t("This file is not one that Export has written."); }
    } });
    const said = make("span", { className: "live-why", role: "status" });
    table.after(make("p", { className: "live-buttons" },
      make("button", { type: "button", onclick: () => download("tinygrad_attn-answers.json", all()) }, t("Export my answers")),
      make("button", { type: "button", onclick: () => file.click() }, t("Import")), file, said));
  }

  // ---- pages
  function begin() {
    [cells, exercises, path] = [[], [], location.pathname];
    visits += 1;
    document.querySelectorAll("div.highlight-python, div.highlight-pycon").forEach(addBlock);
    for (const block of document.querySelectorAll("div.highlight-sh")) {
      const found = block.querySelector("pre").textContent.trim().match(/^python -m tinygrad_attn (?:exercise (?!zoo)(\w+)|exam (engine)\.py|practice)$/);
      if (found?.[1] || found?.[2]) addExercise(block, found[1] ?? "exam", found[1] ?? found[2]);
      else if (found) addPractice(block);
    }
    document.querySelectorAll("table:has(a[href^='00-'])").forEach(showProgress);
    if (byId("digit")) readDigits(byId("digit"));
  }
  /** Show another live page in this one's place, so that Python need not be loaded again. */
  async function visit(address, top) {
    const answer = await fetch(address).catch(() => undefined);
    const next = answer?.ok && new DOMParser().parseFromString(await answer.text(), "text/html");
    if (!next || !next.querySelector("script[src*='live/live.js']")) return location.assign(address);
    turn += 1; // what waits belongs to the page before
    document.title = next.title;
    document.documentElement.lang = next.documentElement.lang;
    document.documentElement.dataset.content_root = next.documentElement.dataset.content_root;
    for (const part of [".sidebar-drawer", "article", "footer", ".toc-drawer"]) document.querySelector(part).replaceWith(next.querySelector(part));
    begin();
    const target = location.hash && byId(decodeURIComponent(location.hash.slice(1)));
    if (target) target.scrollIntoView();
    else scrollTo(0, top ?? 0);
  }
  function follow(event) {
    const link = event.target.closest?.("a[href]"), other = event.button || event.ctrlKey || event.metaKey || event.shiftKey || event.altKey;
    if (!worker || !link || other || link.target || link.download || link.origin !== location.origin) return;
    if (link.pathname === location.pathname || !/(\/|\.html)$/.test(link.pathname)) return;
    const address = link.href; // relative to what pushState changes
    event.preventDefault();
    history.replaceState({ top: scrollY }, "");
    history.pushState({}, "", address);
    visit(address);
  }

  document.addEventListener("DOMContentLoaded", () => {
    for (const link of document.querySelectorAll("header a[href], link[rel~=icon]")) link.href = link.href; // whole: it stays
    document.body.append(bar);
    begin();
    document.addEventListener("click", follow);
    new MutationObserver(() => document.querySelectorAll(".live-output iframe").forEach(themed)).observe(document.body, { attributeFilter: ["data-theme"] });
    window.addEventListener("popstate", ({ state }) => { if (path !== location.pathname) visit(location.href, state?.top); });
    for (const event of ["hashchange", "storage"]) window.addEventListener(event, () => exercises.forEach(exercise => exercise.load()));
  });
  return { call, inTurn, Output, t };
})();
