"""Every causal architecture of the installed transformers, made tiny by rule, under the methods: right, or refused."""
