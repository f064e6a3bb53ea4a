"""Measurements: records in files, samples and estimates of links, exports to Prometheus, TensorBoard and OTLP."""
