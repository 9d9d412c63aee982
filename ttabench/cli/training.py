"""`ttabench train` as it is typed; `train` does what was said."""

from __future__ import annotations

from ttabench.cli import options as o
from ttabench.cli import training_options as of_training
from ttabench.cli.ending import bounded
from ttabench.core.progress import say_loading


def train(
    method: o.Method = "mac",
    task: o.Task = "streamingqa",
    model: o.Model = "nano",
    base_checkpoint: o.BaseCheckpoint = "",
    random_weights: o.RandomWeights = False,
    preset: o.Preset = "",
    set_: o.Set = None,
    checkpoint: of_training.TrainFrom = "none",
    source: o.Source = "",
    split: o.Split = "train",
    task_set: o.TaskSet = None,
    also: of_training.Also = None,
    documents: of_training.Documents = "",
    rounds: of_training.Rounds = None,
    questions: of_training.Questions = None,
    batch_documents: of_training.BatchDocuments = None,
    steps: of_training.Steps = None,
    lr: of_training.Lr = None,
    warmup: of_training.Warmup = None,
    schedule: of_training.Schedule = "",
    optimizer: of_training.Optimizer = "",
    beta2: of_training.Beta2 = None,
    clip: of_training.Clip = None,
    decay: of_training.Decay = None,
    accumulate: of_training.Accumulate = 1,
    seed: o.Seed = 0,
    device: o.Device = "auto",
    threads: o.Threads = None,
    dtype: o.Dtype = "auto",
    memory_limit: o.MemoryLimit = "",
    bos: o.Bos = "auto",
    chat_template: o.ChatTemplate = None,
    out: of_training.TrainOut = None,
    save_every: of_training.SaveEvery = 500,
    validate_every: of_training.ValidateEvery = 100,
    stored: of_training.Stored = "float32",
    resume: of_training.Resume = False,  # noqa: ARG001  # what it asks for is done anyway
    force: of_training.Overwrite = False,
    json: o.AsJson = False,
    quiet: o.Quiet = False,
) -> None:
    """Train a method on a task and write a checkpoint that `eval --checkpoint` takes; the same command resumes."""
    say_loading(model, json or quiet)
    from ttabench.cli import commands
    from ttabench.cli import train as train_command
    from ttabench.run.resolve import RunRequest

    request = RunRequest(
        method=method, task=task, model=model, source=source, split=split, preset=preset, settings=tuple(set_ or ()),
        task_options=tuple(task_set or ()), checkpoint=checkpoint, device=device, dtype=dtype,
        random_weights=random_weights, bos=bos, chat_template=chat_template, base_checkpoint=base_checkpoint,
    )  # fmt: skip
    changes = {
        "documents": documents, "questions": questions, "batch_documents": batch_documents, "steps": steps, "lr": lr,
        "warmup": warmup, "schedule": schedule, "optimizer": optimizer, "beta2": beta2, "clip": clip, "decay": decay,
        "rounds": rounds,
    }  # fmt: skip
    training = train_command.Training(seed=seed, save_every=save_every, dtype=stored, resume=not force,
                                      accumulate=accumulate, validate_every=validate_every,
                                      also=tuple(also or ()))  # fmt: skip
    bounded(threads, memory_limit, device)
    storing, showing = commands.Storing(out=out, force=force), commands.Showing(json=json, quiet=quiet)
    train_command.train(request, changes, training, storing, showing)
