"""Attacks: kills at every write, and inputs made to hurt. A share runs with the tests, all of it by `nox -s attack`."""
