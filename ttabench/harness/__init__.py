"""Methods as models of lm-evaluation-harness (lm-eval 0.4.13), so that all of its tasks can be
used.

    python -m ttabench.harness --model_args method=icl,model=nano --tasks copa --num_fewshot 10
    evaluate(model_args={"method": "mac", "set.hierarchy": 16}, tasks=["copa"])
    lm_eval.simple_evaluate(model="ttabench", model_args="method=icl", tasks=...)
                                                              # after `import ttabench.harness`

The `lm_eval` command only finds models in its own package. The first line is that command with this
package imported. Demonstrations are read as context, once for all documents that share them; the
rest of the prompt is the query (see `reading`). With `icl`, log-likelihoods equal those of `--model
hf`, if its tokenizer begins texts with BOS as ours does.

Model arguments: method, model, checkpoint, preset, task (for its bundled checkpoint),
random_weights, dtype, bos, max_context, base_checkpoint, device, keep, keep_tokens, threads;
`set.KEY=VALUE` for a setting of the method; `split`, see `reading.PromptSplitter`.
"""

from ttabench.core import is_importing_for_python_m, remove_current_folder_from_path

if is_importing_for_python_m():  # before this file imports torch; __main__.py runs later
    remove_current_folder_from_path()

from ttabench.harness.model import AdaptedLM, evaluate

__all__ = ["AdaptedLM", "evaluate"]
