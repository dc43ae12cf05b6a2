"""The loops of `scalar` and `decoder`, as one writes them for numba, which this module needs."""

from __future__ import annotations

import math

import numpy as np
from numba import njit, prange


@njit(parallel=True)
def collatz(numbers):
    found = np.empty(numbers.size, np.int32)
    for place in prange(numbers.size):
        n, count = numbers[place], 0
        while n != 1:
            n = n // 2 if n % 2 == 0 else 3 * n + 1
            count += 1
        found[place] = count
    return found


@njit(parallel=True, fastmath=True)
def lorenz(points, steps):
    found = np.empty_like(points)
    dt, sigma, rho, beta = np.float32(0.01), np.float32(10), np.float32(28), np.float32(8 / 3)
    for place in prange(points.shape[0]):
        x, y, z = points[place]
        for _ in range(steps):
            dx, dy, dz = sigma * (y - x), x * (rho - z) - y, x * y - beta * z
            x, y, z = x + dt * dx, y + dt * dy, z + dt * dz
        found[place, 0], found[place, 1], found[place, 2] = x, y, z
    return found


@njit
def levenshtein(a, b):
    row = np.arange(b.size + 1).astype(np.int32)
    for i in range(a.size):
        left, row[0] = row[0], i + 1
        for j in range(b.size):
            changed = left + (a[i] != b[j])
            left = row[j + 1]
            row[j + 1] = min(changed, left + 1, row[j] + 1)
    return row[b.size]


@njit
def newton(start, steps):
    x, tenth = start, np.float32(0.1)
    for _ in range(steps):
        x = x - tenth * (x * x * x - x - np.float32(2)) / (np.float32(3) * x * x - np.float32(1))
    return x


@njit
def kalman(observed, f, h, q, r):
    """A state of n numbers, of which the first is observed."""
    n = f.shape[0]
    mean, cov = np.zeros(n, np.float32), np.eye(n, dtype=np.float32)
    found = np.empty((observed.size, n), np.float32)
    for t in range(observed.size):
        mean = f @ mean
        cov = f @ cov @ f.T + q
        gain = cov @ h / (h @ cov @ h + r)
        mean = mean + gain * (observed[t] - h @ mean)
        cov = cov - np.outer(gain, h @ cov)
        found[t] = mean
    return found


@njit
def _energy(x):
    return np.float32(0.5) * (x * x).sum() + np.float32(0.1) * np.cos(np.float32(3) * x).sum()


@njit
def metropolis(start, moves, draws):
    x, energy = start.copy(), _energy(start)
    total = np.zeros_like(start)
    for step in range(draws.size):
        proposed = x + moves[step]
        new = _energy(proposed)
        if math.log(draws[step]) < energy - new:
            x, energy = proposed, new
        total += x
    return total / np.float32(draws.size)


@njit(fastmath=True)
def decode(token, steps, table, q, k, v, o, up, down, out):
    width = table.shape[1]
    keys, values = np.zeros((steps, width), np.float32), np.zeros((steps, width), np.float32)
    logits, scale = np.zeros(out.shape[1], np.float32), np.float32(1 / math.sqrt(width))
    for at in range(steps):
        x = table[token]
        keys[at], values[at] = x @ k, x @ v
        scores = (keys[: at + 1] @ (x @ q)) * scale
        weights = np.exp(scores - scores.max())
        x = x + ((weights / weights.sum()) @ values[: at + 1]) @ o
        x = x + np.maximum(x @ up, np.float32(0)) @ down
        logits = x @ out
        token = np.argmax(logits)
    return logits
