"""Many runs: a suite becomes runs, an engine runs those that are not stored.

    suite file -> suite -> grid -> planning -> driver -> an engine: processes here, Ray, a job scheduler -> worker

The folder of the results is the queue: what is stored there is not run again, whoever ran it.
"""
