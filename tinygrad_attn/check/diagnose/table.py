"""All explanations of a wrong gradient, in the order in which they are tried: the simplest first.

An explanation has a kind (its short name), says what it needs to be tried at all, and has a test
and a text. The test answers None, or what the text (and sometimes the kind) has in its {brackets}.
The first need tells the stage: "measurement" looks for faults of the check itself, "program"
between the ops, which are right then, and "pattern" compares one gradient with its slope, with what
Pattern.offers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..report import Diagnosis
from . import experiments as try_out
from . import measurement, places, program, values
from .pattern import Found

# (kind, needs, test, text)
TABLE: list[tuple[str, str, Callable[[Any], Found], str]] = [
    # ---- is it the check itself?
    (
        "precision",
        "measurement",
        measurement.lower_precision,
        "precision too low: op {op!r} turns float64 into {dtype}, whose rounding is larger "
        "than the differences measured here. Keep float64 throughout while checking.",
    ),
    (
        "eps",
        "measurement",
        measurement.lost_beside_large_values,
        "eps={eps:g} is too small: values as large as {largest:.0e} hardly move by it, or not "
        "at all. Check at smaller ones, or write eps={better:.0e}.",
    ),
    (
        "precision",
        "measurement",
        measurement.right_by_large_steps_only,
        "precision too low: the gradient agrees only with steps as large as eps={best:.0e}; "
        "with smaller ones rounding drowns the difference. Some part is computed in float32 "
        "(a cast inside an op?), or large numbers cancel.",
    ),
    (
        "eps",
        "measurement",
        measurement.right_by_another_step,
        "the gradient is right, but eps={eps:g} is {size}. It agrees from eps={largest:.0e} to "
        "{smallest:.0e}; write eps={best:.0e}. The curve of the error against eps shows the V.",
    ),
    (
        "kink",
        "measurement",
        measurement.all_at_kinks,
        "the slopes to the left and to the right differ at index {index} (and at every other "
        "element that is off), or grow without end as the step shrinks: a kink or a jump, "
        "such as relu or sign at 0 or a tie in max. There the function has no single slope; "
        "move the input away from it. The rule need not be wrong.",
    ),
    # ---- every op's own rule is right: is it between the ops?
    (
        "result modified",
        "program",
        program.overwritten,
        "the result of op {op!r} (or an operand of it) was changed in place after it was "
        "computed, which the graph does not see, so its gradient is that of the unchanged "
        "value. Compute a new tensor: np.where(mask, value, y), not y.data[...] = value.",
    ),
    (
        "{kind}",
        "program",
        program.outside_the_graph,
        "{what}, but is a constant to the graph{how}, so this use is missed. Every use of a tensor "
        "counts: look for detach(), .data, .numpy(), .item(), Tensor(...) or no_grad() on the way "
        "there.",
    ),
    (
        "precision",
        "program",
        measurement.unsteady,
        "the slope cannot be measured: at index {index} it comes out as {slopes}. Either "
        "large numbers cancel within the function and rounding drowns the difference, or the "
        "function bends within one step. No op's own rule was found to be wrong. Check at "
        "inputs of moderate size, or try another eps.",
    ),
    (
        "missed use",
        "program",
        program.lost_in_the_sweep,
        "adding up what the ops' own rules say gives the right gradient, so the sweep through "
        "them is wrong: it missed a use, counted one twice, or went on before all were in. It "
        "must add, not overwrite, into memory of its own, and visit a tensor only when all "
        "its uses are done. ({name} is used by {ops}; the tensor that is used most is used "
        "{most}.)",
    ),
    # ---- a gradient and its slope: is there something to compare at all?
    (
        "some elements",
        "pattern",
        places.nearly_right,
        "the gradient {how} only at {where}; {rest} are right.",
    ),
    (
        "domain",
        "pattern",
        values.function_is_infinite,
        "the result itself is NaN or Inf at these inputs, so there is no slope to compare "
        "with. Look for an overflow in exp, 0/0, a log or root outside its domain "
        "(ta.detect_anomaly() names the op), or choose other inputs.",
    ),
    (
        "domain",
        "pattern",
        values.edge_of_the_domain,
        "the function is not finite, or raises an error, a step to one side at {where}: the "
        "input lies on the edge of the domain (sqrt, log, arcsin). Check it at inner points, "
        "or with a smaller eps.",
    ),
    (
        "nan",
        "pattern",
        values.rule_is_infinite,
        "the rule gives NaN or Inf at {where}, where the slope is finite. Look for 0/0, log 0 "
        "or 0 x inf in the rule; np.where does not help if the bad value is computed first.",
    ),
    (
        "{kind}",
        "pattern, rule",
        try_out.not_linear_in_g,
        "the rule {how}.",
    ),
    (
        "zero",
        "pattern",
        values.zero,
        "the gradient is zero {everywhere} although the function does depend on this input. "
        "The rule returns zeros, or there is None in its place, or the value went through "
        "detach(), .data, .numpy() or no_grad.",
    ),
    (
        "numeric zero",
        "pattern",
        values.function_is_constant,
        "the function does not change at all when {moves} (a step function such as floor, "
        "round or a comparison, a value that is not used, that cancels out as in x - x, or is "
        "computed in float16), yet the rule gives a gradient.",
    ),
    # ---- wrong by one number, or in one place
    (
        "sign",
        "pattern",
        values.sign,
        "the gradient has the wrong sign {everywhere} (constant factor -1).",
    ),
    (
        "constant factor",
        "pattern",
        values.constant_factor,
        "the gradient is {factor} times what it should be, {everywhere} (constant factor){hint}.",
    ),
    (
        "mask missing",
        "pattern, neighbours",
        places.mask_of_the_chosen,
        "along axis {axis} only one element (the largest, or the one picked) should get a "
        "gradient, but the rule gives it to all of them: multiply by a mask of the chosen "
        "element.",
    ),
    # ---- a well-known function with a well-known slip
    (
        "known slip",
        "pattern, like x",
        values.known_slip,
        "the function is {function}, and of its derivative {words}.",
    ),
    (
        "mask inverted",
        "pattern, neighbours",
        places.mask_inverted,
        "the gradient is zero exactly where it should not be, and the other way round: the "
        "rule applies its mask or condition inverted.",
    ),
    (
        "another mask",
        "pattern, neighbours",
        places.another_mask,
        "the gradient has the right numbers where neither it nor the slope is zero, but it is zero "
        "at the wrong elements: the rule uses another mask, or other indices, than the "
        "forward pass. Save the mask (a dropout mask is drawn once) and use it in the rule.",
    ),
    (
        "mask missing",
        "pattern, neighbours",
        places.mask_forgotten,
        "the slope is zero at {where}, as behind a mask, and the gradient is not: the rule "
        "forgets the mask. Use in the rule what the forward pass computed behind its mask "
        "(its weights are zero there), or mask again.",
    ),
    (
        "mask missing",
        "pattern, rule, jacobians",
        try_out.later_rows,
        "each result depends on {name} at its own and earlier positions only, but in the rule "
        "on later ones as well: the rule forgets the causal mask. Use in the rule the weights "
        "that the forward pass computed behind its mask, or mask the scores again.",
    ),
    # ---- the wrong axis, order or operand
    (
        "wrong axis",
        "pattern, neighbours",
        places.opposite_axis,
        "the gradient is spread (broadcast) along axis {wrong} of the input, but it should be "
        "along axis {right}. Equal sizes hide it: the reduced axis must be put back "
        "(keepdims) before broadcasting.",
    ),
    (
        "wrong axis",
        "pattern, neighbours",
        places.summed_and_spread,
        "the gradient is {how} over axis {axis} of the input and spread out again: a sum too "
        "many, over an axis along which it should vary, or a factor that sums to 1 (a "
        "softmax) is left out.",
    ),
    (
        "wrong axis",
        "pattern, result, jacobians",
        places.sum_over_the_wrong_axis,
        "the gradient is summed over axis {over} of the result, which is the wrong axis: an "
        "operand of shape {x} broadcast to {g} sums over the axes it was repeated along.",
    ),
    (
        "wrong axis",
        "pattern, result, jacobians",
        places.sum_over_everything,
        "every element has the sum over all axes of the result: the sum goes over too many axes.",
    ),
    (
        "missed use",
        "pattern, text",
        try_out.one_use_missed,
        "the input is used {uses} times in the forward text, but the rule counts only "
        "{counted} of these uses; missed: the use in {left}. The gradient is the sum over all "
        "uses.",
    ),
    (
        "wrong axis",
        "pattern, rule",
        try_out.another_axis,
        "the rule is {how}.",
    ),
    (
        "transposed",
        "pattern, neighbours",
        places.reshaped,
        "the elements are right but in the wrong order: reshaped where the axes should be "
        "transposed to {axes}.",
    ),
    (
        "transposed",
        "pattern, neighbours",
        places.transposed,
        "the rule is right once its answer is transposed{besides}: {why}.",
    ),
    (
        "transposed",
        "pattern, rule, neighbours",
        try_out.operand_transposed,
        "the rule is right once {how} is transposed: a transpose (.mT) is missing or too many.",
    ),
    (
        "transposed",
        "pattern, neighbours, text",
        try_out.transposed_on_the_way,
        "it is as if the gradient of {value} were transposed: a transpose "
        "(.mT) is missing there, as in attention's dk = ds.mT @ q, or too many.",
    ),
    (
        "exchanged",
        "pattern, rule, neighbours",
        try_out.gradient_of_another,
        "this is the gradient of {name}, given to {mine}{how}.",
    ),
    (
        "exchanged",
        "pattern, neighbours, rule",
        try_out.one_for_another,
        "the rule {how}.",
    ),
    (
        "operand misplaced",
        "pattern, rule",
        try_out.right_for_a_weight_of_ones,
        "the rule is right where {how}.",
    ),
    (
        "exchanged",
        "pattern, rule, neighbours",
        try_out.factors_in_the_wrong_order,
        "the rule is right once the factors of its product change places: it multiplies by "
        "operand {i} from the wrong side.",
    ),
    # ---- right numbers in the wrong places
    (
        "reversed",
        "pattern, neighbours",
        places.reversed_order,
        "the gradient is right but reversed along axis {axis}.",
    ),
    (
        "transposed",
        "pattern, jacobians",
        places.own_map_for_its_transpose,
        "the rule does to g what the function does to the input. The gradient does the "
        "reverse, the transpose of that map: sums run from the other end, rotations turn "
        "back, permutations are undone, matrices are transposed (.mT).",
    ),
    (
        "constant",
        "pattern",
        values.constant,
        "the gradient is {value} {where}: constant, where it should differ from element to "
        "element.",
    ),
    (
        "shifted",
        "pattern, neighbours",
        places.off_by_one,
        "the gradient is right but shifted by {shift} along axis {axis}: an index or the "
        "start of a slice is off by {by}.",
    ),
    (
        "permuted",
        "pattern, neighbours",
        places.permuted,
        "the numbers are right but stand at the wrong elements: the order is not undone as it "
        "was made. Look at the indices, at argsort (its inverse is argsort of argsort), and "
        "at reshape where swapaxes belongs.",
    ),
    # ---- sums and rows
    (
        "{kind}",
        "pattern",
        values.factor,
        "{how}{rows}.",
    ),
    (
        "missing factor",
        "pattern, neighbours",
        values.whole_rows,
        "the gradient is off by one number for each row along axis {axis}: a factor that belongs "
        "to the whole row (a standard deviation, a norm, a sum, a count) is missing or too many.",
    ),
    (
        "missing sum",
        "pattern, jacobians",
        places.axis_not_mixed,
        "{how}.",
    ),
    (
        "wrong axis",
        "pattern, jacobians",
        places.axis_mixed,
        "the rule sums over axis {over}, but the function mixes {mixes}: a sum over the wrong "
        "axis.",
    ),
    (
        "{kind}",
        "pattern, result, jacobians",
        try_out.repeated_use,
        "{where} is used several times (a repeated index, or a reused value), but only {which} "
        "contribution is counted: the others are missed. Either each overwrites the one before "
        "(use np.add.at, or +=), or a sum is missing.",
    ),
    (
        "missing sum",
        "pattern, result, jacobians",
        places.one_counted,
        "only the {which} element along axis {axis} of the result is counted, of {size}: the sum "
        "over that axis is missing, or each overwrites the one before.",
    ),
    (
        "missed use",
        "pattern, result, jacobians",
        places.one_left_out,
        "of {size} elements of the result along its axis {axis} the {which} is left out: a "
        "loop or a slice that ends too early or starts too late.",
    ),
    (
        "missing sum",
        "pattern, neighbours",
        values.missing_sum,
        "the error is {how} along axis {axis}: a term that holds a sum (or mean) over axis "
        "{axis} is missing or scaled wrongly.{more}",
    ),
    # ---- element by element
    (
        "first element only",
        "pattern, neighbours",
        places.first_element_only,
        "the gradient {how} everywhere except at the first element.",
    ),
    (
        "some elements",
        "pattern",
        places.some_elements,
        "the gradient {how} only at {where}; {rest} are right.",
    ),
    (
        "inverted",
        "pattern, result",
        values.inverted,
        "the gradient is g divided by the op's own derivative, where it is g times that: a "
        "division stands for a multiplication, or the reverse.",
    ),
    (
        "missing term",
        "pattern, like x",
        values.leftover,
        "the gradient is {amount} at every element: one term of the sum, or of the product "
        "rule, is left out, counted too often, or has the wrong sign.",
    ),
    (
        "missing term",
        "pattern, like x",
        values.divisor,
        "{what}what the rule divides g by is {amount} at every element: a term of it is left "
        "out, counted too often, or has the wrong sign.",
    ),
    (
        "missing factor",
        "pattern, result",
        values.passed_on,
        "the gradient is g itself{sums}: the op's own derivative, which g is multiplied by, is "
        "left out.",
    ),
    # ---- experiments with the rule that cost more, and the least that can be said
    (
        "exchanged",
        "pattern, neighbours, rule",
        try_out.taken_for_another,
        "the rule is right once {how} in it: it takes one quantity for another (a "
        "log-probability for a probability, a variance for a standard deviation, a target for "
        "its complement).",
    ),
    (
        "exchanged",
        "pattern, text",
        try_out.value_on_the_way,
        "the rule is right once y in it is what {how} gives on the way; but y is what the op "
        "returns. Compute that value again in the rule, or hand it on with saves=True.",
    ),
    (
        "known slip",
        "pattern, neighbours, text",
        try_out.slip_on_the_way,
        "in it is the {function} of {value}, and of the derivative of that {words}.",
    ),
    (
        "{kind}",
        "pattern, text",
        try_out.changed_on_the_way,
        "it is as if {how}.",
    ),
    (
        "rule",
        "pattern, rule",
        try_out.no_pattern,
        "this op's rule disagrees with central differences in no simple pattern; derive it "
        "again{small}.{more}",
    ),
]


def explanation(subject: Any, stage: str = "pattern") -> tuple[Diagnosis, dict[str, Any]] | None:
    """The first explanation of a stage that fits, and what its test found."""
    for kind, needs, test, text in TABLE:
        first, *more = needs.split(", ")
        asked = first == stage and all(subject.offers(need) for need in more)
        if asked and (found := test(subject)) is not None:
            return Diagnosis(kind.format(**found), text.format(**found)), found
    return None
