"""What a method costs, measured: `ttabench profile`.

    command -> job -> driver -> worker, a fresh process a method -> measure | batches | training_cost
                        |                                                              |
    tables, picture <- record: profile.json, profile.csv <- rows <---------------------+

Each method runs in its own process, so its peaks are its own and running out of memory ends a row, not the command.
"""
