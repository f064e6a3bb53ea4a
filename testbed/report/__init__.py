"""Figures, tables and pages made of runs."""
