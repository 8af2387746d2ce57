"""The only place that touches private interfaces of torch, each with a feature test and a plain path without it."""
