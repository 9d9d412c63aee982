"""Tests of ttabench."""
