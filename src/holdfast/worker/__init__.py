"""The process that runs your script: session, step, retry, restore, checks."""
