"""Somebody else's script under supervision: `holdfast run -- python train.py`.

    script_order.py        what to run
    script_setup.py        all a process of it needs to start, and little else: the command waits for what is imported
                           first
      streams.py           its stdin, stdout and stderr, passed on byte for byte
      script_start.py      starting it as it would start by itself
      script_processes.py  what it started, found and ended with it
      hook/                the few lines inside the script: steps, saves, the last exception, stacks
      hook_notes.py        what the hook wrote down, and which fault it is
    script_supervisor.py   the loop
      silence.py           a hang: silence_limit.py says how long it may be silent, activity.py whether it computes
                           meanwhile, and holdfast.supervisor.waits what it waits for
      steps.py             which step a checkpoint belongs to
    fault_answer.py        what follows when the script ends
      continuation.py      where it begins again: frameworks.py (Lightning, HF Trainer, ultralytics, Accelerate and
                           others), own_checkpoints.py (the newest that is whole), batches.py (smaller ones after memory
                           ran out)
      rungs.py             the ladder by environment, down to the CPU
      disk_space.py        a full disk is waited for; repetition.py: the same end each time
      script_end.py        the receipt
    attached.py            the other end of `holdfast.attach`: slots and keeper; attach_port.py: where it knocks

`holdfast train` supervises a worker of ours, forked from a nursery and asked to stop by a word on the board. Here the
worker is anything that can be started. What knows nothing of workers is shared with `supervisor`: the loop and the end
of a run (run_loop.py), what is done about a fault (fault_response.py), the faults so far and the question to the ladder
(fault_history.py), a silence and its fault (worker_watch.py), the process (supervised_process.py), signals
(signal_queue.py), the answers to a process (run_context.py), saves, keeper and trust.
No torch here, except in what a script imports itself.
"""
