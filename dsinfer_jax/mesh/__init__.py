"""Named meshes: how work and weights are spread over devices.

`layout.py` has the three axes and says which layouts are possible, `rules.py` which axes each array
lies along. `expert_*.py` keep experts balanced: `expert_placement` where copies lie, `expert_loads`
the statistics, `expert_policy` the placement for a load, `expert_moves` the way there,
`expert_balance` when. The room knows the configuration only: no model, no engine, no files.
"""
