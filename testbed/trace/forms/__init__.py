"""Traces as others publish or record them, each form a module: its text or bytes into traces of ours."""
