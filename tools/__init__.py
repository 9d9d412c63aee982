"""Programs for developers, which run from a checkout: `python -m tools.NAME --help`.

- `architectures`: every method on tiny models of all causal architectures of transformers
- `devices`: every command on a simulated second device and on the CPU
- `gpu`: every method on one GPU and on the CPU
- `nano`: training of the bundled base model
"""
