"""The order of the stages: the only package that knows it.

matrix → cells → libraries per cell → sources → toolchain → build environment → library steps → raw
wheel → repaired wheel → gates → import suite → report. Each stage makes a frozen value from the ones
before it; these modules hand them on. ``check`` has an order of its own: subjects → sources read → static
rules → registry rules → run time → baseline.
"""
