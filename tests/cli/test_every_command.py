"""Every command of the program, from one table, and every option that a command has is given by some test."""

import argparse

import pytest
from enumeration import asserted, unmet
from support import ROOT

from tinygrad_attn import cli
from tinygrad_attn.cli.options import make_parser

COMMANDS = {
    "demo": (["demo", "--epochs", "-1"], 2, "epochs"),
    "doctor": (["doctor"], 0, "NumPy"),
    "exercise": (["exercise"], 0, "softmax"),
    "gradcheck": (["gradcheck", "numpy:tanh", "--shape", "2,3", "--order", "2"], 0, "pass"),
    "graph": (["graph", "math:tau"], 2, "Tensor"),
    "source": (["source", "numpy:tanh", "--shape", "2,3"], 0, "d_x = "),
    "seeds": (["seeds", "no such document"], 2, "no such document"),
}
"""By its name, an order that is quickly carried out or refused, the exit code, and a word of what is printed."""

ADVICE = "add a line with the key {name!r} to COMMANDS in tests/cli/test_every_command.py"


def commands() -> dict[str, argparse.ArgumentParser]:
    """The commands that the program knows, by name."""
    for action in make_parser()._actions:
        if isinstance(action, argparse._SubParsersAction):
            return dict(action.choices)
    raise AssertionError("the parser has no commands")


def test_no_command_is_missing_from_the_table():
    asserted(unmet(commands(), COMMANDS, ADVICE))


def test_a_new_command_is_missed():
    (complaint,) = unmet([*commands(), "surprise"], COMMANDS, ADVICE)
    assert "nothing tests 'surprise': add a line" in complaint


@pytest.mark.parametrize("name", COMMANDS)
def test_what_a_command_prints_and_returns(name, capfd):
    order, code, word = COMMANDS[name]
    assert cli.main(order) == code
    assert word in "".join(capfd.readouterr())


@pytest.mark.parametrize("name", COMMANDS)
def test_help_and_the_first_page_name_the_command(name, capsys):
    with pytest.raises(SystemExit) as end:
        cli.main([name, "--help"])
    assert end.value.code == 0 and f"tinygrad-attn {name}" in capsys.readouterr().out
    assert f"    {name} " in cli.__doc__, "the list at the top of tinygrad_attn/cli/__init__.py"


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_every_option_is_given_by_some_test(name):
    tests = "".join(path.read_text("utf-8") for path in (ROOT / "tests").rglob("test_*.py"))
    options = [
        action.option_strings[-1] for action in commands()[name]._actions if action.option_strings
    ]
    asserted([f"no test gives {one} to {name}" for one in options if f'"{one}' not in tests])
