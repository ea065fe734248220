"""More than one process, more than one machine: torch's elastic agent and SkyPilot do the work, a session stays exact.

holdfast launch --nproc 2 my_script.py        torchrun.py starts and watches the ranks
place.py, job.py                              which rank this is, and what outlives it
group.py, rank.py                             what ranks agree on, and the life of one
sky.py                                        a task file for SkyPilot
"""
