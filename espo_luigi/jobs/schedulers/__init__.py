"""What a scheduler is: text that goes to its commands and text that comes back; Slurm and Grid Engine.

`base` defines the interface, `known` lists the schedulers, `commands` alone runs commands, `script` renders the job's
script. The schedulers themselves are pure functions of text.
"""
