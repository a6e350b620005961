"""The noise of sampling as runtime/README.md tells it."""

import math

MASK = 2**64 - 1
DRAFT, ACCEPT, RESIDUAL = 1, 2, 3  # purposes


def splitmix64(x):
    x = (x + 0x9E3779B97F4A7C15) & MASK
    x = ((x ^ x >> 30) * 0xBF58476D1CE4E5B9) & MASK
    x = ((x ^ x >> 27) * 0x94D049BB133111EB) & MASK
    return x ^ x >> 31


def key(seed, position):
    return splitmix64(splitmix64(seed & MASK) ^ position)


def uniform(of_key, token):
    return ((splitmix64(of_key ^ token) >> 12) + 0.5) * 2.0**-52


def own_uniform(seed, purpose, root, row, token=0):
    """Of what a round draws besides the target's own choices."""
    own = splitmix64((seed + purpose * 0xD1B54A32D192ED03) & MASK)
    return uniform(key(key(own, root), row), token)


def gumbel(seed, position, v):
    return -math.log(-math.log(uniform(key(seed, position), v)))


def choose(row, temperature, seed, position):
    """argmax of row / temperature + noise; of row alone if temperature is 0."""
    values = [
        x / temperature + gumbel(seed, position, v) if temperature else x
        for v, x in enumerate(row.tolist())
    ]
    return values.index(max(values))
