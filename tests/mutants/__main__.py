"""`python -m tests.mutants`: change the package in 200 places, one at a time, and see that a test fails each time."""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
import tomllib
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from . import trial
from .kinds import DECISIONS, KINDS
from .places import ROOMS, Mutant, mutants, sample
from .trial import Copy, Outcome

EXPLAINED = Path(__file__).with_name("explained.toml")
KILLED = 0.97  # so large a part at least,
ENOUGH = 100  # of so many or more
SAMPLE = 200


def explanations() -> dict[tuple[str, str], str]:
    """Why no test can see a change: by the file and the text of the mutant, which says where and which one it is."""
    sections = tomllib.loads(EXPLAINED.read_text(encoding="utf-8"))
    return {(f, text): why for f, lines in sections.items() for text, why in lines.items()}


def chosen(names: list[str], size: int | None, seed: int) -> list[Mutant]:
    """The mutants of these names, of a line or a file or a room of such a name, or a sample of so many of them; without
    names, a sample of all.
    """
    every = mutants()
    if not names:
        return sample(every, SAMPLE if size is None else size, seed)

    def meant(m: Mutant, name: str) -> bool:
        return name in (m.name, m.room, m.file, f"{m.file}:{m.line}")

    for name in names:
        if not any(meant(m, name) for m in every):
            raise SystemExit(f"There is no mutant, line, file or room {name!r}; --list shows all.")
    found = [m for m in every if any(meant(m, name) for name in names)]
    return found if size is None else sample(found, size, seed)


def table(outcomes: Iterable[Outcome], explained: set[Mutant]) -> str:
    """How many were made, killed, survived and are explained, by room and by kind."""
    counts: dict[str, Counter[str]] = {}
    for o in outcomes:
        fate = "killed" if o.killer else "explained" if o.mutant in explained else "survived"
        for key in (o.mutant.room, o.mutant.kind, "all"):
            counts.setdefault(key, Counter()).update(["made", fate])
    columns = ("made", "killed", "explained", "survived")
    lines = [f"{'':12}" + "".join(f"{c:>10}" for c in columns)]
    for keys in (ROOMS, [*KINDS, *DECISIONS], ["all"]):
        lines += [
            f"{key:12}" + "".join(f"{counts[key][c]:>10}" for c in columns)
            for key in keys
            if key in counts
        ]
        lines.append("")
    return "\n".join(lines)


def report(outcomes: list[Outcome], why: dict[tuple[str, str], str], may_survive: int = 0) -> bool:
    """Print what came of all; is it well?"""
    explained = {o.mutant for o in outcomes if (o.mutant.file, o.mutant.text) in why}
    print("\n" + table(outcomes, explained))
    survivors = [o.mutant for o in outcomes if o.killer is None]
    for m in survivors:
        reason = why.get((m.file, m.text), "NOT EXPLAINED: write the test that would have found it")
        print(f"survived  {m.name}\n          {m.text}\n          {reason}")
    killed = len(outcomes) - len(survivors)
    few = len(outcomes) >= ENOUGH and killed < KILLED * len(outcomes)
    print(f"{killed} of {len(outcomes)} mutants killed" + (", which is too few." if few else "."))
    return not few and sum(m not in explained for m in survivors) <= may_survive


def try_all(found: list[Mutant], copies: list[Copy], outcomes: list[Outcome]) -> None:
    """Append the outcome of each to `outcomes`. A test that fails without a mutant, too, counts for nothing: those that
    it has killed are tried again without it.
    """
    without: set[str] = set()
    while found:
        before = len(outcomes)
        for o in trial.with_progress(trial.trials(found, copies, without), len(found)):
            outcomes.append(o)
        wrong = trial.unfounded(outcomes[before:], copies[0])
        for name in sorted(wrong):
            print(f"fails without any mutant, so it is left out: {name}", flush=True)
        found = [o.mutant for o in outcomes[before:] if o.killer in wrong]
        outcomes[:] = [o for o in outcomes if o.killer not in wrong]
        without |= wrong


def main() -> int:
    """Parse, try, report."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("names", nargs="*", help="a mutant, or a file:line, a file, a room")
    parser.add_argument("--sample", type=int, help="so many of these (200; of what is named, all)")
    parser.add_argument("--seed", type=int, default=0, help="which ones; CI gives the date (0)")
    parser.add_argument("-n", "--jobs", type=int, default=2, help="tried at once (2)")
    parser.add_argument("--may-survive", type=int, default=0, help="so many, unexplained (0)")
    parser.add_argument("--list", action="store_true", help="print them only")
    options = parser.parse_args()
    found = chosen(options.names, options.sample, options.seed)
    if options.list:
        for m in found:
            print(f"{m.name:50} {m.text}")
        return 0
    why = explanations()
    # An explained mutant is made and survives; it is tried again only where it is named.
    known = [m for m in found if not options.names and (m.file, m.text) in why]
    outcomes = [Outcome(m, None, 0.0) for m in known]
    found = [m for m in found if m not in known]
    signal.signal(signal.SIGINT, signal.default_int_handler)  # also where it was started with &
    trial.prepare()
    well = False
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        jobs = range(min(options.jobs, len(found)) or 1)
        copies = [Copy(Path(folder) / str(job)) for job in jobs]
        try:
            try_all(found, copies, outcomes)
            well = True
        except KeyboardInterrupt:
            print("Interrupted; so far:", file=sys.stderr)
        well = report(outcomes, why, options.may_survive) and well
    return 0 if well else 1


if __name__ == "__main__":
    sys.exit(main())
