"""More than one process, more than one machine: torch and SkyPilot do the work, a session stays exact.

holdfast launch --nproc 2 my_script.py        launch.py watches the ranks to the end
agent.py, roster.py                           starts ranks on one machine, and replaces the one that is lost
torchrun.py                                   starts them on several machines, and all of them again
place.py, job.py                              which rank this is, and what outlives it
group.py, wrapped.py, rank.py                 what ranks agree on, who exchanges gradients, and the life of one
sky.py                                        a task file for SkyPilot
"""
