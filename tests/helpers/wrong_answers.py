"""Wrong answers that students write: what replaces a part of the solution, words that the first sentence
must contain, and the largest share of the points that is fair.
"""

# exercise, the wrong part, words of the first sentence, largest share of the points
WRONG = [
    # ---- chapter 0
    ("slope", "def slope(f, x, eps=1e-6):\n    return (f(x + eps) - f(x - eps)) / (2 * eps)", "All elements are moved at once", 0),
    ("slope", "def slope(f, x, eps=1e-6):\n    return np.full_like(x, (f(x + eps) - f(x - eps)) / (2 * eps))", "All elements are moved at once", 0),
    ("slope", "def slope(f, x, eps=1e-6):\n    out = np.zeros_like(x)\n    for i in np.ndindex(x.shape):\n        s = np.zeros_like(x)\n        s[i] = eps\n        out[i] = (f(x + s) - f(x)) / eps\n    return out", "one-sided slope", 0.5),
    ("slope", "def slope(f, x, eps=1e-6):\n    out = np.zeros_like(x)\n    for i in range(len(x)):\n        s = np.zeros_like(x)\n        s[i] = eps\n        out[i] = (f(x + s) - f(x - s)) / (2 * eps)\n    return out", "len() of unsized object", 0.8),
    ("slope", "def slope(f, x, eps=1e-6):\n    out = np.zeros_like(x)\n    for i in np.ndindex(x.shape):\n        x[i] += eps\n        up = f(x)\n        x[i] -= 2 * eps\n        out[i] = (up - f(x)) / (2 * eps)\n        x[i] += eps\n    return out", "x has different values after the call", 0.9),
    # ---- chapter 1
    ("scalar", "def sub(self, other):\n    return Scalar(self.data - other.data, (self, other), (1.0, 1.0))\nScalar.__sub__ = sub", "a - b falls as b grows", 0.8),
    ("scalar", "def sub(self, other):\n    return Scalar(self.data - other.data)\nScalar.__sub__ = sub", "remembers no parents", 0.8),
    ("scalar", "def tanh(self):\n    return math.tanh(self.data)\nScalar.tanh = tanh", "must return a Scalar", 0.7),
    ("scalar", "def tanh(self):\n    return Scalar(math.tanh(self.data), (self,), (1 - self.data ** 2,))\nScalar.tanh = tanh", "This is 1 - x^2", 0.8),
    # ---- chapter 2
    ("order", "def users_first(last):\n    found, seen = [], set()\n    waiting = [last]\n    while waiting:\n        node = waiting.pop()\n        if id(node) not in seen:\n            seen.add(id(node))\n            found.append(node)\n            waiting += node.parents\n    return found", "comes before its user", 0.5),
    ("order", "def users_first(last):\n    found = [last]\n    for parent in last.parents:\n        found += users_first(parent)\n    return found", "listed twice", 0.5),
    ("order", "def users_first(last):\n    found, seen = [], set()\n    def visit(node):\n        if id(node) not in seen:\n            seen.add(id(node))\n            for parent in node.parents:\n                visit(parent)\n            found.append(node)\n    visit(last)\n    return found[::-1]", "recursion", 0.9),
    ("order", "def backward(last):\n    last.grad = 1.0\n    for node in users_first(last):\n        for parent, slope in zip(node.parents, node.slopes):\n            parent.grad = node.grad * slope\n    return 1.0", "keeps only one of its contributions", 0.7),
    ("order", "def backward(last):\n    last.grad = 1.0\n    for node in users_first(last):\n        for parent, slope in zip(node.parents, node.slopes):\n            parent.grad += slope", "without the gradient of the node", 0.8),
    # ---- chapter 3
    ("vjp", "def softplus_vjp(g, y, x):\n    return 1 / (1 + np.exp(-x))", "does not depend on g", 0.6),
    ("vjp", "def softplus_vjp(g, y, x):\n    return g", "returns its argument g unchanged", 0.6),
    ("vjp", "def softplus_vjp(g, y, x):\n    g /= 1 + np.exp(-x)\n    return g", "changes an array that it is given", 0.6),
    ("vjp", "def running_sum_vjp(g, y, x):\n    return np.cumsum(g, axis=-1)", "sums in the same direction", 0.5),
    ("vjp", "def running_sum_vjp(g, y, x):\n    return np.cumsum(g[::-1], axis=-1)[::-1]", "sums in the same direction", 0.5),
    ("vjp", "def running_sum_vjp(g, y, x):\n    return np.broadcast_to(g.sum(axis=-1, keepdims=True), g.shape)", "whole row", 0.5),
    # ---- chapter 3b
    ("dual", "Dual.__mul__ = lambda self, other: Dual(self.value * constant(other).value, self.tangent * constant(other).tangent)", "belongs to eps^2", 0.9),
    ("dual", "def jvp(f, x, v):\n    y = f(Dual(x, np.ones_like(x)))\n    return y.value, y.tangent", "The tangent of x is v", 0.95),
    # ---- chapter 4
    ("unbroadcast", "def unbroadcast(g, shape):\n    return g.sum(axis=0)", "shape", 0.5),
    ("unbroadcast", "def unbroadcast(g, shape):\n    for axis in range(g.ndim):\n        if axis >= len(shape) or shape[axis] == 1:\n            g = g.sum(axis=axis)\n    return g", "from the left", 0.5),
    ("unbroadcast", "def unbroadcast(g, shape):\n    full = shape + (1,) * (g.ndim - len(shape))\n    over = tuple(i for i, n in enumerate(full) if n == 1)\n    return g.sum(axis=over, keepdims=True).reshape(shape)", "from the left", 0.5),
    ("unbroadcast", "def unbroadcast(g, shape):\n    return np.resize(g, shape)", "not added up", 0),
    ("unbroadcast", "def unbroadcast(g, shape):\n    full = (1,) * (g.ndim - len(shape)) + shape\n    return g.mean(axis=tuple(i for i, n in enumerate(full) if n == 1), keepdims=True).reshape(shape)", "This is a mean", 0),
    # ---- chapter 5
    ("matmul", "def gram_vjp(g, y, a):\n    return 2 * a @ g", "only where g is symmetric", 0.5),
    ("matmul", "def gram_vjp(g, y, a):\n    return (g + g.mT) @ a", "order", 0.5),
    ("matmul", "def gram_vjp(g, y, a):\n    return a @ (g + g.T)", ".T reverses all axes", 0.9),
    ("matmul", "def quadratic_vjp_x(g, y, x, A):\n    return g * (x @ (A + A.T))", "x[..., None]", 0.8),
    ("matmul", "def quadratic_vjp_A(g, y, x, A):\n    return x.T @ (g[..., None] * x)", ".T reverses all axes", 0.95),
    # ---- chapter 6
    ("softmax", "def softmax_vjp_x(g, y, x, temperature):\n    return g * y * (1 - y) / temperature", "rule of the sigmoid", 0.5),
    ("softmax", "def softmax_vjp_x(g, y, x, temperature):\n    return y * (g - (g * y).sum(axis=-1)) / temperature", "keepdims=True", 0.5),
    ("softmax", "import scipy.special\ndef softmax(x, temperature):\n    return scipy.special.softmax(x / temperature, axis=-1)", "scipy's softmax", 0.9),
    ("softmax", "def softmax(x, temperature):\n    e = np.exp(x / temperature)\n    return e / e.sum(axis=-1, keepdims=True)", "Subtract the largest", 0.95),
    ("softmax", "def shares_vjp(g, y, x):\n    return g / np.abs(x).sum(axis=-1, keepdims=True)", "treated as a constant", 0.9),
    ("softmax", "def softmax(x, temperature):\n    e = np.exp((x - x.max(axis=-1, keepdims=True)) / temperature)\n    return e / e.sum(axis=0)", "The sum is over axis 0", 0.95),
    ("softmax", "def softmax_vjp_x(g, y, x, temperature):\n    return y * (g - (g * y).sum(axis=-1, keepdims=True)) * temperature", "The gradient is temperature^2 times", 0.5),
    ("softmax", "def softmax_vjp_temperature(g, y, x, temperature):\n    return -(g * y * x).sum() / temperature**2", "only its first term", 0.9),
    ("softmax", "def shares_vjp(g, y, x):\n    s = np.abs(x).sum(axis=-1, keepdims=True)\n    return g / s - x * (g * np.sign(x)).sum(axis=-1, keepdims=True) / s**2", "x_j and the sign of x_i in its second term", 0.9),
    # ---- chapter 7
    ("layer_norm", "def unit_vjp(g, y, x):\n    length = np.sqrt((x * x).sum(axis=-1, keepdims=True))\n    return (g - x * (g * x).sum(axis=-1, keepdims=True)) / length", "x where the normalised y belongs", 0.6),
    ("layer_norm", "def unit_vjp(g, y, x):\n    return g / np.sqrt((x * x).sum(axis=-1, keepdims=True))", "treated as a constant", 0.6),
    ("layer_norm", "def group_norm_vjp_weight(g, y, x, weight, *, groups, eps=1e-5):\n    return g * x", "normalised n", 0.9),
    ("layer_norm", "def group_norm(x, weight, *, groups, eps=1e-5):\n    n = (x - x.mean(axis=-1, keepdims=True)) / np.sqrt(x.var(axis=-1, keepdims=True) + eps)\n    return n * weight", "as in layer norm", 0.9),
    ("layer_norm", "def unit_vjp(g, y, x):\n    s = np.sqrt((x * x).sum(axis=-1, keepdims=True))\n    return g / s - x * (g * x).sum(axis=-1, keepdims=True) / (2 * s**3)", "half of what it should be", 0.6),
    ("layer_norm", "def unit_vjp(g, y, x):\n    s = np.sqrt((x * x).sum(axis=-1, keepdims=True))\n    return g / s - x * (g * x).sum(axis=-1, keepdims=True) / s**2", "so a division by |x| is missing", 0.6),
    ("layer_norm", "def group_norm(x, weight, *, groups, eps=1e-5):\n    z = x.reshape(groups, -1)\n    z = (z - z.mean(-1, keepdims=True)) / np.sqrt(z.var(-1, keepdims=True) + eps)\n    return z.reshape(x.shape) * weight", "All rows together are cut", 0.9),
    ("layer_norm", "def group_norm_vjp_weight(g, y, x, weight, *, groups, eps=1e-5):\n    return (g * y).reshape(-1, x.shape[-1]).sum(axis=0)", "This is g * y", 0.9),
    # ---- chapter 8
    ("adam", "def adam_step(p, g, m, v, t, lr=1e-3, beta1=0.9, beta2=0.999, eps=1e-8):\n    m = beta1 * m + (1 - beta1) * g\n    v = beta2 * v + (1 - beta2) * g**2\n    return p - lr * m / (np.sqrt(v) + eps), m, v", "bias correction is missing", 0.5),
    ("adam", "def adam_step(p, g, m, v, t, lr=1e-3, beta1=0.9, beta2=0.999, eps=1e-8):\n    m = beta1 * m + (1 - beta1) * g\n    v = beta2 * v + (1 - beta2) * g**2\n    p -= lr * (m / (1 - beta1**t)) / (np.sqrt(v / (1 - beta2**t)) + eps)\n    return p, m, v", "different values after the call", 0.9),
    # ---- chapter 9
    ("attention", "def attention(q, k, v, causal=False):\n    scores = q @ k.T / math.sqrt(q.shape[-1])\n    weights = F.softmax(scores)\n    return {'scores': scores, 'weights': weights, 'output': weights @ v}", ".T reverses all axes", 0.6),
    ("attention", "def attention(q, k, v, causal=False):\n    scores = q @ k.swapaxes(-1, -2) / math.sqrt(q.shape[-1])\n    hidden = np.where(np.tri(*scores.shape[-2:], dtype=bool), -np.inf, scores) if causal else scores\n    weights = F.softmax(hidden)\n    return {'scores': scores, 'weights': weights, 'output': weights @ v}", "mask is inverted", 0.95),
    ("attention", "def attention(q, k, v, causal=False):\n    out = F.scaled_dot_product_attention(q, k, v, is_causal=causal)\n    return {'scores': out, 'weights': out, 'output': out}", "scaled_dot_product_attention", 0.6),
    ("attention", "def linear_vjp_k(g, y, q, k, v):\n    return (np.tri(len(q)) * (g @ v.T)) @ q", "must be transposed", 0.95),
    # ---- chapter 10
    ("heads", "def split_heads(x, heads):\n    batch, length, size = x.shape\n    return x.reshape(batch, heads, length, size // heads)", "A reshape alone", 0.5),
    ("heads", "def split_heads(x, heads):\n    batch, length, size = x.shape\n    return x.reshape(batch, length, heads, size // heads)", "Heads and time are exchanged", 0.5),
    ("heads", "def merge_heads(x):\n    return x.reshape(x.shape[0], x.shape[2], -1)", "A reshape alone", 0.5),
    # ---- chapter 11
    ("encoder_layer", "def encoder_layer(x, attend, feed_forward, norm1, norm2, norm_first=False):\n    if norm_first:\n        n = norm1(x)\n        x = n + attend(n)\n        n = norm2(x)\n        return n + feed_forward(n)\n    x = norm1(x + attend(x))\n    return norm2(x + feed_forward(x))", "both sublayers add the input after the norm", 0.9),
    ("encoder_layer", "def gated_vjp_W(g, y, x, W, V):\n    s, u = 1 / (1 + np.exp(-(x @ W))), x @ V\n    return x.reshape(-1, len(W)).T @ (g * u).reshape(-1, W.shape[1])", "slope of the sigmoid is missing", 0.85),
    # ---- chapters 12 to 17
    ("positions", "def sinusoidal(length, d_model):\n    angles = np.arange(length)[:, None] / 10000 ** (np.arange(0, d_model, 2) / d_model)\n    return np.concatenate([np.sin(angles), np.cos(angles)], axis=1)", "All sines come before", 0.4),
    ("train", "def train(model, optimizer, groups):\n    losses = []\n    for group in groups:\n        samples, total = sum(len(y) for _, y in group), 0.0\n        optimizer.zero_grad()\n        for x, y in group:\n            loss = F.cross_entropy(model(x), y)\n            loss.backward()\n            total += loss.item() * len(y) / samples\n        optimizer.step()\n        losses.append(total)\n    return losses", "sum of the parts' means", 0.5),
    ("greedy", "def greedy(score, source, length, start):\n    written = np.full((len(source), 1), start)\n    for _ in range(length):\n        best = score(source, written).numpy()[:, -1].argmax(axis=-1)\n        written = np.concatenate([written, best[:, None]], axis=1)\n    return written", "should not include START", 0.5),
    ("sampling", "def probabilities(scores, temperature, k):\n    e = np.exp(scores / temperature)\n    p = e / e.sum(axis=-1, keepdims=True)\n    return np.where(scores >= np.sort(scores, axis=-1)[:, -k][:, None], p, 0)", "no longer sum to 1", 0.5),
    ("pooling", "def pool(tokens, there):\n    mean = tokens.mean(axis=1)\n    return mean / np.sqrt((mean * mean).sum(axis=-1, keepdims=True))", "padding is included", 0),
    ("hvp", "def hvp(f, x, v):\n    x = Tensor(x, requires_grad=True)\n    (gradient,) = ta.grad(f(x), x)\n    return gradient * v", "only a first derivative", 0),
    # ---- found by writing what is not above
    ('scalar', 'def tanh(self):\n    y = math.tanh(self.data)\n    return Scalar(y, (self,), (1 - y,))\nScalar.tanh = tanh', 'This is 1 - y.', 0.85),
    ('order', 'def backward(last):\n    last.grad = 1.0\n    for node in reversed(users_first(last)):\n        for parent, slope in zip(node.parents, node.slopes):\n            parent.grad += node.grad * slope\n    return 1.0', 'Begin with `last`', 0.75),
    ('vjp', 'def softplus_vjp(g, y, x):\n    return g * np.exp(x)', 'slope of e^x', 0.6),
    ('vjp', 'def running_sum_vjp(g, y, x):\n    n = x.shape[-1]\n    L = np.tril(np.ones((n, n)))\n    return g @ L.T', 'sums in the same direction', 0.5),
    ('layer_norm', 'def unit_vjp(g, y, x):\n    length = np.sqrt((x * x).sum(axis=-1, keepdims=True))\n    return g / length - x * (g * x).sum(axis=-1, keepdims=True) / length', 'x where the normalised y belongs', 0.5),
    ('attention', "def attention(q, k, v, causal=False):\n    scores = q @ k.swapaxes(-1, -2) / math.sqrt(q.shape[-1])\n    weights = F.softmax(scores, axis=0)\n    return {'scores': scores, 'weights': weights, 'output': weights @ v}", 'over the first axis', 0.9),
    ('attention', 'def linear_vjp_v(g, y, q, k, v):\n    return (np.tri(len(q)) * (k @ q.T)) @ g', 'upside down', 0.95),
    ('encoder_layer', 'def encoder_layer(x, attend, feed_forward, norm1, norm2, norm_first=False):\n    if norm_first:\n        return x + attend(norm1(x)) + feed_forward(norm2(x))\n    x = norm1(x + attend(x))\n    return norm2(x + feed_forward(x))', 'get the same x', 0.9),
    ('encoder_layer', 'def gated_vjp_x(g, y, x, W, V):\n    s, u = 1 / (1 + np.exp(-(x @ W))), x @ V\n    return (g * s * (1 - s)) @ W.T + (g * s) @ V.T', 'lacks the factor x V', 0.9),
    ('sampling', 'def probabilities(scores, temperature, k):\n    order = np.argsort(scores, axis=-1)[:, :k]\n    kept = np.full_like(scores, -np.inf)\n    np.put_along_axis(kept, order, np.take_along_axis(scores, order, -1) / temperature, -1)\n    e = np.exp(kept - kept.max(axis=-1, keepdims=True))\n    return e / e.sum(axis=-1, keepdims=True)', 'reverse order', 0.5),
    ('slope', 'def slope(f, x, eps=1e-6):\n    out = np.zeros(x.shape)\n    for i in np.ndindex(x.shape):\n        a, b = x, x\n        a[i] += eps\n        b[i] -= eps\n        out[i] = (f(a) - f(b)) / (2 * eps)\n    return out', 'a = x does not copy', 0.2),
    ('scalar', 'def div(self, other):\n    return Scalar(self.data / other.data, (self, other), (1 / other.data, self.data / other.data))\nScalar.__truediv__ = div', 'minus sign and the square', 0.8),
    ('vjp', 'def softplus_vjp(g, y, x):\n    s = 1 / (1 + np.exp(-x))\n    return g * s * (1 - s)', 'slope of the sigmoid', 0.6),
    ('unbroadcast', 'def unbroadcast(g, shape):\n    while g.ndim > len(shape):\n        g = g.sum(axis=0)\n    for axis, n in enumerate(shape):\n        if n == 1:\n            g = g.sum(axis=axis)\n    return g', 'keepdims=True keeps it', 0.6),
    ('matmul', 'def gram_vjp(g, y, a):\n    return g @ a.mT + a @ g', 'transposes of each other', 0.5),
    ('softmax', 'def shares_vjp(g, y, x):\n    s = np.abs(x).sum(axis=-1, keepdims=True)\n    return g / s - x * (g * x).sum(axis=-1, keepdims=True) / s**2', 'x where its sign belongs', 0.9),
    ('layer_norm', 'def unit_vjp(g, y, x):\n    n = np.linalg.norm(x)\n    return (g - y * (g * y).sum(axis=-1, keepdims=True)) / n', 'one length for the whole array', 0.5),
    ('adam', 'def adam_step(p, g, m, v, t, lr=1e-3, beta1=0.9, beta2=0.999, eps=1e-8):\n    m = beta1 * m + (1 - beta1) * g\n    v = beta2 * v + (1 - beta2) * g**2\n    p = p - lr * (m / (1 - beta1**(t+1))) / (np.sqrt(v / (1 - beta2**(t+1))) + eps)\n    return p, m, v', 'counted from 1 already', 0.5),
    ('encoder_layer', 'def encoder_layer(x, attend, feed_forward, norm1, norm2, norm_first=False):\n    if norm_first:\n        x = x + norm1(attend(x))\n        return x + norm2(feed_forward(x))\n    x = norm1(x + attend(x))\n    return norm2(x + feed_forward(x))', 'output of the sublayer', 0.9),
    ('greedy', 'def shifted(answers, start):\n    out = np.roll(answers, 1, axis=1)\n    out[:, 0] = answers[:, 0]\n    return out', 'START is missing', 0.7),
    # ---- the marker had no words for these
    ("order", "def backward(last):\n    for node in users_first(last):\n        for parent, slope in zip(node.parents, node.slopes):\n            parent.grad += node.grad * slope\n    return 1.0", "set it first", 0.7),
    ("order", "def backward(last):\n    last.grad = 1.0\n    for node in users_first(last):\n        for parent, slope in zip(node.parents, node.slopes):\n            parent.grad += slope\n    return 1.0", "without the gradient of the node", 0.7),
    ("layer_norm", "def group_norm_vjp_x(g, y, x, weight, *, groups, eps=1e-5):\n    parts, h = (a.reshape(*x.shape[:-1], groups, -1) for a in (x, g * weight))\n    deviation = np.sqrt(parts.var(axis=-1, keepdims=True) + eps)\n    n = (parts - parts.mean(axis=-1, keepdims=True)) / deviation\n    return ((h - (1 + n) * h.mean(axis=-1, keepdims=True)) / deviation).reshape(x.shape)", "mean of h * n", 0.8),
    ("adam", "def adam_step(p, g, m, v, t, lr=1e-3, beta1=0.9, beta2=0.999, eps=1e-8):\n    m = beta1 * m + (1 - beta1) * g\n    v = beta2 * v + (1 - beta2) * g**2\n    return p - lr * (m / (1 - beta1)) / (np.sqrt(v / (1 - beta2)) + eps), m, v", "same at each step", 0.8),
    ("adam", "def adam_step(p, g, m, v, t, lr=1e-3, beta1=0.9, beta2=0.999, eps=1e-8):\n    m = beta1 * m + (1 - beta1) * g\n    v = beta2 * v + (1 - beta2) * m**2\n    return p - lr * (m / (1 - beta1**t)) / (np.sqrt(v / (1 - beta2**t)) + eps), m, v", "squares of g, not of m", 0.8),
    ("adam", "def adam_step(p, g, m, v, t, lr=1e-3, beta1=0.9, beta2=0.999, eps=1e-8):\n    m = (1 - beta1) * m + beta1 * g\n    v = beta2 * v + (1 - beta2) * g**2\n    return p - lr * (m / (1 - beta1**t)) / (np.sqrt(v / (1 - beta2**t)) + eps), m, v", "exchanged", 0.8),
    ("attention", "def linear_vjp_k(g, y, q, k, v):\n    return (np.tri(len(q)).T * (g @ v.T)) @ q", "belong together", 0.95),
    ("encoder_layer", "def encoder_layer(x, attend, feed_forward, norm1, norm2, norm_first=False):\n    if norm_first:\n        x = attend(norm1(x))\n        return x + feed_forward(norm2(x))\n    x = norm1(x + attend(x))\n    return norm2(x + feed_forward(x))", "first sublayer has no residual", 0.9),
    ("train", "def train(model, optimizer, groups):\n    losses = []\n    for group in groups:\n        samples = sum(len(y) for _, y in group)\n        optimizer.zero_grad()\n        total = 0.0\n        for x, y in group:\n            loss = F.cross_entropy(model(x), y)\n            (loss * (len(y) / samples)).backward()\n            total += loss.item() / len(group)\n        optimizer.step()\n        losses.append(total)\n    return losses", "not the mean over its samples", 0.7),
    ("greedy", "def greedy(score, source, length, start):\n    written = np.full((len(source), 1), start)\n    for _ in range(length):\n        best = score(source, written).numpy()[:, -1].max(axis=-1)\n        written = np.concatenate([written, best[:, None]], axis=1)\n    return written[:, 1:]", "argmax gives the place", 0.5),
    ("sampling", "def probabilities(scores, temperature, k):\n    bound = np.sort(scores, axis=-1)[:, k - 1][:, None]\n    kept = np.where(scores >= bound, scores / temperature, -np.inf)\n    e = np.exp(kept - kept.max(axis=-1, keepdims=True))\n    return e / e.sum(axis=-1, keepdims=True)", "sorts upwards", 0.5),
    ("pooling", "def pool(tokens, there):\n    mean = (tokens * there[..., None]).sum(axis=1)\n    return mean / np.abs(mean).sum(axis=-1, keepdims=True)", "each slice has a factor of its own", 0),
    # what must not be said: slices that mirror each other are no rows with factors
    ("attention", "def attention(q, k, v, causal=False):\n    scores = q @ k.swapaxes(-1, -2) / math.sqrt(q.shape[-1])\n    allowed = np.tri(*scores.shape[-2:], dtype=bool) if causal else np.ones(scores.shape[-2:], dtype=bool)\n    weights = F.softmax(np.where(allowed, scores, -np.inf), axis=-1)\n    return {'scores': scores, 'weights': weights, 'output': weights.swapaxes(-1, -2) @ v}", "the last axis of a", 0.9),
]  # fmt: skip
