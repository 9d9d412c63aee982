"""Contract tests of methods on two-layer models (`ttabench check`)."""
