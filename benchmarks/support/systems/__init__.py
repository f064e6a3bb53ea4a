"""What `benchmarks.systems` measures: the networks, and the systems that train over them."""
