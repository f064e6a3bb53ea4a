"""This machine: what it can do and how much, and fixes for what is missing."""
