"""The rules of practice's grammar. Each adds lines to a task, with formula, NumPy and derivative.

In formulas, i and j are the indices of a result, k is summed, and a derivative is by the element mn.
"""

from __future__ import annotations

from _practice_grammar import Builder, template

POSITIVE = ("root", "softplus", "exp", "bell", "cosh", "hill", "logistic")
ROWS = "axis=1, keepdims=True"
SAME = r"\delta_{im} \delta_{jn}"


def at(name: str, indices: str = "ij") -> str:
    return f"{name}_{{{indices}}}"


# ---- elementwise


@template("elementwise")
def scaled(t: Builder) -> None:
    e, u = t.inner(), t.u
    t.step(e.code(u), e.tex(at(u)), {at(u, "mn"): f"{SAME} {e.slope(at(u))}"})


@template("elementwise")
def product(t: Builder) -> None:
    e, d, u = t.inner(), t.inner(), t.u
    t.step(
        f"({e.code(u)}) * ({d.code(u)})",
        f"({e.tex(at(u))}) ({d.tex(at(u))})",
        {
            at(
                u, "mn"
            ): f"{SAME} [{e.slope(at(u))} ({d.tex(at(u))}) + ({e.tex(at(u))}) {d.slope(at(u))}]"
        },
    )


@template("elementwise")
def gate(t: Builder) -> None:
    e, u, v = t.inner(), t.u, t.other()
    partials = {
        at(u, "mn"): f"{SAME} {e.tex(at(v))}",
        at(v, "mn"): f"{SAME} {at(u)} {e.slope(at(v))}",
    }
    t.step(f"{u} * ({e.code(v)})", f"{at(u)} {e.tex(at(v))}", partials)


@template("elementwise")
def residual(t: Builder) -> None:
    e, u, v = t.inner(), t.u, t.other()
    partials = {at(u, "mn"): f"{SAME} {e.slope(at(u))}", at(v, "mn"): SAME}
    t.step(f"{v} + {e.code(u)}", f"{at(v)} + {e.tex(at(u))}", partials)


# ---- reductions


@template("reductions", last=True)
def sum_of_rows(t: Builder) -> None:
    e, u, kind = t.inner(), t.u, t.draw.one_of(("sum", "mean"))
    one = "" if kind == "sum" else f" / {t.task.columns}"
    t.step(
        f"np.{kind}({e.code(u)}, axis=1)",
        rf"\sum_k {e.tex(at(u, 'ik'))}{one}",
        {at(u, "mn"): rf"\delta_{{im}} {e.slope(at(u, 'in'))}{one}"},
        "i",
    )


@template("reductions", last=True)
def sum_of_columns(t: Builder) -> None:
    e, u, c = t.inner(), t.u, t.number()
    t.step(
        f"np.sum({e.code(u)}, axis=0) ** 2 / {c}",
        rf"(\sum_k {e.tex(at(u, 'kj'))})^2 / {c}",
        {
            at(
                u, "mn"
            ): rf"\delta_{{jn}} 2 (\sum_k {e.tex(at(u, 'kj'))}) {e.slope(at(u, 'mj'))} / {c}"
        },
        "j",
    )


@template("reductions", last=True)
def log_of_sum(t: Builder) -> None:
    e, u = t.inner(("tanh", "sin", "arctan", "log", "root", "bounded", "softplus")), t.u
    total = rf"\sum_k \exp({e.tex(at(u, 'ik'))})"
    t.step(
        f"np.log(np.sum(np.exp({e.code(u)}), axis=1))",
        rf"\ln({total})",
        {
            at(u, "mn"): rf"\delta_{{im}} \exp({e.tex(at(u, 'in'))}) {e.slope(at(u, 'in'))} / "
            rf"{total}"
        },
        "i",
    )


@template("reductions", lines=2)
def times_its_sum(t: Builder) -> None:
    e, u = t.inner(), t.u
    kind = t.draw.one_of(("sum", "mean"))
    one = "" if kind == "sum" else f" / {t.task.columns}"
    s = t.step(
        f"np.{kind}({e.code(u)}, {ROWS})",
        rf"\sum_k {e.tex(at(u, 'ik'))}{one}",
        {at(u, "mn"): rf"\delta_{{im}} {e.slope(at(u, 'in'))}{one}"},
        "i",
    )
    partials = {at(u, "mn"): f"{SAME} {at(s, 'i')}", at(s, "m"): rf"\delta_{{im}} {at(u)}"}
    t.step(f"{u} * {s}", f"{at(u)} {at(s, 'i')}", partials)


# ---- broadcasting


@template("broadcasting")
def row_inside(t: Builder) -> None:
    e, u = t.inner(), t.u
    w = t.input("row", (t.task.columns,))
    both = f"({at(u)} + {at(w, 'j')})"
    partials = {
        at(u, "mn"): f"{SAME} {e.slope(both)}",
        at(w, "n"): rf"\delta_{{jn}} {e.slope(both)}",
    }
    t.step(e.code(f"({u} + {w})"), e.tex(both), partials)


@template("broadcasting")
def column_times(t: Builder) -> None:
    e, u = t.inner(), t.u
    c = t.input("column", (t.task.rows, 1))
    partials = {
        at(u, "mn"): f"{SAME} {at(c, 'i')} {e.slope(at(u))}",
        at(c, "m"): rf"\delta_{{im}} {e.tex(at(u))}",
    }
    t.step(f"{c} * ({e.code(u)})", f"{at(c, 'i')} {e.tex(at(u))}", partials)


@template("broadcasting")
def row_of_functions(t: Builder) -> None:
    e, u = t.inner(), t.u
    w = t.input("row", (t.task.columns,))
    partials = {
        at(u, "mn"): f"{SAME} {e.tex(at(w, 'j'))}",
        at(w, "n"): rf"\delta_{{jn}} {at(u)} {e.slope(at(w, 'j'))}",
    }
    t.step(f"{u} * ({e.code(w)})", f"{at(u)} {e.tex(at(w, 'j'))}", partials)


# ---- products


@template("products", last=True)
def weights(t: Builder) -> None:
    e, u = t.inner(), t.u
    w = t.input("matrix", (t.task.columns, t.draw.one_of((2, 3, 5))))
    partials = {
        at(u, "mn"): rf"\delta_{{im}} {e.slope(at(u, 'in'))} {at(w, 'nj')}",
        at(w, "mn"): rf"\delta_{{jn}} {e.tex(at(u, 'im'))}",
    }
    t.step(f"({e.code(u)}) @ {w}", rf"\sum_k {e.tex(at(u, 'ik'))} {at(w, 'kj')}", partials, "ij")
    t.forget(t.u)


@template("products")
def mixed_rows(t: Builder) -> None:
    e, u = t.inner(), t.u
    a = t.input("matrix", (t.task.rows, t.task.rows))
    partials = {
        at(u, "mn"): rf"\delta_{{jn}} {at(a, 'im')} {e.slope(at(u, 'mj'))}",
        at(a, "mn"): rf"\delta_{{im}} {e.tex(at(u, 'nj'))}",
    }
    t.step(f"{a} @ ({e.code(u)})", rf"\sum_k {at(a, 'ik')} {e.tex(at(u, 'kj'))}", partials)


@template("products", last=True)
def gram(t: Builder) -> None:
    e, u = t.inner(), t.u
    t.step(
        f"{u}.T @ ({e.code(u)})",
        rf"\sum_k {at(u, 'ki')} {e.tex(at(u, 'kj'))}",
        {
            at(u, "mn"): rf"\delta_{{in}} {e.tex(at(u, 'mj'))} + "
            rf"\delta_{{jn}} {at(u, 'mi')} {e.slope(at(u, 'mj'))}"
        },
    )
    t.forget(t.u)


@template("products", last=True)
def quadratic(t: Builder) -> None:
    e, u = t.inner(), t.u
    a = t.input("matrix", (t.task.columns, t.task.columns))
    t.step(
        f"np.sum(({u} @ {a}) * ({e.code(u)}), axis=1)",
        rf"\sum_k \sum_l {at(u, 'il')} {at(a, 'lk')} {e.tex(at(u, 'ik'))}",
        {
            at(u, "mn"): rf"\delta_{{im}} [\sum_k {at(a, 'nk')} {e.tex(at(u, 'ik'))} + "
            rf"{e.slope(at(u, 'in'))} \sum_l {at(u, 'il')} {at(a, 'ln')}]",
            at(a, "mn"): rf"{at(u, 'im')} {e.tex(at(u, 'in'))}",
        },
        "i",
    )


# ---- norms


@template("norms", last=True)
def length(t: Builder) -> None:
    e, u, c = t.inner(), t.u, t.number()
    t.step(
        f"np.sqrt({c} + np.sum(({e.code(u)}) ** 2, axis=1))",
        rf"\sqrt{{{c} + \sum_k ({e.tex(at(u, 'ik'))})^2}}",
        {at(u, "mn"): rf"\delta_{{im}} ({e.tex(at(u, 'in'))}) {e.slope(at(u, 'in'))} / y_{{i}}"},
        "i",
    )


@template("norms", last=True)
def size(t: Builder) -> None:
    e, u, c = t.inner(POSITIVE), t.u, t.number()
    t.step(
        f"np.log({c} + np.mean({e.code(u)}, axis=1))",
        rf"\ln({c} + \sum_k {e.tex(at(u, 'ik'))} / {t.task.columns})",
        {at(u, "mn"): rf"\delta_{{im}} {e.slope(at(u, 'in'))} / ({t.task.columns} \exp(y_{{i}}))"},
        "i",
    )


@template("norms", last=True)
def share(t: Builder) -> None:
    e, u, c = t.inner(), t.u, t.number()
    top = rf"\sum_k {e.tex(at(u, 'ik'))}"
    below = rf"({c} + \sum_k {at(u, 'ik')}^2)"
    t.step(
        f"np.sum({e.code(u)}, axis=1) / ({c} + np.sum({u} ** 2, axis=1))",
        f"({top}) / {below}",
        {
            at(
                u, "mn"
            ): rf"\delta_{{im}} [{e.slope(at(u, 'in'))} - 2 y_{{i}} {at(u, 'in')}] / {below}"
        },
        "i",
    )


@template("norms", lines=2)
def divided(t: Builder) -> None:
    e, u, c = t.inner(), t.u, t.number()
    kind = t.draw.one_of(("sum", "mean"))
    one = "" if kind == "sum" else f" / {t.task.columns}"
    s = t.step(
        f"np.sqrt({c} + np.{kind}(({e.code(u)}) ** 2, {ROWS}))",
        rf"\sqrt{{{c} + \sum_k ({e.tex(at(u, 'ik'))})^2{one}}}",
        {
            at(u, "mn"): rf"\delta_{{im}} ({e.tex(at(u, 'in'))}) {e.slope(at(u, 'in'))}{one} / "
            rf"\sqrt{{{c} + \sum_k ({e.tex(at(u, 'ik'))})^2{one}}}"
        },
        "i",
    )
    quotient(t, u, s)


@template("norms", lines=2)
def by_total(t: Builder) -> None:
    e, u = t.inner(POSITIVE), t.u
    s = t.step(
        f"np.sum({e.code(u)}, {ROWS})",
        rf"\sum_k {e.tex(at(u, 'ik'))}",
        {at(u, "mn"): rf"\delta_{{im}} {e.slope(at(u, 'in'))}"},
        "i",
    )
    quotient(t, u, s)


def quotient(t: Builder, u: str, s: str) -> None:
    """Divide u by s, which has one element for each row."""
    partials = {
        at(u, "mn"): f"{SAME} / {at(s, 'i')}",
        at(s, "m"): rf"-\delta_{{im}} {at(u)} / {at(s, 'i')}^2",
    }
    t.step(f"{u} / {s}", f"{at(u)} / {at(s, 'i')}", partials)


@template("norms", lines=2)
def centred(t: Builder) -> None:
    e, u = t.inner(), t.u
    mean = t.step(
        f"np.mean({u}, {ROWS})",
        rf"\sum_k {at(u, 'ik')} / {t.task.columns}",
        {at(u, "mn"): rf"\delta_{{im}} / {t.task.columns}"},
        "i",
    )
    away = f"({at(u)} - {at(mean, 'i')})"
    partials = {
        at(u, "mn"): f"{SAME} {e.slope(away)}",
        at(mean, "m"): rf"-\delta_{{im}} {e.slope(away)}",
    }
    t.step(e.code(f"({u} - {mean})"), e.tex(away), partials)


@template("norms", lines=3)
def softmax(t: Builder) -> None:
    e, u = t.inner(("tanh", "sin", "cos", "arctan", "bounded", "log", "softplus")), t.u
    p = t.step(
        f"np.exp({e.code(u)})",
        rf"\exp({e.tex(at(u))})",
        {at(u, "mn"): rf"{SAME} \exp({e.tex(at(u))}) {e.slope(at(u))}"},
    )
    s = t.step(f"np.sum({p}, {ROWS})", rf"\sum_k {at(p, 'ik')}", {at(p, "mn"): r"\delta_{im}"}, "i")
    quotient(t, p, s)


# ---- attention


@template("attention", last=True)
def scores(t: Builder) -> None:
    e, u = t.inner(), t.u
    keys = t.input("matrix", (t.draw.one_of((2, 3, 5)), t.task.columns))
    dot = rf"(\sum_k {at(u, 'ik')} {at(keys, 'jk')})"
    partials = {
        at(u, "mn"): rf"\delta_{{im}} {at(keys, 'jn')} {e.slope(dot)}",
        at(keys, "mn"): rf"\delta_{{jm}} {at(u, 'in')} {e.slope(dot)}",
    }
    t.step(e.code(f"({u} @ {keys}.T)"), e.tex(dot), partials)
    t.forget(t.u)


@template("attention", last=True)
def own_scores(t: Builder) -> None:
    e, u = t.inner(), t.u
    dot = rf"(\sum_k {at(u, 'ik')} {at(u, 'jk')})"
    t.step(
        e.code(f"({u} @ {u}.T)"),
        e.tex(dot),
        {
            at(
                u, "mn"
            ): rf"[\delta_{{im}} {at(u, 'jn')} + \delta_{{jm}} {at(u, 'in')}] {e.slope(dot)}"
        },
    )
    t.forget(t.u)


@template("attention", lines=2)
def kernel(t: Builder) -> None:
    """Weights that are a function of the scores, without a sum to 1."""
    e, u = t.inner(), t.u
    dot = rf"(\sum_k {at(u, 'ik')} {at(u, 'jk')})"
    a = t.step(
        e.code(f"({u} @ {u}.T)"),
        e.tex(dot),
        {
            at(
                u, "mn"
            ): rf"[\delta_{{im}} {at(u, 'jn')} + \delta_{{jm}} {at(u, 'in')}] {e.slope(dot)}"
        },
    )
    t.forget(a)
    weighted(t, a, u)


@template("attention", lines=4)
def attention(t: Builder) -> None:
    """Softmax of the scores, times the values."""
    e, u, keys = t.inner(("tanh", "sin", "arctan", "bounded", "softplus")), t.u, t.other()
    dot = rf"(\sum_k {at(u, 'ik')} {at(keys, 'jk')})"
    a = t.step(
        e.code(f"({u} @ {keys}.T)"),
        e.tex(dot),
        {
            at(u, "mn"): rf"\delta_{{im}} {at(keys, 'jn')} {e.slope(dot)}",
            at(keys, "mn"): rf"\delta_{{jm}} {at(u, 'in')} {e.slope(dot)}",
        },
    )
    t.forget(a)
    p = t.step(f"np.exp({a})", rf"\exp({at(a)})", {at(a, "mn"): rf"{SAME} \exp({at(a)})"})
    t.forget(p)
    total = rf"\sum_k {at(p, 'ik')}"
    w = t.step(
        f"{p} / np.sum({p}, {ROWS})",
        rf"{at(p)} / {total}",
        {at(p, "mn"): rf"{SAME} / ({total}) - \delta_{{im}} {at(p)} / ({total})^2"},
    )
    t.forget(w)
    weighted(t, w, keys)


def weighted(t: Builder, weights: str, values: str) -> None:
    """Sum the values with these weights."""
    partials = {
        at(weights, "mn"): rf"\delta_{{im}} {at(values, 'nj')}",
        at(values, "mn"): rf"\delta_{{jn}} {at(weights, 'im')}",
    }
    t.step(f"{weights} @ {values}", rf"\sum_k {at(weights, 'ik')} {at(values, 'kj')}", partials)


# ---- scans


@template("scans")
def running_sum(t: Builder) -> None:
    e, u = t.inner(), t.u
    t.step(
        f"np.cumsum({e.code(u)}, axis=1)",
        rf"\sum_{{k \le j}} {e.tex(at(u, 'ik'))}",
        {at(u, "mn"): rf"\delta_{{im}} [n \le j] {e.slope(at(u, 'in'))}"},
    )


@template("scans")
def sum_from_the_end(t: Builder) -> None:
    e, u = t.inner(), t.u
    t.step(
        f"np.cumsum(({e.code(u)})[::-1], axis=0)[::-1]",
        rf"\sum_{{k \ge i}} {e.tex(at(u, 'kj'))}",
        {at(u, "mn"): rf"\delta_{{jn}} [m \ge i] {e.slope(at(u, 'mj'))}"},
    )


@template("scans")
def fading(t: Builder) -> None:
    e, u, d, length = t.inner(), t.u, t.number(3, 9), t.task.columns
    t.step(
        f"({e.code(u)}) @ np.triu({d} ** np.abs(np.arange({length}) - np.arange({length})[:, None]))",
        rf"\sum_{{k \le j}} {d}^{{j-k}} {e.tex(at(u, 'ik'))}",
        {at(u, "mn"): rf"\delta_{{im}} [n \le j] {d}^{{j-n}} {e.slope(at(u, 'in'))}"},
    )


@template("scans", last=True)
def neighbours(t: Builder) -> None:
    e, u = t.inner(), t.u
    t.step(
        f"{u}[:, 1:] * ({e.code(u + '[:, :-1]')})",
        f"{at(u, 'i,j+1')} {e.tex(at(u))}",
        {
            at(u, "mn"): rf"\delta_{{im}} [\delta_{{j+1,n}} {e.tex(at(u))} + "
            rf"\delta_{{jn}} {at(u, 'i,j+1')} {e.slope(at(u))}]"
        },
    )
    t.forget(t.u)


# ---- indexing


@template("indexing", last=True)
def gathered(t: Builder) -> None:
    e, u, draw = t.inner(), t.u, t.draw
    first, columns = draw.below(t.task.columns), t.task.columns
    chosen = [first, (first + 1 + draw.below(columns - 1)) % columns, draw.below(columns), first]
    t.step(
        f"({e.code(u)})[:, {chosen}]",
        rf"{e.tex(at(u, 'i,c(j)'))} \quad c = {chosen}",
        {at(u, "mn"): rf"\delta_{{im}} \delta_{{c(j),n}} {e.slope(at(u, 'in'))}"},
    )
    t.forget(t.u)


@template("indexing")
def rolled(t: Builder) -> None:
    e, u, last = t.inner(), t.u, t.task.columns - 1
    t.step(
        f"{u} * np.roll({e.code(u)}, 1, axis=1)",
        rf"{at(u)} {e.tex(at(u, 'i,j-1'))} \quad (j - 1 = {last} for j = 0)",
        {
            at(u, "mn"): rf"\delta_{{im}} [\delta_{{jn}} {e.tex(at(u, 'i,j-1'))} + "
            rf"\delta_{{j-1,n}} {at(u)} {e.slope(at(u, 'i,j-1'))}]"
        },
    )


@template("indexing")
def turned(t: Builder) -> None:
    e, u, last = t.inner(), t.u, t.task.columns - 1
    t.step(
        f"{u} + ({e.code(u)})[:, ::-1]",
        f"{at(u)} + {e.tex(at(u, f'i,{last}-j'))}",
        {
            at(
                u, "mn"
            ): rf"\delta_{{im}} [\delta_{{jn}} + \delta_{{{last}-j,n}} {e.slope(at(u, 'in'))}]"
        },
    )


@template("indexing")
def masked(t: Builder) -> None:
    e, u = t.inner(), t.u
    t.step(
        f"np.tril({e.code(u)})",
        rf"[j \le i] {e.tex(at(u))}",
        {at(u, "mn"): rf"{SAME} [j \le i] {e.slope(at(u))}"},
    )


@template("indexing", last=True)
def largest(t: Builder) -> None:
    e, u = t.inner(), t.u
    top = rf"(\max_k {at(u, 'ik')})"
    t.step(
        e.code(f"np.max({u}, axis=1)"),
        e.tex(top),
        {at(u, "mn"): rf"\delta_{{im}} [{at(u, 'in')} largest in its row] {e.slope(top)}"},
        "i",
    )
