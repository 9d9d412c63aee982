"""Stored runs beside each other: pairing, tables, pictures, lists."""
