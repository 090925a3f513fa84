"""The engine: requests in, tokens out.

`llm.py` is the public API and the only module that knows text; `llm_engine.py` runs steps;
`scheduler.py`, `slots.py` and `blocks.py` decide who runs, on the host alone; `programs.py` holds
the compiled steps, with `sampler.py` inside. Nothing here knows the mathematics of the model or a
protocol. This file imports nothing, so that `request.py` stays light.
"""
