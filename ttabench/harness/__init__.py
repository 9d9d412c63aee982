"""Every method as a model of lm-evaluation-harness (lm-eval 0.4.13): any of its tasks runs under any method.

    python -m ttabench.harness --model_args method=icl,model=nano --tasks copa --num_fewshot 10
    evaluate(model_args={"method": "mac", "set.hierarchy": 16}, tasks=["copa"])
    lm_eval.simple_evaluate(model="ttabench", model_args="method=icl", tasks=...)    after `import ttabench.harness`

The `lm_eval` command looks for models in its own package only, so the first line is that command with this package
imported. Demonstrations are read as context, once for all documents that share them; what follows is the query (see
`reading`). Under `icl` the log-likelihoods are those of `--model hf`, where its tokenizer
begins texts with BOS as ours do.

Model arguments: method, model, checkpoint, preset, task (whose shipped checkpoint), random_weights, dtype,
device, threads; `set.KEY=VALUE` for a setting of the method; `split`, see `reading.PromptSplitter`.
"""

from ttabench.core import is_importing_for_python_m, remove_current_folder_from_path

if is_importing_for_python_m():  # this file is run before __main__.py, and imports torch
    remove_current_folder_from_path()

from ttabench.harness.model import AdaptedLM, evaluate

__all__ = ["AdaptedLM", "evaluate"]
