"""The figures of a report, one noun a file. Each function draws one figure of a record, or none (None) when the
record has nothing to draw it from."""
