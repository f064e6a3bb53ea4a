"""The figures of a report. Each `draw_…` draws one figure of a run's record; None where there is nothing to draw."""
