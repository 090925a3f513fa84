"""The model: pure functions (params, cache, plan) -> (cache, result). Read `forward.py` first.

Words for dimensions, the same in every file:
    rows        tokens of one step, flattened over sequences
    tiles       groups of consecutive rows of one sequence; a step's rows are tiles x tile_rows
    slots       sequences that own a place in the bounded caches
    streams     hyper-connection copies of the hidden state
    heads, head_dim, hidden, experts, vocab
    keys        entries a row attends to: window keys, then selected compressed keys
    ratio       original tokens per compressed key, 1 or 2

Letters in einsum strings: r rows, t tiles, h heads, d head dim, k keys, e experts, m hidden,
f expert width, s streams, o output of a product, i its input.

The room knows no scheduler, no mesh size and no file.
"""
