"""Checks any server of the three dialects from outside: laws of streams, and a set of cases.

`client.py` talks HTTP with the standard library, `*_laws.py` read what came back strictly,
`cases.py` says what is asked, `command.py` prints the report.
"""
