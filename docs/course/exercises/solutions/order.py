"""Chapter 2: the order in which gradients are passed on.

A node has `.parents` (a tuple: what it was computed from; the same node may stand in it twice), `.slopes` (one number for each
parent) and `.grad` (0.0 to begin with). Write

    users_first(last)    a list of all nodes that lead to `last`, `last` itself included, each once, and each before its parents
    backward(last)       sets .grad of all these nodes to the gradient of `last` by them

A chain of 20,000 nodes must not end in a RecursionError, nor may 200 doublings x + x take 2^200 steps: ask each node for its
parents only a few times.

Hint: one way is a loop with a list of nodes to visit. Count first how many users each node has; a node is ready once all of them
have been listed. Another is a depth-first walk with a list as its stack, where a node is listed when all its parents have been,
and the list is reversed in the end. A node's id, id(node), can be kept in a set or be the key of a dict.
"""


def users_first(last):
    """Every node that leads to `last`: a list, users before what they use."""
    users, waiting = {id(last): 0}, [last]
    while waiting:
        for parent in waiting.pop().parents:
            if id(parent) not in users:
                users[id(parent)] = 0
                waiting.append(parent)
            users[id(parent)] += 1
    found, ready = [], [last]
    while ready:
        node = ready.pop()
        found.append(node)
        for parent in node.parents:
            users[id(parent)] -= 1
            if not users[id(parent)]:
                ready.append(parent)
    return found


def backward(last):
    """The gradient of `last` by every node that leads to it, in .grad; returns that of `last` itself, 1.0."""
    last.grad = 1.0
    for node in users_first(last):
        for parent, slope in zip(node.parents, node.slopes):
            parent.grad += node.grad * slope
    return last.grad
