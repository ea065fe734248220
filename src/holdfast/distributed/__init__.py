"""More than one process, more than one machine: torch exchanges the gradients, a session stays exact.

`holdfast launch --nproc 2 my_script.py` in launch.py: it starts an agent and watches it to the end.

Outside of the ranks, without torch:
    agent.py, rank_nursery.py                 start the ranks of one machine, and replace the one that is lost
    leader.py, machine_agent.py, machines.py  several machines: the first decides who is in, the others follow
    far_ladders.py                            what the first machine writes down of the ladders of the others
    machine_link.py, interfaces.py            what machines say to each other, and over which address
    roster.py, rank_devices.py, rank_ladder.py, rank_watch.py, rank_mail.py, rank_undo.py
                                              who belongs to the run, on which device, who hangs, what follows
    part_copies.py, rescue.py                 copies of parts on another machine; a machine that has lost the first one
    torchrun.py                               torch's agent, where forking is not possible
    sky.py                                    a task file for SkyPilot
Between both:
    place.py, job.py                          which rank this is, and what outlives it
In a rank:
    rank.py, rank_end.py                      its life, and what it leaves behind
    rank_link.py, rank_snapshots.py           its way to the run folder, what it goes on from
    joined_ranks.py, group.py, wrapped.py     ranks meet and vote; what they agree on; who exchanges gradients
    checked_commits.py                        the snapshot that ranks with parts of a model go back to
    share_keeper.py, share_rule.py, group_shares.py
                                              how many samples of a batch each rank computes
    connections.py, meeting.py, leave_watch.py, shared_votes.py, script_calls.py, stragglers.py
"""
