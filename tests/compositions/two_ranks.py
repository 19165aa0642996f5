"""DataParallel on two ranks beside every other way: `mpiexec -n 2 python two_ranks.py`.

Each rank has its own inputs and dropout masks. The gradients of parameters must be the mean of
those of two runs without DataParallel, and all else as in this rank's run.
"""

from ways import MODELS, WAYS, differences, outcome, wanted

from tinygrad_attn import parallel

RANK = parallel.rank()
REFUSED = {
    "vjp": (RuntimeError, "only loss.backward() averages"),
    "value_and_grad": (RuntimeError, "only loss.backward() averages"),
    "jvp": (TypeError, "DataParallel's gradients cannot be differentiated again"),
    "program": (RuntimeError, "only loss.backward() averages"),
    "create_graph": (TypeError, "DataParallel's gradients cannot be differentiated again"),
}
"""Ways that raise an error on purpose, and how its sentence begins."""


def averaged(gradients):
    """The mean over the ranks of all gradients but that of this rank's input."""
    rows = parallel.group.group().gather("averaged", gradients)
    mean = {
        name: None if g is None else sum(row[name] for row in rows) / len(rows)
        for name, g in gradients.items()
    }
    return mean | {"x": gradients["x"]}


def problems(make, name, ways):
    """Describe what is wrong with a run in these ways."""
    case = f"rank {RANK}, {make.__name__}, {name}"
    try:
        result = outcome(make, *ways, rank=RANK)
    except Exception as error:
        kind, text = REFUSED.get(name, (None, ""))
        refused = type(error) is kind and str(error).startswith(text)
        return [] if refused else [f"{case}: {type(error).__name__}: {error}"]
    if name in REFUSED:
        return [f"{case}: is not refused"]
    expected = wanted(make, result, RANK)
    expected["gradients"] = averaged(expected["gradients"])
    return [f"{case}: {line}" for line in differences(result, expected)]


def main():
    parallel.set_time_limit(10)
    found = []
    for make in MODELS:
        for name, other in WAYS.items():
            for ways in (WAYS["data_parallel"], other), (other, WAYS["data_parallel"]):
                found += problems(make, name, ways)
    told = parallel.group.group().gather("problems", found)
    if RANK == 0:
        print("\n".join(sum(told, [])) or "ok")


if __name__ == "__main__":
    main()
