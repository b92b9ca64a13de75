"""Deliberately slow NumPy loops that follow the printed formulas, in float64: one per function of ``ops``."""

from __future__ import annotations

import math
from typing import Any

import numpy as np


def n_step_returns(r, d, nv, cut, n):
    T, B = r.shape
    out = np.zeros((T, B))
    for b in range(B):
        for t in range(T):
            total, factor = 0.0, 1.0
            for k in range(t, min(t + n, T)):
                total += factor * r[k, b]
                factor *= d[k, b]
                if cut[k, b] or k == min(t + n, T) - 1:
                    total += factor * nv[k, b]
                    break
            out[t, b] = total
    return out


def lambda_returns(r, d, nv, cut, lam):
    """Weighted sum of all n-step returns: (1 - lam) lam^(n-1) each, the rest on the longest possible one."""
    T, B = r.shape
    every = [n_step_returns(r, d, nv, cut, n) for n in range(1, T + 1)]
    out = np.zeros((T, B))
    for b in range(B):
        for t in range(T):
            longest = 1
            while t + longest < T and not cut[t + longest - 1, b]:
                longest += 1
            for n in range(1, longest):
                out[t, b] += (1 - lam) * lam ** (n - 1) * every[n - 1][t, b]
            out[t, b] += lam ** (longest - 1) * every[longest - 1][t, b]
    return out


def gae(r, d, v, nv, cut, lam):
    """Explicit sum of discounted deltas up to the first cut."""
    T, B = r.shape
    out = np.zeros((T, B))
    for b in range(B):
        for t in range(T):
            factor = 1.0
            for k in range(t, T):
                out[t, b] += factor * (r[k, b] + d[k, b] * nv[k, b] - v[k, b])
                if cut[k, b]:
                    break
                factor *= d[k, b] * lam
    return out


def vtrace(log_rhos, r, d, v, nv, cut, rho_bar, c_bar, pg_rho_bar, lam):
    """IMPALA eq. 1: the explicit double sum, not the recursion."""
    T, B = r.shape
    ratio = np.exp(log_rhos)
    vs, pg = np.zeros((T, B)), np.zeros((T, B))
    for b in range(B):
        for s in range(T):
            vs[s, b], product = v[s, b], 1.0
            for t in range(s, T):
                vs[s, b] += product * min(rho_bar, ratio[t, b]) * (r[t, b] + d[t, b] * nv[t, b] - v[t, b])
                if cut[t, b]:
                    break
                product *= d[t, b] * lam * min(c_bar, ratio[t, b])
        for s in range(T):
            successor = nv[s, b] if cut[s, b] or s == T - 1 else vs[s + 1, b]
            pg[s, b] = min(pg_rho_bar, ratio[s, b]) * (r[s, b] + d[s, b] * successor - v[s, b])
    return vs, pg


def double_q_target(r, d, q, selector):
    out = []
    for i in range(len(r)):
        best = 0
        for a in range(len(q[i])):
            if selector[i][a] > selector[i][best]:
                best = a
        out.append(r[i] + d[i] * q[i][best])
    return np.array(out)


def td_loss(q, actions, r, d, next_q, selector, clip, scale, probs, beta):
    targets = double_q_target(r, d, next_q, selector)
    weights = [1.0] * len(r) if probs is None else importance_weights(probs, len(probs), beta, True)
    loss, gradient, error = 0.0, np.zeros(np.shape(q)), np.zeros(len(r))
    for i, a in enumerate(actions):
        delta = q[i][a] - targets[i]
        loss += scale * weights[i] * (0.5 * delta**2 if clip is None else huber([delta], clip)[0])
        gradient[i][a] = scale * weights[i] * (delta if clip is None else np.clip(delta, -clip, clip))
        error[i] = abs(delta)
    return loss, gradient, error


def huber(delta, kappa):
    return np.array([0.5 * x * x if abs(x) <= kappa else kappa * (abs(x) - 0.5 * kappa) for x in delta])


def dueling(v, a):
    return np.array([[v[i][0] + x - sum(a[i]) / len(a[i]) for x in a[i]] for i in range(len(a))])


def h(x, eps):
    return np.array([math.copysign(1, y) * (math.sqrt(abs(y) + 1) - 1) + eps * y for y in x])


def h_inverse(x, eps):
    out = []
    for y in x:
        root = math.sqrt(1 + 4 * eps * (abs(y) + 1 + eps))
        out.append(math.copysign(1, y) * (((root - 1) / (2 * eps)) ** 2 - 1))
    return np.array(out)


def rescaled_n_step_targets(r, d, q, selector, cut, n, eps):
    """R2D2's target, every step by itself."""
    T, B = r.shape
    best = np.array([[q[t, b, int(np.argmax(selector[t, b]))] for b in range(B)] for t in range(T)])
    values = best if eps is None else h_inverse(best.flatten(), eps).reshape(T, B)
    returns = n_step_returns(r, d, values, cut, n)
    return returns if eps is None else h(returns.flatten(), eps).reshape(T, B)


def sequence_td_loss(q, target_q, actions, r, d, valid, weight, double, n, eps, clip, eta):
    """R2D2's loss, its gradient by q, the errors and the priorities, every step by itself."""
    T, B = r.shape
    selector = q if double else target_q
    targets = rescaled_n_step_targets(r, d, target_q[1:], selector[1:], ~valid[1:], n, eps)
    loss, gradient, error = 0.0, np.zeros(q.shape), np.zeros((T, B))
    for t in range(T):
        for b in range(B):
            if valid[t, b]:
                a = actions[t, b]
                delta = q[t, b, a] - targets[t, b]
                loss += weight[b] * (0.5 * delta**2 if clip is None else huber([delta], clip)[0])
                gradient[t, b, a] = weight[b] * (delta if clip is None else np.clip(delta, -clip, clip))
                error[t, b] = abs(delta)
    return loss, gradient, error, sequence_priority(error, eta, valid[:-1])


def categorical_projection(r, d, p, z):
    """D4PG's triangular kernel: m_i = sum_j clip(1 - |clip(Y_j) - z_i| / Delta, 0, 1) p_j."""
    B, N = p.shape
    delta = (z[-1] - z[0]) / (N - 1)
    out = np.zeros((B, N))
    for b in range(B):
        for i in range(N):
            for j in range(N):
                y = min(max(r[b] + d[b] * z[j], z[0]), z[-1])
                out[b, i] += min(max(1 - abs(y - z[i]) / delta, 0), 1) * p[b, j]
    return out


def categorical_outside(r, d, p, z, rounding):
    """The mass of the images that lie off the atoms, by more than a share of their range."""
    margin = rounding * (z[-1] - z[0])
    out = np.zeros(len(r))
    for b in range(len(r)):
        for j in range(len(z)):
            y = r[b] + d[b] * z[j]
            if y < z[0] - margin or y > z[-1] + margin:
                out[b] += p[b, j]
    return out


def cross_entropy(m, logits):
    out = []
    for target, row in zip(m, logits, strict=True):
        norm = math.log(sum(math.exp(x) for x in row))
        out.append(-sum(t * (x - norm) for t, x in zip(target, row, strict=True)))
    return np.array(out)


def categorical_mean(logits, z):
    out = []
    for row in logits:
        total = sum(math.exp(x) for x in row)
        out.append(sum(math.exp(x) / total * atom for x, atom in zip(row, z, strict=True)))
    return np.array(out)


def gaussian(y, mean, deviation):
    return math.exp(-((y - mean) ** 2) / (2 * deviation**2)) / (deviation * math.sqrt(2 * math.pi))


def mixture_weights(logits):
    return [[math.exp(x) / sum(math.exp(other) for other in row) for x in row] for row in logits]


def mixture_log_prob(y, logits, means, deviations):
    out = np.zeros(np.shape(y))
    for b, weights in enumerate(mixture_weights(logits)):
        for s, sample in enumerate(y[b]):
            parts = zip(weights, means[b], deviations[b], strict=True)
            out[b, s] = math.log(sum(w * gaussian(sample, m, d) for w, m, d in parts))
    return out


def mixture_mean(logits, means):
    weights = mixture_weights(logits)
    return np.array([sum(w * m for w, m in zip(*rows, strict=True)) for rows in zip(weights, means, strict=True)])


def mixture_sample(uniform, normal, logits, means, deviations):
    out = np.zeros(np.shape(uniform))
    for b, weights in enumerate(mixture_weights(logits)):
        for s, u in enumerate(uniform[b]):
            k, below = 0, weights[0]
            while k < len(weights) - 1 and u >= below:
                k += 1
                below += weights[k]
            out[b, s] = means[b][k] + deviations[b][k] * normal[b][s]
    return out


def dpg_gradient(gradients, clip):
    return np.array([[-min(max(g, -clip), clip) for g in row] for row in gradients])


def entropy(m):
    return np.array([-sum(t * math.log(t) for t in row if t > 0) for row in m])


def quantile_huber(theta, targets, kappa, taus):
    B, N = theta.shape
    out = np.zeros(B)
    for b in range(B):
        for i in range(N):
            for j in range(targets.shape[1]):
                u = targets[b, j] - theta[b, i]
                size = huber([u], kappa)[0] / kappa if kappa > 0 else abs(u)
                out[b] += abs(taus[b, i] - (1.0 if u < 0 else 0.0)) * size / targets.shape[1]
    return out


def importance_weights(probs, size, beta, normalise):
    raw = [(1 / (size * x)) ** beta for x in probs]
    return np.array([x / max(raw) if normalise else x for x in raw])


def sequence_priority(td, eta, mask):
    out = []
    for b in range(td.shape[1]):
        real = [abs(td[t, b]) for t in range(td.shape[0]) if mask[t, b]]
        out.append(eta * max(real) + (1 - eta) * sum(real) / len(real) if real else 0.0)
    return np.array(out)


def rmsprop(theta, grads, lr, decay, eps, centred, momentum):
    """Scalar by scalar; returns theta after every gradient."""
    theta = [float(x) for x in theta]
    square, mean, step, history = [0.0] * len(theta), [0.0] * len(theta), [0.0] * len(theta), []
    for grad in grads:
        for i, g in enumerate(grad):
            square[i] = decay * square[i] + (1 - decay) * g * g
            mean[i] = decay * mean[i] + (1 - decay) * g
            variance = square[i] - mean[i] ** 2 if centred else square[i]
            step[i] = momentum * step[i] + lr * g / math.sqrt(max(variance, 0.0) + eps)
            theta[i] -= step[i]
        history.append(list(theta))
    return np.array(history)


def ppo_loss(log_prob, entropy, v, old_log_prob, old_v, advantage, target, weight, clip, c_v, c_e, clip_value):
    """Its sums one by one: the loss, and what it tells."""
    sums, most = np.zeros(6), 0.0
    for i, w in enumerate(weight):
        rho = math.exp(log_prob[i] - old_log_prob[i])
        policy = -min(rho * advantage[i], float(np.clip(rho, 1 - clip, 1 + clip)) * advantage[i])
        square = (v[i] - target[i]) ** 2
        if clip_value:
            square = max(square, (old_v[i] + float(np.clip(v[i] - old_v[i], -clip, clip)) - target[i]) ** 2)
        kl = rho - 1 - (log_prob[i] - old_log_prob[i])
        loss = policy + c_v * square / 2 - c_e * entropy[i]
        sums += w * np.array([loss, policy, square / 2, entropy[i], kl, abs(rho - 1) > clip])
        most = max(most, abs(rho - 1))
    return sums[0], [*sums[1:], most]


def actor_critic_loss(outputs, action, reward, discount, next_value, cut, valid, c_v, c_e):
    """Its sums one by one: the loss, and the means that it tells."""
    length, batch = action.shape
    sums = np.zeros(4)
    for b in range(batch):
        for t in range(length):
            ret, factor = 0.0, 1.0
            for k in range(t, length):
                ret, factor = ret + factor * reward[k, b], factor * discount[k, b]
                if cut[k, b] or k == length - 1:
                    ret += factor * next_value[k, b]
                    break
            row = outputs[t * batch + b]
            probs = np.exp(row[:-1]) / np.exp(row[:-1]).sum()
            log_prob, entropy = math.log(probs[action[t, b]]), -sum(p * math.log(p) for p in probs)
            advantage = ret - row[-1]
            if valid[t, b]:
                sums += [-advantage * log_prob, advantage**2 / 2, entropy, 1]
    return sums[0] + c_v * sums[1] - c_e * sums[2], sums[:3] / max(sums[3], 1)


def centred_ranks(returns):
    """Rank by counting: how many are less, plus half of the others that are equal."""
    n = len(returns)
    out = []
    for x in returns:
        less, equal = sum(y < x for y in returns), sum(y == x for y in returns)
        out.append((less + (equal - 1) / 2) / (n - 1) - 0.5)
    return out


def es_weights(returns):
    n = len(returns)
    shaped = np.array(centred_ranks(returns.ravel().tolist())).reshape(n, 2)
    return [(shaped[i, 0] - shaped[i, 1]) / (2 * n) for i in range(n)]


def ars_weights(returns, top):
    order = sorted(range(len(returns)), key=lambda i: -max(returns[i]))[:top]
    kept = [r for i in order for r in returns[i]]
    mean = sum(kept) / len(kept)
    sigma = math.sqrt(sum((r - mean) ** 2 for r in kept) / len(kept))
    return [(returns[i][0] - returns[i][1]) / (top * sigma) if i in order else 0.0 for i in range(len(returns))]


def weighted_noise(table, indices, weights, size):
    out = [0.0] * size
    for i, w in zip(indices, weights, strict=True):
        for j in range(size):
            out[j] += w * table[i + j]
    return out


def pixel_change(before, after, cell, grid):
    """Cell by cell, pixel by pixel, channel by channel."""
    channels, height, width = before.shape
    top, left = (height - grid[0] * cell) // 2, (width - grid[1] * cell) // 2
    out = np.zeros(grid)
    for row in range(grid[0]):
        for column in range(grid[1]):
            total = 0.0
            for c in range(channels):
                for y in range(cell):
                    for x in range(cell):
                        at = (c, top + row * cell + y, left + column * cell + x)
                        total += abs(float(after[at]) - float(before[at]))
            out[row, column] = total / (channels * cell * cell)
    return out


def reward_class(reward):
    return 1 if reward > 0 else 2 if reward < 0 else 0


def cem(score, noise, elites, floor=0.0):
    """The cross-entropy method in [-1, 1]^A, one problem, sample and coordinate after the other; ``score(b, a)``
    of one point. Returns the best points [B, A] and their scores [B]."""
    iterations, rows, samples, size = noise.shape
    points, scores = np.zeros((rows, size)), np.zeros(rows)
    for b in range(rows):
        mean, deviation = [0.0] * size, [1.0] * size
        best: Any = None
        for i in range(iterations):
            tried = []
            for n in range(samples):
                point = [min(1.0, max(-1.0, mean[j] + deviation[j] * noise[i, b, n, j])) for j in range(size)]
                tried.append((score(b, np.array(point)), point))
            tried.sort(key=lambda pair: -pair[0])
            if best is None or tried[0][0] > best[0]:
                best = tried[0]
            chosen = [point for _, point in tried[:elites]]
            for j in range(size):
                mean[j] = sum(point[j] for point in chosen) / elites
                square = sum((point[j] - mean[j]) ** 2 for point in chosen) / (elites - 1)
                deviation[j] = max(floor, square**0.5)
        scores[b], points[b] = best
    return points, scores
