"""Chapter 2: the order in which gradients are passed on.

A node has `.parents` (a tuple of the nodes it was computed from, where a node may occur twice),
`.slopes` (one number for each parent) and `.grad` (0.0 at first). Write

    users_first(last)    returns a list of `last` and all nodes that lead to it, each once, and each
                         before its parents
    backward(last)       sets .grad of these nodes to the gradient of `last` with respect to them

A chain of 20,000 nodes must not end in a RecursionError. 200 doublings x + x must not take 2^200
steps, so read the parents of each node only a few times.

Hint: one way is a loop with a list of nodes to visit. First count how many users each node has; a
node is ready once all of them have been listed. Another way is a depth-first walk with a list as
its stack. List a node when all its parents have been listed, and reverse the list at the end. You
can keep a node's id, id(node), in a set, or use it as the key of a dict.
"""


def users_first(last):
    """Return a list of every node that leads to `last`, each user before the nodes that it uses."""
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
    """Set .grad of every node to the gradient of `last` with respect to it.

    Returns the gradient of `last` itself, 1.0.
    """
    last.grad = 1.0
    for node in users_first(last):
        for parent, slope in zip(node.parents, node.slopes):
            parent.grad += node.grad * slope
    return last.grad
